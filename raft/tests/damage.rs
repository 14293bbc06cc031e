use palisade_raft::StartError;
use palisade_state::Store;

use crate::support::{Cluster, files, tuning, write};

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_a_damaged_log_does_not_start_and_says_where() {
    let mut cluster = Cluster::formed(tuning()).await;
    let id = cluster.follower().await;
    for number in 0..50 {
        write(cluster.replica(id).as_ref(), &format!("k{number}"), &[5; 200]).await.unwrap();
    }
    cluster.stop(id).await;
    let segment = files(&cluster.dir(id).join("log"), "seg").remove(0);
    let mut bytes = std::fs::read(&segment).unwrap();
    // In the middle of the first entries, with good ones behind it.
    bytes[8192] ^= 0x10;
    std::fs::write(&segment, bytes).unwrap();
    let error = cluster.try_start(id).await.unwrap_err();
    assert!(matches!(error, StartError::Log(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains(segment.to_str().unwrap()) && text.contains("at byte"), "{text}");
    assert!(write(cluster.replica(cluster.leader().await).as_ref(), "on", b"v").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_is_kept_out_of_the_directory() {
    let cluster = Cluster::formed(tuning()).await;
    let dir = cluster.dir(1);
    let refused = palisade_raft::disk::DirLock::acquire(&dir).unwrap_err().to_string();
    assert!(refused.contains("is in use by process"), "{refused}");
    assert!(cluster.replica(1).fault().is_none());
    drop(cluster.replica(1).view());
}
