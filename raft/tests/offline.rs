//! The data of replicas that stand still: read, and made into another life.

use std::{net::TcpListener, time::Duration};

use palisade_raft::{
    Member, StartError, Tuning,
    offline::{OfflineError, Reborn, Survivor, seed},
};
use palisade_state::{
    Formation, ReplicaId, Store, Tx, View,
    command::AuditDraft,
    roster::{self, REPLICAS, Replica, Standing},
};

use crate::support::{Cluster, LINEAGE, eventually, holds, tuning, write};

const NEXT: &str = "cluster-2";

fn formation() -> Formation {
    Formation { cluster: NEXT.into(), lineage: LINEAGE.into(), epoch: 1 }
}

/// Places for the replicas of the next life, with ports that are free.
fn next_life(of: &Cluster, replicas: u64) -> Cluster {
    let mut next = Cluster::empty(tuning());
    next.ca = of.ca.clone();
    next.life = (NEXT.into(), 1);
    for id in 1..=replicas {
        next.place(id);
    }
    let held: Vec<_> =
        next.nodes.iter().map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    for (node, port) in next.nodes.iter_mut().zip(&held) {
        node.addr = port.local_addr().unwrap();
    }
    next
}

fn seeded(survivor: Survivor, next: &Cluster) -> u64 {
    let term = survivor.term;
    let (state, _lock) = survivor.into_state();
    let mut reborn = Reborn::new(state, formation());
    let draft = AuditDraft { method: "cluster.recover".into(), ..AuditDraft::default() };
    let mut tx = Tx::new(reborn.view());
    tx.audit(draft);
    reborn.commit(7, tx).unwrap();
    for node in &next.nodes {
        let identity = next.identity(node.id);
        seed(node.dir.path(), &identity, &reborn.view(), term, &next.members()).unwrap();
    }
    term
}

