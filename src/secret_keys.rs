//! The keys of secrets of a process that runs a replica: files of its directory, and of the other members'.

use std::{io, sync::Arc};

use futures::FutureExt as _;
use palisade_raft::Replica;
use palisade_secrets::keyring::{Ask, KeyRing};

use crate::replica_dir::ReplicaDir;

/// The keys of this replica, which asks the others for what it lacks.
///
/// # Errors
/// Its directory cannot be read.
pub(crate) fn of(dir: &ReplicaDir, replica: &Arc<Replica>) -> io::Result<KeyRing> {
    let replica = replica.clone();
    let ask: Ask = Arc::new(move || {
        let replica = replica.clone();
        async move { replica.secrets_of_others().await }.boxed()
    });
    KeyRing::open(dir.path.join("pki"), ask)
}
