//! A disk in memory that keeps, besides what a reader sees, what a power cut would leave.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{File, Files, SECTOR};

/// A disk in memory with a power switch and faults on order.
///
/// Clones share one disk. The model: a write reaches the medium at [`File::sync_data`], or at a
/// power cut by chance, sector by sector; a name at [`Files::sync_dir`], or by chance. A
/// failed sync *forgets* that its sectors were dirty, as Linux does, so a later sync that succeeds does not
/// save them. Directories themselves are durable at once.
#[derive(Clone, Default)]
pub struct MemFiles {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Default)]
struct Disk {
    inodes: BTreeMap<u64, Inode>,
    dirs: BTreeMap<PathBuf, Dir>,
    next_inode: u64,
    capacity: Option<u64>,
    faults: Faults,
    syncs: u64,
}

#[derive(Default, Clone)]
struct Inode {
    seen: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<u64>,
}

#[derive(Default, Clone)]
struct Dir {
    seen: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    pending: Vec<DirOp>,
}

#[derive(Clone)]
enum DirOp {
    Link(String, u64),
    Unlink(String),
    Rename(String, String, u64),
}

#[derive(Default)]
struct Faults {
    sync_in: Option<u64>,
    write_in: Option<u64>,
    dir_sync_in: Option<u64>,
    read_in: Option<u64>,
    short_writes: bool,
    /// Names that end so cannot be given: no room.
    no_room_for: Option<String>,
}

/// Counts a fault down; true when it strikes now. It strikes once.
fn strikes(fault: &mut Option<u64>) -> bool {
    match fault {
        Some(0) => {
            *fault = None;
            true
        }
        Some(n) => {
            *n -= 1;
            false
        }
        None => false,
    }
}

fn errno(errno: rustix::io::Errno) -> io::Error {
    errno.into()
}

fn split(path: &Path) -> io::Result<(PathBuf, String)> {
    match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(dir), Some(name)) => Ok((dir.to_owned(), name.to_owned())),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// A small seeded generator; good enough to choose sectors.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True `n` times in 4.
    fn quarters(&mut self, n: u64) -> bool {
        self.next() % 4 < n
    }
}

