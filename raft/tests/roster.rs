//! What the roster says of a replica whose leader was gone before it had written that.

use std::time::Duration;

use palisade_raft::Replica;
use palisade_state::{
    ReplicaId, Store, Tx, Verdict,
    roster::{self, REPLICAS},
};

use crate::{
    membership::{enrol, joined, knock, quick, votes},
    support::{Cluster, eventually, write},
};

/// Takes the row away that says that a replica came, as a leader leaves it that dies half-way through a hello.
async fn forget_that_it_came(cluster: &Cluster, id: u64) {
    let leader = cluster.replica(cluster.leader().await);
    eventually("its row", || REPLICAS.get(&leader.view(), &id).unwrap()).await;
    let mut tx = Tx::new(leader.view());
    tx.delete(&REPLICAS, &id).unwrap();
    let outcome = leader.propose(tx.build().unwrap().into()).await.unwrap();
    assert!(matches!(outcome.verdict, Some(Verdict::Applied(_))), "{outcome:?}");
}

fn has_row(replica: &Replica, id: u64) -> Option<()> {
    REPLICAS.get(&replica.view(), &id).unwrap().map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_whose_joining_was_noted_by_nobody_is_not_forgotten() {
    let mut tuning = quick();
    // Time enough to come.
    tuning.membership.enrolment_life = Duration::from_secs(3);
    let mut cluster = Cluster::formed(tuning).await;
    let id = joined(&mut cluster, "k4", None).await;
    votes(&cluster, id).await;
    forget_that_it_came(&cluster, id).await;
    let leader = cluster.replica(cluster.leader().await);
    eventually("MEMBER-5: it is noted", || has_row(&leader, id)).await;
    let (_, enrolment) = roster::enrolment(&leader.view(), ReplicaId(id)).unwrap().unwrap();
    let old = enrolment.at_ms + 5_000;
    eventually("the enrolment is old", || (leader.view().clock().now_ms > old).then_some(())).await;
    assert!(!roster::is_removed(&leader.view(), ReplicaId(id)), "MEMBER-5");
    write(cluster.replica(id).as_ref(), "from it", b"v").await.unwrap();
    assert_eq!(cluster.replica(id).fault(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_is_said_again_does_what_the_first_left_undone() {
    let mut tuning = quick();
    // The leader sees to nothing by itself.
    tuning.membership.check = Duration::from_secs(600);
    let mut cluster = Cluster::formed(tuning).await;
    let id = enrol(&mut cluster, "k4", None).await;
    knock(&cluster, id).await;
    forget_that_it_came(&cluster, id).await;
    knock(&cluster, id).await;
    let leader = cluster.replica(cluster.leader().await);
    eventually("MEMBER-5: it is noted", || has_row(&leader, id)).await;
}
