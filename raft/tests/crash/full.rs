//! A disk that others fill, for real: a small tmpfs.

use std::{path::Path, process::Command, sync::Arc};

use palisade_raft::{LogSizes, Replica, Tuning};
use palisade_state::{Store, StoreError};

use super::{
    model,
    power::{missing, must},
    this_binary,
    writer::{form, start, tuning},
};
use crate::support::eventually;

const HOME: &str = "PALISADE_CRASH_FULL";
const MIB: u64 = 1 << 20;

fn small() -> Tuning {
    let log = LogSizes { reserve_bytes: 2 * MIB, ..tuning().log };
    Tuning { log, ..tuning() }
}

#[test]
fn a_disk_that_others_fill_refuses_writes_serves_reads_and_is_well_again_by_itself() {
    if let Some(lack) = missing() {
        return lack.skip("a full tmpfs");
    }
    let home = tempfile::tempdir().unwrap();
    let line = this_binary("crash::full::inside");
    let ended = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .args(&line)
        .env(HOME, home.path())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && out.contains("the disk was full"), "{out}{err}");
}

async fn write(replica: &Replica, number: &mut u64) -> Result<(), StoreError> {
    let written = replica.propose(model::transaction(0, *number + 1)).await;
    written.map(|_| *number += 1)
}

/// Leaves `free` bytes of the tmpfs.
fn ballast(home: &Path, free: u64) {
    let stat = rustix::fs::statvfs(home).unwrap();
    let have = stat.f_bavail * stat.f_frsize;
    let bytes = vec![1; usize::try_from(have.saturating_sub(free)).unwrap()];
    // The log may have taken the last of it meanwhile.
    let _ = std::fs::write(home.join("ballast"), bytes);
}

/// Waits until a refused write is none any more.
async fn well_again(replica: &Arc<Replica>, number: &mut u64) {
    for _ in 0..1000 {
        match write(replica, number).await {
            Ok(()) => return,
            Err(StoreError::NoSpace(_)) => {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("never: there is room again");
}

/// The refusal, and whoever looks, are told which replica, which path and how much.
fn assert_says(replica: &Replica, refused: Result<(), StoreError>, dir: &Path) {
    let Err(StoreError::NoSpace(what)) = refused else { panic!("{refused:?}") };
    assert!(what.starts_with("replica 1 has ") && what.contains(" free under "), "{what}");
    assert!(what.contains(&dir.join("log").display().to_string()), "{what}");
    let short = replica.status().no_space.expect("it is short of room");
    assert!(short.free_bytes < short.needed_bytes, "{short}");
}

/// Not a test by itself: it runs in a mount namespace of its own.
#[tokio::test(flavor = "multi_thread")]
async fn inside() {
    let Ok(home) = std::env::var(HOME) else { return };
    must(&["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", &home]);
    let home = Path::new(&home);
    let dir = home.join("data");
    let replica = start(&dir, small()).await.unwrap();
    form(&replica).await.unwrap();
    let mut number = 0;
    for _ in 0..200 {
        write(&replica, &mut number).await.unwrap();
    }
    for free in [MIB, 0] {
        ballast(home, free);
        let refused = write(&replica, &mut number).await;
        assert_says(&replica, refused, &dir);
        let view = replica.linearizable().await.unwrap();
        assert_eq!(model::read(&view).unwrap()[0], number);
        assert_eq!(replica.fault(), None);
        std::fs::remove_file(home.join("ballast")).unwrap();
        well_again(&replica, &mut number).await;
    }
    // It comes back on the full disk, too: it votes, and serves reads.
    ballast(home, 0);
    replica.shutdown().await;
    drop(replica);
    let again = eventually_started(&dir).await;
    form(&again).await.unwrap();
    assert_eq!(model::read(&again.linearizable().await.unwrap()).unwrap()[0], number);
    let refused = write(&again, &mut number).await;
    assert_says(&again, refused, &dir);
    std::fs::remove_file(home.join("ballast")).unwrap();
    well_again(&again, &mut number).await;
    println!("the disk was full");
}

/// The lock of the one before goes a moment after it.
async fn eventually_started(dir: &Path) -> Arc<Replica> {
    eventually("the lock is free", || palisade_raft::disk::DirLock::acquire(dir).ok()).await;
    start(dir, small()).await.unwrap()
}
