use std::{sync::Arc, time::Duration};

use palisade_raft::{
    PeerTls, RevokedKeys, Tuning,
    peer::{Gateway, wire::ReadRequest},
};
use palisade_state::{Store, View};

use crate::support::{CLUSTER, Cluster, eventually, holds, tuning, write};

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

/// SHA-256 of the public key of a certificate, hex.
fn key_of(tls: &PeerTls) -> String {
    use sha2::{Digest as _, Sha256};
    use x509_parser::prelude::FromDer as _;
    let (_, leaf) = x509_parser::certificate::X509Certificate::from_der(&tls.chain_der[0]).unwrap();
    let digest = Sha256::digest(leaf.public_key().raw);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_starts_alone_refuses_what_it_knows_to_be_revoked() {
    let mut cluster = Cluster::formed(tuning()).await;
    let (stolen, good) = (cluster.ca.gateway("edge-1"), cluster.ca.gateway("edge-1"));
    let key = key_of(&stolen);
    let is_revoked = key.clone();
    let revoked: RevokedKeys = Arc::new(move |view: &View| {
        Ok(holds(view, &is_revoked).then(|| is_revoked.clone()).into_iter().collect())
    });
    let is_served = async |cluster: &Cluster, id: u64, tls: &PeerTls| {
        let gateway = Gateway { name: "edge-1".into(), cluster: CLUSTER.into(), epoch: 0 };
        let addr = cluster.node(id).addr.to_string();
        let Ok(mut store) = gateway.connect(id, &addr, tls.clone()).await else { return false };
        let asked = ReadRequest { table: "t".into(), local: true, ..ReadRequest::default() };
        store.read(asked).await.is_ok()
    };
    assert!(is_served(&cluster, 1, &stolen).await && is_served(&cluster, 1, &good).await);
    write(cluster.replica(1).as_ref(), &key, b"revoked").await.unwrap();
    cluster.same_state().await;
    for id in 1..=3 {
        cluster.kill(id);
    }
    cluster.node_mut(1).neighbours.revoked = Some(revoked);
    cluster.start(1).await;
    assert!(cluster.replica(1).revoked_at_start().contains(&key), "PEER-6");
    assert!(is_served(&cluster, 1, &good).await);
    assert!(!is_served(&cluster, 1, &stolen).await, "PEER-6");
    // What it hears of later is what counts then.
    cluster.replica(1).refuse_keys([].into());
    assert!(is_served(&cluster, 1, &stolen).await);
}
