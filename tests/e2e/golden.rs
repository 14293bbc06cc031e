//! A backup that a release wrote is restored by today's program: `tests/golden/` keeps it, with a key of its own.
//!
//! `PALISADE_GOLDEN=write` makes a pair that is missing. A pair that is there is never replaced: a release that writes
//! another format adds one, and both are restored.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::support::{Replicas, Slot, example, list, number, text, until};

/// The backup of each release, without its ending.
const BACKUPS: [&str; 1] = ["cluster-0.1.0"];
/// What each of them holds.
const TOKENS: [&str; 3] = ["golden-0", "golden-1", "golden-2"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Makes what is kept: a cluster with some of everything, and its backup.
fn write(name: &str) {
    let all = Replicas::start(1);
    TOKENS.iter().for_each(|token| all.write(0, token));
    let spec = example("sleep.toml");
    all.home.palisade(&["workload", "apply", "--no-wait", "-f", spec.to_str().unwrap()]).ok();
    all.home.palisade(&["workload", "stop", "--no-wait", "sleep"]).ok();
    all.home.palisade(&["cluster", "backup", "a.backup"]).ok();
    fs::create_dir_all(golden("")).unwrap();
    let key = all.dir(0).join("pki/backup.key");
    fs::copy(all.home.path().join("a.backup"), golden(&format!("{name}.backup"))).unwrap();
    fs::copy(key, golden(&format!("{name}.key"))).unwrap();
}

/// A cluster from the backup; it serves what the backup holds.
fn restored(name: &str, slot: Option<Slot>, more: &[&str]) -> Replicas {
    let mut all = Replicas::prepare(1, slot);
    let file = golden(&format!("{name}.backup"));
    let mut args: Vec<String> =
        ["cluster", "restore", file.to_str().unwrap()].map(Into::into).into();
    args.extend(["--dir", "restored", "--as", "test", "--replace-context"].map(Into::into));
    args.extend(more.iter().map(ToString::to_string));
    args.extend(all.named(1));
    all.home.palisade(&args).ok();
    all.move_to("restored", 1);
    all.start_all();
    let names = all.names(0);
    assert!(TOKENS.iter().all(|token| names.contains(&(*token).to_owned())), "{names:?}");
    let workloads = all.home.palisade(&["-o", "json", "workload", "ls"]).json();
    assert_eq!(text(&workloads, "/0/name"), "sleep", "{workloads}");
    let audit = all.api.list(0, "/audit");
    for method in ["cluster.backup", "cluster.restore"] {
        assert!(audit.iter().any(|record| text(record, "/method") == method), "{method}");
    }
    all.home.palisade(&["audit", "verify"]).ok();
    all.write(0, "after");
    until("a doctor without errors", || (all.home.palisade(&["doctor"]).code == 0).then_some(()));
    all
}

/// `sha256sum *.* > SHA256`, for a new pair.
#[test]
fn what_is_kept_of_each_release_is_as_it_was() {
    let pinned = fs::read_to_string(golden("SHA256")).unwrap();
    for line in pinned.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        let found = Sha256::digest(fs::read(golden(name)).unwrap());
        let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, sum, "{name} was changed");
    }
    let kept = fs::read_dir(golden("")).unwrap().count();
    assert_eq!(pinned.lines().count(), kept - 1, "every file is pinned but SHA256 itself");
    assert!(BACKUPS.iter().all(|name| pinned.contains(&format!("{name}.backup"))));
}

#[test]
fn the_backup_of_each_release_is_restored_and_forked() {
    for name in BACKUPS {
        let (backup, key) = (golden(&format!("{name}.backup")), golden(&format!("{name}.key")));
        if !backup.exists() && std::env::var("PALISADE_GOLDEN").is_ok_and(|word| word == "write") {
            write(name);
        }
        let inspect = ["-o", "json", "cluster", "backup", "--inspect", backup.to_str().unwrap()];
        let same = restored(name, Some(Slot::take()), &["--key", key.to_str().unwrap()]);
        let info = same.home.palisade(&inspect).json();
        let status =
            |all: &Replicas| all.home.palisade(&["-o", "json", "cluster", "status"]).json();
        let now = status(&same);
        assert_eq!(text(&now, "/lineage"), text(&info, "/lineage"), "{info}");
        assert_eq!(number(&now, "/epoch"), number(&info, "/epoch") + 1, "{info}");
        assert_eq!(list(&now, "/members").len(), 1);
        let fork = restored(name, None, &["--fork"]);
        assert_ne!(text(&status(&fork), "/lineage"), text(&info, "/lineage"));
        let ca = |all: &Replicas| fs::read(all.dir(0).join("pki/ca.pem")).unwrap();
        assert_ne!(ca(&same), ca(&fork), "the fork has a CA of its own");
    }
}
