//! Writing a snapshot file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_state::planted::{self, Defect};

use super::format::{self, Head, MAX_CHUNK, Sums};
use super::{SnapshotError, SnapshotInfo, file_name};
use crate::disk::{File, Files};

const BUFFER: usize = 1 << 20;

/// How much is written between two syncs, and then others may have the disk: one sync of a whole snapshot would stall
/// the log's own.
const SYNC_EVERY: u64 = 1 << 20;

/// A file that gets its name when it is whole and durable; until then it is removed when dropped.
pub(super) struct Draft {
    files: Arc<dyn Files>,
    file: Box<dyn File>,
    dir: PathBuf,
    pub path: PathBuf,
    pub buffer: Vec<u8>,
    written: u64,
    synced: u64,
    named: bool,
    /// Whether it stays when it is dropped without a name.
    pub kept: bool,
}

impl Draft {
    /// Opens what an earlier attempt left under `name`, or makes it; it stays when it is dropped.
    pub fn resume(files: Arc<dyn Files>, dir: &Path, name: &str) -> Result<Self, SnapshotError> {
        let path = dir.join(name);
        let file = match files.open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut draft = Self::create(files, dir, name)?;
                draft.kept = true;
                return Ok(draft);
            }
            opened => opened.map_err(SnapshotError::io("open", &path))?,
        };
        let mut draft = Self::over(files, file, dir, path);
        draft.kept = true;
        Ok(draft)
    }

    fn over(files: Arc<dyn Files>, file: Box<dyn File>, dir: &Path, path: PathBuf) -> Self {
        Self {
            files,
            file,
            dir: dir.to_owned(),
            path,
            buffer: Vec::new(),
            written: 0,
            synced: 0,
            named: false,
            kept: false,
        }
    }

    /// Reads what was written before.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> Result<usize, SnapshotError> {
        self.file.read_full_at(at, buffer).map_err(SnapshotError::io("read", &self.path))
    }

    /// Goes on at `at`; what is there is not known to be durable.
    pub fn go_on(&mut self, at: u64) {
        self.written = at;
        self.synced = 0;
    }

    pub fn create(files: Arc<dyn Files>, dir: &Path, name: &str) -> Result<Self, SnapshotError> {
        let path = dir.join(name);
        files.create_dir_all(dir).map_err(SnapshotError::io("create", dir))?;
        match files.remove(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(SnapshotError::io("remove", &path)(error));
            }
            _ => {}
        }
        let file = files.create(&path).map_err(SnapshotError::io("create", &path))?;
        Ok(Self::over(files, file, dir, path))
    }

    /// Writes the buffer when it has grown, and syncs now and then.
    pub fn spill(&mut self) -> Result<(), SnapshotError> {
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        self.file
            .write_all_at(self.written, &self.buffer)
            .map_err(SnapshotError::io("write", &self.path))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_EVERY {
            self.sync()?;
            self.file.breathe();
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SnapshotError> {
        self.file.sync_data().map_err(SnapshotError::io("sync", &self.path))?;
        self.synced = self.written;
        Ok(())
    }

    /// Makes durable what was written. It has no name yet.
    pub fn settle(&mut self) -> Result<(), SnapshotError> {
        self.flush()?;
        self.sync()
    }

    /// Makes the file durable under `name`; gives its path and length.
    pub fn publish(&mut self, name: &str) -> Result<(PathBuf, u64), SnapshotError> {
        self.settle()?;
        let path = self.dir.join(name);
        self.files.rename(&self.path, &path).map_err(SnapshotError::io("rename", &self.path))?;
        self.named = true;
        if planted::is(Defect::SnapshotNameNotSynced) {
            return Ok((path, self.written));
        }
        self.files
            .sync_dir(&self.dir)
            .map_err(SnapshotError::io("sync the directory of", &path))?;
        Ok((path, self.written))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.named && !self.kept {
            // Best effort: what stays is removed by `clean` at the next start.
            let _ = self.files.remove(&self.path);
        }
    }
}

/// Writes one snapshot; dropped before [`SnapshotWriter::finish`], it leaves nothing.
pub struct SnapshotWriter {
    draft: Draft,
    sums: Sums,
    head: Head,
}

impl SnapshotWriter {
    /// Begins the snapshot that `head` describes in `dir`.
    pub fn create(files: Arc<dyn Files>, dir: &Path, head: Head) -> Result<Self, SnapshotError> {
        let mut draft = Draft::create(files, dir, &format!("{}.tmp", file_name(head.position)))?;
        if !format::head_fits(&head) {
            return Err(SnapshotError::ChunkSize {
                bytes: head.membership.len().max(head.counts.len()),
            });
        }
        let mut sums = Sums::default();
        sums.put_head(&mut draft.buffer, &head);
        Ok(Self { draft, sums, head })
    }

    /// Adds a chunk of 1 byte to [`MAX_CHUNK`].
    pub fn chunk(&mut self, chunk: &[u8]) -> Result<(), SnapshotError> {
        if chunk.is_empty() || chunk.len() > MAX_CHUNK {
            return Err(SnapshotError::ChunkSize { bytes: chunk.len() });
        }
        self.sums.put_chunk(&mut self.draft.buffer, chunk);
        self.draft.spill()
    }

    /// Writes the trailer, makes everything durable and gives the file its name.
    pub fn finish(mut self) -> Result<SnapshotInfo, SnapshotError> {
        self.sums.put_trailer(&mut self.draft.buffer);
        let (path, file_bytes) = self.draft.publish(&file_name(self.head.position))?;
        let crc = self.sums.crc();
        Ok(SnapshotInfo { path, head: self.head, totals: self.sums.totals, file_bytes, crc })
    }
}
