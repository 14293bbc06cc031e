//! What a published batch changed, and the streams that carry it to watchers.
//!
//! # Invariants
//! - `WATCH-1` A watcher sees every published change set in order, or an explicit
//!   [`WatchEvent::Reset`] in place of those that it was too slow for; never a silent gap.

use std::{
    collections::{BTreeSet, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use futures::Stream;

use crate::{key::KeyBytes, state::Name};

/// Change sets that wait for one watcher before it is reset.
pub const WATCH_BACKLOG_MAX: usize = 4096;

/// What one published batch of entries changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    /// The index of the last entry applied.
    pub applied: u64,
    /// The revision of the published view.
    pub revision: u64,
    /// Rows put or deleted, index rows among them.
    pub rows: BTreeSet<(Name, KeyBytes)>,
    /// Work queue rows that were enqueued, requeued or finished, by kind and key.
    pub work: BTreeSet<(Name, Name)>,
    /// Leases that were granted, re-confirmed, marked for hand-off or lost.
    pub leases: BTreeSet<Name>,
    /// Sequence numbers of the first event and the first after the last one, when there are any.
    pub events: Option<(u64, u64)>,
    /// The logical clock after the batch.
    pub now_ms: u64,
    /// A snapshot was installed: everything may have changed.
    pub everything: bool,
}

impl ChangeSet {
    /// Whether a row of `table` changed.
    #[must_use]
    pub fn touches(&self, table: &str) -> bool {
        let start: (Name, KeyBytes) = (Arc::from(table), KeyBytes::new());
        self.everything
            || self.rows.range(start..).next().is_some_and(|(name, _)| name.as_ref() == table)
    }

    /// The keys of `table` that changed.
    pub fn keys_of<'a>(&'a self, table: &'a str) -> impl Iterator<Item = &'a KeyBytes> + 'a {
        let start: (Name, KeyBytes) = (Arc::from(table), KeyBytes::new());
        self.rows
            .range(start..)
            .take_while(move |(name, _)| name.as_ref() == table)
            .map(|(_, key)| key)
    }
}

/// What a watcher receives.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// The next change set.
    Changed(Arc<ChangeSet>),
    /// The watcher was too slow, and change sets were left out: read everything again.
    Reset,
}

#[derive(Debug, Default)]
struct Backlog {
    waiting: VecDeque<WatchEvent>,
    waker: Option<Waker>,
    closed: bool,
}

type SharedBacklog = Arc<Mutex<Backlog>>;

/// A poisoned backlog holds whole events all the same: pushes are single operations.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of change sets from the moment it was made. Ends when the store stops.
#[derive(Debug)]
pub struct Watch(SharedBacklog);

impl Watch {
    /// The next event if one waits.
    #[must_use]
    pub fn try_next(&mut self) -> Option<WatchEvent> {
        lock(&self.0).waiting.pop_front()
    }
}

impl Stream for Watch {
    type Item = WatchEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        let mut backlog = lock(&self.0);
        if let Some(event) = backlog.waiting.pop_front() {
            return Poll::Ready(Some(event));
        }
        if backlog.closed {
            return Poll::Ready(None);
        }
        backlog.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The watchers of one machine. Woken in the order in which they came, so that a simulation
/// repeats.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<Vec<Weak<Mutex<Backlog>>>>);

impl Watchers {
    /// A new watcher, from now on.
    #[must_use]
    pub fn subscribe(&self) -> Watch {
        let backlog = SharedBacklog::default();
        lock(&self.0).push(Arc::downgrade(&backlog));
        Watch(backlog)
    }

    /// Hands a change set to every watcher and wakes each once.
    pub fn publish(&self, changes: ChangeSet) {
        let changes = Arc::new(changes);
        self.each(|backlog| {
            if backlog.waiting.len() >= WATCH_BACKLOG_MAX {
                backlog.waiting.clear();
                backlog.waiting.push_back(WatchEvent::Reset);
            }
            backlog.waiting.push_back(WatchEvent::Changed(changes.clone()));
        });
    }

    /// Ends every stream, after what waits in it.
    pub fn close(&self) {
        self.each(|backlog| backlog.closed = true);
    }

    fn each(&self, mut change: impl FnMut(&mut Backlog)) {
        lock(&self.0).retain(|weak| {
            let Some(shared) = weak.upgrade() else {
                return false;
            };
            let waker = {
                let mut backlog = lock(&shared);
                change(&mut backlog);
                backlog.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(applied: u64) -> ChangeSet {
        ChangeSet { applied, ..ChangeSet::default() }
    }

    #[test]
    fn a_slow_watcher_is_told_that_it_missed_something() {
        let watchers = Watchers::default();
        let mut watch = watchers.subscribe();
        let total = u64::try_from(WATCH_BACKLOG_MAX).unwrap() + 1;
        for applied in 0..total {
            watchers.publish(set(applied));
        }
        assert!(matches!(watch.try_next(), Some(WatchEvent::Reset)));
        assert!(matches!(watch.try_next(), Some(WatchEvent::Changed(s)) if s.applied == total - 1));
        assert!(watch.try_next().is_none());
    }

    #[test]
    fn a_dropped_watcher_is_forgotten() {
        let watchers = Watchers::default();
        drop(watchers.subscribe());
        watchers.publish(set(1));
        assert!(lock(&watchers.0).is_empty());
    }

    #[test]
    fn touched_tables_are_found_by_name() {
        let mut changes = set(1);
        changes.rows.insert((Arc::from("nodes"), KeyBytes::from_slice(b"a")));
        assert!(changes.touches("nodes"));
        assert!(!changes.touches("node"));
        assert!(!changes.touches("nodes2"));
    }
}
