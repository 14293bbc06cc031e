use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use palisade_raft::{Cause, Replica, Tuning};
use palisade_state::Store;

use crate::support::{Cluster, eventually, holds, tuning, write};

/// Writes keys until told to stop; gives those that were acknowledged.
async fn keep_writing(replica: Arc<Replica>, name: String, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut acknowledged = vec![];
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        let key = format!("{name}-{number}");
        number += 1;
        match write(replica.as_ref(), &key, &[7; 100]).await {
            Ok(outcome) if outcome.is_applied() => acknowledged.push(key),
            _ => {}
        }
    }
    acknowledged
}

async fn fail_over(tuning: Tuning) -> (Cluster, Duration) {
    let mut cluster = Cluster::formed(tuning).await;
    let leader = cluster.leader().await;
    let term = cluster.replica(leader).status().term;
    let stop = Arc::new(AtomicBool::new(false));
    let survivors: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let writers: Vec<_> = survivors
        .iter()
        .flat_map(|id| (0..4).map(move |n| (*id, n)))
        .map(|(id, n)| {
            let name = format!("w{id}.{n}");
            tokio::spawn(keep_writing(cluster.replica(id), name, stop.clone()))
        })
        .collect();
    eventually("writes flow", || (cluster.replica(leader).view().count("t") > 200).then_some(()))
        .await;
    let killed = Instant::now();
    cluster.kill(leader);
    let next = cluster.leader().await;
    write(cluster.replica(next).as_ref(), "after", b"v").await.unwrap();
    let took = killed.elapsed();
    stop.store(true, Ordering::SeqCst);
    let mut acknowledged = vec!["after".to_owned()];
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert!(cluster.replica(next).status().term > term, "a new leader has a new term");
    for replica in cluster.replicas() {
        let view = replica.linearizable().await.unwrap();
        let lost: Vec<_> = acknowledged.iter().filter(|key| !holds(&view, key)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
    (cluster, took)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_replaced_at_once_and_no_acknowledged_write_is_lost() {
    let (cluster, took) = fail_over(tuning()).await;
    let noticed: u64 = cluster.replicas().map(|r| r.metrics().elections(Cause::Refused)).sum();
    assert!(noticed >= 1, "the refusing port was noticed");
    println!("replaced in {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_port_the_silence_is_noticed() {
    let tuning = Tuning { refused_means_gone: false, ..tuning() };
    let (cluster, took) = fail_over(tuning).await;
    let noticed: u64 = cluster.replicas().map(|r| r.metrics().elections(Cause::Silence)).sum();
    assert!(noticed >= 1, "the silence was noticed");
    println!("replaced in {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_cluster_raises_no_alarm() {
    let cluster = Cluster::formed(tuning()).await;
    cluster.leader().await;
    let term = cluster.replica(1).status().term;
    let begun = Instant::now();
    eventually("two seconds", || (begun.elapsed() > Duration::from_secs(2)).then_some(())).await;
    for replica in cluster.replicas() {
        let metrics = replica.metrics();
        assert_eq!(metrics.elections(Cause::Refused) + metrics.elections(Cause::Silence), 0);
        assert_eq!(replica.status().term, term);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_leader_hands_over_first() {
    let mut cluster = Cluster::formed(tuning()).await;
    let leader = cluster.leader().await;
    let term = cluster.replica(leader).status().term;
    cluster.stop(leader).await;
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    assert!(cluster.replica(next).status().term > term);
    for replica in cluster.replicas() {
        let metrics = replica.metrics();
        assert_eq!(
            metrics.elections(Cause::Refused) + metrics.elections(Cause::Silence),
            0,
            "no alarm"
        );
    }
    write(cluster.replica(next).as_ref(), "after", b"v").await.unwrap();
}
