//! A data directory that was copied and started beside its original, and restarts that are not that.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use palisade_raft::{Identity, Replica, ReplicaOptions, StartError, TokioRuntime, Tuning};
use palisade_state::{ReplicaId, Store};

use crate::support::{CLUSTER, Cluster, LINEAGE, eventually, holds, tuning, write};

fn impatient() -> Tuning {
    Tuning { copy_hold: Duration::from_millis(300), ..tuning() }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Why a replica does not start whose directory was in use a moment ago.
async fn eventually_unlocked<F>(start: impl Fn() -> F) -> StartError
where
    F: Future<Output = Result<Arc<Replica>, StartError>>,
{
    for _ in 0..1000 {
        match start().await {
            Err(StartError::Lock(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return error,
            Ok(_) => panic!("it starts"),
        }
    }
    panic!("it stays locked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_beside_its_original_is_told_so_and_stops() {
    let mut cluster = Cluster::formed(impatient()).await;
    let id = cluster.follower().await;
    write(cluster.replica(id).as_ref(), "before", b"v").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    cluster.stop(id).await;
    copy(&cluster.dir(id), dir.path());
    cluster.start(id).await;
    // It calls its leader.
    write(cluster.replica(id).as_ref(), "again", b"v").await.unwrap();

    let start = || {
        let identity = Identity {
            cluster: CLUSTER.into(),
            lineage: LINEAGE.into(),
            epoch: 0,
            replica: ReplicaId(id),
        };
        let rt = Arc::new(TokioRuntime::on_own_thread("copy").unwrap());
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let tls = cluster.ca.issue(id);
        let mut options = ReplicaOptions::new(dir.path().to_owned(), identity, listen, tls, rt);
        options.tuning = impatient();
        Replica::start(options)
    };
    let copied: Arc<Replica> = start().await.unwrap();
    let fault = eventually("the copy stops", || copied.fault()).await;
    assert!(fault.contains("copied data directory must not run beside its original"), "{fault}");
    let refused = write(copied.as_ref(), "from the copy", b"v").await;
    assert!(refused.is_err());
    let original = cluster.replica(id);
    assert_eq!(original.fault(), None);
    write(original.as_ref(), "after", b"v").await.unwrap();
    let view = original.linearizable().await.unwrap();
    assert!(holds(&view, "after") && !holds(&view, "from the copy"));
    assert!(copied.is_barred() && !original.is_barred());
    copied.shutdown().await;
    drop(copied);
    let again = eventually_unlocked(start).await;
    assert!(matches!(&again, StartError::Copy(told) if told.contains("copy.json")), "{again}");

    drop(original);
    cluster.stop(id).await;
    cluster.start(id).await;
    let original = cluster.replica(id);
    write(original.as_ref(), "once more", b"v").await.unwrap();
    assert_eq!(original.fault(), None);
    drop(original);
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_quick_restarts_are_never_taken_for_copies() {
    let patient = Tuning { copy_hold: Duration::from_secs(10), ..tuning() };
    let mut cluster = Cluster::formed(patient).await;
    for round in 0..5 {
        for id in 1..=3 {
            // Its fate is unknown when an election comes between; that is not the point.
            let _ = write(cluster.replica(id).as_ref(), &format!("{round}-{id}"), b"v").await;
            cluster.kill(id);
            cluster.start(id).await;
        }
    }
    for id in 1..=3 {
        let replica = cluster.replica(id);
        replica.linearizable().await.unwrap();
        assert_eq!(replica.fault(), None);
    }
    cluster.same_state().await;
}
