//! What a replica finds in its data directory: locked, checked, and read back.

use std::{path::Path, sync::Arc};

use palisade_state::Rt;

use crate::{
    disk::{DirLock, Files},
    fault::{Fault, chain},
    identity::has_log,
    log_store::LogStore,
    options::{LogSizes, ReplicaOptions, StartError, Tuning},
    snapshots::{Found, SnapshotStore},
    sync_times::SyncTimes,
    wal::{self, Driver, Handle, Hooks, LogReader, Recovered, Running, Wal},
};

/// Times the log's syncs, and keeps the directory locked for as long as the log's thread lives, however the replica
/// goes.
struct WalHooks {
    rt: Rt,
    times: Arc<SyncTimes>,
    _lock: Option<DirLock>,
}

impl Hooks for WalHooks {
    fn on_point(&self, point: &'static str) {
        self.times.on_point(point);
        self.rt.reach(point);
    }
}

/// What recovery found, ready to run.
pub(crate) struct Recovery {
    pub(crate) handle: Handle,
    pub(crate) running: Option<Running>,
    pub(crate) log: LogStore,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) found: Found,
    pub(crate) fault: Arc<Fault>,
    pub(crate) log_bytes: u64,
    pub(crate) times: Arc<SyncTimes>,
}

fn claim(options: &ReplicaOptions) -> Result<Option<DirLock>, StartError> {
    if !options.disk.real {
        return Ok(None);
    }
    let dir = &options.dir;
    let in_dir = |source| StartError::Dir { dir: dir.clone(), source };
    // First of all: a full disk has no room for what is written next.
    room_for_new(options.disk.files.as_ref(), dir, &options.tuning.log)?;
    std::fs::create_dir_all(dir).map_err(in_dir)?;
    let lock = DirLock::acquire(dir)?;
    options.identity.claim(dir)?;
    crate::exile::check(dir, &options.identity)?;
    Ok(Some(lock))
}

fn wal_options(
    rt: &Rt,
    tuning: &Tuning,
    times: Arc<SyncTimes>,
    lock: Option<DirLock>,
) -> wal::Options {
    wal::Options {
        segment_bytes: tuning.log.segment_bytes,
        first_segment_bytes: tuning.log.first_segment_bytes,
        reserve_bytes: tuning.log.reserve_bytes,
        hooks: Arc::new(WalHooks { rt: rt.clone(), times, _lock: lock }),
        ..wal::Options::default()
    }
}

/// Refuses to go on from snapshots that do not reach the beginning of the log.
pub(crate) fn check_gap(recovered: &Recovered, found: &Found) -> Result<(), StartError> {
    let covered = found.state.as_ref().map(|(last, ..)| last.index);
    let Some(purged) = recovered.state.purged.map(|purged| purged.index) else {
        return Ok(());
    };
    if covered.is_some_and(|covered| covered >= purged) {
        return Ok(());
    }
    let damage: Vec<String> = found.bad.iter().map(|error| chain(error)).collect();
    let damage = if damage.is_empty() { "there is none".to_owned() } else { damage.join("; ") };
    Err(StartError::Gap { purged, damage })
}

/// Refuses a data directory that has no log, and whose disk has no room for one; it need not be there yet.
///
/// # Errors
/// What is free, and what must be.
pub fn room_for_new(files: &dyn Files, dir: &Path, sizes: &LogSizes) -> Result<(), StartError> {
    if has_log(dir)? {
        return Ok(());
    }
    let there = dir.ancestors().find(|place| place.exists()).unwrap_or(dir);
    room_at(files, there, sizes.reserve_bytes.saturating_add(sizes.first_segment_bytes))
}

fn room_at(files: &dyn Files, dir: &Path, needed: u64) -> Result<(), StartError> {
    // A file system that does not say counts as having room.
    let free = files.free_bytes(dir).unwrap_or(u64::MAX);
    if free >= needed {
        return Ok(());
    }
    Err(StartError::NoRoom { dir: dir.to_owned(), free_mib: free >> 20, needed_mib: needed >> 20 })
}

/// Refuses to begin a log where nothing could be written to it. One that exists is served whatever is free.
fn check_room(files: &dyn Files, dir: &Path, needed: u64) -> Result<(), StartError> {
    let log = dir.join("log");
    let begun = files.list(&log).is_ok_and(|names| !names.is_empty());
    if begun { Ok(()) } else { room_at(files, dir, needed) }
}

pub(crate) async fn recover(options: &ReplicaOptions) -> Result<Recovery, StartError> {
    let lock = claim(options)?;
    let identity = options.identity.for_wal();
    let (disk, dir) = (options.disk.clone(), options.dir.clone());
    let times = Arc::new(SyncTimes::new(options.rt.clone()));
    let wal_options = wal_options(&options.rt, &options.tuning, times.clone(), lock);
    let reserve = options.tuning.log.reserve_bytes;
    let first = options.tuning.log.first_segment_bytes;
    let work = move || {
        check_room(disk.files.as_ref(), &dir, reserve.saturating_add(first))?;
        let at = dir.join("snapshots");
        let (snapshots, found) = SnapshotStore::open(disk.clone(), at, identity.cluster, reserve)?;
        let (wal, recovered) =
            Wal::open(disk.files.clone(), &dir.join("log"), identity, wal_options)?;
        report(&recovered, &found, &dir);
        check_gap(&recovered, &found)?;
        snapshots.set_aside(&found.bad)?;
        Ok::<_, StartError>((snapshots, found, wal, recovered))
    };
    let ran = options.disk.run("recover", work).await;
    let in_dir = |source| StartError::Dir { dir: options.dir.clone(), source };
    let (snapshots, found, wal, recovered) = ran.map_err(in_dir)??;
    let log_bytes = recovered.entries.iter().map(|entry| entry.payload.len() as u64 + 32).sum();
    let fault = Arc::new(Fault::default());
    let (handle, driver) = Driver::new(wal);
    let running = if options.disk.real {
        Some(driver.spawn().map_err(in_dir)?)
    } else {
        options.rt.spawn("wal", Box::pin(driver.run(options.rt.clone())));
        None
    };
    let snapshots = Arc::new(snapshots);
    let log = LogStore::new(handle.clone(), recovered, snapshots.kept.clone(), fault.clone());
    let (disk, dir) = (options.disk.clone(), options.dir.join("log"));
    let reader = LogReader::new(disk.files.clone(), dir, identity);
    let log = log.map_err(in_dir)?.reading(disk, reader);
    Ok(Recovery { handle, running, log, snapshots, found, fault, log_bytes, times })
}

fn report(recovered: &Recovered, found: &Found, dir: &Path) {
    for error in &found.bad {
        let error = chain(error);
        match found.state {
            Some(_) => tracing::error!(error, "a snapshot is damaged: an older one is used"),
            None => tracing::error!(error, "a snapshot is damaged, and there is no older one"),
        }
    }
    if let Some(cut) = &recovered.cut {
        tracing::warn!(file = %cut.file.display(), offset = cut.offset, bytes = cut.bytes, "a torn tail was cut");
    }
    let snapshot = found.state.as_ref().map(|(last, ..)| last.index);
    let (entries, segments) = (recovered.entries.len(), recovered.segments);
    tracing::info!(dir = %dir.display(), snapshot, entries, segments, "the data directory was read");
}
