//! Progress on stderr: a line that lives on a terminal, plain lines elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{is_live, say};

const TICK: Duration = Duration::from_millis(100);

/// Shows what is going on, and only when that changes.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    last: String,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Nothing is shown yet.
    #[must_use]
    pub fn new() -> Self {
        Self { bar: is_live().then(live_line), last: String::new() }
    }

    /// What is going on now.
    pub fn update(&mut self, text: &str) {
        if text == self.last {
            return;
        }
        text.clone_into(&mut self.last);
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => say(text),
        }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    /// Ends the living line.
    pub fn end(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn live_line() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed:>4}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}
