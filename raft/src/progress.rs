//! How far this replica has applied, and who waits for it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

#[derive(Debug, Default)]
struct State {
    applied: u64,
    closed: bool,
    next_ticket: u64,
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
}

/// The last index that was applied *and published*.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<State>);

/// The replica stopped before it got there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn applied(&self) -> u64 {
        self.state().applied
    }

    /// Notes that everything up to `index` is published, and wakes who waits for it, lowest first.
    pub(crate) fn reached(&self, index: u64) {
        let mut state = self.state();
        state.applied = state.applied.max(index);
        let next = state.applied + 1;
        let after = state.waiting.split_off(&(next, 0));
        let ready = std::mem::replace(&mut state.waiting, after);
        drop(state);
        for (_, waiter) in ready {
            let _ = waiter.send(());
        }
    }

    /// Ends all waiting: nothing will be applied any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
    }

    /// Waits until `index` is applied.
    pub(crate) async fn wait(&self, index: u64) -> Result<(), Closed> {
        let waiter = {
            let mut state = self.state();
            if state.applied >= index {
                return Ok(());
            }
            if state.closed {
                return Err(Closed);
            }
            // Waiters that gave up leave now and then.
            if state.next_ticket.is_multiple_of(1024) {
                state.waiting.retain(|_, waiter| !waiter.is_closed());
            }
            let (tx, rx) = oneshot::channel();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.insert((index, ticket), tx);
            rx
        };
        waiter.await.map_err(|_| Closed)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_waiter_is_woken_by_its_index_and_not_before() {
        let progress = Progress::default();
        let mut wait = Box::pin(progress.wait(5));
        assert!(wait.as_mut().now_or_never().is_none());
        progress.reached(4);
        assert!(wait.as_mut().now_or_never().is_none());
        progress.reached(5);
        assert_eq!(wait.now_or_never(), Some(Ok(())));
        assert_eq!(progress.wait(3).now_or_never(), Some(Ok(())));
    }

    #[test]
    fn a_stop_ends_all_waiting() {
        let progress = Progress::default();
        let mut wait = Box::pin(progress.wait(5));
        assert!(wait.as_mut().now_or_never().is_none());
        progress.close();
        assert_eq!(wait.now_or_never(), Some(Err(Closed)));
        assert_eq!(progress.wait(6).now_or_never(), Some(Err(Closed)));
    }
}
