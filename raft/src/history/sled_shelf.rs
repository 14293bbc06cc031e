//! A shelf in sled.
//!
//! # Invariants
//! - `HIST-1` Nothing that sled does ends this process: every call runs under `catch_unwind`, and a store that has
//!   panicked is never touched again, not even to close it.
//! - `HIST-2` What [`Shelf::sync`] answers for is on the disk: sled's `flush` only hands it to the system, so its files
//!   are synced behind it.
//! - `HIST-7` What sled has replaced is freed as fast as it is replaced. By itself it frees a few hundred pieces with every
//!   128th call of a thread, however much one call has replaced, so that a steady writer of large batches would use memory
//!   without end.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::shelf::{Changes, Pair, Shelf, ShelfError, Shelved};

const CACHE_BYTES: u64 = 32 << 20;
/// Changes of one batch that are freed together: a step frees up to 512 pieces, and a change replaces some of them.
const FREED_TOGETHER: usize = 50;

/// See the module.
pub(crate) struct SledShelf {
    dir: PathBuf,
    /// Gone only while the shelf is dropped.
    db: Option<sled::Db>,
    file: fs::File,
    /// Large values, which sled puts into files of their own, that are durable.
    synced: Mutex<BTreeSet<OsString>>,
    has_panicked: AtomicBool,
}

fn broken(what: impl Into<String>) -> ShelfError {
    ShelfError::Broken(what.into())
}

fn io_error(what: &str, path: &Path, error: &io::Error) -> ShelfError {
    if crate::disk::is_full(error) {
        return ShelfError::Full;
    }
    broken(format!("cannot {what} {}: {error}", path.display()))
}

fn sled_error(error: sled::Error) -> ShelfError {
    match error {
        sled::Error::Io(error) if crate::disk::is_full(&error) => ShelfError::Full,
        // This is how sled says that its lock is held.
        sled::Error::Io(error) if error.to_string().contains("could not acquire lock") => {
            ShelfError::Busy("another process or an earlier run has it open".to_owned())
        }
        error => broken(format!("sled: {error}")),
    }
}

/// Runs a call of sled's; a panic is an error like any other.
fn caught<T>(work: impl FnOnce() -> Result<T, sled::Error>) -> Result<Shelved<T>, String> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map(|result| result.map_err(sled_error)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("sled panicked: {}", text.as_deref().unwrap_or("without a word"))
    })
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

impl SledShelf {
    /// Opens the store in `dir`, or makes one.
    pub(crate) fn open(dir: &Path) -> Shelved<Self> {
        fs::create_dir_all(dir).map_err(|error| io_error("make", dir, &error))?;
        let config = sled::Config::default()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            // It is flushed by us, when a batch is whole.
            .flush_every_ms(None);
        let db = caught(|| config.open()).unwrap_or_else(|panic| Err(broken(panic)))?;
        let path = dir.join("db");
        let opened = fs::File::open(&path).and_then(|file| {
            sync_dir(dir)?;
            Ok(file)
        });
        let file = opened.map_err(|error| io_error("open", &path, &error))?;
        Ok(Self {
            dir: dir.to_owned(),
            db: Some(db),
            file,
            synced: Mutex::default(),
            has_panicked: AtomicBool::new(false),
        })
    }

    fn call<T>(&self, work: impl FnOnce(&sled::Db) -> Result<T, sled::Error>) -> Shelved<T> {
        if self.has_panicked.load(Ordering::SeqCst) {
            return Err(broken("sled has panicked before"));
        }
        let Some(db) = &self.db else {
            return Err(broken("it is closed"));
        };
        caught(|| work(db)).unwrap_or_else(|panic| {
            self.has_panicked.store(true, Ordering::SeqCst);
            Err(broken(panic))
        })
    }

    /// Frees what `changes` changes have replaced, as soon as nobody else is reading it.
    fn free(changes: usize) {
        for _ in 0..changes / FREED_TOGETHER + 2 {
            crossbeam_epoch::pin().flush();
        }
    }

    fn sync_blobs(&self) -> io::Result<()> {
        let dir = self.dir.join("blobs");
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = BTreeSet::new();
        let mut is_new = false;
        for entry in fs::read_dir(&dir)? {
            let name = entry?.file_name();
            if !synced.contains(&name) {
                match fs::File::open(dir.join(&name)) {
                    Ok(file) => file.sync_all()?,
                    // sled has collected it meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                }
                is_new = true;
            }
            now.insert(name);
        }
        *synced = now;
        if is_new { sync_dir(&dir) } else { Ok(()) }
    }
}

impl Shelf for SledShelf {
    fn get(&self, key: &[u8]) -> Shelved<Option<Vec<u8>>> {
        self.call(|db| Ok(db.get(key)?.map(|value| value.to_vec())))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Shelved<Vec<Pair>> {
        if from >= to {
            return Ok(vec![]);
        }
        self.call(|db| {
            let found = db.range(from..to).take(limit);
            found.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
        })
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Shelved<Option<Pair>> {
        if from >= to {
            return Ok(None);
        }
        self.call(|db| {
            let found = db.range(from..to).next_back().transpose()?;
            Ok(found.map(|(key, value)| (key.to_vec(), value.to_vec())))
        })
    }

    fn write(&self, changes: Changes) -> Shelved<()> {
        let count = changes.len();
        self.call(|db| {
            let mut batch = sled::Batch::default();
            for (key, value) in changes {
                match value {
                    Some(value) => batch.insert(key, value),
                    None => batch.remove(key),
                }
            }
            let written = db.apply_batch(batch);
            Self::free(count);
            written
        })
    }

    fn sync(&self) -> Shelved<()> {
        self.call(|db| db.flush().map(drop))?;
        self.file.sync_all().map_err(|error| io_error("sync", &self.dir.join("db"), &error))?;
        self.sync_blobs().map_err(|error| io_error("sync", &self.dir.join("blobs"), &error))
    }
}

impl Drop for SledShelf {
    fn drop(&mut self) {
        let db = self.db.take();
        if self.has_panicked.load(Ordering::SeqCst) {
            // Closing it would flush, and could hang or panic again.
            std::mem::forget(db);
        } else if catch_unwind(AssertUnwindSafe(move || drop(db))).is_err() {
            tracing::warn!(dir = %self.dir.display(), "sled panicked while it was closed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// History of a saturated cluster once used 2.6 KB of memory for each write, without end.
    #[test]
    fn what_sled_replaced_is_freed_by_writing_on() {
        const WRITES_MAX: u64 = 100;
        let dir = tempfile::tempdir().unwrap();
        let shelf = SledShelf::open(dir.path()).unwrap();
        let is_freed = Arc::new(AtomicBool::new(false));
        let flag = is_freed.clone();
        crossbeam_epoch::pin().defer(move || flag.store(true, Ordering::SeqCst));
        let mut writes = 0;
        while !is_freed.load(Ordering::SeqCst) {
            assert!(writes < WRITES_MAX, "nothing was freed in {writes} writes");
            shelf.write(vec![(b"key".to_vec(), Some(writes.to_be_bytes().to_vec()))]).unwrap();
            writes += 1;
        }
    }
}