impl Disk {
    fn inode(&mut self, id: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&id).ok_or_else(|| errno(rustix::io::Errno::IO))
    }

    fn lookup(&self, path: &Path) -> io::Result<u64> {
        let (dir, name) = split(path)?;
        self.dirs
            .get(&dir)
            .and_then(|dir| dir.seen.get(&name))
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn dir(&mut self, dir: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(dir).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn used(&self) -> u64 {
        self.inodes.values().map(|inode| inode.seen.len() as u64).sum()
    }

    fn free(&self) -> u64 {
        self.capacity.map_or(1 << 50, |capacity| capacity.saturating_sub(self.used()))
    }

    /// Makes the file at least `size` long, as far as the capacity allows.
    fn extend(&mut self, id: u64, size: u64) -> io::Result<()> {
        let free = self.free();
        let inode = self.inode(id)?;
        let have = inode.seen.len() as u64;
        if size.saturating_sub(have) > free {
            return Err(errno(rustix::io::Errno::NOSPC));
        }
        if size > have {
            inode.seen.resize(size as usize, 0);
        }
        Ok(())
    }

    fn write(&mut self, id: u64, offset: u64, data: &[u8]) -> io::Result<usize> {
        if strikes(&mut self.faults.write_in) {
            return Err(errno(rustix::io::Errno::IO));
        }
        let n = if self.faults.short_writes { data.len().div_ceil(2) } else { data.len() };
        let end = offset + n as u64;
        self.extend(id, end)?;
        let inode = self.inode(id)?;
        inode.seen[offset as usize..end as usize].copy_from_slice(&data[..n]);
        if n > 0 {
            inode.dirty.extend(offset / SECTOR..=(end - 1) / SECTOR);
        }
        Ok(n)
    }

    fn sync(&mut self, id: u64) -> io::Result<()> {
        self.syncs += 1;
        let fails = strikes(&mut self.faults.sync_in);
        let inode = self.inode(id)?;
        let dirty = std::mem::take(&mut inode.dirty);
        if fails {
            return Err(errno(rustix::io::Errno::IO));
        }
        inode.durable.resize(inode.seen.len(), 0);
        for sector in dirty {
            inode.keep(sector);
        }
        Ok(())
    }

    /// Drops files that no name leads to, now or after a power cut.
    fn forget_orphans(&mut self) {
        let mut live = BTreeSet::new();
        for dir in self.dirs.values() {
            live.extend(dir.seen.values().copied());
            live.extend(dir.durable.values().copied());
            for op in &dir.pending {
                if let DirOp::Link(_, id) | DirOp::Rename(_, _, id) = op {
                    live.insert(*id);
                }
            }
        }
        self.inodes.retain(|id, _| live.contains(id));
    }
}

impl Inode {
    /// Copies one sector to the medium, as far as the medium's length goes.
    fn keep(&mut self, sector: u64) {
        let from = (sector * SECTOR) as usize;
        let to = (from + SECTOR as usize).min(self.seen.len()).min(self.durable.len());
        if from < to {
            self.durable[from..to].copy_from_slice(&self.seen[from..to]);
        }
    }

    fn crash(&mut self, dice: &mut Dice) {
        if self.seen.len() != self.durable.len() && dice.quarters(2) {
            self.durable.resize(self.seen.len(), 0);
        }
        // All, none, a prefix or any subset of the sectors: each is what some disk does.
        let style = dice.next() % 4;
        let dirty = std::mem::take(&mut self.dirty);
        let prefix = (dice.next() % (dirty.len() as u64 + 1)) as usize;
        for (nth, sector) in dirty.into_iter().enumerate() {
            let kept = match style {
                0 => true,
                1 => false,
                2 => nth < prefix,
                _ => dice.quarters(2),
            };
            if kept {
                self.keep(sector);
            }
        }
        self.seen.clone_from(&self.durable);
    }
}

impl Dir {
    fn crash(&mut self, dice: &mut Dice) {
        let style = dice.next() % 3;
        let pending = std::mem::take(&mut self.pending);
        let prefix = (dice.next() % (pending.len() as u64 + 1)) as usize;
        for (nth, op) in pending.into_iter().enumerate() {
            let kept = match style {
                0 => true,
                1 => nth < prefix,
                _ => dice.quarters(2),
            };
            if !kept {
                continue;
            }
            match op {
                DirOp::Link(name, id) => {
                    self.durable.insert(name, id);
                }
                DirOp::Unlink(name) => {
                    self.durable.remove(&name);
                }
                DirOp::Rename(from, to, id) => {
                    self.durable.remove(&from);
                    self.durable.insert(to, id);
                }
            }
        }
        self.seen.clone_from(&self.durable);
    }
}

impl MemFiles {
    /// An empty disk without faults or limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk as it is found after a power cut now: a separate disk, without faults on order.
    ///
    /// One seed gives one outcome; the disk itself goes on as if nothing had happened, so many
    /// outcomes can be drawn from one moment.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let now = self.disk();
        let mut dice = Dice(seed);
        let mut disk = Disk {
            inodes: now.inodes.clone(),
            dirs: now.dirs.clone(),
            next_inode: now.next_inode,
            capacity: now.capacity,
            ..Disk::default()
        };
        disk.inodes.values_mut().for_each(|inode| inode.crash(&mut dice));
        disk.dirs.values_mut().for_each(|dir| dir.crash(&mut dice));
        disk.forget_orphans();
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    /// The disk as another process finds it after this one was killed: nothing written is lost.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let now = self.disk();
        let disk = Disk {
            inodes: now.inodes.clone(),
            dirs: now.dirs.clone(),
            next_inode: now.next_inode,
            capacity: now.capacity,
            ..Disk::default()
        };
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    /// The `n`-th file sync from now (0 is the next) fails with EIO and loses what it covered.
    pub fn fail_sync_in(&self, n: u64) {
        self.disk().faults.sync_in = Some(n);
    }

    /// The `n`-th directory sync from now (0 is the next) fails with EIO.
    pub fn fail_dir_sync_in(&self, n: u64) {
        self.disk().faults.dir_sync_in = Some(n);
    }

    /// The `n`-th write from now (0 is the next) fails with EIO.
    pub fn fail_write_in(&self, n: u64) {
        self.disk().faults.write_in = Some(n);
    }

    /// The `n`-th read from now (0 is the next) fails with EIO.
    pub fn fail_read_in(&self, n: u64) {
        self.disk().faults.read_in = Some(n);
    }

    /// From now on a rename to a name that ends with `suffix` finds no room; `None` lifts that.
    pub fn no_room_for_names(&self, suffix: Option<&str>) {
        self.disk().faults.no_room_for = suffix.map(str::to_owned);
    }

    /// From now on each write takes only half of what it is given.
    pub fn short_writes(&self, on: bool) {
        self.disk().faults.short_writes = on;
    }

    /// Limits the sum of all file lengths; `None` lifts the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk().capacity = bytes;
    }

    /// The sum of all file lengths.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.disk().used()
    }

    /// How many file syncs there were.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.disk().syncs
    }

    /// Changes a file's bytes on the medium and in the reader's view, as decay does.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut disk = self.disk();
        let id = disk.lookup(path)?;
        let inode = disk.inode(id)?;
        change(&mut inode.seen);
        inode.durable.clone_from(&inode.seen);
        inode.dirty.clear();
        Ok(())
    }

    /// Flips one bit of a file on the medium.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) -> io::Result<()> {
        self.damage(path, |bytes| {
            if let Some(byte) = bytes.get_mut(byte as usize) {
                *byte ^= 1 << (bit % 8);
            }
        })
    }

    /// A file's content as a reader sees it.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut disk = self.disk();
        let id = disk.lookup(path)?;
        Ok(disk.inode(id)?.seen.clone())
    }
}

