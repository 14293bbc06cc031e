//! What is done to a replica's data while no replica runs on it: looking for damage, reading a survivor, and making
//! the data of a new life.
//!
//! # Invariants
//! - `OFF-1` What a replica is made from here has its state as its newest snapshot, an empty log behind it, and a vote
//!   that no entry of it outranks: whoever leads next does so in a higher term than any leader of the old life.
//! - `OFF-2` Reading a survivor loses nothing and acknowledges nothing: it changes no more than a start would.

mod examine;
mod reborn;
mod seed;
mod survivor;

use std::{io, path::PathBuf};

use palisade_state::{ApplyError, TxError};

use crate::{
    IdentityError, SnapshotsError, StartError,
    disk::{LockError, is_lost},
    snapshot_file::SnapshotError,
    wal::WalError,
};

pub use examine::{Examined, examine};
pub use reborn::Reborn;
pub use seed::seed;
pub use survivor::{Survivor, SurvivorMember};

/// Why a replica's data cannot be read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfflineError {
    /// A directory cannot be used.
    #[error("cannot use data directory {}", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A replica runs on it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It is another's, or nobody's.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Its replica was removed from the cluster.
    #[error("{0}")]
    Removed(String),
    /// It is a copy of another directory in use.
    #[error("{0}")]
    Copy(String),
    /// It has no identity: no replica has run on it.
    #[error("{} has no identity.json: no replica has ever run on it", dir.display())]
    Unused {
        /// The directory.
        dir: PathBuf,
    },
    /// Its log cannot be used.
    #[error(transparent)]
    Log(#[from] WalError),
    /// Its snapshots cannot be used.
    #[error(transparent)]
    Snapshots(#[from] SnapshotsError),
    /// A snapshot cannot be written.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Its snapshots do not reach its log.
    #[error(transparent)]
    Gap(#[from] Box<StartError>),
    /// An entry of the log cannot be read.
    #[error("entry {index} of the log in {} cannot be read", dir.display())]
    Entry {
        /// The data directory.
        dir: PathBuf,
        /// Which.
        index: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An entry of the log cannot be applied.
    #[error("the log in {} cannot be applied", dir.display())]
    Apply {
        /// The data directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: ApplyError,
    },
    /// It holds no cluster: the replica never was a member of one that was formed.
    #[error("{} holds no formed cluster: there is nothing to go on from", dir.display())]
    Nothing {
        /// The data directory.
        dir: PathBuf,
    },
    /// There is a log where none may be.
    #[error("{} holds a log already", dir.display())]
    Taken {
        /// The data directory.
        dir: PathBuf,
    },
    /// The first entry of the new life cannot be made.
    #[error("the first entry of the new life cannot be built")]
    Build(#[from] TxError),
    /// The kernel refused it.
    #[error("the kernel refused the first entry of the new life: {0}")]
    Refused(String),
    /// The membership cannot be made.
    #[error("the membership of the new life cannot be made: {0}")]
    Membership(String),
    /// Something cannot be encoded.
    #[error("the new life's snapshot cannot be encoded")]
    Encode(#[from] serde_json::Error),
}

impl OfflineError {
    /// Whether what the replica had is damaged or gone. Data that is in use, of a newer release or out of reach of this
    /// user is not.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Dir { source, .. } => is_lost(source),
            Self::Identity(error) => error.is_damage(),
            Self::Log(error) => error.is_damage(),
            Self::Snapshots(error) => error.is_damage(),
            Self::Snapshot(error) => error.is_damage(),
            Self::Gap(error) => error.is_damage(),
            Self::Lock(LockError::Io { source, .. }) => is_lost(source),
            _ => false,
        }
    }
}
