//! Backup files: a whole cluster in one file, checked from end to end.
//!
//! ```text
//! magic "PALBKUP1", format, length of the header, header (JSON), CRC-32 of all of that
//! chunk: length, CRC-32 over (number, length, bytes), bytes          (as many as there are)
//! trailer: mark, CRC-32, chunks, bytes, SHA-256 of everything before the trailer
//! ```
//!
//! # Invariants
//! - `BAK-1` What is read from a backup was checked: each piece by its CRC before it is used, the whole by its totals
//!   and its SHA-256 before anything is made from it.
//! - `BAK-2` Neither writing nor reading holds more than one chunk; only loading the state holds the state.
//! - `BAK-3` The CA's key is never in a backup but sealed, and the key that opens it is never in a backup.

mod format;
mod head;
mod reader;
mod seal;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
};

use palisade_state::snapshot::LoadError;

pub use format::{FORMAT, MAX_CHUNK, Totals};
pub use head::{BackupHead, BackupMember};
pub use reader::{BackupReader, Checker, Chunks, Info};
pub use seal::{BackupKey, Sealed, SealedFile};
pub use writer::{Encoder, write_backup};

/// Why a backup cannot be made, read or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A file cannot be read or written.
    #[error("cannot {op} {}", file.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is damaged, cut short, or no backup at all.
    #[error("backup {} is damaged at byte {offset}: {what}; use another backup, nothing was made from this one", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// In what way.
        what: String,
    },
    /// It was written by a newer release.
    #[error(
        "backup {} has format {found}, and this release knows formats up to {supported}: use the newer release", file.display()
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest one known here.
        supported: u32,
    },
    /// Its content cannot be loaded.
    #[error("backup {} holds what this build cannot load", file.display())]
    Load {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: LoadError,
    },
    /// It was sealed with another key.
    #[error(
        "the CA key in backup {} was sealed with the backup key {wanted}, and {} is {given}: give the pki/backup.key of \
         the cluster that wrote it", file.display(), key.display()
    )]
    WrongKey {
        /// The backup.
        file: PathBuf,
        /// The key file that was given.
        key: PathBuf,
        /// The id of the key that it was sealed with.
        wanted: String,
        /// The id of the key that was given.
        given: String,
    },
    /// A file that should hold a backup key does not.
    #[error("{} is no backup key: it has {bytes} bytes, and a key has {}", file.display(), seal::KEY_BYTES)]
    NoKey {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The cipher failed.
    #[error("the CA key cannot be sealed")]
    Seal,
    /// Something is too large, or cannot be encoded.
    #[error("a backup cannot hold {0}")]
    Unfit(String),
    /// The state cannot be encoded.
    #[error("the state cannot be encoded")]
    Encode(#[from] serde_json::Error),
}

impl BackupError {
    fn io(op: &'static str, file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { op, file: file.to_owned(), source }
    }

    fn corrupt(file: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), offset, what: what.into() }
    }
}

#[cfg(test)]
pub(crate) mod tests;
