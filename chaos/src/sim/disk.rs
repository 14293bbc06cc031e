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
}

/// See the module. Clones share it.
#[derive(Clone)]
pub(crate) struct SimDisk(Arc<Mutex<Inner>>);

impl SimDisk {
    pub(crate) fn new(files: MemFiles, random: Random) -> Self {
        let inner = Inner { files, left: None, random, sync_micros: (150, 900) };
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

impl Files for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.files().create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.files().open(path)
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
