//! Snapshots that do not fit on the disk are put off: they stop nobody, and nobody must start again for them.

use std::{path::Path, time::Duration};

use palisade_raft::{Replica, Tuning, disk::Files};
use palisade_state::Store;

use crate::{
    support::{eventually, snapshot_up_to, snapshots_until, tuning, write},
    wires::{Simulated, formed, start},
};

const MIB: u64 = 1 << 20;
const SNAPSHOTS: &str = "/data/snapshots";

async fn fill(replica: &Replica, round: &str) {
    for number in 0..80 {
        write(replica, &format!("{round}-{number}"), &[7; 100_000]).await.unwrap();
    }
}

async fn put_off(replica: &Replica, times: u64) {
    eventually("it is put off", || {
        assert_eq!(replica.fault(), None);
        (replica.metrics().snapshots_put_off() >= times).then_some(())
    })
    .await;
}

async fn taken(replica: &Replica, times: u64) {
    eventually("it is taken", || {
        assert_eq!(replica.fault(), None);
        (replica.metrics().snapshots_taken() >= times).then_some(())
    })
    .await;
}

async fn ask_until(replica: &Replica, mut look: impl FnMut() -> bool) {
    snapshots_until(replica, "it is taken or put off", || {
        assert_eq!(replica.fault(), None);
        look().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_does_not_fit_waits_across_restarts_until_it_does() {
    let tuning = Tuning {
        snapshot_log_bytes: 7 * MIB,
        snapshot_check: Duration::from_millis(10),
        ..tuning()
    };
    let Simulated { wires, disks, mut replicas, .. } = formed(tuning.clone()).await;
    disks[2].set_capacity(Some(20 * MIB));
    fill(&replicas[2], "a").await;
    put_off(&replicas[2], 2).await;
    assert_eq!(replicas[2].metrics().snapshots_taken(), 0);
    assert_eq!(disks[2].list(Path::new(SNAPSHOTS)).unwrap_or_default(), Vec::<String>::new());

    replicas.pop().unwrap().shutdown().await;
    wires.remove(3);
    let disk = disks[2].after_kill();
    let again = start(3, &wires, disk.clone(), tuning).await;
    put_off(&again, 1).await;
    write(again.as_ref(), "it still serves", b"v").await.unwrap();
    disk.set_capacity(None);
    taken(&again, 1).await;
    assert_eq!(disk.list(Path::new(SNAPSHOTS)).unwrap().len(), 1);
}

async fn finds_out_while_writing(reserve_bytes: u64) {
    let mut tuning = tuning();
    tuning.log.reserve_bytes = reserve_bytes;
    let Simulated { disks, replicas, .. } = formed(tuning).await;
    let (replica, disk) = (&replicas[1], &disks[1]);
    ask_until(replica, || replica.metrics().snapshots_taken() >= 1).await;
    fill(replica, "a").await;

    let used = disk.used();
    disk.set_capacity(Some(used + reserve_bytes + 3 * MIB));
    ask_until(replica, || replica.metrics().snapshots_put_off() >= 1).await;
    assert_eq!(disk.list(Path::new(SNAPSHOTS)).unwrap().len(), 1, "the one before");
    write(replica.as_ref(), "it still serves", b"v").await.unwrap();
    let before = replica.metrics().snapshots_put_off();
    ask_until(replica, || replica.metrics().snapshots_put_off() > before).await;

    disk.set_capacity(None);
    ask_until(replica, || replica.metrics().snapshots_taken() >= 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_has_outgrown_the_one_before_leaves_the_reserve_alone() {
    finds_out_while_writing(MIB).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_in_the_middle_of_a_snapshot_is_no_fault() {
    finds_out_while_writing(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leaders_snapshot_that_does_not_fit_is_refused_until_it_does() {
    let tuning = Tuning { keep_entries: 5, ..tuning() };
    let Simulated { wires, disks, mut replicas, .. } = formed(tuning.clone()).await;
    write(replicas[0].as_ref(), "before", b"v").await.unwrap();
    replicas.pop().unwrap().shutdown().await;
    wires.remove(3);
    for round in 0..2 {
        fill(&replicas[0], &round.to_string()).await;
        let applied = replicas[0].view().applied().index;
        for replica in &replicas {
            snapshot_up_to(replica, applied).await;
            taken(replica, round + 1).await;
        }
    }

    let disk = disks[2].after_kill();
    let used = disk.used();
    disk.set_capacity(Some(used + 5 * MIB));
    let behind = start(3, &wires, disk.clone(), tuning).await;
    put_off(&behind, 1).await;
    assert!(!disk.list(Path::new(SNAPSHOTS)).unwrap().iter().any(|name| name.ends_with(".snap")));
    disk.set_capacity(None);
    eventually("it is installed", || {
        assert_eq!(behind.fault(), None);
        (behind.metrics().snapshots_installed() > 0).then_some(())
    })
    .await;
    assert_eq!(behind.view().count("t"), 161);
}
