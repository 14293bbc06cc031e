//! The roster: what state remembers of control-plane replicas beside consensus' own membership.
//!
//! Membership says who votes now; the roster says who may join, who was removed, and who is drained. Both are needed:
//! a membership that a replica left says nothing about it any more.
//!
//! # Invariants
//! - `ROSTER-1` A replica's id is the revision of the transaction that enrolled it. [`enrol`] guards a row of its own,
//!   so that no two enrolments share an entry, and an id comes once.
//! - `ROSTER-2` A removed replica's row stays: its id never becomes a member again.

use serde::{Deserialize, Serialize};

use crate::{
    port::ReplicaId,
    table::{Corrupt, Declared, Table},
    tx::{Tx, TxError},
    view::View,
};

/// A replica that may join. Its id is the revision at which its row was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrolment {
    /// Where its peers will reach it, `host:port`.
    pub peer_addr: String,
    /// Where operators and agents will reach it, `host:port`.
    pub api_addr: String,
    /// The voter whose place it takes when it is promoted.
    #[serde(default)]
    pub replaces: Option<u64>,
    /// The cluster's clock when it was enrolled.
    #[serde(default)]
    pub at_ms: u64,
}

/// What became of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// It is in the membership, as voter or learner.
    #[default]
    Member,
    /// It was, and never will be again.
    Removed,
}

/// A replica that was ever a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// What became of it.
    #[serde(default)]
    pub standing: Standing,
    /// It takes no leadership, no leases and no agents.
    #[serde(default)]
    pub drained: bool,
    /// Why it was removed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Replicas that may join, by the SHA-256 of their key (hex).
pub static ENROLMENTS: Table<String, Enrolment> = Table::new("palisade.enrolments", &[]);
/// Replicas that are or were members, by id.
pub static REPLICAS: Table<u64, Replica> = Table::new("palisade.replicas", &[]);
/// How many replicas were enrolled; key 0. It exists to be guarded.
static ENROLLED: Table<u64, u64> = Table::new("palisade.enrolled", &[]);

/// The roster's tables.
#[must_use]
pub fn tables() -> [Declared; 3] {
    [ENROLMENTS.declared(), REPLICAS.declared(), ENROLLED.declared()]
}

/// What the roster says of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is or was a member.
    Replica(Replica),
    /// It may join.
    Enrolled(Enrolment),
    /// Nothing.
    Nothing,
}

/// What the roster says of an id.
///
/// # Errors
/// A row cannot be read.
pub fn known(view: &View, id: ReplicaId) -> Result<Known, Corrupt> {
    if let Some(row) = REPLICAS.get(view, &id.0)? {
        return Ok(Known::Replica(row.value));
    }
    Ok(enrolment(view, id)?.map_or(Known::Nothing, |(_, enrolment)| Known::Enrolled(enrolment)))
}

/// The enrolment that an id comes from, with its key.
///
/// # Errors
/// A row cannot be read.
pub fn enrolment(view: &View, id: ReplicaId) -> Result<Option<(String, Enrolment)>, Corrupt> {
    let mut all = ENROLMENTS.all(view)?.into_iter();
    let found = all.find(|(_, row)| row.stamp.created_rev == id.0);
    Ok(found.map(|(key, row)| (key, row.value)))
}

/// Who was enrolled and never was a member, by id. One that has just come may still be among them.
///
/// # Errors
/// A row cannot be read.
pub fn pending(view: &View) -> Result<Vec<(ReplicaId, Enrolment)>, Corrupt> {
    let mut pending = vec![];
    for (_, row) in ENROLMENTS.all(view)? {
        let id = row.stamp.created_rev;
        if REPLICAS.get(view, &id)?.is_none() {
            pending.push((ReplicaId(id), row.value));
        }
    }
    pending.sort_by_key(|(id, _)| *id);
    Ok(pending)
}

/// The id that a key was enrolled under.
///
/// # Errors
/// A row cannot be read.
pub fn enrolled_as(view: &View, key: &str) -> Result<Option<ReplicaId>, Corrupt> {
    let row = ENROLMENTS.get(view, &key.to_owned())?;
    Ok(row.map(|row| ReplicaId(row.stamp.created_rev)))
}

/// Whether a replica is drained. A row that cannot be read drains nobody.
#[must_use]
pub fn is_drained(view: &View, id: ReplicaId) -> bool {
    matches!(REPLICAS.get(view, &id.0), Ok(Some(row)) if row.value.drained)
}

/// Whether a replica was removed.
#[must_use]
pub fn is_removed(view: &View, id: ReplicaId) -> bool {
    let row = REPLICAS.get(view, &id.0);
    matches!(row, Ok(Some(row)) if row.value.standing == Standing::Removed)
}

/// Enrols a key: `ROSTER-1`. The revision at which the transaction is applied is the id.
///
/// # Errors
/// A record cannot be read or encoded.
pub fn enrol(tx: &mut Tx, key: &str, enrolment: &Enrolment) -> Result<(), TxError> {
    let count = tx.get(&ENROLLED, &0)?.unwrap_or_default();
    tx.put(&ENROLLED, &0, &(count + 1))?;
    tx.put(&ENROLMENTS, &key.to_owned(), enrolment)
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::{Store, command::Verdict, memory::MemoryStore};

    fn enrolment(peer_addr: &str) -> Enrolment {
        Enrolment { peer_addr: peer_addr.into(), api_addr: "b:2".into(), replaces: None, at_ms: 0 }
    }

    fn enrolled(store: &MemoryStore, view: View, key: &str) -> Verdict {
        let mut tx = Tx::new(view);
        enrol(&mut tx, key, &enrolment("a:1")).unwrap();
        block_on(store.propose(tx.build().unwrap().into())).unwrap().verdict.unwrap()
    }

    #[test]
    fn an_id_is_the_revision_of_its_enrolment() {
        let store = MemoryStore::default();
        let view = store.view();
        assert!(matches!(enrolled(&store, view, "k1"), Verdict::Applied(_)));
        let id = enrolled_as(&store.view(), "k1").unwrap().unwrap();
        assert_eq!(id.0, store.view().revision());
        let known = known(&store.view(), id).unwrap();
        assert_eq!(known, Known::Enrolled(enrolment("a:1")));
    }

    #[test]
    fn who_has_not_come_is_pending_and_who_has_is_not() {
        let store = MemoryStore::default();
        for key in ["k1", "k2"] {
            enrolled(&store, store.view(), key);
        }
        let ids: Vec<ReplicaId> =
            pending(&store.view()).unwrap().iter().map(|(id, _)| *id).collect();
        let id = |key: &str| enrolled_as(&store.view(), key).unwrap().unwrap();
        assert_eq!(ids, [id("k1"), id("k2")]);
        let mut tx = Tx::new(store.view());
        tx.put(&REPLICAS, &id("k1").0, &Replica::default()).unwrap();
        block_on(store.propose(tx.build().unwrap().into())).unwrap();
        let left = pending(&store.view()).unwrap();
        assert_eq!(left, [(id("k2"), enrolment("a:1"))]);
    }

    #[test]
    fn two_enrolments_on_one_view_do_not_both_apply() {
        let store = MemoryStore::default();
        let view = store.view();
        assert!(matches!(enrolled(&store, view.clone(), "k1"), Verdict::Applied(_)));
        assert!(matches!(enrolled(&store, view, "k2"), Verdict::Conflict(_)), "ROSTER-1");
    }
}
