//! A follower that is gone or stuck costs the leader a few attempts a second, and not a whole core.

use std::time::{Duration, Instant};

use palisade_raft::Replica;
use palisade_state::Store;

use crate::{
    support::{Cluster, eventually, tuning, write},
    wires::{Simulated, formed, leads},
};

const AWAY: Duration = Duration::from_secs(3);
/// A pause of 25 ms at least at first, of 250 ms at least from the fourth attempt on; and a few for the other follower.
const ATTEMPTS_MAX: u64 = 25;

/// Attempts of the leader while some time passes.
async fn attempts(leader: &Replica, over: Duration) -> u64 {
    let (begun, before) = (Instant::now(), leader.metrics().append_streams());
    eventually("time passes", || (begun.elapsed() > over).then_some(())).await;
    leader.metrics().append_streams() - before
}

async fn caught_up(replica: &Replica, index: u64) -> Duration {
    let begun = Instant::now();
    eventually("it caught up", || (replica.view().applied().index >= index).then_some(())).await;
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_follower_is_asked_a_few_times_a_second_and_catches_up_when_it_is_back() {
    let mut cluster = Cluster::formed(tuning()).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let leader = cluster.replica(leader);
    cluster.kill(follower);
    write(leader.as_ref(), "meanwhile", b"v").await.unwrap();

    let tried = attempts(&leader, AWAY).await;
    assert!((3..=ATTEMPTS_MAX).contains(&tried), "{tried} attempts in {AWAY:?}");
    assert_eq!(leader.metrics().peers_lost(), 1, "it is told once");

    cluster.start(follower).await;
    let took = caught_up(&cluster.replica(follower), leader.view().applied().index).await;
    assert!(took < Duration::from_millis(1500), "{took:?} to catch up");
    let status = leader.status();
    assert_eq!(cluster.leader().await, status.leader.unwrap().0, "nobody stood for election");
    println!("{tried} attempts; caught up in {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_disk_is_full_is_asked_a_few_times_a_second() {
    let Simulated { disks, replicas, .. } = formed(tuning()).await;
    write(replicas[0].as_ref(), "before", b"v").await.unwrap();
    let leads = leads(&replicas).await;
    let (leader, full) = (&replicas[leads], (leads + 1) % 3);
    disks[full].set_capacity(Some(disks[full].used()));
    for number in 0..40 {
        write(leader.as_ref(), &format!("k{number}"), &[7; 100_000]).await.unwrap();
    }

    let tried = attempts(leader, AWAY).await;
    assert!(tried <= ATTEMPTS_MAX, "{tried} attempts in {AWAY:?}");
    let behind = &replicas[full];
    assert!(behind.view().applied().index < leader.view().applied().index, "it is full");
    disks[full].set_capacity(None);
    let took = caught_up(behind, leader.view().applied().index).await;
    println!("{tried} attempts; caught up in {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_has_stopped_is_asked_a_few_times_a_second() {
    let Simulated { disks, replicas, .. } = formed(tuning()).await;
    write(replicas[0].as_ref(), "before", b"v").await.unwrap();
    let leads = leads(&replicas).await;
    let (leader, broken) = (&replicas[leads], (leads + 1) % 3);
    disks[broken].fail_sync_in(0);
    write(leader.as_ref(), "meanwhile", b"v").await.unwrap();
    eventually("a fault", || replicas[broken].fault()).await;

    let tried = attempts(leader, AWAY).await;
    assert!(tried <= ATTEMPTS_MAX, "{tried} attempts in {AWAY:?}");
    println!("{tried} attempts");
}
