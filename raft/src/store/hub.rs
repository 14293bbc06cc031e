//! Watches of the Store service: one look at each published batch, whatever the number of watchers.
//!
//! # Invariants
//! - `WATCH-3` A message tells the state of its rows at exactly its revision, and each change at or behind the place
//!   where the watch began is told, or a reset in its stead.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::StreamExt;
use palisade_state::{Published, Rt, View, Watch, WatchEvent};

use super::{
    batch::{Batch, Gathered},
    interest::{Span, Spans},
    message,
    rows::{End, Range},
    watcher::{Backlog, Watcher},
};
use crate::{metrics::Metrics, refusal::Refusal};

/// Watches of one replica, at most.
const WATCHERS_MAX: usize = 65_536;
/// How often watched ranges of one replica lie over each other, at most: 8 bytes each time.
const WEIGHT_MAX: usize = 1_000_000;

/// What a watch is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    /// Rows of a table.
    Rows { table: String, span: Span },
    /// The work of a kind.
    Work { kind: String },
}

impl From<Range> for Topic {
    fn from(range: Range) -> Self {
        let Range { table, start, end } = range;
        let span = match end {
            End::One => Span::one(&start),
            End::Before(end) => Span { start, end: Some(end) },
            End::Open => Span { start, end: None },
        };
        Self::Rows { table, span }
    }
}

/// Where a watcher is in the hub.
#[derive(Clone, Debug)]
pub(super) struct Place {
    group: u64,
    watcher: u64,
}

/// Watchers of the same thing.
pub(super) struct Group {
    pub(super) topic: Topic,
    watchers: BTreeMap<u64, Arc<Backlog>>,
}

#[derive(Default)]
struct State {
    /// What all messages so far have told; `None` while nobody watches.
    told: Option<View>,
    next: u64,
    watchers: usize,
    weight: usize,
    groups: BTreeMap<u64, Group>,
    by_topic: BTreeMap<Topic, u64>,
    tables: BTreeMap<String, Spans>,
    kinds: BTreeMap<String, u64>,
    closed: bool,
}

/// See the module.
pub(crate) struct Hub {
    rt: Rt,
    published: Arc<Published>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn group(&mut self, topic: Topic) -> Result<u64, Refusal> {
        if let Some(id) = self.by_topic.get(&topic) {
            return Ok(*id);
        }
        let id = self.number();
        match &topic {
            Topic::Rows { table, span } => {
                let more = self.tables.get(table).map_or(1, |spans| spans.weight_of(span));
                if self.weight + more > WEIGHT_MAX {
                    return Err(Refusal::TooLarge(format!(
                        "the ranges of table {table} that are watched here lie over each other too much"
                    )));
                }
                let spans = self.tables.entry(table.clone()).or_default();
                let before = spans.weight();
                spans.insert(id, span);
                self.weight += spans.weight() - before;
            }
            Topic::Work { kind } => drop(self.kinds.insert(kind.clone(), id)),
        }
        self.by_topic.insert(topic.clone(), id);
        self.groups.insert(id, Group { topic, watchers: BTreeMap::new() });
        Ok(id)
    }

    fn leave(&mut self, place: &Place) {
        let Some(group) = self.groups.get_mut(&place.group) else { return };
        self.watchers -= usize::from(group.watchers.remove(&place.watcher).is_some());
        if !group.watchers.is_empty() {
            return;
        }
        let Some(Group { topic, .. }) = self.groups.remove(&place.group) else { return };
        self.by_topic.remove(&topic);
        match topic {
            Topic::Rows { table, span } => {
                if let Some(spans) = self.tables.get_mut(&table) {
                    let before = spans.weight();
                    spans.remove(place.group, &span);
                    self.weight -= before - spans.weight();
                    if spans.is_empty() {
                        self.tables.remove(&table);
                    }
                }
            }
            Topic::Work { kind } => drop(self.kinds.remove(&kind)),
        }
    }

    /// What of a batch concerns which group, as far as it was not told.
    fn gather(&self, batch: &Batch, told: u64) -> BTreeMap<u64, Gathered> {
        let mut found: BTreeMap<u64, Gathered> = BTreeMap::new();
        for set in batch.sets.iter().filter(|set| set.applied > told) {
            for (table, key) in &set.rows {
                let Some(spans) = self.tables.get(table.as_ref()) else { continue };
                for id in spans.over(key) {
                    found.entry(*id).or_default().rows.insert(key.clone());
                }
            }
            for (kind, key) in &set.work {
                if let Some(id) = self.kinds.get(kind.as_ref()) {
                    found.entry(*id).or_default().work.insert(key.clone());
                }
            }
        }
        found
    }
}

