//! `palisade dev stop`: ends what runs in a directory, with or without its supervisor.

use std::{fs, time::Duration};

use rustix::process::Signal;

use super::{
    layout::Layout,
    lock::{Holder, Lock},
    orphans,
};
use crate::{
    edge,
    output::{Exit, Failure, Outcome},
};

const STOP_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// What `stop` is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopOptions {
    /// Leave instances running.
    pub keep_instances: bool,
}

/// What `stop` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A supervisor, which stopped all in order.
    Supervisor(u32),
    /// No supervisor, but so many processes that one left behind.
    Orphans(usize),
    /// Nothing.
    Nothing,
}

/// Whether this is a directory of `palisade dev`.
///
/// # Errors
/// It is not.
pub fn check_ours(layout: &Layout) -> Outcome {
    if layout.is_ours() {
        return Ok(());
    }
    let what = format!("{} is no directory of `palisade dev`", layout.root().display());
    Err(Failure::new(Exit::NotFound, what).hint("give its --dir"))
}

/// Ends what runs.
///
/// # Errors
/// It does not end.
pub async fn stop(layout: &Layout, options: StopOptions) -> Outcome<Stopped> {
    check_ours(layout)?;
    match Lock::holder(layout) {
        Holder::Nobody => {
            let _lock = Lock::acquire(layout)?;
            sweep(layout, options).await
        }
        Holder::Somebody(_) => stop_supervisor(layout, options).await,
    }
}

/// Stops what a supervisor left behind. The caller holds the lock.
pub(super) async fn sweep(layout: &Layout, options: StopOptions) -> Outcome<Stopped> {
    let mut found = orphans::stop_children(layout).await?;
    if !options.keep_instances {
        found += orphans::stop_instances(layout).await?;
    }
    Ok(if found == 0 { Stopped::Nothing } else { Stopped::Orphans(found) })
}

async fn stop_supervisor(layout: &Layout, options: StopOptions) -> Outcome<Stopped> {
    if options.keep_instances {
        fs::write(layout.keep_instances(), b"")?;
    }
    let began = edge::now();
    let mut asked = None;
    while began.elapsed() < STOP_LIMIT {
        match Lock::holder(layout) {
            Holder::Nobody => return Ok(Stopped::Supervisor(asked.unwrap_or(0))),
            Holder::Somebody(Some(who)) if asked != Some(who.pid) => {
                if who.signal(Signal::TERM) {
                    asked = Some(who.pid);
                }
            }
            Holder::Somebody(_) => {}
        }
        edge::sleep(POLL).await;
    }
    Err(Failure::new(
        Exit::TimedOut,
        format!(
            "process {} does not end; it was asked {} s ago",
            asked.map_or("unknown".to_owned(), |pid| pid.to_string()),
            STOP_LIMIT.as_secs()
        ),
    )
    .hint(format!("its log is {}", layout.log("supervisor").display())))
}
