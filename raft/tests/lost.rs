//! A replica whose data went back in time takes nothing with it: no leader, and nothing that was acknowledged.

use palisade_raft::{StartError, disk::MemFiles};
use palisade_state::Store;

use crate::{
    support::{Cluster, eventually, holds, tuning, write},
    wires::{Simulated, formed, leads, members, start},
};

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_a_log_is_refused_and_the_leader_goes_on() {
    let mut cluster = Cluster::formed(tuning()).await;
    let id = cluster.follower().await;
    write(cluster.replica(id).as_ref(), "before", b"v").await.unwrap();
    cluster.stop(id).await;
    let (dir, kept) = (cluster.dir(id), tempfile::tempdir().unwrap());
    copy(&dir, kept.path());
    cluster.start(id).await;
    let leader = cluster.replica(cluster.leader().await);
    for n in 0..20 {
        let outcome = write(leader.as_ref(), &format!("after-{n}"), b"v").await.unwrap();
        let follower = cluster.replica(id);
        eventually("it follows", || {
            (follower.view().applied().index >= outcome.revision).then_some(())
        })
        .await;
    }
    cluster.stop(id).await;
    std::fs::remove_dir_all(&dir).unwrap();
    copy(kept.path(), &dir);
    cluster.start(id).await;

    let term = leader.status().term;
    let replica = cluster.replica(id);
    let why = eventually("it stops", || replica.fault()).await;
    assert!(why.contains("ends at entry") && why.contains("cluster repair"), "{why}");
    write(leader.as_ref(), "the others go on", b"v").await.unwrap();
    assert_eq!((leader.fault(), leader.status().term), (None, term));
    drop(replica);
    cluster.stop(id).await;
    let again = cluster.try_start(id).await;
    assert!(matches!(again, Err(StartError::Lost(_))), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_replica_makes_nobody_leader_who_lacks_what_was_acknowledged() {
    let Simulated { wires, disks, mut replicas, .. } = formed(tuning()).await;
    for replica in &replicas {
        eventually("all have reported", || {
            (1..=3).all(|id| replica.view().replica(id).is_some()).then_some(())
        })
        .await;
    }
    wires.remove(2);
    replicas.remove(1).shutdown().await;
    write(replicas[0].as_ref(), "acknowledged", b"v").await.unwrap();
    for (id, replica) in [(1, &replicas[0]), (3, &replicas[1])] {
        wires.remove(id);
        replica.shutdown().await;
    }

    let stale = start(2, &wires, disks[1].after_kill(), tuning()).await;
    let emptied = start(3, &wires, MemFiles::new(), tuning()).await;
    emptied.form(&members()).await.ok();
    let why = eventually("it stops", || emptied.fault()).await;
    assert!(why.contains("ends at entry"), "{why}");
    assert!(!stale.is_leader());
    let first = start(1, &wires, disks[0].after_kill(), tuning()).await;
    let view =
        eventually("the one that has it leads", || first.is_leader().then(|| first.view())).await;
    assert!(holds(&view, "acknowledged"));
    assert_eq!((first.fault(), stale.fault()), (None, None));
}

/// A request for votes that was on its way for long was taken for what the log is now, and ended a sound replica for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_from_before_its_log_grew_does_not_end_a_sound_replica() {
    let Simulated { wires, mut replicas, .. } = formed(tuning()).await;
    for replica in &replicas {
        eventually("all have reported", || {
            (1..=3).all(|id| replica.view().replica(id).is_some()).then_some(())
        })
        .await;
    }
    wires.votes_from_the_past(true);
    let leader = replicas.remove(leads(&replicas).await);
    wires.remove(leader.replica().0);
    leader.shutdown().await;
    eventually("both are refused", || (wires.late_votes() >= 8).then_some(())).await;
    wires.votes_from_the_past(false);
    leads(&replicas).await;
    write(replicas[0].as_ref(), "after", b"v").await.unwrap();
    for replica in &replicas {
        assert_eq!(replica.fault(), None);
    }
}
