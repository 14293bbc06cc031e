//! Work that blocks: on a thread of its own in production, in place in a simulation.

use std::{io, sync::Arc};

use tokio::sync::oneshot;

use crate::disk::{Files, StdFiles};

/// The niceness of work that nobody waits for.
const NICE: i32 = 5;

/// The disk under a replica, and what may block on it.
#[derive(Clone)]
pub struct Disk {
    pub(crate) files: Arc<dyn Files>,
    /// Whether the disk is real: threads block on it, and its directory is locked.
    pub(crate) real: bool,
}

impl Disk {
    /// The machine's file system; blocking work has threads of its own.
    #[must_use]
    pub fn real() -> Self {
        Self { files: Arc::new(StdFiles), real: true }
    }

    /// Another way to the machine's disk, on which threads may block; the directory is locked on the machine's.
    #[must_use]
    pub fn over(files: Arc<dyn Files>) -> Self {
        Self { files, real: true }
    }

    /// A simulated file system; nothing blocks, so everything runs in place.
    #[must_use]
    pub fn simulated(files: Arc<dyn Files>) -> Self {
        Self { files, real: false }
    }

    /// Runs `work` where it may block, behind everything else that wants the processor: for work that nobody waits for.
    pub(crate) async fn run_behind<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let is_real = self.real;
        self.run(name, move || {
            // Of the calling thread alone, on Linux. Without it the work is only more in the way.
            if is_real && let Err(error) = rustix::process::setpriority_process(None, NICE) {
                tracing::debug!(%error, thread = name, "a thread keeps its priority");
            }
            work()
        })
        .await
    }

    /// Runs `work` where it may block.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if !self.real {
            return Ok(work());
        }
        let (tx, rx) = oneshot::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = tx.send(work());
        })?;
        rx.await.map_err(|_| io::Error::other(format!("the thread {name} panicked")))
    }
}
