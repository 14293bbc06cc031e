//! Real time. The rig drives real processes, so that this crate has no other.
#![allow(clippy::disallowed_methods, reason = "the rig drives real processes in real time")]

use std::time::{Duration, Instant};

use crate::history::Micros;

/// Time since the run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// Begins now.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// How long ago that was.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// How long ago that was.
    pub(crate) fn micros(&self) -> Micros {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// How long ago that was.
    pub(crate) fn millis(&self) -> u64 {
        self.micros() / 1000
    }
}

/// Waits.
pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits that many milliseconds.
pub(crate) async fn sleep_ms(milliseconds: u64) {
    sleep(Duration::from_millis(milliseconds)).await;
}

/// What `future` answers, if it does within `limit`.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Runs a task of its own.
pub(crate) fn spawn<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future)
}

/// Does what would hold up others on a thread of its own. None: it panicked.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Asks until the answer is there, at most for `limit`, with `pause` in between.
pub(crate) async fn poll<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    pause: Duration,
    mut ask: impl FnMut() -> F,
) -> Option<T> {
    let clock = Clock::start();
    loop {
        if let Some(answer) = ask().await {
            return Some(answer);
        }
        if clock.elapsed() >= limit {
            return None;
        }
        sleep(pause).await;
    }
}

/// Microseconds since 1970.
pub(crate) fn unix_micros() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// Seconds since 1970, for reports.
pub(crate) fn unix_seconds() -> u64 {
    unix_micros() / 1_000_000
}
