//! How far a start is, for whoever waits for it from outside.

use std::fs;

use serde::{Deserialize, Serialize};

use super::layout::{Layout, replace};

/// `run/state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "lowercase")]
pub(super) enum RunState {
    /// It starts.
    Starting {
        /// The supervisor.
        pid: u32,
    },
    /// It runs.
    Ready {
        /// The supervisor.
        pid: u32,
        /// How long the start took.
        milliseconds: u64,
        /// Lines about nodes that are not ready.
        #[serde(default)]
        late: Vec<String>,
    },
    /// It could not start.
    Failed {
        /// The supervisor.
        pid: u32,
        /// The exit code.
        exit: u8,
        /// What it said.
        message: String,
    },
    /// It ended in order.
    Stopped,
}

impl RunState {
    pub fn read(layout: &Layout) -> Option<Self> {
        serde_json::from_slice(&fs::read(layout.state()).ok()?).ok()
    }

    pub fn write(&self, layout: &Layout) {
        // Who waits sees the process end when this fails.
        let _ = serde_json::to_vec(self)
            .map_err(std::io::Error::from)
            .and_then(|bytes| replace(&layout.state(), &bytes));
    }
}
