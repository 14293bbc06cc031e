//! Snapshot files: CRC-checked chunks between a header and a trailer, written beside and renamed when whole.
//!
//! ```text
//! header   "PALSNAP1", format u32, cluster [16], last term u64, last index u64,
//!          len u32 + membership bytes, len u32 + counts bytes, crc u32 over all of it
//! chunk    len u32 (1 to 16 MiB), crc u32 over number u64, len and bytes; bytes
//! trailer  0xffff_ffff, crc u32 over the rest of it, chunks u64, bytes u64, running crc u32 over header and bytes
//! ```
//! Integers are little-endian; nothing follows the trailer. What a file holds is also exactly what is sent to a
//! peer, so one parser checks both.
//!
//! * S1 A file has a name `<index>-<term>.snap` only when it is whole and durable.
//! * S2 Nothing of a snapshot is used before all of it was checked ([`SnapshotReader::open`] checks it). What is made of
//!   it while it is checked counts only if it is sound.

mod format;
mod keep;
mod reader;
mod receiver;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::format::{Head, MAX_CHUNK, Totals};
pub use self::keep::{Newest, clean, keep_newest, newest_good, newest_good_with, set_aside};
pub use self::reader::{Chunks, SnapshotReader};
pub use self::receiver::{Part, SnapshotReceiver, clean_parts};
pub use self::writer::SnapshotWriter;
use crate::wal::Position;

/// What can be wrong with a snapshot.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SnapshotError {
    /// The disk failed or is full.
    #[error("cannot {op} snapshot file {}", file.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The bytes are damaged, or fewer or more than they should be.
    #[error("snapshot file {} is damaged at byte {offset}: {what}", file.display())]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// In what way.
        what: String,
    },
    /// It was written by a newer release.
    #[error("snapshot file {} has format {found}, and this release knows formats up to {supported}: start the newer release", file.display())]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest one known here.
        supported: u32,
    },
    /// It is of another cluster.
    #[error("snapshot file {} is of another cluster", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// The caller gave a chunk that is empty or too large.
    #[error("a snapshot chunk of {bytes} bytes: it must have 1 to {limit}", limit = MAX_CHUNK)]
    ChunkSize {
        /// Its size.
        bytes: usize,
    },
}

impl SnapshotError {
    /// Whether what it held is damaged or gone.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt { .. } | Self::Foreign { .. } => true,
            Self::Io { source, .. } => crate::disk::is_lost(source),
            Self::NewerFormat { .. } | Self::ChunkSize { .. } => false,
        }
    }

    fn io(op: &'static str, file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { op, file: file.to_owned(), source: Arc::new(source) }
    }

    /// The file that it is about.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Io { file, .. }
            | Self::Corrupt { file, .. }
            | Self::NewerFormat { file, .. }
            | Self::Foreign { file } => Some(file),
            Self::ChunkSize { .. } => None,
        }
    }

    /// Whether the disk had no room for it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if crate::disk::is_full(source))
    }

    /// Whether the machine could not read it just now, which says nothing of the file.
    pub(super) fn is_passing(&self) -> bool {
        use io::ErrorKind::{Interrupted, OutOfMemory, PermissionDenied, WouldBlock};
        let Self::Io { source, .. } = self else { return false };
        let no_handles = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
        matches!(source.kind(), Interrupted | OutOfMemory | PermissionDenied | WouldBlock)
            || source
                .raw_os_error()
                .is_some_and(|raw| no_handles.iter().any(|errno| errno.raw_os_error() == raw))
    }

    fn corrupt(file: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), offset, what: what.into() }
    }
}

impl From<SnapshotError> for io::Error {
    fn from(error: SnapshotError) -> Self {
        let kind = match &error {
            SnapshotError::Io { source, .. } => source.kind(),
            SnapshotError::ChunkSize { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// A snapshot file that was found whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The file.
    pub path: PathBuf,
    /// What its header says.
    pub head: Head,
    /// How many chunks and bytes it holds.
    pub totals: Totals,
    /// The file's length.
    pub file_bytes: u64,
    /// The running checksum in its trailer.
    pub crc: u32,
}

fn file_name(position: Position) -> String {
    format!("{}-{}.snap", position.index, position.term)
}

fn position_of(name: &str) -> Option<Position> {
    let (index, term) = name.strip_suffix(".snap")?.split_once('-')?;
    let position = Position { term: term.parse().ok()?, index: index.parse().ok()? };
    (file_name(position) == name).then_some(position)
}

#[cfg(test)]
mod tests;
