//! History by itself: a machine that applies, a feed, a book.

mod books;
mod keepers;
mod pasts;

use std::sync::Arc;

use palisade_state::{
    Command, Machine, Outcome, Position, Published, Txn, Verdict, View,
    command::{AuditDraft, Entry, EventDraft, FORMAT, Write},
};

use super::{
    book::{Book, More, Range},
    feed::{Applied, Batch, Feed, Feeder},
    resolve::resolve,
    shelf::MemShelf,
};
use crate::types::Payload;

/// A state machine and what it tells history.
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) feed: Arc<Feed>,
    feeder: Feeder,
    index: u64,
    pub(super) wall_ms: u64,
}

pub(super) fn put(table: &str, key: &str, value: &str) -> Write {
    Write { table: table.into(), key: key.into(), value: Some(value.into()) }
}

pub(super) fn delete(table: &str, key: &str) -> Write {
    Write { table: table.into(), key: key.into(), value: None }
}

/// A transaction that leaves an event and an audit record.
pub(super) fn told(n: u64) -> Command {
    let event = EventDraft { kind: "test.happened".into(), ..EventDraft::default() };
    let audit = AuditDraft { method: format!("m{n}"), ..AuditDraft::default() };
    Txn { events: vec![event], audit: Some(audit), ..Txn::default() }.into()
}

impl World {
    pub(super) fn new() -> Self {
        let feed = Arc::new(Feed::new(1 << 20));
        let feeder = Feeder::new(feed.clone(), true);
        Self { machine: Machine::default(), feed, feeder, index: 0, wall_ms: 1_000_000 }
    }

    pub(super) fn published(&self) -> Arc<Published> {
        self.machine.published()
    }

    pub(super) fn view(&self) -> View {
        self.machine.published().view()
    }

    /// Applies entries together, and tells of it unless it is to be missed.
    pub(super) fn apply(&mut self, entries: Vec<Vec<Command>>, is_told: bool) -> Option<Range> {
        let before = self.view();
        let first = self.index + 1;
        let mut told = vec![];
        for commands in entries {
            self.index += 1;
            self.wall_ms += 1000;
            let entry = Entry {
                format: FORMAT,
                proposer_term: 1,
                delta_ms: 0,
                wall_ms: self.wall_ms,
                commands,
            };
            let payload = Payload::new(entry.clone());
            let at = Position { term: 1, index: self.index };
            let outcomes = self.machine.apply(at, entry).unwrap();
            let was = |outcome: &Outcome| matches!(outcome.verdict, Some(Verdict::Applied(_)));
            let applied = outcomes.iter().map(was).collect();
            let clock = self.machine.clock();
            told.push(Applied { index: self.index, clock, payload, applied, writes: 1 });
        }
        self.machine.publish();
        let batch = || Batch { before: before.clone(), first, last: self.index, entries: told };
        is_told.then(|| {
            let resolved = batch();
            let again = Batch {
                before: before.clone(),
                first,
                last: self.index,
                entries: resolved
                    .entries
                    .iter()
                    .map(|entry| Applied {
                        index: entry.index,
                        clock: entry.clock,
                        payload: entry.payload.clone(),
                        applied: entry.applied.clone(),
                        writes: entry.writes,
                    })
                    .collect(),
            };
            self.feeder.push(again);
            resolve(resolved)
        })
    }

    /// So many transactions with an event and an audit record each.
    pub(super) fn tell(&mut self, times: u64) {
        for n in 0..times {
            self.apply(vec![vec![told(n)]], true);
        }
    }

    /// Everything that is in the window and not in the book.
    pub(super) fn more(&self, book: &Book, ranges: Vec<Range>) -> More {
        let view = self.view();
        let (audit, event) = (book.progress.audit_last + 1, book.progress.event_last + 1);
        More {
            audit: view.audit(audit).cloned().collect(),
            events: view.events(event).map(|(seq, event)| (seq, event.clone())).collect(),
            ranges,
        }
    }
}

pub(super) fn write(writes: Vec<Write>) -> Vec<Command> {
    vec![Txn { writes, ..Txn::default() }.into()]
}

pub(super) fn empty() -> Book {
    Book::open(Arc::new(MemShelf::default())).unwrap()
}
