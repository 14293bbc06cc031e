//! What keeps a replica from starting: the steps of its start, without a start.

use std::{error::Error, fs, io, path::Path};

use palisade_api::pki::{Authority, Identity as Certificate, PeerRole, load_certificates, peer_of};
use palisade_raft::{
    Identity,
    disk::is_lost,
    offline::{Examined, OfflineError, examine},
};

use crate::{
    join,
    output::failure::chain,
    replica_dir::{DirError, ReplicaConfig, ReplicaDir},
};

/// What is found in a replica's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing keeps it from starting.
    Sound {
        /// The last entry that it has.
        last: u64,
    },
    /// It has never run: there is nothing to repair.
    Fresh,
    /// What it had is damaged or gone.
    Damaged(String),
    /// It was removed from its cluster.
    Removed(String),
    /// It cannot start, and what it had is not damaged.
    Unable(String),
}

impl Finding {
    /// It in a word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Sound { .. } => "sound",
            Self::Fresh => "fresh",
            Self::Damaged(_) => "damaged",
            Self::Removed(_) => "removed",
            Self::Unable(_) => "unable",
        }
    }

    /// What is wrong.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::Sound { .. } => "nothing is damaged",
            Self::Fresh => "it has never run",
            Self::Damaged(why) | Self::Removed(why) | Self::Unable(why) => why,
        }
    }
}

/// What a directory still says of whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The replica's id.
    pub replica: Option<u64>,
    /// Its cluster, and the epoch.
    pub life: Option<(String, u64)>,
    /// The lineage.
    pub lineage: Option<String>,
}

/// Whose directory it is, by whatever can still be read of it.
pub(super) fn known(path: &Path) -> Known {
    let own = fs::read(path.join("identity.json")).ok();
    let own = own.and_then(|text| serde_json::from_slice::<Identity>(&text).ok());
    if let Some(identity) = own.or_else(|| Identity::read(&path.join("data")).ok().flatten()) {
        return Known {
            replica: Some(identity.replica.0),
            life: Some((identity.cluster, identity.epoch)),
            lineage: Some(identity.lineage),
        };
    }
    let chain = load_certificates(&path.join("pki/replica.pem")).unwrap_or_default();
    let Some(peer) = chain.first().and_then(|leaf| peer_of(leaf).ok()) else {
        return Known::default();
    };
    let replica = match peer.role {
        PeerRole::Replica(id) => Some(id),
        _ => None,
    };
    Known { replica, life: None, lineage: Some(peer.lineage) }
}

/// Its configuration, if that can be used.
pub(super) fn config(path: &Path) -> Option<ReplicaConfig> {
    crate::replica_dir::read_config(&path.join("replica.toml")).ok()
}

/// Whether an error says that something is damaged or gone: not that this process may not read it.
fn is_damage(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<io::Error>().is_some_and(|error| !is_lost(error)) {
            return false;
        }
        next = error.source();
    }
    true
}

fn wrong(error: &(dyn Error + 'static), damaged: bool) -> Finding {
    if damaged { Finding::Damaged(chain(error)) } else { Finding::Unable(chain(error)) }
}

fn of_dir(path: &Path, error: &DirError) -> Finding {
    let identity = path.join("identity.json");
    let damaged = match error {
        DirError::LogGone { .. } => true,
        DirError::Read { path, .. } | DirError::Malformed { path, .. } => {
            *path == identity && is_damage(error)
        }
        _ => false,
    };
    wrong(error, damaged)
}

fn check_pki(dir: &ReplicaDir) -> Result<(), Finding> {
    let failed = |what: &str, error: palisade_api::pki::PkiError| {
        let text = format!("{what}: {}", chain(&error));
        if is_damage(&error) { Finding::Damaged(text) } else { Finding::Unable(text) }
    };
    // Without the CA's key a replica that joined asks for it at its start.
    if !join::lacks_secrets(dir) {
        Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key"))
            .map_err(|error| failed("cannot use the cluster's CA", error))?;
    }
    Certificate::load(&dir.pki("replica.pem"), &dir.pki("replica.key"))
        .map_err(|error| failed("cannot use the replica's certificate", error))?;
    Ok(())
}

/// Looks at a replica's directory as its start would. While the answer's second part lives, no replica starts from it.
/// It blocks.
///
/// # Errors
/// A process runs on it.
pub(super) fn look(path: &Path) -> Result<(Finding, Option<Examined>), OfflineError> {
    let dir = match start(path) {
        Ok(dir) => dir,
        Err(finding) => return Ok((finding, None)),
    };
    match examine(&dir.data(), &dir.identity) {
        Ok(examined) => Ok((Finding::Sound { last: examined.last }, Some(examined))),
        Err(error @ OfflineError::Lock(palisade_raft::disk::LockError::Held { .. })) => Err(error),
        Err(OfflineError::Removed(told)) => Ok((Finding::Removed(told), None)),
        Err(error) => Ok((wrong(&error, error.is_damage()), None)),
    }
}

/// The steps before the data is read.
fn start(path: &Path) -> Result<ReplicaDir, Finding> {
    let dir = ReplicaDir::read(path).map_err(|error| of_dir(path, &error))?;
    if let Err(failure) = join::neighbours(&dir, None) {
        return Err(Finding::Unable(failure.detail));
    }
    if !dir.has_started() && join::lacks_secrets(&dir) {
        return Err(Finding::Fresh);
    }
    check_pki(&dir)?;
    dir.member().map_err(|error| of_dir(path, &error))?;
    dir.check_log().map_err(|error| of_dir(path, &error))?;
    if dir.has_started() || dir.data().join("log").exists() { Ok(dir) } else { Err(Finding::Fresh) }
}
