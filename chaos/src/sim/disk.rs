//! A node's disk: the product's in-memory model behind a wrapper that counts, waits, names its places and decays.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use palisade_raft::disk::{File, Files, MemFiles};

use super::{
    nodes::{Life, context, current, lock},
    points::End,
};
use crate::random::Random;

struct Inner {
    files: MemFiles,
    /// The disk as the next life finds it, once this one is to end.
    left: Option<MemFiles>,
    random: Random,
    sync_micros: (u64, u64),
    /// Reads that are answered right before one is not.
    misread_in: Option<u64>,
    has_misread: bool,
}

/// See the module. Clones share it.
#[derive(Clone)]
pub(crate) struct SimDisk(Arc<Mutex<Inner>>);

impl SimDisk {
    pub(crate) fn new(files: MemFiles, random: Random) -> Self {
        let (sync_micros, misread_in, has_misread) = ((150, 900), None, false);
        let inner = Inner { files, left: None, random, sync_micros, misread_in, has_misread };
        Self(Arc::new(Mutex::new(inner)))
    }

    pub(crate) fn files(&self) -> MemFiles {
        lock(&self.0).files.clone()
    }

    /// The life on it ends now.
    pub(crate) fn ends(&self, end: End, seed: u64) {
        let mut inner = lock(&self.0);
        if inner.left.is_none() {
            let left = match end {
                End::Process => inner.files.after_kill(),
                End::Power => inner.files.crash(seed),
            };
            inner.left = Some(left);
        }
    }

    /// The disk for the next life.
    pub(crate) fn next(&self, random: Random) -> Self {
        let mut inner = lock(&self.0);
        let files = inner.left.take().unwrap_or_else(|| inner.files.after_kill());
        drop(inner);
        Self::new(files, random)
    }

    /// From now on a sync takes so many microseconds, at least and at most.
    pub(crate) fn set_sync(&self, micros: (u64, u64)) {
        lock(&self.0).sync_micros = micros;
    }

    /// After so many reads one is answered with a bit that is another; what is on the disk stays as it is.
    pub(crate) fn misread_in(&self, reads: u64) {
        lock(&self.0).misread_in = Some(reads);
    }

    /// Whether that has happened in this life.
    pub(crate) fn has_misread(&self) -> bool {
        lock(&self.0).has_misread
    }

    /// Whether a new replica finds no room on it, and is right to say so.
    pub(crate) fn is_full(&self) -> bool {
        self.files().free_bytes(Path::new("/data")).is_ok_and(|free| free < 1 << 20)
    }

    fn misread(&self, read: &mut [u8]) {
        let mut inner = lock(&self.0);
        let Some(left) = inner.misread_in else { return };
        // Zeros are what nobody reads.
        let Some(last) = read.iter().rposition(|byte| *byte != 0) else { return };
        match left {
            0 => {
                let (at, bit) = (inner.random.index(last + 1), inner.random.below(8));
                if let Some(byte) = read.get_mut(at) {
                    *byte ^= 1 << bit;
                }
                (inner.misread_in, inner.has_misread) = (None, true);
            }
            left => inner.misread_in = Some(left - 1),
        }
    }

    fn wrapped(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(SimFile { file, disk: self.clone() })
    }

    /// Changes a bit of some file in `dir` as the next life finds it; says which.
    pub(crate) fn decay(&self, dir: &Path, random: &mut Random) -> Option<String> {
        let inner = lock(&self.0);
        let files = inner.left.as_ref()?;
        let names = files.list(dir).ok()?;
        let path = dir.join(names.get(random.index(names.len()))?);
        let content = files.read(&path).ok()?;
        // Most of a segment are zeros that nobody reads.
        let used = content.iter().rposition(|byte| *byte != 0)? as u64 + 1;
        let (at, bit) = (random.below(used), random.below(8));
        files.flip_bit(&path, at, u8::try_from(bit).unwrap_or(0)).ok()?;
        Some(format!("bit {bit} of byte {at} of {} is another", path.display()))
    }

    /// How long the next sync takes.
    pub(crate) fn sync_takes(&self) -> Duration {
        let mut inner = lock(&self.0);
        let (low, high) = inner.sync_micros;
        let slow = if inner.random.below(200) == 0 { 20 } else { 1 };
        Duration::from_micros(inner.random.within(low, high) * slow)
    }
}

fn pass(point: &'static str) {
    if let Some(nodes) = context() {
        let life: Life = current();
        nodes.pass(life, point);
    }
}

/// An open file.
struct SimFile {
    file: Box<dyn File>,
    disk: SimDisk,
}

impl File for SimFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.file.write_at(offset, data)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(offset, buf)?;
        if let Some(read) = buf.get_mut(..count) {
            self.disk.misread(read);
        }
        Ok(count)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.file.allocate(size)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

impl Files for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.files().create(path).map(|file| self.wrapped(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.files().open(path).map(|file| self.wrapped(file))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.files().create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.files().rename(from, to)?;
        let is_snapshot = to.extension().is_some_and(|extension| extension == "snap");
        pass(if is_snapshot { "disk.snapshot.renamed" } else { "disk.segment.renamed" });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files().remove(path)?;
        pass("disk.removed");
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.files().sync_dir(dir)?;
        let is_snapshots = dir.ends_with("snapshots");
        pass(if is_snapshots { "disk.snapshot.synced" } else { "disk.dir.synced" });
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.files().list(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.files().free_bytes(dir)
    }
}
