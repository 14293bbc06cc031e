//! What a published batch changed, and the streams that carry it to watchers.
//!
//! # Invariants
//! - `WATCH-1` A watcher sees every published change set in order, from now on or from the revision
//!   that it named, or an explicit [`WatchEvent::Reset`] in place of those that it was too slow or
//!   too late for; never a silent gap.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use futures::Stream;

use crate::{key::KeyBytes, queue::WorkKey, state::Name};

/// Change sets that wait for one watcher before it is reset.
pub const WATCH_BACKLOG_MAX: usize = 4096;

/// Change sets that are kept for watchers that begin at an earlier revision.
pub const RECENT_SETS_MAX: usize = WATCH_BACKLOG_MAX;

/// Rows, work items and leases in the change sets that are kept.
pub const RECENT_ITEMS_MAX: usize = 100_000;

/// What one published batch of entries changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    /// The index of the last entry applied.
    pub applied: u64,
    /// The revision of the published view.
    pub revision: u64,
    /// Rows put or deleted, index rows among them; in order, each once.
    pub rows: Vec<(Name, KeyBytes)>,
    /// Work queue rows that were enqueued, requeued or finished, by kind and key; in order, each
    /// once.
    pub work: Vec<WorkKey>,
    /// Leases that were granted, re-confirmed, marked for hand-off or lost; in order, each once.
    pub leases: Vec<Name>,
    /// What replicas reported of themselves, or the active format, changed.
    pub replicas: bool,
    /// Sequence numbers of the first event and the first after the last one, when there are any.
    pub events: Option<(u64, u64)>,
    /// The logical clock after the batch.
    pub now_ms: u64,
    /// A snapshot was installed: everything may have changed.
    pub everything: bool,
}

impl ChangeSet {
    fn items(&self) -> usize {
        self.rows.len() + self.work.len() + self.leases.len()
    }

    /// Whether nothing but time passed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items() == 0 && self.events.is_none() && !self.replicas && !self.everything
    }

    /// Whether a row of `table` changed.
    #[must_use]
    pub fn touches(&self, table: &str) -> bool {
        self.everything || self.keys_of(table).next().is_some()
    }

    /// The keys of `table` that changed, in order.
    pub fn keys_of<'a>(&'a self, table: &'a str) -> impl Iterator<Item = &'a KeyBytes> + 'a {
        let first = self.rows.partition_point(|(name, _)| name.as_ref() < table);
        self.rows
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(move |(name, _)| name.as_ref() == table)
            .map(|(_, key)| key)
    }

    /// The keys of work of `kind` that changed, in order.
    pub fn work_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Name> + 'a {
        let first = self.work.partition_point(|(name, _)| name.as_ref() < kind);
        self.work
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(move |(name, _)| name.as_ref() == kind)
            .map(|(_, key)| key)
    }
}

/// What apply has changed since the last publication, in the order in which it did.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) rows: Vec<(Name, KeyBytes)>,
    pub(crate) work: Vec<WorkKey>,
    pub(crate) leases: Vec<Name>,
    pub(crate) events: Option<(u64, u64)>,
    /// Changes of what replicas reported and of the active format.
    pub(crate) replicas: usize,
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort_unstable();
    items.dedup();
    items
}

impl Changes {
    /// How much has changed; grows with each change, but for events.
    pub(crate) fn count(&self) -> usize {
        self.rows.len() + self.work.len() + self.leases.len() + self.replicas
    }

    /// Takes them all.
    pub(crate) fn take(&mut self) -> ChangeSet {
        let taken = std::mem::take(self);
        ChangeSet {
            rows: sorted(taken.rows),
            work: sorted(taken.work),
            leases: sorted(taken.leases),
            replicas: taken.replicas > 0,
            events: taken.events,
            ..ChangeSet::default()
        }
    }
}

/// What a watcher receives.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// The next change set.
    Changed(Arc<ChangeSet>),
    /// Change sets were left out, because the watcher was too slow or began at a revision that is no
    /// longer remembered: read everything again.
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

/// The newest change sets, for watchers that begin at an earlier revision.
#[derive(Debug)]
struct Recent {
    sets: VecDeque<Arc<ChangeSet>>,
    items: usize,
    /// Every change of an entry after this index is in `sets`.
    floor: u64,
}

impl Recent {
    fn keep(&mut self, changes: &Arc<ChangeSet>) {
        if changes.everything {
            *self = Self { sets: VecDeque::new(), items: 0, floor: changes.applied };
        } else if !changes.is_empty() {
            debug_assert!(
                self.sets.back().is_none_or(|last| last.applied < changes.applied)
                    && self.floor < changes.applied,
                "WATCH-1: change sets come in order"
            );
            self.items += changes.items();
            self.sets.push_back(changes.clone());
        }
        while self.sets.len() > RECENT_SETS_MAX || self.items > RECENT_ITEMS_MAX {
            let Some(oldest) = self.sets.pop_front() else { return };
            self.items -= oldest.items();
            self.floor = oldest.applied;
        }
    }
}

