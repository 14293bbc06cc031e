//! The replica's snapshots: written from a view, found at start, installed from a peer.
//!
//! # Invariants
//! - `SNAP-2` What [`Kept`] names is durable under its name; purging the log relies on it alone.
//! - `SNAP-3` A received snapshot gets its name only when it is installed, after the log was cut to fit: a crash in
//!   between leaves the old snapshot with the old log.
//!   A name for which the disk has no room is waited for: it is too late to refuse.
//! - `SNAP-4` A snapshot stops before it takes more than a write's worth of what the log keeps free for itself. One
//!   that does not fit is put off and leaves nothing; it never stops the replica.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use palisade_state::{
    State, View,
    snapshot::{LoadError, Loader, encode},
};

use crate::{
    fault::chain,
    offload::Disk,
    snapshot_file::{
        Head, Part, SnapshotError, SnapshotInfo, SnapshotReader, SnapshotReceiver, SnapshotWriter,
        clean, clean_parts, keep_newest, newest_good_with, set_aside,
    },
    types::{LogId, Snapshot, SnapshotMeta, StoredMembership},
    wal::Position,
};

const KEEP: usize = 2;

/// Why a snapshot cannot be written, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotsError {
    /// The file.
    #[error(transparent)]
    File(#[from] SnapshotError),
    /// Its content.
    #[error("snapshot file {} holds what this build cannot load", file.display())]
    Load {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: LoadError,
    },
    /// The membership in its header.
    #[error("the membership of a snapshot cannot be encoded or decoded")]
    Membership(#[from] serde_json::Error),
    /// The state machine has applied nothing yet.
    #[error("nothing was applied yet")]
    Nothing,
    /// It does not fit beside what the log keeps free. Not final.
    #[error(
        "the disk under {} has no room for a snapshot ({free} bytes left, {needed} needed): free some space; it is \
         tried again by itself", dir.display()
    )]
    NoRoom {
        /// The snapshots' directory.
        dir: PathBuf,
        /// What is free.
        free: u64,
        /// What would have to be.
        needed: u64,
    },
    /// It was given away already.
    #[error("a received snapshot was installed twice")]
    Gone,
    /// No thread could be had for it.
    #[error("no thread for a snapshot")]
    Thread(#[from] io::Error),
}

impl SnapshotsError {
    /// Whether nothing is wrong but that the machine has no room, or no thread, just now.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::NoRoom { .. } | Self::Thread(_) => true,
            Self::File(error) => error.is_full(),
            _ => false,
        }
    }

    /// Whether what a snapshot held is damaged or gone.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::File(error) if error.is_damage())
    }

    /// Whether a whole snapshot lacks nothing but the room for its name.
    pub(crate) fn is_unnamed(&self) -> bool {
        matches!(self, Self::File(SnapshotError::Io { op: "rename", source, .. }) if crate::disk::is_full(source))
    }
}

/// Which snapshots are durable.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Vec<LogId>>);

impl Kept {
    fn held(&self) -> MutexGuard<'_, Vec<LogId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, mut kept: Vec<LogId>) {
        kept.sort_by_key(|id| id.index);
        *self.held() = kept;
    }

    pub(crate) fn newest(&self) -> Option<LogId> {
        self.held().last().copied()
    }

    pub(crate) fn oldest(&self) -> Option<LogId> {
        self.held().first().copied()
    }
}

/// A snapshot as openraft hands it around.
pub(crate) enum SnapshotData {
    /// A file that has its name.
    File(PathBuf),
    /// A file that was received and has no name yet.
    Received(Box<SnapshotReceiver>),
    /// None: it was put off.
    PutOff,
}

/// The room for snapshots.
#[derive(Clone)]
struct Room {
    disk: Disk,
    dir: PathBuf,
    /// What the log keeps free.
    reserve: u64,
}

impl Room {
    /// Whether `bytes` more leave the reserve alone. A file system that does not say counts as having room.
    fn check(&self, bytes: u64) -> Result<(), SnapshotsError> {
        let free = self.disk.files.free_bytes(&self.dir).unwrap_or(u64::MAX);
        let needed = self.reserve.saturating_add(bytes);
        if free >= needed {
            return Ok(());
        }
        Err(SnapshotsError::NoRoom { dir: self.dir.clone(), free, needed })
    }

