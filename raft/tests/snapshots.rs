use palisade_raft::{StartError, Tuning};
use palisade_state::Store;

use crate::support::{Cluster, eventually, files, snapshot_up_to, tuning, write};

fn small() -> Tuning {
    Tuning { keep_entries: 5, ..tuning() }
}

/// Writes, then takes a snapshot of all that was written.
async fn write_and_snapshot(cluster: &Cluster, id: u64, round: u64) {
    let replica = cluster.replica(id);
    for number in 0..60 {
        let key = format!("r{round}-{number}");
        write(replica.as_ref(), &key, &[3; 500]).await.unwrap();
    }
    let applied = replica.view().applied().index;
    snapshot_up_to(&replica, applied).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_missed_what_was_purged_gets_a_snapshot() {
    let mut cluster = Cluster::formed(small()).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    cluster.kill(follower);
    let had = cluster.replica(leader).status().applied_index;
    for round in 0..2 {
        write_and_snapshot(&cluster, leader, round).await;
    }
    eventually("it is purged", || {
        (cluster.replica(leader).purged_index().unwrap_or(0) > had).then_some(())
    })
    .await;
    cluster.start(follower).await;
    eventually("it is installed", || {
        (cluster.replica(follower).metrics().snapshots_installed() > 0).then_some(())
    })
    .await;
    write(cluster.replica(follower).as_ref(), "after", b"v").await.unwrap();
    let view = cluster.replica(follower).linearizable().await.unwrap();
    assert_eq!(view.count("t"), 121);
    cluster.same_state().await;

    cluster.kill(follower);
    cluster.start(follower).await;
    assert!(cluster.replica(follower).view().count("t") >= 120, "it starts from what it installed");
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_two_are_kept_and_a_restart_uses_them() {
    let mut cluster = Cluster::formed(small()).await;
    let id = cluster.follower().await;
    for round in 0..3 {
        write_and_snapshot(&cluster, id, round).await;
    }
    assert_eq!(files(&cluster.dir(id).join("snapshots"), "snap").len(), 2);
    cluster.kill(id);
    cluster.start(id).await;
    cluster.same_state().await;
    assert_eq!(cluster.replica(id).metrics().snapshots_installed(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_newest_snapshot_falls_back_to_the_one_before() {
    let mut cluster = Cluster::formed(small()).await;
    let id = cluster.follower().await;
    for round in 0..3 {
        write_and_snapshot(&cluster, id, round).await;
    }
    cluster.kill(id);
    let snapshots = files(&cluster.dir(id).join("snapshots"), "snap");
    let newest = snapshots.iter().max_by_key(|path| index_of(path)).unwrap();
    damage(newest);
    cluster.start(id).await;
    cluster.same_state().await;
    assert_eq!(cluster.replica(id).metrics().snapshots_installed(), 0, "its own log was enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_does_not_push_out_a_good_one() {
    let mut cluster = Cluster::formed(small()).await;
    let id = cluster.follower().await;
    for round in 0..3 {
        write_and_snapshot(&cluster, id, round).await;
    }
    let dir = cluster.dir(id).join("snapshots");
    let newest = || files(&dir, "snap").into_iter().max_by_key(|path| index_of(path)).unwrap();
    let mut damaged = vec![];
    for round in 3..6 {
        cluster.kill(id);
        damaged.push(format!("{}.bad", newest().display()));
        damage(&newest());
        cluster.start(id).await;
        assert_eq!(files(&dir, "snap").len(), 1, "the good one");
        write_and_snapshot(&cluster, id, round).await;
        assert_eq!(files(&dir, "snap").len(), 2, "two good ones");
    }
    cluster.same_state().await;
    assert_eq!(cluster.replica(id).metrics().snapshots_installed(), 0, "its own data was enough");
    let mut aside: Vec<String> =
        files(&dir, "bad").iter().map(|path| path.display().to_string()).collect();
    aside.sort_by_key(|path| damaged.iter().position(|name| name == path));
    assert_eq!(aside, damaged[1..], "the newest two are there to be looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_snapshots_damaged_a_replica_says_which_and_where() {
    let mut cluster = Cluster::formed(small()).await;
    let id = cluster.follower().await;
    for round in 0..3 {
        write_and_snapshot(&cluster, id, round).await;
    }
    cluster.kill(id);
    let snapshots = files(&cluster.dir(id).join("snapshots"), "snap");
    snapshots.iter().for_each(|path| damage(path));
    let error = cluster.try_start(id).await.unwrap_err();
    assert!(matches!(error, StartError::Gap { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(snapshots[0].to_str().unwrap()) && text.contains("at byte"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_when_the_log_has_grown() {
    let tuning = Tuning {
        snapshot_log_bytes: 200 << 10,
        snapshot_check: std::time::Duration::from_millis(20),
        ..small()
    };
    let cluster = Cluster::formed(tuning).await;
    let replica = cluster.replica(1);
    for number in 0..40 {
        write(replica.as_ref(), &format!("k{number}"), &[1; 10_000]).await.unwrap();
    }
    for replica in cluster.replicas() {
        eventually("its own snapshot", || (replica.metrics().snapshots_taken() > 0).then_some(()))
            .await;
    }
    cluster.same_state().await;
}

fn index_of(path: &std::path::Path) -> u64 {
    let name = path.file_stem().unwrap().to_str().unwrap();
    name.split('-').next().unwrap().parse().unwrap()
}

fn damage(path: &std::path::Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}