impl Hub {
    pub(crate) fn new(rt: Rt, published: Arc<Published>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { rt, published, metrics, state: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to watch; `from` 0 is now.
    pub(crate) fn watch(self: &Arc<Self>, topic: Topic, from: u64) -> Result<Watcher, Refusal> {
        let mut state = self.held();
        if state.closed {
            return Err(Refusal::Unavailable("it is stopping".to_owned()));
        }
        if state.watchers >= WATCHERS_MAX {
            let what = format!("{WATCHERS_MAX} watches are open, and that is the most");
            return Err(Refusal::TooLarge(what));
        }
        let told = match &state.told {
            Some(told) => told.clone(),
            None => {
                // The changes first: what is published in between is told twice, and not never.
                let changes = self.published.watch();
                let told = self.published.view();
                state.told = Some(told.clone());
                let hub = self.clone();
                self.rt.spawn("watches", Box::pin(async move { hub.run(changes).await }));
                told
            }
        };
        let first = self.first(&topic, from, &told);
        let group = state.group(topic)?;
        let watcher = state.number();
        let backlog = Arc::new(Backlog::default());
        for message in &first {
            backlog.push(message, || message::reset(&told));
        }
        if let Some(group) = state.groups.get_mut(&group) {
            group.watchers.insert(watcher, backlog.clone());
        }
        state.watchers += 1;
        drop(state);
        let place = Place { group, watcher };
        Ok(Watcher { backlog, hub: Arc::downgrade(self), place })
    }

    /// The first messages of a watch: what changed since `from`, as far as it is remembered.
    fn first(&self, topic: &Topic, from: u64, told: &View) -> Vec<Bytes> {
        let mut missed = Gathered::default();
        if from > self.published.view().applied().index {
            // Of a replica that is ahead of this one, or of a life of the cluster that was undone: whoever watches may
            // have seen rows that are not here.
            return vec![message::reset(told)];
        }
        if from == 0 || from >= told.revision() {
            return message::changes(topic, &missed, told, told.revision());
        }
        let mut changes = self.published.watch_from(from);
        while let Some(event) = changes.try_next() {
            match event {
                WatchEvent::Changed(set) if set.everything => return vec![message::reset(told)],
                // What is newer is still to be told to everybody.
                WatchEvent::Changed(set) if set.applied > told.applied().index => break,
                WatchEvent::Changed(set) => missed.take(topic, &set),
                WatchEvent::Reset => return vec![message::reset(told)],
            }
        }
        message::changes(topic, &missed, told, from)
    }

    pub(super) fn leave(&self, place: &Place) {
        self.held().leave(place);
    }

    async fn run(self: Arc<Self>, mut changes: Watch) {
        while let Some((batch, view)) = self.next(&mut changes).await {
            if !self.tell(&batch, &view) {
                return;
            }
        }
        let mut state = self.held();
        state.closed = true;
        state.told = None;
        for group in state.groups.values() {
            group.watchers.values().for_each(|backlog| backlog.close());
        }
    }

    /// The next view, and all that led there from the one before.
    async fn next(&self, changes: &mut Watch) -> Option<(Batch, View)> {
        let mut batch = Batch::default();
        batch.take(changes.next().await?);
        let view = self.published.view();
        // A view is published before its changes are, so they come.
        while batch.applied < view.applied().index {
            batch.take(changes.next().await?);
        }
        Some((batch, view))
    }

    /// Tells everybody; false when nobody watches any more.
    fn tell(&self, batch: &Batch, view: &View) -> bool {
        let mut state = self.held();
        if state.groups.is_empty() {
            state.told = None;
            return false;
        }
        let told = state.told.as_ref();
        let (before, told) = told.map_or((0, 0), |told| (told.revision(), told.applied().index));
        if batch.reset {
            let reset = message::reset(view);
            for group in state.groups.values() {
                group.watchers.values().for_each(|backlog| {
                    backlog.push(&reset, || reset.clone());
                });
            }
        } else {
            for (id, gathered) in state.gather(batch, told) {
                let Some(group) = state.groups.get(&id) else { continue };
                let messages = message::changes(&group.topic, &gathered, view, before);
                for backlog in group.watchers.values() {
                    for message in &messages {
                        if !backlog.push(message, || message::reset(view)) {
                            self.metrics.watches_reset.inc();
                            break;
                        }
                    }
                }
            }
        }
        state.told = Some(view.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_lie_over_each_other_are_bounded_and_others_are_not() {
        let mut state = State::default();
        let open = |n: usize| Topic::Rows {
            table: "t".to_owned(),
            span: Span { start: format!("{n:08}").into(), end: None },
        };
        let taken: Vec<u64> = (0..10_000).map_while(|n| state.group(open(n)).ok()).collect();
        assert!((1_000..2_000).contains(&taken.len()), "{}", taken.len());
        assert!(state.weight <= WEIGHT_MAX);
        let refused = state.group(open(9_999)).unwrap_err();
        assert!(matches!(refused, Refusal::TooLarge(what) if what.contains("table t")));
        assert!(state.group(open(0)).is_ok(), "one that is watched already costs nothing");
        for group in taken {
            state.leave(&Place { group, watcher: 0 });
        }
        assert_eq!((state.weight, state.tables.len()), (0, 0));
        let one = |n: usize| Topic::Rows {
            table: "t".to_owned(),
            span: Span::one(&format!("{n:08}").into()),
        };
        assert!((0..WATCHERS_MAX).all(|n| state.group(one(n)).is_ok()));
    }
}
