use palisade_state::{
    Command, Fence, Store, Txn, Verdict,
    command::{FenceCheck, Kind, Role, WorkerBeat, Write},
};

use crate::support::{Cluster, holds, tuning};

const LEASE: &str = "singleton:test";

fn beat() -> Command {
    let singletons = vec!["test".into()];
    Kind::WorkerBeat(WorkerBeat {
        worker: "w".into(),
        incarnation: 7,
        role: Role::Controllers.into(),
        singletons,
        draining: false,
        sharded: false,
    })
    .into()
}

fn fenced(key: &str, fence: Fence) -> Command {
    let check = FenceCheck {
        lease: LEASE.into(),
        worker: "w".into(),
        incarnation: 7,
        fence: Some(fence.into()),
    };
    let write = Write { table: "t".into(), key: key.into(), value: Some(b"v".to_vec()) };
    Txn { fence: Some(check), writes: vec![write], ..Txn::default() }.into()
}

async fn fence(cluster: &Cluster, id: u64) -> Fence {
    let view = cluster.replica(id).linearizable().await.unwrap();
    view.lease(LEASE).unwrap().fence
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_fences_what_its_predecessors_holders_still_write() {
    let mut cluster = Cluster::formed(tuning()).await;
    let leader = cluster.leader().await;
    let survivor = cluster.follower().await;
    let replica = cluster.replica(survivor);
    assert!(replica.propose(beat()).await.unwrap().is_applied());
    let first = fence(&cluster, survivor).await;
    assert!(replica.propose(fenced("before", first)).await.unwrap().is_applied());

    cluster.kill(leader);
    cluster.leader().await;
    let refused = replica.propose(fenced("stale", first)).await.unwrap();
    assert!(matches!(refused.verdict, Some(Verdict::Fenced(_))), "{refused:?}");
    assert!(!holds(&replica.linearizable().await.unwrap(), "stale"));

    assert!(replica.propose(beat()).await.unwrap().is_applied());
    let second = fence(&cluster, survivor).await;
    assert!(second > first, "{second} after {first}");
    assert!(replica.propose(fenced("after", second)).await.unwrap().is_applied());
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_passes_only_while_something_waits_for_it() {
    let mut tuning = tuning();
    tuning.tick = std::time::Duration::from_millis(50);
    let cluster = Cluster::formed(tuning).await;
    let replica = cluster.replica(1);
    crate::support::eventually("all have reported what they run", || {
        let view = replica.view();
        (1..=3).all(|id| view.replica(id).is_some()).then_some(())
    })
    .await;
    let idle = replica.linearizable().await.unwrap().applied().index;
    let begun = std::time::Instant::now();
    let limit = std::time::Duration::from_millis(400);
    crate::support::eventually("a while", || (begun.elapsed() > limit).then_some(())).await;
    let still = replica.linearizable().await.unwrap().applied().index;
    assert_eq!(idle, still, "an idle cluster writes nothing");
    replica.propose(beat()).await.unwrap();
    let from = replica.view().clock().now_ms;
    let begun = std::time::Instant::now();
    let passed = crate::support::eventually("time passes", || {
        let passed = replica.view().clock().now_ms - from;
        (passed > 300).then_some(passed)
    })
    .await;
    let real = u64::try_from(begun.elapsed().as_millis()).unwrap();
    assert!(passed <= real + 100, "{passed} ms on the logical clock in {real} ms");
}
