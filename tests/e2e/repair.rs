//! A replica whose data is damaged or gone joins again under a new id: the drills of `palisade cluster repair`.

use std::{fs, os::unix::fs::FileExt, path::Path};

use serde_json::Value;

use crate::support::{Out, Replicas, list, number, until};

const HURT: usize = 1;

fn repair(all: &Replicas, flags: &[&str]) -> Out {
    let dir = all.dir(HURT);
    let mut args = vec!["--timeout", "10s", "cluster", "repair", dir.to_str().unwrap()];
    args.extend_from_slice(flags);
    all.home.palisade(&args)
}

fn flip(file: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Flips a bit in the middle of what was written into a segment.
fn hurt(segment: &Path) {
    let bytes = fs::read(segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("it is not empty");
    flip(segment, u64::try_from(end / 2).unwrap());
}

/// File and offset, as a message names them.
fn place(message: &str) -> &str {
    let begin = message.find("log file ").unwrap_or_else(|| panic!("no file in {message}"));
    let text = &message[begin..];
    text.split(';').next().unwrap()
}

fn members(all: &Replicas) -> Option<Vec<(u64, bool)>> {
    let out = all.home.palisade(&["-o", "json", "--timeout", "5s", "cluster", "status"]);
    let status: Value = (out.code == 0).then(|| out.json())?;
    let members = list(&status, "/members").iter();
    Some(members.map(|one| (number(one, "/id"), one["voter"] == true)).collect())
}

/// Waits until the repaired one votes and the old id is no member.
#[track_caller]
fn votes(all: &mut Replicas, id: u64) {
    all.spawn(HURT);
    let pid = all.pid(HURT);
    until("a voter in the place of the old one", || {
        assert!(crate::support::procs::alive(pid), "it ended:\n{}", all.log(HURT));
        let mut members = members(all)?;
        members.sort_unstable();
        (members == [(1, true), (3, true), (id, true)]).then_some(())
    });
    all.ready(HURT);
}

#[test]
fn a_damaged_replica_is_repaired_and_nothing_acknowledged_is_lost() {
    let mut all = Replicas::start(3);
    (0..30).for_each(|number| all.write(number % 3, &format!("before-{number}")));
    repair(&all, &["--yes"]).ends(4).says(&["in use", &all.pid(HURT).to_string()]);
    all.stop(HURT);
    repair(&all, &["--yes"]).ends(4).says(&["is damaged", "palisade serve --dir", "--force"]);
    let segment = all.segment(HURT);
    hurt(&segment);
    let damaged = fs::read(&segment).unwrap();
    let dir = all.dir(HURT);
    let verb = format!("palisade cluster repair {}", dir.display());
    let refused = all.refuses(HURT).ends(1).says(&["damaged", "at byte", &verb]);
    repair(&all, &["--replica", "3"]).ends(2).says(&["of replica 2", "--replica says 3"]);
    let shown = repair(&all, &[]).ends(2).says(&["nothing was done", "--yes"]);
    assert_eq!(place(&refused.stderr), place(&shown.stdout), "serve and repair say the same");
    assert!(shown.stdout.contains("in the place of replica 2"), "{shown:#?}");
    (0..10).for_each(|number| all.write(2 * (number % 2), &format!("during-{number}")));

    let done = repair(&all, &["-o", "json", "--yes"]).json();
    let (id, aside) = (number(&done, "/replica"), dir.join("damaged-2"));
    assert_eq!(number(&done, "/replaces"), 2);
    assert!(id > 3, "a new id: {done}");
    let kept = aside.join("data/log").join(segment.file_name().unwrap());
    assert_eq!(fs::read(&kept).unwrap(), damaged, "REP-1");
    assert!(aside.join("pki/replica.key").exists() && aside.join("replica.toml").exists());
    repair(&all, &["--yes"]).ok().says(&["nothing to repair"]);

    votes(&mut all, id);
    all.write(HURT, "after");
    until("all that was acknowledged", || {
        let names = all.names(HURT);
        let has = |word: &str, count: usize| {
            (0..count).all(|number| names.contains(&format!("{word}-{number}")))
        };
        (has("before", 30) && has("during", 10) && names.contains(&"after".to_owned()))
            .then_some(())
    });
    repair(&all, &["--yes"]).ends(4).says(&["in use"]);
    all.home.palisade(&["audit", "verify"]).ok();
    // Its directory is a replica's like any other.
    all.stop(HURT);
    all.spawn(HURT);
    all.ready(HURT);
}

#[test]
fn without_a_quorum_nothing_is_repaired_and_nothing_is_lost() {
    let mut all = Replicas::start(3);
    (0..10).for_each(|number| all.write(number % 3, &format!("before-{number}")));
    all.stop(HURT);
    all.kill(0);
    let (log, elsewhere) = (all.dir(HURT).join("data/log"), all.home.path().join("log-that-was"));
    fs::rename(&log, &elsewhere).unwrap();
    all.refuses(HURT).ends(1).says(&[
        "holds no log",
        "must not come back",
        "palisade cluster repair",
    ]);
    for flags in [&[][..], &["--yes"]] {
        repair(&all, flags).ends(6).says(&["no quorum", "nothing was changed"]);
    }
    assert!(all.dir(HURT).join("identity.json").exists());
    assert!(!all.dir(HURT).join("damaged-2").exists());
    // What was not repaired may be put back, and starts.
    fs::rename(&elsewhere, &log).unwrap();
    repair(&all, &["--yes"]).ends(4).says(&["is damaged"]);
    all.spawn(HURT);
    all.ready(HURT);
    all.write(HURT, "two-of-three");
    all.stop(HURT);
    // With the others there, the one without a log joins again.
    all.spawn(0);
    all.ready(0);
    fs::remove_dir_all(&log).unwrap();
    let done = repair(&all, &["-o", "json", "--yes"]).json();
    votes(&mut all, number(&done, "/replica"));
    until("all that was acknowledged", || {
        all.names(HURT).contains(&"two-of-three".to_owned()).then_some(())
    });
}

#[test]
fn a_directory_whose_replica_runs_elsewhere_is_not_repaired() {
    let mut all = Replicas::start(3);
    all.write(0, "before");
    all.stop(HURT);
    let copy = all.home.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-r").arg(all.dir(HURT)).arg(&copy).status();
    assert!(copied.unwrap().success());
    all.spawn(HURT);
    all.ready(HURT);
    fs::remove_dir_all(copy.join("data/log")).unwrap();
    let args = ["cluster", "repair", copy.to_str().unwrap(), "--yes"];
    all.home.palisade(&args).ends(4).says(&["answers the leader", "copy", "palisade cluster join"]);
    // What is no replica's is left alone.
    let empty = all.home.path().join("empty");
    all.home.palisade(&["cluster", "repair", empty.to_str().unwrap(), "--yes"]).ends(3);
    fs::create_dir(&empty).unwrap();
    all.home
        .palisade(&["cluster", "repair", empty.to_str().unwrap(), "--yes"])
        .ends(2)
        .says(&["which replica it was", "--replica"]);
}
