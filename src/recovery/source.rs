//! What a backup is made of beside the state: the CA, and the key under which its key is sealed.

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

use palisade_api::pki::{Authority, ca_of, certificates_of};
use palisade_raft::backup::{BackupError, BackupHead, BackupKey, BackupMember};
use palisade_secrets::keyring;
use palisade_state::{View, command::FORMAT, port::ClusterStatus};

use crate::{
    edge, pki_files,
    replica_dir::{BackupConfig, ReplicaDir},
};

/// What a replica makes backups of. Cheap to clone.
#[derive(Clone)]
pub struct Source {
    /// The CA's certificate and key: of another one once it is replaced.
    ca: Arc<RwLock<(String, String)>>,
    /// Read each time: it may be put there while the replica runs.
    key_file: PathBuf,
    /// Where the keys of secrets are.
    pki: PathBuf,
    schedule: Option<BackupConfig>,
    /// Where a backup is written before it is sent.
    scratch: PathBuf,
}

/// A CA as PEM. Secret.
struct Ca {
    cert: String,
    key: String,
}

impl Ca {
    /// By what it is known: the digest of its public key. Empty where its certificate cannot be read.
    fn key(&self) -> String {
        let all = certificates_of(&self.cert).unwrap_or_default();
        all.first().and_then(|ca| ca_of(ca).ok()).map(|ca| ca.key).unwrap_or_default()
    }
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
            ca: Arc::new(RwLock::new((authority.cert_pem().to_owned(), authority.key_pem()))),
            key_file: dir.pki("backup.key"),
            pki: dir.path.join("pki"),
            schedule: dir.config.backup.clone(),
            scratch: dir.path.join("scheduled.backup"),
        }
    }

    /// From now on, backups are made of this CA, wherever this is cloned to.
    pub(crate) fn replace(&self, authority: &Authority) {
        let new = (authority.cert_pem().to_owned(), authority.key_pem());
        *self.ca.write().unwrap_or_else(PoisonError::into_inner) = new;
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
    /// The backup key cannot be read, the CA's key not be sealed, or this replica lacks a key without which the secrets in
    /// it were lost, or the key of the CA that issues.
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
        let (present, next) = self.authorities()?;
        let issuing = palisade_pki::issuing(view)
            .map_err(|error| BackupError::Unfit(format!("the cluster's CA: {error}")))?;
        let (ca, next) = match (issuing, next) {
            (Some(key), Some(next)) if next.key() == key => (next, None),
            (Some(key), _) if present.key() != key => {
                return Err(BackupError::Unfit(
                    "a CA that issues by now, and this replica does not have its key: it gets it by itself; make the \
                     backup then, or through another replica"
                        .to_owned(),
                ));
            }
            (_, next) => (present, next),
        };
        let head = self.sealed(life, members.collect(), created_ms, (ca, next))?;
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
        let cas = self.authorities()?;
        self.sealed((cluster, lineage, epoch), members, created_ms, cas)
    }

    fn unread(&self) -> impl FnOnce(io::Error) -> BackupError {
        let file = self.pki.clone();
        move |source| BackupError::Io { op: "read", file, source }
    }

    /// The CA of this replica, and the one that is to replace it.
    fn authorities(&self) -> Result<(Ca, Option<Ca>), BackupError> {
        let (cert, key) = self.ca.read().unwrap_or_else(PoisonError::into_inner).clone();
        let next = pki_files::next_in(&self.pki).map_err(self.unread())?;
        Ok((Ca { cert, key }, next.map(|[cert, key]| Ca { cert, key })))
    }

    fn sealed(
        &self,
        (cluster, lineage, epoch): (String, String, u64),
        members: Vec<BackupMember>,
        created_ms: u64,
        (ca, next): (Ca, Option<Ca>),
    ) -> Result<BackupHead, BackupError> {
        let key = BackupKey::load(&self.key_file)?;
        let ca_key = key.seal(&lineage, &ca.key, edge::random_bytes())?;
        let files = keyring::files_in(&self.pki).map_err(self.unread())?;
        let seal = |(name, content): &(String, Vec<u8>)| {
            key.seal_file(&lineage, name, content, edge::random_bytes())
        };
        let secret_keys = files.iter().map(seal).collect::<Result<Vec<_>, _>>()?;
        let next = next.into_iter().flat_map(|next| [next.cert, next.key]);
        let next = pki_files::NEXT.into_iter().zip(next);
        let next: Vec<_> = next.map(|(name, text)| (name.to_owned(), text.into_bytes())).collect();
        let next_ca = next.iter().map(seal).collect::<Result<Vec<_>, _>>()?;
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
            ca_pem: pki_files::plain(&ca.cert).to_owned(),
            ca_key,
            secret_keys,
            next_ca,
        })
    }
}