async fn goes_on(next: &mut Cluster, old_term: u64) {
    let ids: Vec<u64> = next.nodes.iter().map(|node| node.id).collect();
    for id in &ids {
        next.start(*id).await;
    }
    next.form().await;
    let leader = next.leader().await;
    let status = next.replica(leader).status();
    assert!(status.term > old_term, "OFF-1: {} {old_term}", status.term);
    let view = next.replica(leader).linearizable().await.unwrap();
    assert_eq!(view.formation(), Some(&formation()));
    assert!((0..50).all(|number| holds(&view, &format!("k{number}"))));
    write(next.replica(ids[0]).as_ref(), "after", b"v").await.unwrap();
    next.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_goes_on_in_a_new_life_of_as_many_replicas_as_were_asked_for() {
    for replicas in [1, 3] {
        let mut cluster = Cluster::formed(tuning()).await;
        for number in 0..50 {
            write(cluster.replica(1).as_ref(), &format!("k{number}"), &[1; 64]).await.unwrap();
        }
        cluster.same_state().await;
        let members = cluster.members();
        (1..=3).for_each(|id| cluster.kill(id));
        let survivor = read(&cluster, 2).await;
        assert_eq!(survivor.identity, cluster.identity(2));
        let known: Vec<_> = survivor.members.iter().map(|m| m.peer_addr.clone()).collect();
        let addrs: Vec<_> = members.into_iter().map(|member| member.peer_addr).collect();
        assert_eq!(known, addrs);
        let mut next = next_life(&cluster, replicas);
        let term = seeded(survivor, &next);
        goes_on(&mut next, term).await;
        // And again from its own data, as any replica.
        next.kill(1);
        next.start(1).await;
        let view = next.replica(1).linearizable().await.unwrap();
        assert!(holds(&view, "after"));
    }
}

async fn read(cluster: &Cluster, id: u64) -> Survivor {
    try_read(cluster, id).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_removed_or_drained_in_the_old_life_serves_in_the_next() {
    let mut cluster = Cluster::formed(tuning()).await;
    for number in 0..50 {
        write(cluster.replica(1).as_ref(), &format!("k{number}"), b"v").await.unwrap();
    }
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let survivor = cluster.replica(leader);
    let mut tx = Tx::new(survivor.linearizable().await.unwrap());
    let removed = Replica { standing: Standing::Removed, ..Replica::default() };
    let drained = Replica { drained: true, ..Replica::default() };
    for id in 1..=3 {
        let row = if id == follower { &removed } else { &drained };
        tx.put(&REPLICAS, &id, row).unwrap();
    }
    survivor.propose(tx.build().unwrap().into()).await.unwrap();
    let gone = |view: &View| roster::is_removed(view, ReplicaId(follower)).then_some(());
    eventually("it is applied", || gone(&survivor.view())).await;
    drop(survivor);
    (1..=3).for_each(|id| cluster.kill(id));
    let survivor = read(&cluster, leader).await;
    assert!(gone(&survivor.view()).is_some());
    let mut next = next_life(&cluster, 3);
    let term = seeded(survivor, &next);
    goes_on(&mut next, term).await;
    for replica in next.replicas() {
        assert_eq!((replica.fault(), replica.is_barred()), (None, false));
    }
    // With another one away, the one that was removed votes and is heard.
    next.kill(leader);
    let again = next.replica(follower);
    eventually("it serves", || again.status().leader.filter(|id| id.0 != leader)).await;
    write(again.as_ref(), "later", b"v").await.unwrap();
}

/// What has stopped lets go of its lock a moment later.
async fn try_read(cluster: &Cluster, id: u64) -> Result<Survivor, OfflineError> {
    for _ in 0..1000 {
        match Survivor::read(&cluster.dir(id)) {
            Err(OfflineError::Lock(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            other => return other,
        }
    }
    panic!("it stays locked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_committed_is_kept_by_its_survivor_and_counted() {
    let short = Tuning { patience: Duration::from_millis(300), ..tuning() };
    let mut cluster = Cluster::formed(short).await;
    write(cluster.replica(1).as_ref(), "committed", b"v").await.unwrap();
    let leader = cluster.leader().await;
    (1..=3).filter(|id| *id != leader).for_each(|id| cluster.kill(id));
    write(cluster.replica(leader).as_ref(), "alone", b"v").await.unwrap_err();
    cluster.kill(leader);
    let survivor = read(&cluster, leader).await;
    assert!(survivor.committed.unwrap() < survivor.last, "{:?}", survivor.committed);
    assert!(holds(&survivor.view(), "committed") && holds(&survivor.view(), "alone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_in_use_unused_or_unformed_is_no_survivor() {
    let cluster = Cluster::unformed(tuning()).await;
    assert!(matches!(Survivor::read(&cluster.dir(1)), Err(OfflineError::Lock(_))));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Survivor::read(empty.path()), Err(OfflineError::Unused { .. })));
    let mut cluster = cluster;
    cluster.stop(1).await;
    assert!(matches!(try_read(&cluster, 1).await, Err(OfflineError::Nothing { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_made_once_and_the_old_identity_is_not_served_from_it() {
    let mut cluster = Cluster::formed(tuning()).await;
    for number in 0..50 {
        write(cluster.replica(1).as_ref(), &format!("k{number}"), b"v").await.unwrap();
    }
    cluster.stop(1).await;
    let survivor = read(&cluster, 1).await;
    let mut next = next_life(&cluster, 1);
    let view = survivor.view();
    seeded(survivor, &next);
    let members = [Member { id: ReplicaId(1), peer_addr: "a:1".into(), api_addr: "a:2".into() }];
    let again = seed(&next.dir(1), &next.identity(1), &view, 1, &members);
    assert!(matches!(again, Err(OfflineError::Taken { .. })), "{again:?}");
    next.life = cluster.life.clone();
    let error = next.try_start(1).await.unwrap_err();
    assert!(matches!(error, StartError::Identity(_)), "{error}");
}
