use palisade_raft::FormError;
use palisade_state::{ReplicaId, Store};

use crate::support::{CLUSTER, Cluster, holds, tuning, write};

#[tokio::test(flavor = "multi_thread")]
async fn three_replicas_form_a_cluster_and_each_takes_writes() {
    let cluster = Cluster::formed(tuning()).await;
    for id in 1..=3 {
        let key = format!("from-{id}");
        let outcome = write(cluster.replica(id).as_ref(), &key, b"v").await.unwrap();
        assert!(outcome.is_applied());
        assert!(holds(&cluster.replica(id).view(), &key), "a writer finds what it wrote, at once");
    }
    for replica in cluster.replicas() {
        let view = replica.linearizable().await.unwrap();
        assert!((1..=3).all(|id| holds(&view, &format!("from-{id}"))));
        assert_eq!(view.formation().unwrap().cluster, CLUSTER);
    }
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forming_twice_changes_nothing() {
    let cluster = Cluster::formed(tuning()).await;
    write(cluster.replica(1).as_ref(), "k", b"v").await.unwrap();
    cluster.form().await;
    let view = cluster.replica(1).linearizable().await.unwrap();
    assert!(holds(&view, "k"));
    assert_eq!(cluster.replica(1).status().members.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_forms_no_cluster_without_itself() {
    let cluster = Cluster::unformed(tuning()).await;
    let others = cluster.members().split_off(1);
    let refused = cluster.replica(1).form(&others).await;
    assert_eq!(refused, Err(FormError::NotAMember(ReplicaId(1))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_knows_how_far_each_member_is() {
    let cluster = Cluster::formed(tuning()).await;
    let leader = cluster.leader().await;
    write(cluster.replica(leader).as_ref(), "k", b"v").await.unwrap();
    let status = crate::support::eventually("no lag", || {
        let status = cluster.replica(leader).status();
        status.members.iter().all(|member| member.lag == Some(0)).then_some(status)
    })
    .await;
    assert_eq!(status.state, "leader");
    assert_eq!(status.leader, Some(ReplicaId(leader)));
    assert!(status.members.iter().all(|member| member.voter));
    assert!(status.members.iter().all(|member| member.api_addr.starts_with("api-")));
}
