//! One life of a cluster on paper: the directories of its replicas, as `palisade serve` wants them.
//!
//! # Invariants
//! - `LIFE-1` A replica's directory gets its `identity.json` last, when all else of it is durable: one
//!   that was begun and not finished is no replica.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use palisade_api::pki::Authority;
use palisade_raft::{Identity, backup::BackupKey, offline::OfflineError};
use palisade_state::ReplicaId;

use crate::{
    init::{InitError, NewReplica},
    limits_config::LimitsConfig,
    replica_dir::{BootstrapFile, HistoryConfig, MemberConfig, ReplicaConfig},
    webhooks_config::WebhooksConfig,
};

/// What the replicas of one life have in common.
pub(crate) struct Life<'a> {
    /// The cluster's id.
    pub cluster: String,
    /// Its lineage.
    pub lineage: String,
    /// Its epoch.
    pub epoch: u64,
    /// Its CA.
    pub authority: &'a Authority,
    /// What its backups are sealed with.
    pub backup_key: &'a BackupKey,
    /// Its replicas.
    pub replicas: &'a [NewReplica],
    /// The first admin token of a cluster that has no state yet.
    pub bootstrap: Option<&'a BootstrapFile>,
    /// Milliseconds between an agent's heartbeats.
    pub heartbeat_ms: u32,
    /// Milliseconds after which a node whose session is gone is lost.
    pub node_lost_ms: u64,
}

impl Life<'_> {
    fn identity(&self, replica: u64) -> Identity {
        Identity {
            cluster: self.cluster.clone(),
            lineage: self.lineage.clone(),
            epoch: self.epoch,
            replica: ReplicaId(replica),
        }
    }

    fn config(&self, replica: &NewReplica) -> ReplicaConfig {
        ReplicaConfig {
            peer_listen: replica.listen(replica.peer_port),
            api_listen: replica.listen(replica.api_port),
            advertise: None,
            heartbeat_ms: self.heartbeat_ms,
            node_lost_ms: self.node_lost_ms,
            members: self.replicas.iter().map(NewReplica::member).collect(),
            backup: None,
            history: HistoryConfig::default(),
            limits: LimitsConfig::default(),
            webhooks: WebhooksConfig::default(),
        }
    }
}

/// A file of a directory: its name, its content, its mode.
pub(crate) type NewFile = (&'static str, Vec<u8>, u32);

/// Makes the directory `replica-<id>` of each replica below `dir`. `seed` puts data into each, before it is whole.
///
/// # Errors
/// A certificate, a file or the data cannot be made.
pub(crate) fn write_replicas(
    dir: &Path,
    life: &Life<'_>,
    now_ms: u64,
    seed: impl Fn(&Path, &Identity) -> Result<(), OfflineError>,
) -> Result<Vec<PathBuf>, InitError> {
    let mut made = Vec::new();
    for replica in life.replicas {
        let path = dir.join(format!("replica-{}", replica.id));
        let identity = life.identity(replica.id);
        write_dir(&path, &files(life, replica, now_ms)?)?;
        seed(&path, &identity)?;
        made.push((path, identity));
    }
    flush(dir)?;
    for (path, identity) in &made {
        let text = encode("identity.json", serde_json::to_string(identity))?;
        write(path, &("identity.json", text, 0o644)).map_err(io_error(path))?;
    }
    flush(dir)?;
    Ok(made.into_iter().map(|(path, _)| path).collect())
}

fn files(life: &Life<'_>, replica: &NewReplica, now_ms: u64) -> Result<Vec<NewFile>, InitError> {
    let MemberConfig { peer_addr, api_addr, .. } = replica.member();
    let issued = life.authority.issue_replica(replica.id, &[peer_addr, api_addr], now_ms)?;
    let config = encode("replica.toml", toml::to_string(&life.config(replica)))?;
    let mut files = vec![
        ("pki/ca.pem", life.authority.cert_pem().into(), 0o644),
        ("pki/ca.key", life.authority.key_pem().into(), 0o600),
        ("pki/backup.key", life.backup_key.bytes().to_vec(), 0o600),
        ("pki/replica.pem", issued.cert_pem.into(), 0o644),
        ("pki/replica.key", issued.key_pem.into(), 0o600),
        ("replica.toml", config, 0o644),
    ];
    if let Some(bootstrap) = life.bootstrap {
        let text = encode("bootstrap.json", serde_json::to_string(bootstrap))?;
        files.push(("bootstrap.json", text, 0o600));
    }
    Ok(files)
}

pub(crate) fn encode<E: std::fmt::Display>(
    name: &'static str,
    text: Result<String, E>,
) -> Result<Vec<u8>, InitError> {
    let failed = |error: E| InitError::Encode { name, reason: error.to_string() };
    text.map(String::into_bytes).map_err(failed)
}

pub(crate) fn io_error(dir: &Path) -> impl Fn(io::Error) -> InitError {
    move |source| InitError::Io { dir: dir.to_owned(), source }
}

pub(crate) fn write_dir(dir: &Path, files: &[NewFile]) -> Result<(), InitError> {
    let make = || -> io::Result<()> {
        for path in [dir.to_owned(), dir.join("pki")] {
            fs::DirBuilder::new().mode(0o700).create(path)?;
        }
        files.iter().try_for_each(|file| write(dir, file))
    };
    make().map_err(io_error(dir))
}

pub(crate) fn write(dir: &Path, (name, bytes, mode): &NewFile) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(*mode).open(dir.join(name))?.write_all(bytes)
}

/// Makes all of it durable at once: one call instead of one for each file.
pub(crate) fn flush(dir: &Path) -> Result<(), InitError> {
    let handle = fs::File::open(dir).map_err(io_error(dir))?;
    rustix::fs::syncfs(&handle).map_err(|error| io_error(dir)(error.into()))
}