#[derive(Debug)]
struct Inner {
    backlogs: Vec<Weak<Mutex<Backlog>>>,
    recent: Recent,
}

/// The watchers of one machine. Woken in the order in which they came, so that a simulation
/// repeats.
#[derive(Debug)]
pub struct Watchers(Mutex<Inner>);

impl Watchers {
    /// Nobody watches yet, and nothing after the entry at `applied` has changed.
    #[must_use]
    pub fn new(applied: u64) -> Self {
        let recent = Recent { sets: VecDeque::new(), items: 0, floor: applied };
        Self(Mutex::new(Inner { backlogs: Vec::new(), recent }))
    }

    /// A new watcher, from now on.
    #[must_use]
    pub fn subscribe(&self) -> Watch {
        lock(&self.0).add(VecDeque::new())
    }

    /// A new watcher of everything after `revision`; it begins with a reset when that is no longer
    /// remembered. Its first change set may hold earlier changes too, of the same batch.
    #[must_use]
    pub fn subscribe_from(&self, revision: u64) -> Watch {
        let mut inner = lock(&self.0);
        let waiting = if revision < inner.recent.floor {
            VecDeque::from([WatchEvent::Reset])
        } else {
            let missed = inner.recent.sets.partition_point(|set| set.applied <= revision);
            inner.recent.sets.range(missed..).cloned().map(WatchEvent::Changed).collect()
        };
        inner.add(waiting)
    }

    /// Hands a change set to every watcher and wakes each once.
    pub fn publish(&self, changes: ChangeSet) {
        let changes = Arc::new(changes);
        let mut inner = lock(&self.0);
        inner.recent.keep(&changes);
        inner.each(|backlog| {
            if backlog.waiting.len() >= WATCH_BACKLOG_MAX {
                backlog.waiting.clear();
                backlog.waiting.push_back(WatchEvent::Reset);
            }
            backlog.waiting.push_back(WatchEvent::Changed(changes.clone()));
        });
    }

    /// Ends every stream, after what waits in it.
    pub fn close(&self) {
        lock(&self.0).each(|backlog| backlog.closed = true);
    }
}

impl Inner {
    fn add(&mut self, waiting: VecDeque<WatchEvent>) -> Watch {
        let backlog = Arc::new(Mutex::new(Backlog { waiting, ..Backlog::default() }));
        self.backlogs.push(Arc::downgrade(&backlog));
        Watch(backlog)
    }

    fn each(&mut self, mut change: impl FnMut(&mut Backlog)) {
        self.backlogs.retain(|weak| {
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
        let watchers = Watchers::new(0);
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
        let watchers = Watchers::new(0);
        drop(watchers.subscribe());
        watchers.publish(set(1));
        assert!(lock(&watchers.0).backlogs.is_empty());
    }

    fn row_set(applied: u64, rows: usize) -> ChangeSet {
        let row = |n: usize| (Arc::from("t"), KeyBytes::from_slice(&n.to_be_bytes()));
        ChangeSet { rows: (0..rows).map(row).collect(), ..set(applied) }
    }

    fn next_applied(watch: &mut Watch) -> Option<u64> {
        match watch.try_next()? {
            WatchEvent::Changed(changes) => Some(changes.applied),
            WatchEvent::Reset => panic!("a reset"),
        }
    }

    #[test]
    fn a_watcher_from_a_revision_sees_everything_after_it() {
        let watchers = Watchers::new(10);
        for applied in [12, 15, 18] {
            watchers.publish(row_set(applied, 1));
        }
        for (from, expected) in
            [(10, vec![12, 15, 18]), (13, vec![15, 18]), (18, vec![]), (30, vec![])]
        {
            let mut watch = watchers.subscribe_from(from);
            let seen: Vec<u64> = std::iter::from_fn(|| next_applied(&mut watch)).collect();
            assert_eq!(seen, expected, "from {from}");
        }
        let mut live = watchers.subscribe_from(18);
        watchers.publish(row_set(19, 1));
        assert_eq!(next_applied(&mut live), Some(19));
    }

    #[test]
    fn a_watcher_from_a_forgotten_revision_is_reset_first() {
        let watchers = Watchers::new(10);
        let is_reset =
            |from| matches!(watchers.subscribe_from(from).try_next(), Some(WatchEvent::Reset));
        assert!(is_reset(9), "before this machine began");
        watchers.publish(row_set(11, RECENT_ITEMS_MAX));
        assert!(!is_reset(10));
        watchers.publish(row_set(12, 1));
        assert!(is_reset(10), "the oldest set was dropped");
        assert!(!is_reset(11));
        watchers.publish(ChangeSet { everything: true, ..set(20) });
        assert!(is_reset(19), "a snapshot was installed");
        assert!(!is_reset(20));
    }

    #[test]
    fn touched_tables_are_found_by_name() {
        let mut changes = set(1);
        changes.rows.push((Arc::from("nodes"), KeyBytes::from_slice(b"a")));
        assert!(changes.touches("nodes"));
        assert!(!changes.touches("node"));
        assert!(!changes.touches("nodes2"));
    }
}
