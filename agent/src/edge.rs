//! The runtime port over tokio and the system's clocks: the one place that touches them.
#![allow(
    clippy::disallowed_methods,
    reason = "this is the real implementation behind the Runtime port"
)]

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;

use crate::port::{Rt, Runtime};

/// The runtime port over tokio.
#[derive(Debug)]
pub struct TokioRuntime {
    origin: Instant,
}

impl TokioRuntime {
    /// A handle whose monotonic time starts now.
    #[must_use]
    pub fn shared() -> Rt {
        Arc::new(Self { origin: Instant::now() })
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        tracing::trace!(name, "task started");
        tokio::spawn(task);
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}

/// Runs blocking work (files, processes) off the executor's threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, std::io::Error> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| std::io::Error::other(format!("blocking work did not end: {error}")))
}
