//! Faults of the disk, each at many moments: what fails is never acknowledged, and the replica stops and says why.

use std::{path::Path, sync::Arc};

use palisade_state::{Store, Txn, command::Write};

use super::decay::{Rows, assert_all_there, found_in, options_on};
use crate::{
    Disk, Member, Replica,
    disk::{Files, MemFiles},
    fault::chain,
    types::TokioExecutor,
    wal::{EntryRecord, Identity, Options, Record, Wal},
};

fn on(files: &MemFiles) -> crate::ReplicaOptions {
    options_on(Disk::simulated(Arc::new(files.clone())), Path::new("/data"))
}

/// Writes until it is refused; what was acknowledged.
async fn write_until_refused(replica: &Replica) -> Rows {
    let mut rows = Rows::new();
    for number in 0..400_u64 {
        let (key, value) = (format!("k{number:03}"), vec![number as u8; 700]);
        let write =
            Write { table: "t".into(), key: key.as_str().into(), value: Some(value.clone()) };
        let txn = Txn { writes: vec![write], ..Txn::default() };
        if replica.propose(txn.into()).await.is_err() {
            break;
        }
        rows.insert(key, value);
    }
    rows
}

/// Starts a replica, breaks its disk after a while, and looks at what is left by a power cut.
async fn breaks(what: &str, seed: u64, fault: impl Fn(&MemFiles, u64)) {
    let files = MemFiles::new();
    let replica = Replica::<TokioExecutor>::start(on(&files)).await.unwrap();
    let member =
        Member { id: palisade_state::ReplicaId(1), peer_addr: "1".into(), api_addr: "1".into() };
    replica.form(&[member]).await.unwrap();
    fault(&files, seed);
    let rows = write_until_refused(&replica).await;
    let what = format!("{what} {seed}");
    let reason = replica.fault();
    let reason =
        reason.unwrap_or_else(|| panic!("{what}: {} acknowledged, and it goes on", rows.len()));
    assert!(reason.contains("/data/") && reason.contains("check the disk"), "{what}: {reason}");
    let again = write_until_refused(&replica).await;
    assert!(again.is_empty(), "{what}: it acknowledged after it had failed");
    for image in [files.crash(seed), files.after_kill()] {
        let view = found_in(on(&image)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_all_there(&view, &rows, &what);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_is_final_and_nothing_is_acknowledged_by_it() {
    for nth in 0..12 {
        breaks("sync", nth, |files, nth| files.fail_sync_in(nth * 3)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_is_final_and_nothing_is_acknowledged_by_it() {
    for nth in 0..12 {
        breaks("write", nth, |files, nth| files.fail_write_in(nth * 3)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_writes_cost_nothing_but_time() {
    let files = MemFiles::new();
    files.short_writes(true);
    let replica = Replica::<TokioExecutor>::start(on(&files)).await.unwrap();
    let member =
        Member { id: palisade_state::ReplicaId(1), peer_addr: "1".into(), api_addr: "1".into() };
    replica.form(&[member]).await.unwrap();
    let rows = write_until_refused(&replica).await;
    assert_eq!(rows.len(), 400);
    let view = found_in(on(&files.crash(1))).await.unwrap();
    assert_all_there(&view, &rows, "short writes");
}

#[test]
fn a_log_that_cannot_be_read_is_refused_by_name_and_left_alone() {
    let files = MemFiles::new();
    let dir = Path::new("/data/log");
    let identity = Identity { cluster: [7; 16], replica: 3 };
    let options = || Options {
        segment_bytes: 8192,
        first_segment_bytes: 4096,
        reserve_bytes: 0,
        ..Options::default()
    };
    let port: Arc<dyn Files> = Arc::new(files.clone());
    let (mut wal, _) = Wal::open(port.clone(), dir, identity, options()).unwrap();
    for index in 0..40 {
        let entry = EntryRecord { term: 1, index, payload: vec![index as u8; 500].into() };
        wal.append(&[Record::Append(vec![entry])]).unwrap();
        wal.commit(true).unwrap();
    }
    drop(wal);
    let mut refused = 0;
    loop {
        files.fail_read_in(refused);
        match Wal::open(port.clone(), dir, identity, options()) {
            Ok(_) => break,
            Err(error) => {
                let text = chain(&error);
                assert!(text.contains("cannot read /data/log/"), "read {refused}: {text}");
                assert!(text.contains("check the disk"), "read {refused}: {text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 5, "{refused} reads");
    // The fault that did not strike.
    let (_, recovered) = Wal::open(Arc::new(files.after_kill()), dir, identity, options()).unwrap();
    assert_eq!(recovered.entries.len(), 40);
}
