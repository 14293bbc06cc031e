//! `palisade cluster restore`: a new cluster from a backup.
//!
//! # Invariants
//! - `RES-1` Nothing is made before all of the backup was checked, its CA opened, and the place found empty; what was
//!   made when something fails later is taken away again.
//! - `RES-2` The new cluster has another id and a higher epoch: replicas of the old one are strangers to it, and its
//!   fences are above theirs.

use std::path::{Path, PathBuf};

use palisade_api::pki::{Authority, PkiError};
use palisade_iam::{Bootstrap, put_admin};
use palisade_raft::{
    Member,
    backup::{BackupError, BackupKey, BackupReader, Info},
    offline::{OfflineError, Reborn, seed},
};
use palisade_secrets::keyring::{self, Files};
use palisade_state::{Formation, ReplicaId, Tx, command::AuditDraft};
use serde_json::json;

use super::{EPOCH_MAX, renew::renew_specs};
use crate::{
    context_file::{Context, Secret},
    edge,
    init::{InitError, NewReplica, check, claim, new_id},
    join::write_secret,
    life::{Life, write_replicas},
    pki_files::NEXT,
    secret::{NewSecret, token_id},
};

/// What `restore` needs.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// The backup.
    pub file: PathBuf,
    /// The key that opens the CA's key in it; not needed for a fork.
    pub key: Option<PathBuf>,
    /// Where the replicas' directories are made; empty, or not there yet.
    pub dir: PathBuf,
    /// The replicas of the new cluster.
    pub replicas: Vec<NewReplica>,
    /// Another lineage, to which no agent of the old one listens.
    pub fork: bool,
    /// The epoch of the new cluster; one more than the backup's unless it is said.
    pub epoch: Option<u64>,
    /// The name of the context that leads to the new cluster.
    pub context: String,
    /// Milliseconds between an agent's heartbeats.
    pub heartbeat_ms: u32,
    /// Milliseconds after which a node whose session is gone is lost.
    pub node_lost_ms: u64,
}

/// What `restore` made.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The new cluster's id.
    pub cluster: String,
    /// Its lineage.
    pub lineage: String,
    /// Its epoch.
    pub epoch: u64,
    /// The pin of its CA.
    pub pin: String,
    /// The replicas' directories.
    pub replicas: Vec<PathBuf>,
    /// The way in, as an admin.
    pub context: Context,
    /// What the backup holds.
    pub info: Info,
}

