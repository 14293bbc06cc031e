//! One watcher's end: the messages that wait for it, encoded once for all who get them.
//!
//! # Invariants
//! - `WATCH-2` A watcher that is too slow is told so in place of what it missed; what waits for it is bounded.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures::Stream;

use super::hub::{Hub, Place};

/// Messages that wait for one watcher, at most.
const WAITING_MAX: usize = 1024;
/// Bytes of them, at most; a single one may be larger.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Bytes>,
    bytes: usize,
    waker: Option<Waker>,
    closed: bool,
}

/// What waits for one watcher.
#[derive(Default)]
pub(crate) struct Backlog(Mutex<Waiting>);

impl Backlog {
    fn held(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message; false when it was too much, and `reset` took the place of all that waited.
    pub(crate) fn push(&self, message: &Bytes, reset: impl FnOnce() -> Bytes) -> bool {
        let mut held = self.held();
        let is_full = held.messages.len() >= WAITING_MAX
            || (held.bytes + message.len() > WAITING_BYTES_MAX && !held.messages.is_empty());
        if is_full {
            held.messages.clear();
            let reset = reset();
            held.bytes = reset.len();
            held.messages.push_back(reset);
        } else {
            held.bytes += message.len();
            held.messages.push_back(message.clone());
        }
        let waker = held.waker.take();
        drop(held);
        waker.into_iter().for_each(Waker::wake);
        !is_full
    }

    /// Ends it after what waits.
    pub(crate) fn close(&self) {
        let mut held = self.held();
        held.closed = true;
        let waker = held.waker.take();
        drop(held);
        waker.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut held = self.held();
        if let Some(message) = held.messages.pop_front() {
            held.bytes -= message.len();
            return Poll::Ready(Some(message));
        }
        if held.closed {
            return Poll::Ready(None);
        }
        held.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The messages of one watch, encoded. Ends when the replica stops.
pub(crate) struct Watcher {
    pub(super) backlog: Arc<Backlog>,
    pub(super) hub: Weak<Hub>,
    pub(super) place: Place,
}

impl Stream for Watcher {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.backlog.poll(cx)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.leave(&self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker_ref;

    use super::*;

    fn next(backlog: &Backlog) -> Option<Bytes> {
        match backlog.poll(&mut Context::from_waker(noop_waker_ref())) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_watcher_that_is_too_slow_finds_a_reset_and_what_came_after_it() {
        let backlog = Backlog::default();
        let message = Bytes::from_static(b"message");
        let reset = || Bytes::from_static(b"reset");
        for _ in 0..WAITING_MAX {
            assert!(backlog.push(&message, reset));
        }
        assert!(!backlog.push(&message, reset));
        assert!(backlog.push(&message, reset));
        assert_eq!(next(&backlog).as_deref(), Some(&b"reset"[..]));
        assert_eq!(next(&backlog).as_deref(), Some(&b"message"[..]));
        assert_eq!(next(&backlog), None);
    }

    #[test]
    fn a_watcher_is_bounded_in_bytes_too() {
        let backlog = Backlog::default();
        let large = Bytes::from(vec![0; WAITING_BYTES_MAX + 1]);
        let reset = || Bytes::from_static(b"reset");
        assert!(backlog.push(&large, reset), "a single one may be larger");
        assert!(!backlog.push(&large, reset));
        assert_eq!(next(&backlog).as_deref(), Some(&b"reset"[..]));
    }
}
