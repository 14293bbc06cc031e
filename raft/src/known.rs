//! What is known of the other replicas' logs: one whose data went back in time is not taken for what it was.
//!
//! Raft counts on each voter to keep what it has confirmed. A data directory that was put back from an old copy, or a
//! disk that lost what it had synced, breaks that in silence: together with a replica that was away it would elect a
//! leader that lacks what was acknowledged.
//!
//! # Invariants
//! - `LOST-1` A vote of a replica whose log ends before something committed that it is known to have had is not counted,
//!   nor is one given to it.
//! - `LOST-2` A replica that learns so of itself stops, and does not start again from this directory. It goes by its own
//!   log as it is then, not by what others see of it: they judge by a request that may have been on its way for long.
//! - `LOST-3` A floor is a log entry that was committed when it was known to be in that replica's log, durably: no
//!   election takes it away again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use palisade_state::{Published, View};

use crate::{peer::PeerError, types::LogId};

/// What a replica had at least that has said something through the log: more than it can write alone.
const SPOKEN: u64 = 1;

/// What each replica's log had, as far as this one knows.
pub(crate) struct Known {
    published: Arc<Published>,
    had: Mutex<BTreeMap<u64, u64>>,
}

/// What the replicated state knows: the reports of what is durable in its history, which it had applied before.
fn reported(view: &View, replica: u64) -> Option<u64> {
    let row = view.replica(replica)?;
    let record = view.audit(row.audit_durable).next();
    let record = record.filter(|record| record.seq == row.audit_durable);
    Some(record.map_or(SPOKEN, |record| record.revision))
}

impl Known {
    pub(crate) fn new(published: Arc<Published>) -> Self {
        Self { published, had: Mutex::default() }
    }

    /// Notes that the log entry at `index` is committed, and that `replica` had confirmed it.
    pub(crate) fn had(&self, replica: u64, index: u64) {
        let mut had = self.had.lock().unwrap_or_else(PoisonError::into_inner);
        let known = had.entry(replica).or_default();
        *known = index.max(*known);
    }

    /// The last committed log entry that `replica` is known to have had; 0: nothing is known.
    pub(crate) fn floor(&self, replica: u64) -> u64 {
        let had = self.had.lock().unwrap_or_else(PoisonError::into_inner);
        let known = had.get(&replica).copied().unwrap_or(0);
        drop(had);
        known.max(reported(&self.published.view(), replica).unwrap_or(0))
    }

    /// Whether a replica that says that its log ends at `last` may have this log.
    ///
    /// # Errors
    /// What it has lost: [`PeerError::Lost`].
    pub(crate) fn check(&self, replica: u64, last: Option<LogId>) -> Result<(), PeerError> {
        let floor = self.floor(replica);
        let last = last.map_or(0, |last| last.index);
        if last >= floor {
            return Ok(());
        }
        Err(PeerError::Lost { floor, why: lost(replica, last, floor) })
    }
}

/// What an operator is told of it.
pub(crate) fn lost(replica: u64, last: u64, floor: u64) -> String {
    format!(
        "the log of replica {replica} ends at entry {last}, and it had confirmed entry {floor}: an older copy of its data \
         was put back, or its disk lost what it had synced"
    )
}

#[cfg(test)]
mod tests {
    use palisade_state::{Machine, State};

    use super::*;
    use crate::types::log_id;

    #[test]
    fn what_was_confirmed_and_committed_is_never_less_again() {
        let known = Known::new(Machine::new(State::default()).published());
        assert_eq!(known.check(3, None), Ok(()), "nothing is known");
        known.had(3, 228);
        known.had(3, 100);
        assert_eq!(known.check(3, Some(log_id(2, 228))), Ok(()));
        assert_eq!(known.check(2, None), Ok(()), "another's is its own");
        let error = known.check(3, Some(log_id(9, 227))).unwrap_err();
        assert!(matches!(error, PeerError::Lost { floor: 228, .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains("entry 227") && error.contains("entry 228"), "{error}");
    }
}
