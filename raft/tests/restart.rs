use std::time::Duration;

use palisade_raft::Tuning;
use palisade_state::Store;

use crate::support::{Cluster, eventually, holds, tuning, write};

#[tokio::test(flavor = "multi_thread")]
async fn restarting_everything_keeps_the_state_and_raises_the_term() {
    let mut cluster = Cluster::formed(tuning()).await;
    for number in 0..200 {
        write(cluster.replica(1).as_ref(), &format!("k{number}"), &[1; 64]).await.unwrap();
    }
    cluster.same_state().await;
    let leader = cluster.leader().await;
    let before = cluster.replica(leader).status();
    let view = cluster.replica(leader).view();
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.start(id).await;
    }
    let next = cluster.leader().await;
    let after = cluster.replica(next).status();
    assert!(
        after.term > before.term,
        "no leader goes on in its old term: {} {}",
        after.term,
        before.term
    );
    let restored = cluster.replica(next).linearizable().await.unwrap();
    assert!(restored.applied().index > view.applied().index);
    assert_eq!(restored.revision(), view.revision());
    assert_eq!(restored.count("t"), 200);
    assert!((0..200).all(|number| holds(&restored, &format!("k{number}"))));
    let stamp = |view: &palisade_state::View| view.row("t", b"k7").unwrap().stamp();
    assert_eq!(stamp(&restored), stamp(&view));
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_was_away_catches_up() {
    let mut cluster = Cluster::formed(tuning()).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    cluster.kill(follower);
    for number in 0..100 {
        write(cluster.replica(leader).as_ref(), &format!("k{number}"), b"v").await.unwrap();
    }
    cluster.start(follower).await;
    let view = cluster.replica(follower).linearizable().await.unwrap();
    assert_eq!(view.count("t"), 100);
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_gets_what_has_left_the_leaders_memory() {
    let tuning = Tuning {
        snapshot_log_bytes: u64::MAX,
        snapshot_check: Duration::from_millis(10),
        ..tuning()
    };
    let mut cluster = Cluster::formed(tuning).await;
    let away = cluster.follower().await;
    cluster.stop(away).await;
    let leader = cluster.leader().await;
    // More than the 16 MiB that stay in memory.
    for number in 0..80 {
        let value = vec![number; 400_000];
        write(cluster.replica(leader).as_ref(), &format!("k{number}"), &value).await.unwrap();
    }
    let metrics = cluster.replica(leader).metrics().clone();
    eventually("entries left memory", || (metrics.entries_dropped() > 30).then_some(())).await;
    cluster.start(away).await;
    cluster.same_state().await;
    let follower = cluster.replica(away);
    assert_eq!(follower.metrics().snapshots_installed(), 0, "it came as entries");
    let view = follower.view();
    assert!((0..80).all(|number| holds(&view, &format!("k{number}"))));
}
