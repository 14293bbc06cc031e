//! What a replica that stands still knows: its newest good snapshot and all of its log, committed or not.

use std::{path::Path, sync::Arc};

use palisade_state::{Machine, Position, State, View};

use super::OfflineError;
use crate::{
    Identity,
    disk::{DirLock, Files, StdFiles},
    exile,
    offload::Disk,
    recovery::check_gap,
    snapshots::{Found, SnapshotStore},
    types::{EntryPayload, StoredMembership, record_to_entry, term_of},
    wal::{self, Recovered, Wal},
};

/// A member, as the survivor knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivorMember {
    /// Its id.
    pub id: u64,
    /// Where peers reach it.
    pub peer_addr: String,
    /// Where operators and agents reach it.
    pub api_addr: String,
    /// Whether it has a vote.
    pub voter: bool,
}

/// A replica's data, read and locked.
pub struct Survivor {
    _lock: DirLock,
    machine: Machine,
    /// Whose it is.
    pub identity: Identity,
    /// The members, by the last membership in its log.
    pub members: Vec<SurvivorMember>,
    /// The highest term that it knows.
    pub term: u64,
    /// Up to where it knows that entries are committed; there may be more.
    pub committed: Option<u64>,
    /// The last entry of its log.
    pub last: u64,
    /// What its log has lost, in a sentence: it had confirmed more.
    pub lost: Option<String>,
}

impl Survivor {
    /// Reads the data directory `data`, which no replica may use meanwhile. It blocks.
    ///
    /// # Errors
    /// It is in use, damaged (with file and offset), holds no cluster, or its replica was removed or is a copy.
    pub fn read(data: &Path) -> Result<Self, OfflineError> {
        let lock = DirLock::acquire(data)?;
        let unused = || OfflineError::Unused { dir: data.to_owned() };
        let identity = Identity::read(data)?.ok_or_else(unused)?;
        // Whoever has lost something may be all that is left; a removed one and a copy are behind a cluster that went on.
        let lost = match exile::check(data, &identity) {
            Ok(()) => None,
            Err(exile::Barred::Lost(told)) => Some(told),
            Err(barred) => return Err(barred.into()),
        };
        let Loaded { machine, membership, term, committed } = load(data, &identity)?;
        let last = machine.applied().index;
        if machine.published().view().formation().is_none() {
            return Err(OfflineError::Nothing { dir: data.to_owned() });
        }
        let members = members_of(&membership);
        Ok(Self { _lock: lock, machine, identity, members, term, committed, last, lost })
    }

    /// What it knows.
    #[must_use]
    pub fn view(&self) -> View {
        self.machine.published().view()
    }

    /// The state, to be given a new life; the directory stays locked while the lock lives.
    #[must_use]
    pub fn into_state(self) -> (State, DirLock) {
        (self.machine.into_state(), self._lock)
    }
}

/// A replica's data, read from end to end.
pub(super) struct Loaded {
    pub(super) machine: Machine,
    membership: StoredMembership,
    term: u64,
    committed: Option<u64>,
}

/// Reads snapshots and log of `identity`'s replica as its start would, and applies all of it.
pub(super) fn load(data: &Path, identity: &Identity) -> Result<Loaded, OfflineError> {
    let files: Arc<dyn Files> = Arc::new(StdFiles);
    let ids = identity.for_wal();
    let at = data.join("snapshots");
    let (_, found) = SnapshotStore::open(Disk::real(), at, ids.cluster, 0)?;
    let options = wal::Options::default();
    let (_, recovered) = Wal::open(files, &data.join("log"), ids, options)?;
    check_gap(&recovered, &found).map_err(Box::new)?;
    let term = highest_term(&recovered);
    let committed = recovered.state.committed.map(|at| at.index);
    let covered = found.state.as_ref().map(|(last, ..)| last.index);
    let (machine, membership) = replay(data, found, recovered)?;
    let term = term.max(machine.applied().term);
    Ok(Loaded { machine, membership, term, committed: committed.max(covered) })
}

fn highest_term(recovered: &Recovered) -> u64 {
    let vote = recovered.state.vote.map_or(0, |vote| vote.term);
    vote.max(recovered.state.last.map_or(0, |last| last.term))
}

/// Applies the whole log to the snapshot.
fn replay(
    data: &Path,
    found: Found,
    recovered: Recovered,
) -> Result<(Machine, StoredMembership), OfflineError> {
    let (mut machine, mut membership) = match found.state {
        Some((_, membership, state)) => (Machine::new(state), membership),
        None => (Machine::default(), StoredMembership::default()),
    };
    for record in recovered.entries {
        let (index, dir) = (record.index, || data.to_owned());
        if index <= machine.applied().index && index > 0 {
            continue;
        }
        let unreadable = |source| OfflineError::Entry { dir: dir(), index, source };
        let entry = record_to_entry(record).map_err(|error| unreadable(error.into()))?;
        let at = Position { term: term_of(&entry.log_id), index };
        let applied = match entry.payload {
            EntryPayload::Normal(payload) => {
                let decoded = payload.decode();
                let decoded = decoded.map_err(|error| unreadable(std::io::Error::other(error)))?;
                machine.apply(at, decoded).map(drop)
            }
            EntryPayload::Membership(changed) => {
                membership = StoredMembership::new(Some(entry.log_id), changed);
                // The first entry of a log has index 0 and forms it; the kernel counts from 1.
                if index > 0 { machine.pass(at) } else { Ok(()) }
            }
            EntryPayload::Blank => machine.pass(at),
        };
        applied.map_err(|source| OfflineError::Apply { dir: dir(), source })?;
    }
    machine.publish();
    Ok((machine, membership))
}

fn members_of(membership: &StoredMembership) -> Vec<SurvivorMember> {
    let membership = membership.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();
    let member = |(id, node): (&u64, &crate::types::Node)| SurvivorMember {
        id: *id,
        peer_addr: node.peer_addr.clone(),
        api_addr: node.api_addr.clone(),
        voter: voters.contains(id),
    };
    membership.nodes().map(member).collect()
}
