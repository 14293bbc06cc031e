//! The disk port: the few file operations that the log and the snapshots need, behind a trait.
//!
//! [`StdFiles`] is the real disk, [`MemFiles`] a model of one that loses what was not synced. Code
//! above this module never opens a file itself, so a test or the simulator can cut the power
//! between any two operations.

mod lock;
mod mem;
mod real;

use std::io;
use std::path::Path;

pub use lock::{DirLock, LockError};
pub use mem::MemFiles;
pub use real::StdFiles;

/// The unit that a disk writes as a whole; a torn write is torn between sectors.
pub const SECTOR: u64 = 512;

/// An open file, read and written at offsets.
pub trait File: Send + Sync {
    /// Writes some prefix of `data` at `offset` and says how much; a hole before it reads as zeros.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize>;

    /// Reads into `buf` from `offset`; 0 means the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Returns once everything written so far, and the file's length, survive a power cut.
    ///
    /// After an error it is unknown what is on the disk, and a later success says nothing about it.
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves space up to `size` and extends the file to it with zeros.
    fn allocate(&self, size: u64) -> io::Result<()>;

    /// The file's length in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Lets others have the disk for a moment, between two pieces of a long work that nobody waits for.
    fn breathe(&self) {}

    /// Writes all of `data` at `offset`.
    fn write_all_at(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            match self.write_at(offset, data) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    data = data.get(n..).unwrap_or_default();
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills `buf` from `offset`, or as much of it as the file has; says how much.
    fn read_full_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(offset + done as u64, &mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// The whole content.
    fn read_all(&self) -> io::Result<Vec<u8>> {
        let size = usize::try_from(self.size()?)
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut buf = vec![0; size];
        let n = self.read_full_at(0, &mut buf)?;
        buf.truncate(n);
        Ok(buf)
    }
}

/// A file system, as far as the log and the snapshots need one.
///
/// A created, renamed or removed name is durable only after [`Files::sync_dir`] of its directory.
pub trait Files: Send + Sync {
    /// Creates an empty file; an existing name is an error.
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Creates a directory and its parents, and makes their names durable; existing ones are fine.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Gives a file another name in the same directory, replacing what had that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns once the names in `dir` survive a power cut.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names of the files in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Bytes that an ordinary process can still allocate on the file system of `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// How much is zero-filled between two syncs: a burst of dirty pages would stall the log's own sync.
const ZERO_SYNC_EVERY: u64 = 2 * 1024 * 1024;
/// The same while somebody waits for the file: on a busy disk each sync costs tens of milliseconds.
const ZERO_SYNC_EVERY_IN_HASTE: u64 = 16 * 1024 * 1024;

/// The offset behind the last byte that is not zero. It compares pages: log files are mostly zeros.
pub(crate) fn data_end(bytes: &[u8]) -> usize {
    let mut end = bytes.len();
    for page in bytes.rchunks(4096) {
        if page != &ZEROS[..page.len()] {
            return end - page.iter().rev().take_while(|byte| **byte == 0).count();
        }
        end -= page.len();
    }
    0
}

/// Writes zeros over `from..to`; does not sync.
pub fn write_zeros(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let n = (to - at).min(ZEROS.len() as u64);
        file.write_all_at(at, &ZEROS[..n as usize])?;
        at += n;
    }
    Ok(())
}

/// Creates a file of `size` zero bytes that are really written, so that overwriting them later
/// changes no metadata, and syncs it. Its name is not yet durable.
///
/// As long as `is_patient` it lets others have the disk in between.
pub fn create_zeroed(
    files: &dyn Files,
    path: &Path,
    size: u64,
    is_patient: &dyn Fn() -> bool,
) -> io::Result<Box<dyn File>> {
    let file = files.create(path)?;
    let fill = || -> io::Result<()> {
        file.allocate(size)?;
        let mut at = 0;
        while at < size {
            let piece = if is_patient() { ZERO_SYNC_EVERY } else { ZERO_SYNC_EVERY_IN_HASTE };
            let to = size.min(at + piece);
            write_zeros(file.as_ref(), at, to)?;
            file.sync_data()?;
            at = to;
            if at < size && is_patient() {
                file.breathe();
            }
        }
        Ok(())
    };
    match fill() {
        Ok(()) => Ok(file),
        Err(error) => {
            // Best effort: a half-made file would keep the space that it could not get.
            let _ = files.remove(path);
            Err(error)
        }
    }
}

/// True when the error says that the disk (or the quota) is full.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// True when the error says that what was there cannot be had any more, rather than that this process may not, or not
/// now.
#[must_use]
pub fn is_lost(error: &io::Error) -> bool {
    !is_full(error)
        && !matches!(
            error.kind(),
            io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::OutOfMemory
                | io::ErrorKind::Interrupted
        )
}

#[cfg(test)]
mod tests;
