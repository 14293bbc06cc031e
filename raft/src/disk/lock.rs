//! The lock that keeps a second process out of a data directory.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// Why a data directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("data directory {} is in use by {holder}: stop that process, or use another directory", dir.display())]
    Held {
        /// The directory.
        dir: PathBuf,
        /// `process 1234`, or `another process` when its id could not be read.
        holder: String,
    },
    /// The lock file could not be made, locked or written.
    #[error("cannot lock data directory {}: check that it exists, is writable and not full", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// An exclusive lock on a directory, held until dropped or until the process ends, however it ends.
///
/// The file `LOCK` stays behind, with the id of the last holder; its existence means nothing.
#[derive(Debug)]
pub struct DirLock {
    _file: fs::File,
}

impl DirLock {
    /// Takes the lock without waiting.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io { dir: dir.to_owned(), source };
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("LOCK"))
            .map_err(io)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(LockError::Held { dir: dir.to_owned(), holder: holder(&mut file) });
            }
            Err(errno) => return Err(io(errno.into())),
        }
        let pid = std::process::id();
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(format!("{pid}\n").as_bytes()));
        match written {
            // The lock holds without the name of its holder; on a full disk reads are served all the same.
            Err(error) if !super::is_full(&error) => Err(io(error)),
            _ => Ok(Self { _file: file }),
        }
    }
}

fn holder(file: &mut fs::File) -> String {
    let mut text = String::new();
    let read = file.take(32).read_to_string(&mut text);
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        _ => "another process".to_owned(),
    }
}
