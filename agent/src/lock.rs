//! The lock on the agent's data directory: one agent in one directory.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

/// Why the directory could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another agent runs there.
    #[error("{} is in use by another agent, process {pid}; stop it first or give another --data-dir", dir.display())]
    Held {
        /// The directory.
        dir: PathBuf,
        /// Who holds it, as it wrote itself; `unknown` when it did not.
        pid: String,
    },
    /// The lock file could not be opened or written.
    #[error("cannot lock {}: check that the directory exists and is writable by this user", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Holds the directory until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Locks `dir`, making it if needed.
    ///
    /// # Errors
    /// [`LockError::Held`] when another process has it.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join("agent.lock");
        let io_error = |source| LockError::Io { path: path.clone(), source };
        std::fs::create_dir_all(dir).map_err(io_error)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io_error)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(io_error(error.into()));
            }
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            let pid = if text.trim().is_empty() { "unknown" } else { text.trim() };
            return Err(LockError::Held { dir: dir.to_owned(), pid: pid.to_owned() });
        }
        file.set_len(0).map_err(io_error)?;
        file.rewind().map_err(io_error)?;
        writeln!(file, "{}", std::process::id()).map_err(io_error)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let held = DirLock::acquire(dir.path()).unwrap();
        let error = DirLock::acquire(dir.path()).unwrap_err();
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(held);
        DirLock::acquire(dir.path()).unwrap();
    }
}
