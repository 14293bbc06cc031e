//! The disk of a replica is full: writes are refused, reads go on, and room is all it takes.

use std::{fs, path::PathBuf, process::Command};

use crate::support::{
    Replicas, Slot, lacks_tool,
    replicas::{token, tokens},
    skipped, until,
};

/// Room for a log, and little more than what it keeps in reserve.
const SIZE: &str = "size=110m";
const FILL: u64 = 84 << 20;

/// Small file systems in memory, one for each replica's data.
struct Mounts(Vec<PathBuf>);

impl Mounts {
    /// `None` where they cannot be had.
    fn make(dirs: Vec<PathBuf>) -> Option<Self> {
        let mut mounts = Self(Vec::new());
        for dir in dirs {
            fs::create_dir_all(&dir).unwrap();
            let mount =
                Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(&dir).output();
            if mount.is_err() {
                lacks_tool("mount");
            }
            if !mount.is_ok_and(|out| out.status.success()) {
                return None;
            }
            mounts.0.push(dir);
        }
        Some(mounts)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for dir in &self.0 {
            // Lazily: a replica may hold it for a moment yet.
            let _ = Command::new("umount").arg("-l").arg(dir).status();
        }
    }
}

fn fill(replicas: &Replicas, index: usize) -> PathBuf {
    let path = replicas.dir(index).join("data/filler");
    let chunk = vec![1_u8; 1 << 20];
    let mut file = fs::File::create(&path).unwrap();
    for _ in 0..FILL / (1 << 20) {
        if std::io::Write::write_all(&mut file, &chunk).is_err() {
            break;
        }
    }
    path
}

/// Whoever looks is told, and a backup is made all the same.
fn is_told_of(replicas: &Replicas, leader: usize, has: &str) {
    let palisade = |args: &[&str]| replicas.home.palisade(args);
    let found = palisade(&["doctor"]).ends(1);
    assert!(found.stdout.contains("cluster.no-space") && found.stdout.contains(has), "{found:#?}");
    let shown = palisade(&["cluster", "status"]).ok().stdout;
    assert!(shown.contains("No space"), "{shown}");
    let ready = replicas.api.get(leader, "/readyz").unwrap();
    assert_eq!(ready.status, 200, "reads are served: {ready:#?}");
    assert!(ready.json()["noSpace"].as_str().is_some_and(|why| why.contains(has)), "{ready:#?}");
    palisade(&["cluster", "backup", "full.backup"]).ok();
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_recovers_by_itself() {
    let mut replicas = Replicas::prepare(3, Some(Slot::take()));
    let dirs = (0..3).map(|index| replicas.dir(index).join("data")).collect();
    let Some(_mounts) = Mounts::make(dirs) else {
        skipped("a tmpfs cannot be mounted here, so no disk can be made full");
        return;
    };
    replicas.start_all();
    replicas.write(0, "before");
    let leader = replicas.leader(0);
    let follower = (leader + 1) % 3;
    // A follower's full disk is its own trouble.
    let filler = fill(&replicas, follower);
    for number in 0..40 {
        until("a write while a follower's disk is full", || {
            let answer = replicas.large(leader, &format!("follower-{number}")).ok()?;
            (answer.status < 300).then_some(())
        });
    }
    fs::remove_file(filler).unwrap();
    until("a follower that has caught up", || {
        let answer = replicas.api.get(follower, &tokens()).ok()?;
        (answer.status == 200).then_some(())
    });
    // The leader's is everybody's, for writes.
    let leader = replicas.leader(leader);
    let filler = fill(&replicas, leader);
    let refused = |number: u64, replica: usize| {
        let name = format!("full-{number}");
        replicas.api.post(replica, &tokens(), &name, &token(&name)).ok()
    };
    let mut number = 0_u64;
    until("a refusal for want of space", || {
        number += 1;
        let answer = refused(number, leader)?;
        (answer.code() == "NO_SPACE").then(|| assert_eq!(answer.status, 507, "{answer:#?}"))
    });
    for replica in 0..3 {
        let answer = refused(1000, replica).expect("an answer");
        assert_eq!(
            answer.code(),
            "NO_SPACE",
            "replica {}, led by {leader}: {answer:#?}",
            replica + 1
        );
        let names = replicas.names(replica);
        assert!(names.iter().any(|name| name == "before"), "{names:?}");
    }
    let out = replicas.home.palisade(&["--timeout", "3s", "token", "create", "--out", "t"]).ends(6);
    let has = format!("replica {} has ", leader + 1);
    assert!(out.stderr.contains(&has) && out.stderr.contains("data/log"), "{out:#?}");
    is_told_of(&replicas, leader, &has);
    fs::remove_file(filler).unwrap();
    for replica in 0..3 {
        replicas.write(replica, &format!("after-{replica}"));
    }
    for replica in 0..3 {
        replicas.stop(replica);
    }
}
