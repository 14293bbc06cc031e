use std::time::Duration;

use futures::future::join_all;
use palisade_raft::Tuning;
use palisade_state::{
    Store, StoreError,
    command::{Kind, Tick},
};
use tokio::time::timeout;

use crate::support::{Cluster, eventually, holds, put, tuning, write};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_callers_are_told_in_time() {
    let tuning = Tuning { patience: Duration::from_secs(2), ..tuning() };
    let mut cluster = Cluster::formed(tuning).await;
    let survivor = cluster.follower().await;
    for id in (1..=3).filter(|id| *id != survivor) {
        cluster.kill(id);
    }
    let replica = cluster.replica(survivor);
    let in_time = Duration::from_secs(20);
    let read = timeout(in_time, replica.linearizable()).await.expect("told in time").map(|_| ());
    assert!(matches!(read, Err(StoreError::NoQuorum { .. })), "{read:?}");
    let wrote = timeout(in_time, write(replica.as_ref(), "k", b"v")).await.expect("told in time");
    // The connection to the leader may not have been noticed to be broken: then its fate is unknown.
    assert!(matches!(wrote, Err(StoreError::NoQuorum { .. } | StoreError::Unknown)), "{wrote:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_followers_does_not_serve_reads() {
    let tuning = Tuning { patience: Duration::from_secs(2), ..tuning() };
    let mut cluster = Cluster::formed(tuning).await;
    let leader = cluster.leader().await;
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.kill(id);
    }
    let read = cluster.replica(leader).linearizable().await.map(|_| ());
    assert!(matches!(read, Err(StoreError::NoQuorum { .. })), "{read:?}");
    let wrote = write(cluster.replica(leader).as_ref(), "k", b"v").await;
    assert!(matches!(wrote, Err(StoreError::NoQuorum { .. } | StoreError::Unknown)), "{wrote:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_share_rounds_and_see_what_was_written_before() {
    let cluster = Cluster::formed(tuning()).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    for round in 0..20 {
        let key = format!("k{round}");
        write(cluster.replica(leader).as_ref(), &key, b"v").await.unwrap();
        let replica = cluster.replica(follower);
        let views = join_all((0..50).map(|_| replica.linearizable())).await;
        assert!(views.into_iter().all(|view| holds(&view.unwrap(), &key)), "a stale read of {key}");
    }
    let (rounds, reads) = cluster.replica(follower).metrics().reads();
    assert!(reads >= 1000, "{reads}");
    assert!(rounds * 5 < reads, "{rounds} rounds for {reads} reads");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused_before_it_is_proposed() {
    let cluster = Cluster::formed(tuning()).await;
    for replica in cluster.replicas() {
        let refused = replica.propose(put("k", &vec![0; 2 << 20])).await;
        assert!(matches!(refused, Err(StoreError::TooLarge(_))), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_applied_is_not_called_refused_later() {
    let mut cluster = Cluster::formed(tuning()).await;
    let id = cluster.leader().await;
    for other in (1..=3).filter(|other| *other != id) {
        cluster.kill(other);
    }
    let leader = cluster.replica(id);
    let before = leader.status().last_index;
    // It is tried again by itself, and the second attempt finds a replica that stops.
    let proposing = {
        let leader = leader.clone();
        tokio::spawn(async move { leader.propose(Kind::Tick(Tick {}).into()).await })
    };
    eventually("it is in the log", || (leader.status().last_index > before).then_some(())).await;
    leader.shutdown().await;
    let answer = proposing.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Unknown)), "{answer:?}");
}
