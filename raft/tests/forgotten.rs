//! A replica that the others know nothing of any more, and that nobody tells so.

use std::time::Duration;

use palisade_raft::{JoinError, MembershipTuning, Tuning};
use palisade_state::Store;

use crate::{
    membership::{joined, joining, member, quick},
    support::{Cluster, eventually, holds, write},
};

/// It never campaigns, so that nobody refuses it: it has to ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_was_given_up_while_it_was_away_hears_of_it_when_it_is_back() {
    let membership =
        MembershipTuning { promote_after: Duration::from_secs(600), ..quick().membership };
    let mut cluster = Cluster::formed(Tuning { membership, ..quick() }).await;
    let away = joined(&mut cluster, "away", None).await;
    let leader = cluster.replica(cluster.leader().await);
    write(leader.as_ref(), "heard", b"v").await.unwrap();
    eventually("it follows", || holds(&cluster.replica(away).view(), "heard").then_some(())).await;
    cluster.kill(away);
    eventually("it is given up", || member(&leader, away).is_none().then_some(())).await;
    cluster.start(away).await;
    let told = eventually("it hears of it", || cluster.replica(away).fault()).await;
    assert!(told.contains("no progress"), "{told}");
}

/// Refused by a leader that was deposed, and did not know of its enrolment, a replica once ended for good.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_refused_for_good_by_a_leader_that_cannot_know_all() {
    const STRANGER: u64 = 99;
    const A_WHILE: Duration = Duration::from_millis(1500);
    let mut cluster = Cluster::formed(quick()).await;
    cluster.place(STRANGER);
    let leader = cluster.leader().await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    others.iter().for_each(|id| cluster.kill(*id));
    let mut asks = Box::pin(palisade_raft::join(joining(&cluster, STRANGER)));
    let told = tokio::time::timeout(A_WHILE, &mut asks).await;
    assert!(told.is_err(), "it asks on: {told:?}");
    for id in others {
        cluster.start(id).await;
    }
    let told = tokio::time::timeout(Duration::from_secs(30), asks).await.expect("an answer");
    assert!(matches!(told, Err(JoinError::Refused { .. })), "{told:?}");
}
