//! The child: a replica alone in its cluster, and four writers that report each acknowledgement.

use std::{io::Read, path::Path, sync::Arc, time::Duration};

use palisade_raft::{
    Disk, FormError, Identity, LogSizes, Member, Neighbours, Replica, ReplicaOptions, StartError,
    TokioRuntime, Tuning, Wires,
};
use palisade_state::{ReplicaId, Store};

use super::{
    ACKED, DIR,
    kept::{self, Kept},
    model::{self, Counts, WRITERS},
};
use crate::{
    support::{CLUSTER, LINEAGE},
    wires::Direct,
};

/// Small segments and many snapshots: a second of work rotates, purges and snapshots.
pub fn tuning() -> Tuning {
    let ms = Duration::from_millis;
    Tuning {
        heartbeat: ms(10),
        election_min: ms(20),
        election_max: ms(40),
        silence: None,
        tick: ms(50),
        snapshot_log_bytes: 96 << 10,
        snapshot_check: ms(10),
        keep_entries: 5,
        log: LogSizes { segment_bytes: 64 << 10, first_segment_bytes: 16 << 10, reserve_bytes: 0 },
        ..Tuning::default()
    }
}

/// Starts a replica that is alone, on the real disk.
pub async fn start(dir: &Path, tuning: Tuning) -> Result<Arc<Replica>, StartError> {
    let identity = Identity {
        cluster: CLUSTER.into(),
        lineage: LINEAGE.into(),
        epoch: 0,
        replica: ReplicaId(1),
    };
    Replica::start(ReplicaOptions {
        dir: dir.to_owned(),
        disk: Disk::real(),
        identity,
        wires: Wires::Custom(Arc::new(Direct::default())),
        tuning,
        rt: Arc::new(TokioRuntime::current().unwrap()),
        neighbours: Neighbours::default(),
    })
    .await
}

pub async fn form(replica: &Replica) -> Result<(), FormError> {
    let member = Member { id: ReplicaId(1), peer_addr: "1".into(), api_addr: "1".into() };
    replica.form(&[member]).await
}

/// One writer; it ends when it is not acknowledged.
pub async fn write_on(
    replica: Arc<Replica>,
    writer: usize,
    from: u64,
    report: impl Fn(usize, u64),
) {
    for number in from + 1.. {
        if replica.propose(model::transaction(writer, number)).await.is_err() {
            return;
        }
        report(writer, number);
    }
}

async fn run(dir: &Path, acked: Counts) {
    let (wanted, mut tuning) = (Kept::wanted(), tuning());
    if wanted.is_some() {
        tuning.history.linger = Duration::from_millis(2);
    }
    let replica = match start(dir, tuning).await {
        Ok(replica) => replica,
        Err(error) => {
            eprintln!("lost: it does not start: {error}: {:?}", std::error::Error::source(&error));
            return;
        }
    };
    // Without a disk from here on: whoever waits for it to recover is told.
    if let Err(error) = form(&replica).await {
        return eprintln!("it ends before it has formed a cluster: {error}");
    }
    let view = match replica.linearizable().await {
        Ok(view) => view,
        Err(error) => return eprintln!("it ends before it has recovered: {error}"),
    };
    let found = match model::read(&view) {
        Ok(found) => found,
        Err(what) => return eprintln!("lost: {what}"),
    };
    if let Some(what) = model::missing(&found, &acked) {
        return eprintln!("lost: {what}");
    }
    if let Some(wanted) = wanted
        && let Err(what) = wanted.find(&replica).await
    {
        return eprintln!("lost: {what}");
    }
    println!("\nrecovered {} {}", model::text(&found), replica.status().term);
    let report = |writer, number| println!("acked {writer} {number}");
    let writing =
        (0..WRITERS).map(|writer| write_on(replica.clone(), writer, found[writer], report));
    let telling = async {
        if wanted.is_some() {
            kept::tell(&replica).await;
        }
    };
    futures::future::join(futures::future::join_all(writing), telling).await;
    // The disk has failed under it: it waits to be ended, and says nothing more.
    std::future::pending::<()>().await;
}

/// Not a test by itself: what the campaigns start.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let acked = std::env::var(ACKED).ok().and_then(|text| model::counts(&text)).unwrap();
    // It must not outlive the campaign, which holds the other end.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        std::process::exit(1);
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(Path::new(&dir), acked));
}