    /// Whether a snapshot of `view` fits twice, by the size of the one before or by its own.
    fn check_for(&self, view: &View, before: Option<u64>) -> Result<(), SnapshotsError> {
        if before.is_some_and(|bytes| self.check(bytes.saturating_mul(2)).is_ok()) {
            return Ok(());
        }
        let mut bytes = 0_u64;
        encode::<SnapshotsError>(view, |chunk| {
            bytes += chunk.len() as u64;
            Ok(())
        })?;
        self.check(bytes.saturating_mul(2))
    }
}

/// The newest snapshot.
#[derive(Clone)]
struct Current {
    meta: SnapshotMeta,
    path: PathBuf,
    bytes: u64,
}

/// The snapshots of one replica.
pub(crate) struct SnapshotStore {
    pub(crate) disk: Disk,
    dir: PathBuf,
    cluster: [u8; 16],
    pub(crate) kept: Arc<Kept>,
    current: Mutex<Option<Current>>,
    /// Held while the newest one changes: one that was built does not take the place of one that came meanwhile.
    changing: tokio::sync::Mutex<()>,
    room: Room,
    /// How large the next one is thought to be; `None` when that must be found out.
    size: Mutex<Option<u64>>,
}

/// What was found at start.
pub(crate) struct Found {
    /// The newest good snapshot's state.
    pub(crate) state: Option<(LogId, StoredMembership, State)>,
    /// What is wrong with newer ones.
    pub(crate) bad: Vec<SnapshotError>,
}

impl SnapshotStore {
    /// Looks at what is there and loads the newest good one. It blocks.
    pub(crate) fn open(
        disk: Disk,
        dir: PathBuf,
        cluster: [u8; 16],
        reserve: u64,
    ) -> Result<(Self, Found), SnapshotsError> {
        clean(disk.files.as_ref(), &dir)?;
        let files = disk.files.as_ref();
        let (newest, loading) =
            newest_good_with(files, &dir, cluster, &mut |loading: &mut Loading, chunk| {
                loading.take(&chunk);
            })?;
        let mut current = None;
        let mut state = None;
        let mut size = None;
        let kept = Arc::new(Kept::default());
        if let Some(reader) = newest.good {
            let meta = meta_of(reader.info())?;
            let last: LogId = reader.info().head.position.into();
            let loaded = loading.finish(&reader.info().path)?;
            kept.set(positions(&disk, &dir, last.index));
            let (path, bytes) = (reader.info().path.clone(), reader.info().file_bytes);
            current = Some(Current { meta: meta.clone(), path, bytes });
            size = Some(bytes);
            clean_parts(disk.files.as_ref(), &dir, last.index)?;
            state = Some((last, meta.last_membership, loaded));
        }
        let room = Room { disk: disk.clone(), dir: dir.clone(), reserve };
        let (current, size) = (Mutex::new(current), Mutex::new(size));
        let changing = tokio::sync::Mutex::default();
        let store = Self { disk, dir, cluster, kept, current, changing, room, size };
        Ok((store, Found { state, bad: newest.bad }))
    }

    /// Takes the damaged ones that were found out of the way, once it is certain that the replica starts without
    /// them: keeping the newest goes by names. It blocks.
    pub(crate) fn set_aside(&self, bad: &[SnapshotError]) -> Result<(), SnapshotsError> {
        Ok(set_aside(self.disk.files.as_ref(), &self.dir, bad)?)
    }

    /// Whether there is room for `bytes` of a snapshot.
    pub(crate) fn room_for(&self, bytes: u64) -> Result<(), SnapshotsError> {
        self.room.check(bytes)
    }