/// Why a backup was not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The backup, or its key.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// No key was given.
    #[error(
        "the CA's key in a backup is sealed: give --key FILE, the pki/backup.key of the cluster that wrote it"
    )]
    NoKey,
    /// No cluster after it could have a higher one.
    #[error("epoch {given} is too high: the highest is {EPOCH_MAX}")]
    EpochTooHigh {
        /// What was given.
        given: u64,
    },
    /// The epoch is not above the backup's.
    #[error(
        "epoch {given} is not above the backup's, {backup}: agents and replicas would take it for an older life"
    )]
    Epoch {
        /// What was given.
        given: u64,
        /// The backup's.
        backup: u64,
    },
    /// An id was another replica's.
    #[error(
        "replica {id} joined the cluster that the backup is of, and its records name it: give the new replica an id that no \
         replica joined with, such as {free}"
    )]
    UsedId {
        /// The id.
        id: u64,
        /// One that is free.
        free: u64,
    },
    /// The CA in it cannot be used.
    #[error("the CA in the backup cannot be used")]
    Ca(#[from] PkiError),
    /// The replicas' directories cannot be made.
    #[error(transparent)]
    Replicas(#[from] InitError),
    /// The new life's state cannot be made.
    #[error(transparent)]
    State(#[from] OfflineError),
    /// The first entries of the new life cannot be built.
    #[error("the first entries of the new life cannot be built")]
    First(#[source] palisade_contract::Error),
    /// The way in cannot be kept; the directories were taken away again.
    #[error("the new cluster's context cannot be kept, so nothing was made")]
    Keep(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The CA, the backup key, and the keys of secrets and of a CA that is to replace it, of the new cluster. A fork gets none
/// of the old ones.
fn keys(
    options: &RestoreOptions,
    reader: &BackupReader,
    lineage: &str,
) -> Result<(Authority, BackupKey, Files), RestoreError> {
    if options.fork {
        let authority = Authority::create(lineage, edge::wall_ms())?;
        return Ok((authority, BackupKey::new(edge::random_bytes()), vec![]));
    }
    let file = options.key.as_deref().ok_or(RestoreError::NoKey)?;
    let key = BackupKey::load(file)?;
    let ca_key = reader.ca_key(&key, file)?;
    let mut files = reader.secret_keys(&key, file)?;
    files.extend(reader.next_ca(&key, file)?);
    Ok((Authority::from_pem(&reader.info().head.ca_pem, &ca_key)?, key, files))
}

/// Makes the directories of a new cluster's replicas from a backup. `keep` keeps the way in, whose token is nowhere else;
/// when it cannot, the directories are taken away again. It blocks.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore<E: std::error::Error + Send + Sync + 'static>(
    options: &RestoreOptions,
    keep: impl FnOnce(&Context) -> Result<(), E>,
) -> Result<Restored, RestoreError> {
    check(&options.replicas)?;
    let mut reader = BackupReader::open(&options.file)?;
    let head = reader.info().head.clone();
    let epoch = options.epoch.unwrap_or(head.epoch.saturating_add(1));
    if epoch > EPOCH_MAX {
        return Err(RestoreError::EpochTooHigh { given: epoch });
    }
    if epoch <= head.epoch {
        return Err(RestoreError::Epoch { given: epoch, backup: head.epoch });
    }
    let lineage = if options.fork { new_id("ln") } else { head.lineage };
    let (authority, backup_key, files) = keys(options, &reader, &lineage)?;
    let cluster = new_id("cl");
    let formation = Formation { cluster: cluster.clone(), lineage: lineage.clone(), epoch };
    let mut reborn = Reborn::new(reader.load()?, formation);
    ids_are_new(&reborn, &options.replicas)?;
    let (token, secret) = (token_id(), NewSecret::generate());
    let admin = Bootstrap { token_id: token.clone(), secret_sha256: secret.sha256() };
    first_entry(&mut reborn, &admin, &head.cluster, options.fork)?;
    claim(&options.dir)?;
    let life = Life {
        cluster: cluster.clone(),
        lineage: lineage.clone(),
        epoch,
        authority: &authority,
        backup_key: &backup_key,
        replicas: &options.replicas,
        bootstrap: None,
        heartbeat_ms: options.heartbeat_ms,
        node_lost_ms: options.node_lost_ms,
    };
    let replicas = write(&options.dir, &life, &reborn, (head.term, &files))?;
    let context = Context {
        name: options.context.clone(),
        addrs: options
            .replicas
            .iter()
            .map(|replica| format!("https://{}", replica.member().api_addr))
            .collect(),
        ca_pem: authority.cert_pem().to_owned(),
        token: Secret::new(format!("pal_{token}_{}", secret.reveal())),
    };
    if let Err(error) = keep(&context) {
        take_away(&options.dir, &options.replicas);
        return Err(RestoreError::Keep(Box::new(error)));
    }
    let info = reader.info().clone();
    Ok(Restored { cluster, lineage, epoch, pin: authority.pin(), replicas, context, info })
}

fn ids_are_new(reborn: &Reborn, replicas: &[NewReplica]) -> Result<(), RestoreError> {
    let is_taken = |id: u64| {
        reborn.was_given(ReplicaId(id)) || replicas.iter().any(|replica| replica.id == id)
    };
    match replicas.iter().find(|replica| reborn.was_given(ReplicaId(replica.id))) {
        Some(replica) => {
            let free = (1..).find(|id| !is_taken(*id)).unwrap_or_default();
            Err(RestoreError::UsedId { id: replica.id, free })
        }
        None => Ok(()),
    }
}

/// What the new life begins with: a way in, and a word about where it comes from.
fn first_entry(
    reborn: &mut Reborn,
    admin: &Bootstrap,
    from: &str,
    is_fork: bool,
) -> Result<(), RestoreError> {
    let view = reborn.view();
    let mut tx = Tx::new(view.clone());
    put_admin(&mut tx, admin, "restore", "restore").map_err(RestoreError::First)?;
    palisade_pki::forget_replicas(&mut tx).map_err(RestoreError::First)?;
    if is_fork {
        palisade_secrets::lose_keys(&mut tx).map_err(RestoreError::First)?;
    }
    tx.audit(AuditDraft {
        actor: "restore".to_owned(),
        method: "cluster.restore".to_owned(),
        resource: "cluster/*".to_owned(),
        outcome: "ok".to_owned(),
        ..AuditDraft::default()
    });
    let data = json!({"fromCluster": from, "atRevision": view.revision()});
    tx.publish("cluster.restored", "", "cluster/*".to_owned(), &data);
    reborn.commit(edge::wall_ms(), tx)?;
    renew_specs(reborn).map_err(RestoreError::First)
}

fn write(
    dir: &Path,
    life: &Life<'_>,
    reborn: &Reborn,
    (term, files): (u64, &Files),
) -> Result<Vec<PathBuf>, InitError> {
    let members: Vec<Member> =
        life.replicas.iter().map(|replica| (&replica.member()).into()).collect();
    let view = reborn.view();
    let written = write_replicas(dir, life, edge::wall_ms(), |path, identity| {
        let pki = path.join("pki");
        for (name, content) in files {
            let written = if NEXT.contains(&name.as_str()) {
                write_secret(&pki.join(name), content)
            } else {
                keyring::write(&pki, name, content).map(drop)
            };
            written.map_err(|source| OfflineError::Dir { dir: pki.clone(), source })?;
        }
        seed(&path.join("data"), identity, &view, term, &members)
    });
    if written.is_err() {
        take_away(dir, life.replicas);
    }
    written
}

/// `RES-1`. Best effort: what stays is named by the next try.
fn take_away(dir: &Path, replicas: &[NewReplica]) {
    for replica in replicas {
        let _ = std::fs::remove_dir_all(dir.join(format!("replica-{}", replica.id)));
    }
}
