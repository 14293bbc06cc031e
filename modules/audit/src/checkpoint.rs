//! Checkpoints: every hour, what the chain has come to is noted and signed.
//!
//! # Invariants
//! - `SEAL-2` What is signed is in the log before, under its size: the same size is never signed with another head in one
//!   life of the cluster. A signature is the same whoever makes it.

use std::time::Duration;

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Error, Periodic, ReconcileContext, Reconciler, Result, Run, ShardBy, past::Seal,
};
use palisade_state::{Formation, Table, Tx, View};
use serde::{Deserialize, Serialize};

use crate::{
    note::Verifier,
    statement::{Checkpoint, key_name},
};

/// The reconciler's name.
pub const KIND: &str = "audit.checkpoint";
const KEY: &str = "chain";
const EVERY: Duration = Duration::from_secs(3600);
/// How soon it is looked again in a cluster in which nobody has done anything.
const SOON: Duration = Duration::from_secs(60);
/// Checkpoints that are kept: more than a year of them.
const KEPT_MAX: usize = 10_000;
/// How many go in one run.
const STEP_MAX: usize = 100;

/// A checkpoint, by its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointRow {
    /// The cluster's id in the life that noted it.
    pub cluster: String,
    /// Its lineage then.
    pub lineage: String,
    /// The hash of the last record, hex.
    pub head: String,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// The signed note; absent: not signed yet.
    #[serde(default)]
    pub note: Option<String>,
}

/// Checkpoints by size.
pub static CHECKPOINTS: Table<u64, CheckpointRow> = Table::new("audit_checkpoints", &[]);

/// Who this cluster is.
///
/// # Errors
/// It is not formed, which does not happen to one that is asked.
pub fn formation(view: &View) -> Result<Formation> {
    let formation = view.formation().cloned();
    formation.ok_or_else(|| Error::new(Code::Unavailable, "the cluster is not formed yet"))
}

/// Notes what the chain has come to, if that is not noted.
pub(crate) fn note(tx: &mut Tx) -> Result<()> {
    let (size, head) = (tx.view().last_audit(), hex::encode(tx.view().audit_head()));
    if size == 0 || tx.get(&CHECKPOINTS, &size)?.is_some() {
        return Ok(());
    }
    let Formation { cluster, lineage, .. } = formation(tx.view())?;
    let at_ms = tx.view().clock().wall_ms;
    tx.put(&CHECKPOINTS, &size, &CheckpointRow { cluster, lineage, head, at_ms, note: None })?;
    let surplus = tx.view().count(CHECKPOINTS.name()).saturating_sub(KEPT_MAX).min(STEP_MAX);
    let view = tx.view().clone();
    for old in CHECKPOINTS.page(&view, &[], None).take(surplus) {
        tx.delete(&CHECKPOINTS, &old?.0)?;
    }
    Ok(())
}

/// Signs what a committed view has noted and nobody has signed yet.
pub(crate) fn sign(tx: &mut Tx, committed: &View, seal: &dyn Seal) -> Result<()> {
    for noted in CHECKPOINTS.page(committed, &[], None) {
        let (size, noted) = noted?;
        let is_signed = noted.value.note.is_some();
        let Some(mut row) = tx.get(&CHECKPOINTS, &size)?.filter(|row| row.note.is_none()) else {
            continue;
        };
        // SEAL-2: what is signed is what was committed.
        if is_signed || row != noted.value {
            continue;
        }
        let head = hex::decode(&row.head).map_err(Error::internal)?;
        let of = Formation { cluster: row.cluster.clone(), lineage: row.lineage.clone(), epoch: 0 };
        let text = Checkpoint { size, head, at_ms: row.at_ms }.text(&of);
        row.note = Some(Verifier::new(key_name(&row.lineage), seal.public()).sign(&text, seal));
        tx.put(&CHECKPOINTS, &size, &row)?;
    }
    Ok(())
}