    fn held(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> MutexGuard<'_, Option<u64>> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length of the newest one's file; 0 when there is none.
    pub(crate) fn bytes(&self) -> u64 {
        self.held().as_ref().map_or(0, |current| current.bytes)
    }

    /// The newest one.
    pub(crate) fn current(&self) -> Option<Snapshot> {
        let Current { meta, path, .. } = self.held().clone()?;
        Some(Snapshot { meta, snapshot: SnapshotData::File(path) })
    }

    /// Writes a snapshot of `view`, durably, and keeps the newest two. One that does not fit leaves nothing, nor does
    /// one during which a newer one was installed: that is [put off](SnapshotData::PutOff).
    pub(crate) async fn write(
        &self,
        view: View,
        meta: SnapshotMeta,
    ) -> Result<SnapshotData, SnapshotsError> {
        let last = meta.last_log_id.ok_or(SnapshotsError::Nothing)?;
        let head = Head {
            cluster: self.cluster,
            position: (&last).into(),
            membership: serde_json::to_vec(&meta.last_membership)?.into(),
            counts: counts(&view)?,
        };
        let (room, before) = (self.room.clone(), self.size().take());
        let work = move || {
            let written = write_view(&room, &view, head, before);
            (view, written)
        };
        let (view, written) = self.disk.run_behind("snapshot-write", work).await?;
        // Not behind the others: what changed meanwhile is freed with it, under locks of the allocator for which
        // threads wait that must not be held up.
        let _ = self.disk.run("retire", move || drop(view)).await;
        let writer = written?;
        let _changing = self.changing.lock().await;
        let is_overtaken = |current: &Current| current.meta.last_log_id > Some(last);
        if self.held().as_ref().is_some_and(is_overtaken) {
            tracing::info!(index = last.index, "a snapshot was overtaken by the leader's");
            return Ok(SnapshotData::PutOff);
        }
        let (disk, dir) = (self.disk.clone(), self.dir.clone());
        let work = move || {
            let info = writer.finish()?;
            keep_newest(disk.files.as_ref(), &dir, KEEP)?;
            Ok::<_, SnapshotsError>((info, positions(&disk, &dir, last.index)))
        };
        let (info, kept) = self.disk.run_behind("snapshot-name", work).await??;
        tracing::info!(index = last.index, bytes = info.file_bytes, "a snapshot was taken");
        self.kept.set(kept);
        *self.size() = Some(info.file_bytes);
        let (path, bytes) = (info.path.clone(), info.file_bytes);
        *self.held() = Some(Current { meta, path, bytes });
        Ok(SnapshotData::File(info.path))
    }

    /// Gives a snapshot its name if it has none yet, and loads it.
    pub(crate) async fn install(
        &self,
        meta: &SnapshotMeta,
        data: &mut SnapshotData,
    ) -> Result<State, SnapshotsError> {
        let last = meta.last_log_id.ok_or(SnapshotsError::Nothing)?;
        let _changing = self.changing.lock().await;
        let path = self.name(data).await?;
        let (disk, dir) = (self.disk.clone(), self.dir.clone());
        let work = move || {
            let mut loading = Loading::default();
            let mut take = |chunk: Bytes| loading.take(&chunk);
            let reader = SnapshotReader::open_with(disk.files.as_ref(), &path, &mut take)?;
            let state = loading.finish(&path)?;
            // Older ones have no log behind them any more.
            keep_newest(disk.files.as_ref(), &dir, 1)?;
            Ok::<_, SnapshotsError>((path, reader.info().file_bytes, state))
        };
        let (path, bytes, state) = self.disk.run("snapshot-install", work).await??;
        tracing::info!(index = last.index, "a snapshot was installed");
        self.kept.set(vec![last]);
        *self.size() = Some(bytes);
        *self.held() = Some(Current { meta: meta.clone(), path, bytes });
        Ok(state)
    }

    /// The path of a snapshot, which gets its name now if it has none yet; without room for it, `data` stays what it
    /// was.
    async fn name(&self, data: &mut SnapshotData) -> Result<PathBuf, SnapshotsError> {
        let mut receiver = match std::mem::replace(data, SnapshotData::PutOff) {
            SnapshotData::Received(receiver) => receiver,
            SnapshotData::PutOff => return Err(SnapshotsError::Gone),
            SnapshotData::File(path) => {
                *data = SnapshotData::File(path.clone());
                return Ok(path);
            }
        };
        let work = move || {
            let named = receiver.name();
            (receiver, named)
        };
        let (receiver, named) = self.disk.run("snapshot-name", work).await?;
        match named {
            Ok(info) => {
                *data = SnapshotData::File(info.path.clone());
                Ok(info.path)
            }
            Err(error) => {
                *data = SnapshotData::Received(receiver);
                Err(error.into())
            }
        }
    }

    /// Begins to receive one, or goes on with what is there of it.
    pub(crate) async fn receive(&self, part: Part) -> Result<SnapshotReceiver, SnapshotsError> {
        let (disk, dir, cluster) = (self.disk.clone(), self.dir.clone(), self.cluster);
        let work = move || match part.crc {
            0 => SnapshotReceiver::create(disk.files.clone(), &dir, cluster),
            _ => SnapshotReceiver::resume(disk.files.clone(), &dir, cluster, &part),
        };
        Ok(self.disk.run("snapshot-receive", work).await??)
    }

    /// Opens one to be sent; checks all of it first.
    pub(crate) async fn reader(
        &self,
        data: &SnapshotData,
    ) -> Result<SnapshotReader, SnapshotsError> {
        let SnapshotData::File(path) = data else {
            return Err(SnapshotsError::Gone);
        };
        let (disk, path) = (self.disk.clone(), path.clone());
        let work = move || SnapshotReader::open(disk.files.as_ref(), &path);
        Ok(self.disk.run("snapshot-read", work).await??)
    }
}

/// Writes a snapshot of `view`, without a name yet. It blocks.
fn write_view(
    room: &Room,
    view: &View,
    head: Head,
    before: Option<u64>,
) -> Result<SnapshotWriter, SnapshotsError> {
    let Room { disk, dir, .. } = room;
    room.check_for(view, before)?;
    let mut writer = SnapshotWriter::create(disk.files.clone(), dir, head)?;
    encode::<SnapshotsError>(view, |chunk| {
        room.check(chunk.len() as u64)?;
        Ok(writer.chunk(chunk)?)
    })?;
    Ok(writer)
}

/// The openraft part of a header.
pub(crate) fn meta_of_head(head: &Head) -> Result<SnapshotMeta, SnapshotsError> {
    Ok(SnapshotMeta {
        last_log_id: Some(head.position.into()),
        last_membership: serde_json::from_slice(&head.membership)?,
    })
}

fn meta_of(info: &SnapshotInfo) -> Result<SnapshotMeta, SnapshotsError> {
    meta_of_head(&info.head)
}

/// A state that is being made of chunks.
#[derive(Default)]
struct Loading {
    loader: Loader,
    failed: Option<LoadError>,
}

impl Loading {
    /// Takes a chunk; after the first that cannot be read, none.
    fn take(&mut self, chunk: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.loader.chunk(chunk).err();
        }
    }

