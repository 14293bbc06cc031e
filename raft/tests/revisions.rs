//! A revision that is not here: whether it is to come, or this replica is behind, or nobody knows.

use std::time::Duration;

use palisade_raft::Tuning;
use palisade_state::{Store, StoreError};

use crate::{
    support::{eventually, tuning, write},
    wires::{Simulated, Through, formed, leads},
};

fn patient(ms: u64) -> Tuning {
    Tuning { patience: Duration::from_millis(ms), ..tuning() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_nobody_has_is_said_to_be_so() {
    let Simulated { replicas, .. } = formed(patient(3000)).await;
    let revision = write(replicas[0].as_ref(), "k", b"v").await.unwrap().revision;
    for replica in &replicas {
        assert!(replica.at_revision(revision).await.is_ok());
        let refused = replica.at_revision(revision + 1_000_000).await;
        let Err(StoreError::NotReached { revision: asked, current }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(asked, revision + 1_000_000);
        assert!((revision..revision + 100).contains(&current), "{current}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nobody_knows() {
    let Simulated { wires, replicas, .. } = formed(patient(300)).await;
    let revision = write(replicas[0].as_ref(), "k", b"v").await.unwrap().revision;
    wires.let_through(Through::Nothing);
    let follower = replicas.iter().find(|replica| !replica.is_leader()).unwrap();
    let refused = follower.at_revision(revision + 1_000_000).await;
    assert!(matches!(refused, Err(StoreError::NoQuorum { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_says_that_it_lags() {
    let Simulated { disks, replicas, .. } = formed(patient(1000)).await;
    write(replicas[0].as_ref(), "before", b"v").await.unwrap();
    let leads = leads(&replicas).await;
    let behind = (leads + 1) % 3;
    // What it is sent waits for room on its disk.
    disks[behind].set_capacity(Some(disks[behind].used()));
    let revision = write(replicas[leads].as_ref(), "k", b"v").await.unwrap().revision;
    let refused = replicas[behind].linearizable().await.map(|view| view.applied());
    let Err(StoreError::Behind { revision: index, applied, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(index >= revision && applied < revision, "{index} {applied} {revision}");
    let refused = replicas[behind].at_revision(revision).await.map(|view| view.applied());
    assert!(matches!(refused, Err(StoreError::Behind { .. })), "{refused:?}");
    disks[behind].set_capacity(None);
    eventually("it catches up", || {
        (replicas[behind].view().applied().index >= revision).then_some(())
    })
    .await;
}
