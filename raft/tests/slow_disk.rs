//! Disks that hang or are slow: a leader hands over and nobody stops.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use palisade_raft::{
    Change, Disk, Why,
    disk::{File, Files, StdFiles},
};
use palisade_state::{ReplicaId, Store};

use crate::support::{Cluster, eventually, holds, tuning, write};

/// The real disk, whose syncs can be made to take longer.
#[derive(Clone, Default)]
struct Slow(Arc<AtomicU64>);

impl Slow {
    fn syncs_take(&self, ms: u64) {
        self.0.store(ms, Ordering::SeqCst);
    }

    fn wait(&self) {
        // A sync that hangs goes on as soon as the disk does.
        let mut waited = 0;
        while waited < self.0.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
            waited += 5;
        }
    }

    fn file(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(SlowFile { file, disk: self.clone() })
    }
}

struct SlowFile {
    file: Box<dyn File>,
    disk: Slow,
}

impl File for SlowFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.file.write_at(offset, data)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.wait();
        self.file.sync_data()
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.file.allocate(size)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

impl Files for Slow {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(self.file(StdFiles.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(self.file(StdFiles.open(path)?))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        StdFiles.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        StdFiles.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        StdFiles.sync_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        StdFiles.list(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        StdFiles.free_bytes(dir)
    }
}

async fn cluster() -> (Cluster, Vec<Slow>) {
    let disks: Vec<Slow> = (0..3).map(|_| Slow::default()).collect();
    let over = disks.iter().map(|disk| Disk::over(Arc::new(disk.clone())));
    let cluster = Cluster::formed_on(tuning(), (1..).zip(over).collect()).await;
    (cluster, disks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_hangs_hands_over_and_comes_back() {
    let (cluster, disks) = cluster().await;
    let first = cluster.leader().await;
    write(cluster.replica(first).as_ref(), "before", b"v").await.unwrap();
    let disk = &disks[usize::try_from(first).unwrap() - 1];
    disk.syncs_take(600_000);
    let others: Vec<_> =
        cluster.replicas().filter(|replica| replica.replica().0 != first).collect();
    // Something to be synced; whether it is acknowledged is not the point.
    let _ = write(others[0].as_ref(), "during", b"v").await;
    eventually("another leads", || {
        others
            .iter()
            .all(|other| other.status().leader.is_some_and(|id| id.0 != first))
            .then_some(())
    })
    .await;
    write(others[0].as_ref(), "after", b"v").await.unwrap();
    assert_eq!(cluster.replica(first).fault(), None, "it waits for its disk");

    disk.syncs_take(0);
    let view = cluster.replica(first).linearizable().await.unwrap();
    assert!(holds(&view, "before") && holds(&view, "after"));
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_disks_stall_nobody_hands_over() {
    let (cluster, disks) = cluster().await;
    let leader = cluster.leader().await;
    let replica = cluster.replica(leader);
    write(replica.as_ref(), "before", b"v").await.unwrap();
    let term = replica.status().term;
    disks.iter().for_each(|disk| disk.syncs_take(600_000));
    let writing = {
        let replica = replica.clone();
        tokio::spawn(async move { write(replica.as_ref(), "during", b"v").await })
    };
    // Shorter than a hang that is handed over because of: this shows that a stall of all elects nobody, not `DISK-1`.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    disks.iter().for_each(|disk| disk.syncs_take(0));
    writing.await.unwrap().unwrap();
    assert_eq!((replica.status().term, replica.is_leader()), (term, true), "DISK-1");
    assert!(holds(&replica.linearizable().await.unwrap(), "during"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_take_entries_is_not_given_leadership() {
    let (cluster, disks) = cluster().await;
    let (leader, to) = (cluster.leader().await, cluster.follower().await);
    let replica = cluster.replica(leader);
    let term = replica.status().term;
    disks[usize::try_from(to).unwrap() - 1].syncs_take(600_000);
    write(replica.as_ref(), "with the third", b"v").await.unwrap();
    let asked = Change::TransferLeader { to: Some(ReplicaId(to)) };
    let refused = replica.manage(asked, false).await.unwrap_err();
    assert_eq!(refused.why, Why::NotHealthy, "{refused}");
    assert_eq!((replica.status().term, replica.is_leader()), (term, true));
    assert!(holds(&replica.linearizable().await.unwrap(), "with the third"));
    disks[usize::try_from(to).unwrap() - 1].syncs_take(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_syncs_are_a_warning_and_no_reason_to_step_down() {
    let (cluster, disks) = cluster().await;
    let leader = cluster.leader().await;
    let term = cluster.replica(leader).status().term;
    let disk = &disks[usize::try_from(leader).unwrap() - 1];
    disk.syncs_take(60);
    let replica = cluster.replica(leader);
    let warning = {
        let mut n = 0;
        loop {
            write(replica.as_ref(), &n.to_string(), b"v").await.unwrap();
            n += 1;
            let found =
                replica.status().warnings.into_iter().find(|w| w.contains("syncs of the log"));
            if let Some(found) = found {
                break found;
            }
            // The leader syncs once for many writes that the others acknowledge.
            assert!(n < 50_000, "no warning");
        }
    };
    assert!(warning.contains("a third of the heartbeat is 33 ms"), "{warning}");
    assert_eq!((replica.status().term, replica.is_leader()), (term, true));
}
