//! A replica that the others know nothing of any more, and that nobody tells so.

use std::time::Duration;

use palisade_raft::{MembershipTuning, Tuning};
use palisade_state::Store;

use crate::{
    membership::{joined, member, quick},
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
