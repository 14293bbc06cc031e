//! The end of a replica's tasks.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::{BoxFuture, Either, select};
use palisade_state::Rt;
use tokio::sync::Notify;

/// Set once; every task of the replica ends by it.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    set: AtomicBool,
    changed: Notify,
}

impl Stop {
    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    async fn wait(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_set() {
                return;
            }
            changed.await;
        }
    }
}

/// Runs a task until it ends or the replica stops.
pub(crate) fn spawn_until(
    rt: &Rt,
    stop: std::sync::Arc<Stop>,
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let task: BoxFuture<'static, ()> = Box::pin(async move {
        let task = std::pin::pin!(task);
        let stopped = std::pin::pin!(stop.wait());
        if let Either::Left(_) = select(task, stopped).await {
            tracing::debug!(task = name, "a task ended by itself");
        }
    });
    rt.spawn(name, task);
}
