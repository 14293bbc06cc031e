//! A flag that is raised once and can be waited for.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Inner {
    raised: AtomicBool,
    notify: Notify,
}

/// The flag. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<Inner>);

impl Stop {
    /// Raises it.
    pub(crate) fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    /// Whether it was raised.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    /// Ends once it is raised.
    pub(crate) async fn raised(&self) {
        let mut notified = std::pin::pin!(self.0.notify.notified());
        notified.as_mut().enable();
        if !self.is_raised() {
            notified.await;
        }
    }
}
