//! The runtime port over tokio: the one place where real time, real randomness and real tasks come in.
#![expect(clippy::disallowed_methods, reason = "this is the production side of the Runtime port")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use palisade_state::Runtime;
use rand::Rng as _;

/// The first words of events given to [`Runtime::trace`].
pub mod trace {
    /// An entry was applied: its index, its term, and the logical milliseconds after it.
    pub const APPLIED: u64 = 1;
    /// Another leader was seen, or none: the term and who leads (0: nobody).
    pub const LEADER: u64 = 2;
}

/// [`Runtime`] over a tokio runtime.
#[derive(Debug, Clone)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    start: Instant,
}

impl TokioRuntime {
    /// Tasks are spawned on `handle`.
    #[must_use]
    pub fn new(handle: tokio::runtime::Handle) -> Self {
        Self { handle, start: Instant::now() }
    }

    /// Starts a runtime with one thread, for a replica that is to have it for itself. The thread ends with the
    /// process.
    ///
    /// # Errors
    /// The thread or the runtime cannot be made.
    pub fn on_own_thread(name: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(std::future::pending::<()>());
        })?;
        Ok(Self::new(handle))
    }

    /// Tasks are spawned on the runtime of the calling task.
    ///
    /// # Errors
    /// The caller is not inside a tokio runtime.
    pub fn current() -> Result<Self, tokio::runtime::TryCurrentError> {
        tokio::runtime::Handle::try_current().map(Self::new)
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // The caller's own timer where it has one.
        let _entered = tokio::runtime::Handle::try_current().is_err().then(|| self.handle.enter());
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let task = self.handle.spawn(task);
        self.handle.spawn(async move {
            if let Err(error) = task.await
                && error.is_panic()
            {
                tracing::error!(task = name, "a task panicked");
            }
        });
    }

    fn random(&self) -> u64 {
        rand::rng().next_u64()
    }
}
