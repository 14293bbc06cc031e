//! Why a replica stopped, said once.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// The first reason for which the replica cannot go on. Later ones are consequences.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    reason: Mutex<Option<String>>,
    barred: AtomicBool,
    raised: Notify,
}

impl Fault {
    pub(crate) fn raise(&self, reason: impl Into<String>) {
        let mut held = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            let reason = reason.into();
            tracing::error!(reason, "this replica has stopped");
            *held = Some(reason);
            drop(held);
            self.raised.notify_waiters();
        }
    }

    /// The replica must not start again from its directory.
    pub(crate) fn bar(&self, reason: String) {
        if !self.barred.swap(true, Ordering::SeqCst) {
            self.raise(reason);
        }
    }

    pub(crate) fn is_barred(&self) -> bool {
        self.barred.load(Ordering::SeqCst)
    }

    /// Waits until there is a reason.
    pub(crate) async fn wait(&self) {
        loop {
            let raised = self.raised.notified();
            if self.reason().is_some() {
                return;
            }
            raised.await;
        }
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
