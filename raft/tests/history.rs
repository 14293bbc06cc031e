//! History of whole replicas: it outlives them, its damage does not reach them, and what they missed is named.

use std::time::Duration;

use palisade_raft::{
    Replica, Tuning,
    history::{HistoryError, HistorySizes, Part, RangeOf},
};
use palisade_state::{
    Store, Txn,
    command::{AuditDraft, EventDraft, Idempotency, Write},
};

use crate::support::{Cluster, eventually, files, snapshot_up_to, tuning};

pub fn quick() -> Tuning {
    let history = HistorySizes { linger: Duration::from_millis(5), ..HistorySizes::default() };
    Tuning { history, ..tuning() }
}

/// A write with an event and an audit record.
pub async fn tell(store: &dyn Store, key: &str, value: &str) -> u64 {
    let write = Write { table: "t".into(), key: key.into(), value: Some(value.into()) };
    let event = EventDraft { kind: "test.happened".into(), ..EventDraft::default() };
    let audit = AuditDraft { method: "test.tell".into(), ..AuditDraft::default() };
    // With a key, so that it is made again when an election comes between.
    let idempotency = Idempotency {
        scope: "test".into(),
        key: format!("{key}={value}"),
        request_hash: vec![1; 32],
    };
    let txn = Txn {
        idempotency: Some(idempotency),
        writes: vec![write],
        events: vec![event],
        audit: Some(audit),
        ..Txn::default()
    };
    let outcome = store.propose(txn.into()).await.unwrap();
    assert!(outcome.is_applied());
    outcome.revision
}

pub async fn durable(replica: &Replica, audit: u64) {
    eventually("history is durable", || {
        let durable = replica.history().durable();
        durable.is_some_and(|durable| durable.audit >= audit).then_some(())
    })
    .await;
}

async fn value_at(replica: &Replica, revision: u64) -> Result<Vec<u8>, HistoryError> {
    let range = RangeOf { table: "t", limit: 10, ..RangeOf::default() };
    let rows = replica.history().at(revision, range).await?;
    Ok(rows.into_iter().next().map(|row| row.value).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_replica_keeps_what_records_were_across_kills_and_stops() {
    let mut cluster = Cluster::formed(quick()).await;
    let mut revisions = vec![];
    for n in 0..20 {
        revisions.push(tell(cluster.replica(1).as_ref(), "k", &n.to_string()).await);
    }
    for id in 1..=3 {
        durable(&cluster.replica(id), 20).await;
    }
    cluster.kill(1);
    cluster.stop(2).await;
    cluster.start(1).await;
    cluster.start(2).await;
    tell(cluster.replica(3).as_ref(), "k", "last").await;
    for id in 1..=3 {
        let replica = cluster.replica(id);
        durable(&replica, 21).await;
        for (n, revision) in revisions.iter().enumerate() {
            assert_eq!(value_at(&replica, *revision).await.unwrap(), n.to_string().as_bytes());
        }
        let page = replica.history().audit(1, 100).await.unwrap();
        assert_eq!((page.items.len(), page.gaps.len()), (21, 0), "replica {id}");
        assert_eq!(replica.history().status().findings, Vec::<String>::new());
    }
    let past = cluster.replica(1).history().versions("t", b"k").await.unwrap();
    assert_eq!(past.versions.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_history_stops_nobody_and_is_found() {
    let mut cluster = Cluster::formed(quick()).await;
    for n in 0..20 {
        tell(cluster.replica(1).as_ref(), "k", &n.to_string()).await;
    }
    durable(&cluster.replica(3), 20).await;
    cluster.stop(3).await;
    let db = cluster.dir(3).join("history/store/db");
    let mut bytes = std::fs::read(&db).unwrap();
    let half = bytes.len() / 2;
    bytes.iter_mut().take(half).for_each(|byte| *byte ^= 0x55);
    std::fs::write(&db, bytes).unwrap();
    cluster.start(3).await;
    tell(cluster.replica(1).as_ref(), "k", "after").await;
    let replica = cluster.replica(3);
    durable(&replica, 21).await;
    assert_eq!(replica.fault(), None);
    let found = eventually("a finding", || replica.history().status().findings.pop()).await;
    assert!(found.contains("set aside in") && found.contains("history.aside-1"), "{found}");
    let page = replica.history().events(1, 100).await.unwrap();
    assert_eq!(page.items.len(), 21, "the window has refilled it");
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_snapshot_leaps_over_is_a_gap_that_is_named() {
    let mut cluster = Cluster::formed(Tuning { keep_entries: 1, ..quick() }).await;
    let early = tell(cluster.replica(1).as_ref(), "k", "early").await;
    durable(&cluster.replica(3), 1).await;
    cluster.stop(3).await;
    for n in 0..50 {
        tell(cluster.replica(1).as_ref(), "k", &n.to_string()).await;
    }
    let applied = cluster.replica(1).view().applied().index;
    for id in [1, 2] {
        let replica = cluster.replica(id);
        snapshot_up_to(&replica, applied).await;
        assert_eq!(files(&cluster.dir(id).join("snapshots"), "snap").len(), 1);
        eventually("the log is purged", || replica.purged_index()).await;
    }
    cluster.start(3).await;
    let replica = cluster.replica(3);
    let metrics = replica.metrics();
    eventually("it is sent", || (metrics.snapshots_installed() > 0).then_some(())).await;
    durable(&replica, 51).await;
    let gap = eventually("the gap", || replica.history().status().gaps.pop()).await;
    assert_eq!(gap.part(), Part::Versions);
    assert!(gap.from <= early + 2 && gap.to >= early + 40, "{gap:?} {early}");
    let missing = value_at(&replica, early).await;
    assert!(matches!(missing, Err(HistoryError::Missing { .. })), "{missing:?}");
    assert_eq!(value_at(&cluster.replica(1), early).await.unwrap(), b"early");
    let page = replica.history().audit(1, 100).await.unwrap();
    assert_eq!((page.items.len(), page.gaps.len()), (51, 0), "the window had them all");
}
