//! The port `certificates`.
//!
//! # Invariants
//! - `PKI-3` Of a key that was revoked nothing is accepted any more, and it stays revoked for ever: no row of
//!   `pki_revocations` is removed. The present key of a member waits until it has another one, unless forced.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use palisade_contract::{
    NodeId, Result,
    pki::{Authorities, Ca, Certificates, Leaf, Phase, ReplicaPki},
};
use palisade_state::{Tx, View};

use crate::{
    records::{AUTHORITIES, CLUSTER, NODES, REPLICAS, REVOCATIONS},
    rotation,
};

/// The module's port.
#[derive(Default)]
pub(crate) struct Port {
    /// What is refused although the view does not say so yet.
    presumed: RwLock<Arc<BTreeSet<String>>>,
}

impl Port {
    fn presumed(&self) -> Arc<BTreeSet<String>> {
        self.presumed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// All keys that a state refuses.
pub(crate) fn refused(view: &View) -> Result<BTreeSet<String>> {
    let all = REVOCATIONS.all(view)?.into_iter();
    let refused = all.filter(|(_, found)| found.value.waits_for.is_none());
    Ok(refused.map(|(key, _)| key).collect())
}

/// The authorities of the lineage that the cluster is of now. A restored cluster of another lineage has others.
pub(crate) fn authorities(view: &View) -> Result<Option<Authorities>> {
    let found = AUTHORITIES.get(view, &CLUSTER.to_owned())?.map(|found| found.value);
    Ok(found.filter(|found| is_ours(view, found)))
}

fn is_ours(view: &View, authorities: &Authorities) -> bool {
    view.formation().is_some_and(|formation| formation.lineage == authorities.lineage)
}

/// As [`authorities`], in a transaction.
pub(crate) fn held(tx: &mut Tx) -> Result<Option<Authorities>> {
    let found = tx.get(&AUTHORITIES, &CLUSTER.to_owned())?;
    Ok(found.filter(|found| is_ours(tx.view(), found)))
}

impl Certificates for Port {
    fn is_revoked(&self, view: &View, key: &str) -> Result<bool> {
        let found = REVOCATIONS.get(view, &key.to_owned())?;
        // PKI-3
        Ok(self.presumed().contains(key)
            || found.is_some_and(|found| found.value.waits_for.is_none()))
    }

    fn is_revoked_in(&self, tx: &mut Tx, key: &str) -> Result<bool> {
        let found = tx.get(&REVOCATIONS, &key.to_owned())?;
        Ok(found.is_some_and(|found| found.waits_for.is_none()))
    }

    fn refused(&self, view: &View) -> Result<BTreeSet<String>> {
        let mut refused = refused(view)?;
        refused.extend(self.presumed().iter().cloned());
        Ok(refused)
    }

    fn presume(&self, keys: BTreeSet<String>) {
        *self.presumed.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    fn must_rekey(&self, view: &View, replica: u64, key: &str) -> Result<bool> {
        let found = REVOCATIONS.get(view, &key.to_owned())?;
        Ok(found.is_some_and(|found| found.value.waits_for == Some(replica)))
    }

    fn node_seen(&self, tx: &mut Tx, node: &NodeId, leaf: &Leaf) -> Result<()> {
        if tx.get(&NODES, &node.key())?.as_ref() == Some(leaf) {
            return Ok(());
        }
        tx.put(&NODES, &node.key(), leaf)?;
        if authorities(tx.view())?.is_some_and(|found| found.phase != Phase::Idle) {
            tx.enqueue(rotation::KIND, rotation::KEY)?;
        }
        Ok(())
    }

    fn authorities(&self, view: &View) -> Result<Option<Authorities>> {
        authorities(view)
    }

    fn reported(&self, view: &View, replica: u64) -> Result<Option<ReplicaPki>> {
        Ok(REPLICAS.get(view, &replica)?.map(|found| found.value))
    }

    fn report(&self, tx: &mut Tx, replica: u64, issuing: &Ca, report: &ReplicaPki) -> Result<()> {
        if held(tx)?.is_none()
            && let Some(formation) = tx.view().formation().cloned()
        {
            let row = Authorities {
                lineage: formation.lineage,
                issuing: issuing.clone(),
                ..Authorities::default()
            };
            tx.put(&AUTHORITIES, &CLUSTER.to_owned(), &row)?;
        }
        if tx.get(&REPLICAS, &replica)?.as_ref() != Some(report) {
            tx.put(&REPLICAS, &replica, report)?;
            tx.enqueue(rotation::KIND, rotation::KEY)?;
        }
        rotation::refuse(tx, |key, of| of == replica && key != report.leaf.key)
    }

    fn offer(&self, tx: &mut Tx, rotation: u64, ca: &Ca) -> Result<()> {
        rotation::offer(tx, rotation, ca)
    }
}