struct MemFile {
    files: MemFiles,
    id: u64,
}

impl File for MemFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.files.disk().write(self.id, offset, data)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut disk = self.files.disk();
        if strikes(&mut disk.faults.read_in) {
            return Err(errno(rustix::io::Errno::IO));
        }
        let seen = &disk.inode(self.id)?.seen;
        let rest = seen.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.files.disk().sync(self.id)
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.files.disk().extend(self.id, size)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.files.disk().inode(self.id)?.seen.len() as u64)
    }
}

impl Files for MemFiles {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let (dir, name) = split(path)?;
        let mut disk = self.disk();
        if disk.dir(&dir)?.seen.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        disk.next_inode += 1;
        let id = disk.next_inode;
        disk.inodes.insert(id, Inode::default());
        let dir = disk.dir(&dir)?;
        dir.seen.insert(name.clone(), id);
        dir.pending.push(DirOp::Link(name, id));
        Ok(Box::new(MemFile { files: self.clone(), id }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let id = self.disk().lookup(path)?;
        Ok(Box::new(MemFile { files: self.clone(), id }))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        for dir in dir.ancestors() {
            disk.dirs.entry(dir.to_owned()).or_default();
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (dir, from) = split(from)?;
        let (to_dir, to) = split(to)?;
        if dir != to_dir {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        let mut disk = self.disk();
        if disk.faults.no_room_for.as_ref().is_some_and(|suffix| to.ends_with(suffix.as_str())) {
            return Err(errno(rustix::io::Errno::NOSPC));
        }
        let dir = disk.dir(&dir)?;
        let id = dir.seen.remove(&from).ok_or(io::ErrorKind::NotFound)?;
        dir.seen.insert(to.clone(), id);
        dir.pending.push(DirOp::Rename(from, to, id));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let mut disk = self.disk();
        let dir = disk.dir(&dir)?;
        dir.seen.remove(&name).ok_or(io::ErrorKind::NotFound)?;
        dir.pending.push(DirOp::Unlink(name));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        if strikes(&mut disk.faults.dir_sync_in) {
            return Err(errno(rustix::io::Errno::IO));
        }
        let dir = disk.dir(path)?;
        dir.durable = dir.seen.clone();
        dir.pending.clear();
        disk.forget_orphans();
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.disk().dir(dir)?.seen.keys().cloned().collect())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.disk().free())
    }
}
