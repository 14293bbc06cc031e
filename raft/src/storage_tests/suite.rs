//! openraft's own suite for storage, on a real disk; and after each of its tests the log is read back.

use std::sync::{Arc, atomic::AtomicU64};

use openraft::{
    RaftSnapshotBuilder, StorageError,
    storage::{RaftLogStorage, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
};
use palisade_state::Machine;
use tempfile::TempDir;

use crate::{
    Disk, TokioRuntime,
    fault::Fault,
    history::{Feed, Feeder},
    log_store::LogStore,
    machine::{Shared, StateMachine},
    metrics::Metrics,
    progress::Progress,
    snapshots::SnapshotStore,
    types::{TokioExecutor, TypeConfig, log_id},
    wal::{Driver, Identity, Options, Running, Wal},
};

type Config = TypeConfig<TokioExecutor>;

const IDENTITY: Identity = Identity { cluster: [7; 16], replica: 3 };

/// Segments that hold a few dozen entries.
fn options() -> Options {
    Options {
        segment_bytes: 8192,
        first_segment_bytes: 4096,
        reserve_bytes: 0,
        ..Options::default()
    }
}

struct Stores;

/// Ends the log's thread before its directory goes, and reads back what was in it.
struct Guard {
    running: Option<Running>,
    log: LogStore,
    dir: TempDir,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
        if std::thread::panicking() {
            return;
        }
        let disk = Disk::real();
        let opened = Wal::open(disk.files, &self.dir.path().join("log"), IDENTITY, options());
        let (wal, recovered) = opened.unwrap();
        let (handle, _driver) = Driver::new(wal);
        let again = LogStore::new(handle, recovered, Arc::default(), Arc::default()).unwrap();
        assert_eq!(again.shown(), self.log.shown(), "what a restart finds");
    }
}

impl StoreBuilder<Config, LogStore, StateMachine, Guard> for Stores {
    async fn build(&self) -> Result<(Guard, LogStore, StateMachine), StorageError<Config>> {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::real();
        let at = dir.path().join("snapshots");
        let (snapshots, _) = SnapshotStore::open(disk.clone(), at, IDENTITY.cluster, 0).unwrap();
        // The suite purges what no snapshot covers, which the store refuses to do.
        snapshots.kept.set(vec![log_id(u64::MAX, u64::MAX)]);
        let log = dir.path().join("log");
        let (wal, recovered) = Wal::open(disk.files, &log, IDENTITY, options()).unwrap();
        let (handle, driver) = Driver::new(wal);
        let running = Some(driver.spawn().unwrap());
        let fault = Arc::new(Fault::default());
        let log = LogStore::new(handle, recovered, snapshots.kept.clone(), fault.clone()).unwrap();
        let shared = Arc::new(Shared {
            rt: Arc::new(TokioRuntime::current().unwrap()),
            fault,
            progress: Arc::new(Progress::default()),
            metrics: Arc::new(Metrics::default()),
            snapshots: Arc::new(snapshots),
            applied_at: AtomicU64::new(0),
            version: "test".into(),
        });
        let machine = StateMachine::new(
            Machine::default(),
            None,
            shared,
            Feeder::new(Arc::new(Feed::new(1 << 20)), false),
        );
        Ok((Guard { running, log: log.clone(), dir }, log, machine))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openrafts_own_suite_passes() {
    Suite::<Config, LogStore, StateMachine, Stores, Guard>::test_all(Stores).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_no_snapshot_covers_is_refused() {
    let (guard, mut log, _machine) = Stores.build().await.unwrap();
    guard.log.kept().set(vec![log_id(1, 7)]);
    let purged = RaftLogStorage::<Config>::purge(&mut log, log_id(1, 8)).await;
    let refused = purged.unwrap_err().to_string();
    assert!(refused.contains("purging up to 8 without a durable snapshot"), "{refused}");
    RaftLogStorage::<Config>::purge(&mut log, log_id(1, 7)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_before_anything_was_applied_is_one_of_nothing() {
    let (guard, _log, mut machine) = Stores.build().await.unwrap();
    let mut builder = RaftStateMachine::<Config>::get_snapshot_builder(&mut machine).await;
    let taken = RaftSnapshotBuilder::<Config>::build_snapshot(&mut builder).await.unwrap();
    assert_eq!(taken.meta.last_log_id, None);
    assert!(std::fs::read_dir(guard.dir.path().join("snapshots")).is_err(), "nothing was written");
}
