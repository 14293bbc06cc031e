//! What a backup is made of beside the state: the CA, and the key under which its key is sealed.

use std::{fmt, path::PathBuf, sync::Arc};

use palisade_api::pki::Authority;
use palisade_raft::backup::{BackupError, BackupHead, BackupKey, BackupMember};
use palisade_secrets::keyring;
use palisade_state::{View, command::FORMAT, port::ClusterStatus};

use crate::{
    edge,
    replica_dir::{BackupConfig, ReplicaDir},
};

/// What a replica makes backups of. Cheap to clone.
#[derive(Clone)]
pub struct Source {
    ca_pem: Arc<str>,
    ca_key_pem: Arc<str>,
    /// Read each time: it may be put there while the replica runs.
    key_file: PathBuf,
    /// Where the keys of secrets are.
    pki: PathBuf,
    schedule: Option<BackupConfig>,
    /// Where a backup is written before it is sent.
    scratch: PathBuf,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("key_file", &self.key_file).finish_non_exhaustive()
    }
}

impl Source {
    /// Of this replica.
    #[must_use]
    pub fn new(dir: &ReplicaDir, authority: &Authority) -> Self {
        Self {
            ca_pem: authority.cert_pem().into(),
            ca_key_pem: authority.key_pem().into(),
            key_file: dir.pki("backup.key"),
            pki: dir.path.join("pki"),
            schedule: dir.config.backup.clone(),
            scratch: dir.path.join("scheduled.backup"),
        }
    }

    /// When this replica is to write backups by itself.
    #[must_use]
    pub fn schedule(&self) -> Option<&BackupConfig> {
        self.schedule.as_ref()
    }

    /// Where a backup is written before it is sent.
    #[must_use]
    pub(super) fn scratch(&self) -> PathBuf {
        self.scratch.clone()
    }

    /// Where the key is that backups are sealed with.
    #[must_use]
    pub fn key_file(&self) -> &PathBuf {
        &self.key_file
    }

    /// The header of a backup of this view that is made now.
    ///
    /// # Errors
    /// The backup key cannot be read, the CA's key not be sealed, or this replica lacks a key without which the secrets
    /// in it were lost.
    pub fn head(
        &self,
        status: &ClusterStatus,
        view: &View,
        created_ms: u64,
    ) -> Result<BackupHead, BackupError> {
        let members = status.members.iter().map(|member| BackupMember {
            id: member.id.0,
            peer_addr: member.peer_addr.clone(),
            api_addr: member.api_addr.clone(),
            voter: member.voter,
        });
        let life = (status.cluster.clone(), status.lineage.clone(), status.epoch);
        let head = self.head_of(life, members.collect(), created_ms)?;
        let has = |id: &str| head.secret_keys.iter().any(|f| keyring::id_in(&f.name) == Some(id));
        let needed = palisade_secrets::needed_keys(view)
            .map_err(|error| BackupError::Unfit(format!("the keys of secrets: {error}")))?;
        match needed.iter().find(|id| !has(id)) {
            None => Ok(head),
            Some(id) => Err(BackupError::Unfit(format!(
                "secrets without their key, and pki/{} is not on this replica: it gets it by itself; make the backup \
                 then, or through another replica",
                keyring::file_name(id)
            ))),
        }
    }

    /// The header of a backup of this life (cluster, lineage, epoch) with these members.
    ///
    /// # Errors
    /// As [`Source::head`].
    pub fn head_of(
        &self,
        (cluster, lineage, epoch): (String, String, u64),
        members: Vec<BackupMember>,
        created_ms: u64,
    ) -> Result<BackupHead, BackupError> {
        let key = BackupKey::load(&self.key_file)?;
        let ca_key = key.seal(&lineage, &self.ca_key_pem, edge::random_bytes())?;
        let files = keyring::files_in(&self.pki).map_err(|source| BackupError::Io {
            op: "read",
            file: self.pki.clone(),
            source,
        })?;
        let seal = |(name, content): &(String, Vec<u8>)| {
            key.seal_file(&lineage, name, content, edge::random_bytes())
        };
        let secret_keys = files.iter().map(seal).collect::<Result<Vec<_>, _>>()?;
        Ok(BackupHead {
            cluster,
            lineage,
            epoch,
            term: 0,
            index: 0,
            revision: 0,
            created_ms,
            palisade: env!("CARGO_PKG_VERSION").to_owned(),
            entry_format: FORMAT,
            tables: Default::default(),
            members,
            ca_pem: self.ca_pem.to_string(),
            ca_key,
            secret_keys,
        })
    }
}