    fn finish(self, file: &Path) -> Result<State, SnapshotsError> {
        let loaded = match self.failed {
            Some(error) => Err(error),
            None => self.loader.finish(),
        };
        loaded.map_err(|source| SnapshotsError::Load { file: file.to_owned(), source })
    }
}

/// How many rows each table has, for people who look at the file.
pub(crate) fn counts(view: &View) -> Result<Bytes, SnapshotsError> {
    let tables: std::collections::BTreeMap<&str, usize> =
        view.tables().map(|(name, rows)| (name.as_ref(), rows)).collect();
    Ok(serde_json::to_vec(&tables)?.into())
}

/// The snapshots in `dir` up to `newest`, by their names.
fn positions(disk: &Disk, dir: &Path, newest: u64) -> Vec<LogId> {
    let names = disk.files.list(dir).unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "the snapshots cannot be listed");
        vec![]
    });
    let position = |name: &str| {
        let (index, term) = name.strip_suffix(".snap")?.split_once('-')?;
        Some(Position { index: index.parse().ok()?, term: term.parse().ok()? })
    };
    let found = names.iter().filter_map(|name| position(name));
    found.filter(|at| at.index <= newest).map(LogId::from).collect()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use palisade_state::Machine;

    use super::*;
    use crate::{disk::MemFiles, types::log_id};

    #[tokio::test]
    async fn one_that_was_overtaken_by_the_leaders_leaves_nothing() {
        let disk = Disk::simulated(Arc::new(MemFiles::new()));
        let dir = PathBuf::from("/s");
        let (store, _) = SnapshotStore::open(disk, dir, [7; 16], 0).unwrap();
        let view = Machine::new(State::default()).published().view();
        let meta = |index| SnapshotMeta {
            last_log_id: Some(log_id(1, index)),
            last_membership: StoredMembership::default(),
        };
        store.write(view.clone(), meta(50)).await.unwrap();
        let changing = store.changing.lock().await;
        let mut building = Box::pin(store.write(view, meta(100)));
        assert!(building.as_mut().now_or_never().is_none(), "it waits for the other");
        let mut installed = store.held().clone().unwrap();
        installed.meta = meta(500);
        *store.held() = Some(installed);
        store.kept.set(vec![log_id(1, 500)]);
        drop(changing);
        assert!(matches!(building.await, Ok(SnapshotData::PutOff)));
        assert_eq!(store.current().unwrap().meta.last_log_id, Some(log_id(1, 500)));
        assert_eq!(store.kept.newest(), Some(log_id(1, 500)));
        let names = store.disk.files.list(&store.dir).unwrap();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}
