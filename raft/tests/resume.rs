//! A snapshot whose stream breaks is gone on with, and not sent again from its beginning.

use std::path::Path;

use palisade_raft::{
    Tuning,
    disk::{Files, MemFiles},
    peer::{PeerError, wire},
};
use palisade_state::Store;

use crate::{
    support::{eventually, snapshot_up_to, tuning, write},
    wires::{Direct, Simulated, formed, leads, start},
};

const MIB: u64 = 1 << 20;
const SNAPSHOTS: &str = "/data/snapshots";

fn small() -> Tuning {
    Tuning { keep_entries: 5, ..tuning() }
}

/// A cluster whose third replica is away and can only be brought back by a snapshot of some 16 MiB.
async fn behind() -> (Simulated, MemFiles) {
    let mut cluster = formed(small()).await;
    write(cluster.replicas[0].as_ref(), "before", b"v").await.unwrap();
    cluster.replicas.pop().unwrap().shutdown().await;
    cluster.wires.remove(3);
    for round in 0..2 {
        for number in 0..80 {
            let key = format!("{round}-{number}");
            write(cluster.replicas[0].as_ref(), &key, &[7; 100_000]).await.unwrap();
        }
        let applied = cluster.replicas[0].view().applied().index;
        for replica in &cluster.replicas {
            snapshot_up_to(replica, applied).await;
        }
    }
    // What is still in a log would be sent as entries, and no snapshot at all.
    let applied = cluster.replicas[0].view().applied().index;
    for replica in &cluster.replicas {
        eventually("it is purged", || {
            (replica.purged_index() >= Some(applied.saturating_sub(20))).then_some(())
        })
        .await;
    }
    let disk = cluster.disks[2].after_kill();
    (cluster, disk)
}

/// Waits until so many streams of the snapshot have ended or begun.
async fn streams(wires: &Direct, count: usize) -> Vec<(u64, u64)> {
    eventually("streams", || {
        let streams = wires.snapshots();
        (streams.len() >= count).then_some(streams)
    })
    .await
}

/// The streams together bring the file once, and each begins where the one before had ended.
fn assert_nothing_twice(streams: &[(u64, u64)]) {
    let mut end = 0;
    for (from, bytes) in streams {
        assert_eq!(*from, end, "{streams:?}");
        end += bytes;
    }
    assert!(end > 15 * MIB, "{streams:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_in_the_middle_is_gone_on_with_and_nothing_is_sent_twice() {
    let (cluster, disk) = behind().await;
    cluster.wires.cut_snapshots_after(Some(5 * MIB));
    let behind = start(3, &cluster.wires, disk, small()).await;
    eventually("it is installed", || (behind.metrics().snapshots_installed() > 0).then_some(()))
        .await;
    assert_eq!(behind.view().count("t"), 161);
    let streams = cluster.wires.snapshots();
    assert!(streams.len() >= 3, "{streams:?}");
    assert_nothing_twice(&streams);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_started_again_goes_on_with_whole_pieces() {
    let (cluster, disk) = behind().await;
    cluster.wires.cut_snapshots_after(Some(5 * MIB));
    let away = start(3, &cluster.wires, disk.clone(), small()).await;
    streams(&cluster.wires, 2).await;
    cluster.wires.remove(3);
    away.shutdown().await;
    let disk = disk.after_kill();
    let had = streams(&cluster.wires, 2).await;
    let parts = disk.list(Path::new(SNAPSHOTS)).unwrap();
    assert!(parts.iter().any(|name| name.ends_with(".part")), "{parts:?}");

    cluster.wires.cut_snapshots_after(None);
    let again = start(3, &cluster.wires, disk.clone(), small()).await;
    eventually("it is installed", || (again.metrics().snapshots_installed() > 0).then_some(()))
        .await;
    assert_eq!(again.view().count("t"), 161);
    let after = cluster.wires.snapshots().split_off(had.len());
    let end: u64 = had.iter().map(|(_, bytes)| bytes).sum();
    let from = after[0].0;
    assert!(from <= end && end - from <= 3 * MIB, "it had {end} bytes and went on at {from}");
    let left = disk.list(Path::new(SNAPSHOTS)).unwrap();
    assert!(left.iter().all(|name| name.ends_with(".snap")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_snapshot_without_room_for_its_name_waits_and_stops_nobody() {
    let (cluster, disk) = behind().await;
    disk.no_room_for_names(Some(".snap"));
    let behind = start(3, &cluster.wires, disk.clone(), small()).await;
    eventually("it waits", || (behind.metrics().snapshots_put_off() > 0).then_some(())).await;
    assert_eq!(behind.fault(), None);
    assert_eq!(behind.metrics().snapshots_installed(), 0);
    disk.no_room_for_names(None);
    eventually("it is installed", || {
        assert_eq!(behind.fault(), None);
        (behind.metrics().snapshots_installed() > 0).then_some(())
    })
    .await;
    assert_eq!(behind.view().count("t"), 161);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_waits_for_its_name_outlives_its_sender_and_the_next_one() {
    let (cluster, disk) = behind().await;
    disk.no_room_for_names(Some(".snap"));
    let behind = start(3, &cluster.wires, disk.clone(), small()).await;
    eventually("it waits", || (behind.metrics().snapshots_put_off() > 0).then_some(())).await;
    let leader = &cluster.replicas[leads(&cluster.replicas).await];
    cluster.wires.remove(leader.replica().0);
    leader.shutdown().await;
    // The next one has another snapshot, and would begin by putting away what was received in part.
    let last = Some(wire::LogId { term: 99, index: 9999 });
    let other = wire::SnapshotHead { vote: None, last, bytes: 1000, crc: 7 };
    let answer = behind.peer_api().snapshot_have(other).await;
    assert!(
        matches!(&answer, Err(PeerError::Failed(why)) if why.contains("another")),
        "{answer:?}"
    );
    disk.no_room_for_names(None);
    eventually("it is installed", || {
        assert_eq!(behind.fault(), None);
        (behind.view().count("t") == 161).then_some(())
    })
    .await;
    let left = disk.list(Path::new(SNAPSHOTS)).unwrap();
    assert!(left.iter().any(|name| name.ends_with(".snap")), "{left:?}");
}
