//! A cluster whose replicas are of two releases: what may be proposed, when the format rises, who is refused.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use palisade_raft::{Build, StartError, Tuning};
use palisade_state::{
    Command, Store, StoreError, Txn,
    command::{AuditDraft, Kind, Trim},
    limits::AUDIT_MAX,
};

use crate::{
    history::quick,
    support::{Cluster, eventually},
};

/// The number of the kind that the newer release brings, in this rehearsal.
const TRIM: u32 = 8;

fn older() -> Build {
    Build { version: "1.0.0".into(), format_max: 1, newer: vec![] }
}

fn newer() -> Build {
    Build { version: "1.1.0".into(), format_max: 2, newer: vec![(TRIM, 2)] }
}

fn of(build: Build) -> Tuning {
    Tuning { build, report: Duration::from_millis(50), ..quick() }
}

fn trim() -> Command {
    Kind::Trim(Trim::default()).into()
}

async fn reported(cluster: &Cluster, asked: u64, id: u64, version: &str) {
    let replica = cluster.replica(asked);
    eventually("it reports its release", || {
        replica.view().replica(id).is_some_and(|row| row.version == version).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_kind_waits_for_the_last_member_and_the_older_release_for_nobody() {
    let mut cluster = Cluster::formed(of(older())).await;
    for id in 1..=3 {
        reported(&cluster, 1, id, "1.0.0").await;
    }
    for id in 1..=2 {
        cluster.stop(id).await;
        cluster.tuning = of(newer());
        cluster.start(id).await;
        reported(&cluster, 3, id, "1.1.0").await;
    }
    // One of the newer ones leads.
    cluster.stop(3).await;
    cluster.leader().await;
    cluster.tuning = of(older());
    cluster.start(3).await;
    cluster.leader().await;
    let expected = ["1.1.0", "1.1.0", "1.0.0"].map(|version| Some(version.to_owned()));
    eventually("all are known for what they run", || {
        let status = cluster.replica(1).status();
        assert_eq!(status.format, 1, "{status:?}");
        status.members.into_iter().map(|member| member.version).eq(expected.clone()).then_some(())
    })
    .await;
    let refused = cluster.replica(1).propose(trim()).await;
    let Err(StoreError::Invalid(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("needs format 2") && why.contains("at format 1"), "{why}");

    cluster.stop(3).await;
    cluster.tuning = of(newer());
    cluster.start(3).await;
    for replica in cluster.replicas() {
        eventually("the format rises", || (replica.view().format() == 2).then_some(())).await;
    }
    assert!(cluster.replica(1).propose(trim()).await.unwrap().is_applied());
    cluster.same_state().await;

    cluster.stop(3).await;
    cluster.tuning = of(older());
    let why = match cluster.try_start(3).await {
        Err(StartError::Consensus(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(()) => eventually("it stops", || cluster.replica(3).fault()).await,
    };
    for part in ["format to 2", "up to 1", "runs 1.0.0", "runs 1.1.0"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(cluster.replica(1).propose(trim()).await.unwrap().is_applied(), "the others go on");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_stays_idle() {
    let cluster = Cluster::formed(of(older())).await;
    for id in 1..=3 {
        reported(&cluster, 1, id, "1.0.0").await;
    }
    // A busy machine may change the leader, who then writes: that is seen by the term.
    loop {
        cluster.same_state().await;
        let leader = cluster.replica(cluster.leader().await);
        let (before, begun) = (leader.status(), Instant::now());
        let mut after = before.clone();
        while begun.elapsed() < Duration::from_millis(1500) && after.term == before.term {
            tokio::time::sleep(Duration::from_millis(20)).await;
            after = leader.status();
        }
        if after.term == before.term {
            assert_eq!(after.last_index, before.last_index);
            return;
        }
    }
}

async fn audit(store: &dyn Store, times: usize) {
    let one = |n: usize| {
        let audit = AuditDraft { method: format!("m{n}"), ..AuditDraft::default() };
        store.propose(Txn { audit: Some(audit), ..Txn::default() }.into())
    };
    let done = stream::iter(0..times).map(one).buffer_unordered(512);
    assert_eq!(done.filter(|done| std::future::ready(done.is_ok())).count().await, times);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_window_shrinks_only_below_what_a_majority_has_durable() {
    let mut cluster = Cluster::formed(of(Build::default())).await;
    for id in [2, 3] {
        cluster.stop(id).await;
        // A newer release's: no history is kept here.
        let about = cluster.dir(id).join("history/about.json");
        std::fs::write(about, r#"{"format":9}"#).unwrap();
        cluster.start(id).await;
    }
    let last = AUDIT_MAX as u64 + 300;
    audit(cluster.replica(1).as_ref(), AUDIT_MAX + 300).await;
    let replica = cluster.replica(1);
    eventually("it is reported", || {
        replica.view().replica(1).is_some_and(|row| row.audit_durable >= last).then_some(())
    })
    .await;
    // The leader has had the time for it: something else that it proposes gets there.
    audit(replica.as_ref(), 1).await;
    assert_eq!(replica.view().first_audit(), Some(1), "one of three is no majority");
    let warned = cluster.replica(2).status().warnings;
    assert!(warned.iter().any(|warning| warning.contains("has format 9")), "{warned:?}");

    cluster.stop(2).await;
    std::fs::remove_dir_all(cluster.dir(2).join("history")).unwrap();
    cluster.start(2).await;
    eventually("it shrinks", || {
        let view = replica.view();
        let kept = view.last_audit() + 1 - view.first_audit()?;
        (kept == AUDIT_MAX as u64).then_some(())
    })
    .await;
    assert!(replica.view().verify_audit().is_ok());
    let page = replica.history().audit(1, 10).await.unwrap();
    assert_eq!(page.items[0].seq, 1, "what left memory is in history");
    cluster.same_state().await;
}
