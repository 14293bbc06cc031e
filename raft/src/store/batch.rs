//! The changes between two views, and what of them concerns somebody.

use std::{collections::BTreeSet, sync::Arc};

use palisade_state::{ChangeSet, Name, WatchEvent, key::KeyBytes};

use super::hub::Topic;

/// The change sets between two views.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) sets: Vec<Arc<ChangeSet>>,
    /// The last entry applied to what they lead to.
    pub(super) applied: u64,
    /// Everything may have changed.
    pub(super) reset: bool,
}

impl Batch {
    pub(super) fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Reset => self.reset = true,
            WatchEvent::Changed(set) => {
                self.applied = set.applied;
                self.reset |= set.everything;
                self.sets.push(set);
            }
        }
    }
}

/// What of a batch concerns one group of watchers.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) rows: BTreeSet<KeyBytes>,
    pub(super) work: BTreeSet<Name>,
}

impl Gathered {
    /// Takes what a set has for `topic`.
    pub(super) fn take(&mut self, topic: &Topic, set: &ChangeSet) {
        match topic {
            Topic::Rows { table, span } => {
                let rows = set.keys_of(table).filter(|key| span.holds(key));
                self.rows.extend(rows.cloned());
            }
            Topic::Work { kind } => {
                let work = set.work.iter().filter(|(of, _)| of.as_ref() == kind);
                self.work.extend(work.map(|(_, key)| key.clone()));
            }
        }
    }
}