/// The checkpoint whose head is not what the chain has, of those whose record is in memory.
pub(crate) fn contradicted(view: &View) -> Result<Option<u64>> {
    for row in CHECKPOINTS.page(view, &[], None) {
        let (size, row) = row?;
        let record = view.audit(size).next().filter(|record| record.seq == size);
        if record.is_some_and(|record| hex::encode(&record.hash) != row.value.head) {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

/// Whether anything is not signed that has been noted.
fn is_open(view: &View) -> Result<bool> {
    let mut rows = CHECKPOINTS.page(view, &[], None);
    rows.try_fold(false, |open, row| Ok(open || row?.1.value.note.is_none()))
}

/// Notes and signs. One key; whoever holds its lease does it.
pub(crate) struct Checkpoints;

impl Reconciler for Checkpoints {
    fn name(&self) -> &'static str {
        KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        vec![Periodic { key: KEY.to_owned(), every: EVERY }]
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, _: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            // A process without a key signs nothing.
            let Ok(seal) = cx.context.ports.seal.get().cloned() else { return Ok(Run::Done) };
            let noted = cx.commit(note).await?;
            let committed = cx.context.store.at_revision(noted.revision).await?;
            if committed.last_audit() == 0 {
                return Ok(Run::After(SOON));
            }
            if is_open(&committed)? {
                cx.commit(|tx| sign(tx, &committed, &*seal)).await?;
            }
            Ok(Run::Done)
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use palisade_state::{Store, command::AuditDraft, memory::MemoryStore};

    use super::*;
    use crate::{key::ClusterSeal, note};

    fn run(store: &MemoryStore, build: impl FnOnce(&mut Tx) -> Result<()>) {
        let mut tx = Tx::new(store.view());
        build(&mut tx).unwrap();
        let built = tx.build().unwrap();
        assert!(block_on(store.propose(built.into())).unwrap().is_applied());
    }

    fn record(store: &MemoryStore) {
        run(store, |tx| {
            tx.audit(AuditDraft::default());
            Ok(())
        });
    }

    fn rows(store: &MemoryStore) -> Vec<(u64, CheckpointRow)> {
        let rows = CHECKPOINTS.all(&store.view()).unwrap();
        rows.into_iter().map(|(size, row)| (size, row.value)).collect()
    }

    #[test]
    fn a_size_is_noted_once_then_signed_and_stays_as_it_is() {
        let (store, seal) = (MemoryStore::default(), ClusterSeal::derive(b"k", "memory").unwrap());
        run(&store, super::note);
        assert_eq!(rows(&store), [], "of nothing there is nothing to say");
        record(&store);
        run(&store, super::note);
        record(&store);
        let noted = store.view();
        run(&store, |tx| sign(tx, &noted, &seal));
        let signed = rows(&store);
        let [(1, row)] = signed.as_slice() else { panic!("{signed:?}") };
        let key = Verifier::new(key_name("memory"), seal.public());
        let text = note::open(row.note.as_deref().unwrap(), &[key]).unwrap();
        let checkpoint = Checkpoint::read(text).unwrap();
        let first = noted.audit(1).next().unwrap().hash.clone();
        assert_eq!((checkpoint.size, checkpoint.head), (1, first));
        // Again, and with another key: it is signed already.
        let other = ClusterSeal::derive(b"other", "memory").unwrap();
        run(&store, |tx| sign(tx, &store.view(), &other));
        assert_eq!(rows(&store), signed, "SEAL-2");
        run(&store, super::note);
        run(&store, super::note);
        assert_eq!(rows(&store).iter().map(|(size, _)| *size).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(contradicted(&store.view()).unwrap(), None);
    }

    #[test]
    fn what_is_not_committed_is_not_signed() {
        let (store, seal) = (MemoryStore::default(), ClusterSeal::derive(b"k", "memory").unwrap());
        record(&store);
        let before = store.view();
        run(&store, super::note);
        run(&store, |tx| sign(tx, &before, &seal));
        assert!(rows(&store)[0].1.note.is_none(), "SEAL-2");
        let noted = store.view();
        run(&store, |tx| {
            let mut row = tx.get(&CHECKPOINTS, &1)?.unwrap();
            row.head = hex::encode([0; 32]);
            Ok(tx.put(&CHECKPOINTS, &1, &row)?)
        });
        run(&store, |tx| sign(tx, &noted, &seal));
        assert!(rows(&store)[0].1.note.is_none(), "SEAL-2: it is another head than was noted");
    }

    #[test]
    fn a_checkpoint_that_the_chain_contradicts_is_found() {
        let store = MemoryStore::default();
        record(&store);
        run(&store, super::note);
        run(&store, |tx| {
            let mut row = tx.get(&CHECKPOINTS, &1)?.unwrap();
            row.head = hex::encode([0; 32]);
            Ok(tx.put(&CHECKPOINTS, &1, &row)?)
        });
        assert_eq!(contradicted(&store.view()).unwrap(), Some(1));
    }
}
