//! The runtime port, so that session and convergence also run in the simulator.
//!
//! It has the shape of the port in `palisade-state`.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;

/// A shared handle to the runtime port.
pub type Rt = Arc<dyn Runtime>;

/// Time, randomness and tasks.
pub trait Runtime: Send + Sync + 'static {
    /// Monotonic time since some fixed moment of this process; never goes back.
    fn now(&self) -> Duration;

    /// Wall-clock milliseconds since the Unix epoch; for people, never for decisions.
    fn wall_ms(&self) -> u64;

    /// Ends after `duration` of monotonic time.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Runs a task until it ends. The task's owner keeps a way to stop it.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);

    /// A random number, from the seed in simulation and from the system elsewhere.
    fn random(&self) -> u64;

    /// A named place at which the simulator may end this process; does nothing elsewhere.
    fn crash_point(&self, _name: &'static str) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Adds an event to the simulator's trace hash; does nothing elsewhere.
    fn trace(&self, _event: &[u64]) {}
}

/// Runs `work` for at most `limit`; `None` when the time ran out first.
pub async fn timeout<T: Send>(
    rt: &dyn Runtime,
    limit: Duration,
    work: impl Future<Output = T> + Send,
) -> Option<T> {
    let work = std::pin::pin!(work);
    match futures::future::select(work, rt.sleep(limit)).await {
        futures::future::Either::Left((value, _)) => Some(value),
        futures::future::Either::Right(((), _)) => None,
    }
}
