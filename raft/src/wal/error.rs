//! What can go wrong with the log.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why the log refuses. It is cloned to every caller whom it concerns.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WalError {
    /// The disk failed. Final: what it holds now is unknown, so the log stops.
    #[error("the log cannot {op} {}: this replica stops; check the disk, then restart it", file.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// Bytes that had been acknowledged are damaged or gone.
    #[error(
        "log file {} is damaged at byte {offset}: {what}; nothing was changed and this replica does not vote; \
         rejoin from the other replicas with `palisade cluster repair` (an older copy of the data is refused, too)", file.display()
    )]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// In what way.
        what: String,
    },
    /// The file belongs to somebody else.
    #[error("log file {} belongs to {found}, and this is {expected}: use that replica's own data directory, or rejoin from the other replicas with \
        `palisade cluster repair`", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// Whose it is.
        found: String,
        /// Who we are.
        expected: String,
    },
    /// The file was written by a newer release.
    #[error(
        "log file {} has format {found}, and this release knows formats up to {supported}: start the newer release", file.display()
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest one known here.
        supported: u32,
    },
    /// The disk is nearly full; entries are refused, votes are not. Not final.
    #[error("the disk under {} is nearly full ({free} bytes left, {needed} needed): free some space; writes resume by themselves", dir.display())]
    NoSpace {
        /// The log's directory.
        dir: PathBuf,
        /// What is free.
        free: u64,
        /// What must be free.
        needed: u64,
    },
    /// An entry is larger than a segment. Not final.
    #[error("an entry of {bytes} bytes is larger than a log segment can hold ({limit})")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest that fits.
        limit: u64,
    },
    /// The caller asked for something that would make the log wrong. Not final.
    #[error("the log refuses {what}")]
    Invalid {
        /// What it was.
        what: String,
    },
    /// The log stopped after an earlier failure.
    #[error("the log has stopped after an earlier failure: {first}")]
    Stopped {
        /// That failure.
        first: String,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

impl WalError {
    /// True when only this request was refused and the log goes on.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::TooLarge { .. } | Self::Invalid { .. })
    }

    /// Whether the disk has no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::Io { source, .. } => crate::disk::is_full(source),
            _ => false,
        }
    }

    /// Whether what the log held is damaged or gone.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt { .. } | Self::Foreign { .. } => true,
            Self::Io { source, .. } => crate::disk::is_lost(source),
            _ => false,
        }
    }

    pub(super) fn io(op: &'static str, file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { op, file: file.to_owned(), source: Arc::new(source) }
    }

    pub(super) fn corrupt(file: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), offset, what: what.into() }
    }
}

impl From<WalError> for io::Error {
    fn from(error: WalError) -> Self {
        let kind = match &error {
            WalError::Io { source, .. } => source.kind(),
            WalError::Corrupt { .. } | WalError::Foreign { .. } | WalError::NewerFormat { .. } => {
                io::ErrorKind::InvalidData
            }
            WalError::NoSpace { .. } => io::ErrorKind::StorageFull,
            WalError::TooLarge { .. } | WalError::Invalid { .. } => io::ErrorKind::InvalidInput,
            WalError::Stopped { .. } | WalError::Closed => io::ErrorKind::BrokenPipe,
        };
        io::Error::new(kind, error)
    }
}
