//! The outbox: events in commit order.
//!
//! # Invariants
//! - `E1` Sequence numbers are dense: the event after `n` is `n + 1`.

use imbl::OrdMap;

use crate::{
    command::EventDraft,
    limits::{EVENTS_MAX, TRIM_STEP_MAX},
    state::Name,
};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The revision that published it.
    pub revision: u64,
    /// Its place within the revision.
    pub n: u32,
    /// For example `node.ready`.
    pub kind: Name,
    /// The tenant it concerns; empty: the cluster.
    pub tenant: Name,
    /// For example `node/nd_…`.
    pub subject: Name,
    /// Wall-clock milliseconds of the leader.
    pub at_ms: u64,
    /// JSON.
    pub data: Vec<u8>,
}

/// The newest events.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    pub(crate) events: OrdMap<u64, Event>,
    /// The sequence number of the next event; the first is 1.
    pub(crate) last_seq: u64,
}

impl Outbox {
    pub(crate) fn publish(&mut self, draft: EventDraft, revision: u64, at_ms: u64) -> u64 {
        let n = match self.events.get_max() {
            Some((_, last)) if last.revision == revision => last.n + 1,
            _ => 0,
        };
        self.last_seq += 1;
        debug_assert!(self.events.get_max().is_none_or(|(seq, _)| *seq + 1 == self.last_seq), "E1");
        let event = Event {
            revision,
            n,
            kind: draft.kind.into(),
            tenant: draft.tenant.into(),
            subject: draft.subject.into(),
            at_ms,
            data: draft.data,
        };
        self.events.insert(self.last_seq, event);
        self.last_seq
    }

    /// Removes at most one step of what is over the window and below `below`.
    pub(crate) fn trim(&mut self, below: u64) {
        for _ in 0..TRIM_STEP_MAX.min(self.events.len().saturating_sub(EVENTS_MAX)) {
            match self.events.get_min().map(|(seq, _)| *seq) {
                Some(oldest) if oldest < below => drop(self.events.remove(&oldest)),
                _ => return,
            }
        }
    }
}
