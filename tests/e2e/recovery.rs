//! Things are lost, and got back: each runbook of `docs/recovery.md` as a drill with real processes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::support::{
    Api, Out, Replicas,
    agents::Agent,
    http::BASE,
    list, number, procs,
    replicas::{token, tokens},
    text, until,
};

fn key(replicas: &Replicas, index: usize) -> String {
    replicas.dir(index).join("pki/backup.key").to_str().unwrap().to_owned()
}

/// `palisade cluster restore` with the replicas that there are.
fn restore(replicas: &Replicas, count: usize, more: &[&str]) -> Out {
    let mut args: Vec<String> =
        ["cluster", "restore", "--as", "test", "--replace-context"].map(Into::into).into();
    args.extend(more.iter().map(ToString::to_string));
    args.extend(replicas.named(count));
    replicas.home.palisade(&args)
}

fn status(replicas: &Replicas) -> serde_json::Value {
    replicas.home.palisade(&["-o", "json", "cluster", "status"]).json()
}

/// The doctor finds no error once all are there.
#[track_caller]
fn healthy(replicas: &Replicas) {
    until("a doctor without errors", || {
        (replicas.home.palisade(&["doctor"]).code == 0).then_some(())
    });
}

/// Writes until it is told to stop; answers the names that were acknowledged before `mark` rose.
fn write_on(api: &Api, stop: &AtomicBool, written: &AtomicU64) -> Vec<String> {
    let mut names = vec![];
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("load-{number}");
        let done = |answer: crate::support::http::Answer| answer.status < 300;
        if api.post(number % 3, &tokens(), &name, &token(&name)).is_ok_and(done) {
            names.push(name);
            written.store(names.len() as u64, Ordering::SeqCst);
        }
    }
    names
}

/// A backup under load; answers the names that it must hold.
fn backup_under_load(replicas: &Replicas, file: &str) -> Vec<String> {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&replicas.api, &stop, &written));
        until("some writes", || (written.load(Ordering::SeqCst) > 20).then_some(()));
        let before = usize::try_from(written.load(Ordering::SeqCst)).unwrap();
        let out = replicas.home.palisade(&["-o", "json", "cluster", "backup", file]);
        stop.store(true, Ordering::SeqCst);
        let mut names = writer.join().unwrap();
        let info = out.json();
        assert!(
            number(&info, "/revision") > 0 && number(&info, "/tables/api_tokens") > 20,
            "{info}"
        );
        names.truncate(before);
        names
    })
}

#[test]
fn a_lost_cluster_comes_back_from_its_backup_and_its_agents_with_it() {
    let mut replicas = Replicas::start(3);
    let agent = Agent::start(&replicas);
    let pid = Agent::sleeper(&replicas);
    let written = backup_under_load(&replicas, "a.backup");
    let old = status(&replicas);
    // Written later: the restored cluster knows nothing of it, and the agent is told.
    replicas.write(0, "after-the-backup");
    replicas.home.palisade(&["workload", "scale", "sleep", "2"]).ok();
    let late: Vec<u64> = Agent::pids(&replicas.home)
        .into_iter()
        .map(|(_, pid)| pid)
        .filter(|one| *one != pid)
        .collect();
    assert_eq!(late.len(), 1);
    let before = replicas.api.clone();
    let old_names = replicas.names(0);
    (0..3).for_each(|index| replicas.kill(index));
    let backup_key = key(&replicas, 0);
    restore(&replicas, 3, &["a.backup", "--dir", "restored", "--key", &backup_key])
        .ok()
        .says(&["palisade --context test doctor", "epoch 1"]);
    replicas.move_to("restored", 3);
    replicas.start_all();
    let new = status(&replicas);
    assert_ne!(text(&old, "/cluster"), text(&new, "/cluster"));
    assert_eq!(text(&old, "/lineage"), text(&new, "/lineage"));
    assert_eq!(number(&new, "/epoch"), 1);
    assert!(number(&new, "/term") > number(&old, "/term"));
    for asked in 0..3 {
        let names = replicas.names(asked);
        assert!(written.iter().all(|name| names.contains(name)), "{names:?}");
        assert!(!names.contains(&"after-the-backup".to_owned()));
        assert!(
            names.iter().all(|name| name == "restore" || old_names.contains(name)),
            "{names:?}"
        );
    }
    // The tokens of the old cluster go on to work, and so does the agent.
    assert_eq!(before.get(0, &format!("{BASE}/nodes")).unwrap().status, 200);
    Agent::comes_back(&replicas);
    until("the end of what the restored cluster knows nothing of", || {
        (!procs::alive(late[0])).then_some(())
    });
    assert!(procs::alive(pid), "what it knows of was not restarted");
    until("its report", || {
        let pids = Agent::pids(&replicas.home);
        (pids.len() == 1 && pids[0].1 == pid).then_some(())
    });
    healthy(&replicas);
    let audit = replicas.api.list(0, "/audit");
    for method in ["cluster.backup", "cluster.restore"] {
        assert!(audit.iter().any(|record| text(record, "/method") == method), "{method}");
    }
    replicas.home.palisade(&["audit", "verify"]).ok();
    replicas.home.palisade(&["workload", "rm", "sleep"]).ok();
    drop(agent);
}

#[test]
fn a_backup_that_cannot_be_used_or_written_is_refused_and_changes_nothing() {
    let replicas = Replicas::start(1);
    let home = &replicas.home;
    replicas.write(0, "one");
    home.palisade(&["cluster", "backup", "a.backup"]).ok();
    home.palisade(&["cluster", "backup", "a.backup"]).ends(4).says(&["--force"]);
    home.palisade(&["cluster", "backup", "a.backup", "--force"]).ok();
    let page = home.palisade(&["cluster", "backup", "--inspect", "a.backup"]).ok().stdout;
    assert!(page.contains("Revision") && page.contains("SHA-256"), "{page}");
    assert!(!home.path().join("a.backup.part").exists());
    // Only a cluster-admin may have one.
    let viewer = Api { token: viewer(&replicas), ..replicas.api.clone() };
    let answer = viewer.get(0, &format!("{BASE}/cluster/backup")).unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (403, "ACCESS_DENIED"));
    let audit = replicas.api.list(0, "/audit");
    let refused = |record: &&serde_json::Value| {
        text(record, "/method") == "cluster.backup" && text(record, "/outcome") == "ACCESS_DENIED"
    };
    assert!(audit.iter().any(|record| refused(&record)), "a refusal is recorded");
    let bytes = fs::read(home.path().join("a.backup")).unwrap();
    home.write("cut.backup", &bytes[..bytes.len() / 2]);
    let mut hurt = bytes.clone();
    hurt[bytes.len() / 2] ^= 1;
    home.write("hurt.backup", &hurt);
    home.write("wrong.key", [1; 32]);
    let key = key(&replicas, 0);
    for file in ["cut.backup", "hurt.backup"] {
        home.palisade(&["cluster", "backup", "--inspect", file]).ends(1).says(&[file, "at byte"]);
        restore(&replicas, 1, &[file, "--dir", "r", "--key", &key])
            .ends(1)
            .says(&[file, "at byte"]);
    }
    restore(&replicas, 1, &["a.backup", "--dir", "r", "--key", "wrong.key"])
        .ends(1)
        .says(&["wrong.key", "sealed with the backup key"]);
    restore(&replicas, 1, &["a.backup", "--dir", "r"]).ends(2).says(&["--key"]);
    assert!(!home.path().join("r").exists(), "nothing was made");
    restore(&replicas, 1, &["a.backup", "--dir", "cluster", "--key", &key])
        .ends(4)
        .says(&["not empty", "replica-1"]);
    replicas.write(0, "two");
}

/// A viewer's API token.
fn viewer(replicas: &Replicas) -> String {
    let out = replicas.home.path().join("viewer");
    let args =
        ["api-token", "create", "viewer", "--role", "viewer", "--out", out.to_str().unwrap()];
    replicas.home.palisade(&args).ok();
    fs::read_to_string(out).unwrap().trim().to_owned()
}

#[test]
fn a_fork_lives_beside_its_cluster_and_no_agent_listens_to_it() {
    let (living, mut fork) = (Replicas::start(1), Replicas::beside());
    let agent = Agent::start(&living);
    Agent::comes_back(&living);
    living.write(0, "before");
    living.home.palisade(&["cluster", "backup", "a.backup"]).ok();
    fork.stop(0);
    let file = living.home.path().join("a.backup");
    restore(&fork, 1, &[file.to_str().unwrap(), "--dir", "forked", "--fork"]).ok();
    fork.move_to("forked", 1);
    fork.start_all();
    assert!(fork.names(0).contains(&"before".to_owned()));
    assert_ne!(text(&status(&living), "/lineage"), text(&status(&fork), "/lineage"));
    let pki = |replicas: &Replicas| fs::read(replicas.dir(0).join("pki/ca.pem")).unwrap();
    assert_ne!(pki(&living), pki(&fork), "the agent's certificate is worth nothing there");
    Agent::comes_back(&living);
    drop(agent);
}

#[test]
fn a_schedule_writes_backups_and_the_doctor_says_when_it_cannot() {
    let mut replicas = Replicas::start(1);
    replicas.write(0, "one");
    replicas.stop(0);
    let (config, directory) =
        (replicas.dir(0).join("replica.toml"), replicas.home.path().join("kept"));
    let plain = fs::read_to_string(&config).unwrap();
    let with = |directory: &Path| {
        let directory = directory.display();
        format!("{plain}\n[backup]\ndirectory = \"{directory}\"\neveryHours = 1\nkeep = 2\n")
    };
    // Below a file there is no directory.
    fs::write(&config, with(&replicas.dir(0).join("identity.json/kept"))).unwrap();
    replicas.start_all();
    until("a warning", || {
        replicas.home.palisade(&["doctor"]).stdout.contains("scheduled backup failed").then_some(())
    });
    let said = status(&replicas);
    assert!(text(&said, "/backups/failure/error").contains("identity.json"), "{said}");
    replicas.stop(0);
    // A failure is not repeated at once, so another cluster shows how it goes well.
    let mut replicas = Replicas::beside();
    replicas.write(0, "one");
    replicas.stop(0);
    let config = replicas.dir(0).join("replica.toml");
    let plain = fs::read_to_string(&config).unwrap();
    let directory = directory.display();
    fs::write(&config, format!("{plain}\n[backup]\ndirectory = \"{directory}\"\neveryHours = 1\n"))
        .unwrap();
    replicas.start_all();
    until("a word of the doctor", || {
        replicas
            .home
            .palisade(&["doctor"])
            .stdout
            .contains("the last good backup is 0 h old")
            .then_some(())
    });
    let files: Vec<PathBuf> =
        fs::read_dir(directory.to_string()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let said = status(&replicas);
    assert_eq!(Path::new(text(&said, "/backups/last/file")), files[0], "{said}");
    assert_eq!(said["backups"]["failure"], serde_json::Value::Null);
    assert_eq!(number(&said, "/backups/everyHours"), 1);
    replicas.home.palisade(&["cluster", "backup", "--inspect", files[0].to_str().unwrap()]).ok();
}

fn recover(replicas: &Replicas, index: usize, flags: &[&str]) -> Out {
    let dir = replicas.dir(index);
    let mut args = vec!["cluster", "recover", dir.to_str().unwrap()];
    args.extend_from_slice(flags);
    replicas.home.palisade(&args)
}

#[test]
fn the_last_of_three_goes_on_alone_and_its_agents_come_back() {
    let mut replicas = Replicas::start(3);
    let agent = Agent::start(&replicas);
    let pid = Agent::sleeper(&replicas);
    (0..30).for_each(|number| replicas.write(number % 3, &format!("before-{number}")));
    let old = status(&replicas);
    recover(&replicas, 1, &[]).ends(4).says(&["in use"]);
    replicas.kill(1);
    // The others are there: it needs no recovery, however often it is told once.
    for flags in [&[][..], &["--yes"]] {
        recover(&replicas, 1, flags).ends(4).says(&["majority", "--even-with-quorum"]);
    }
    replicas.kill(0);
    replicas.kill(2);
    let shown = recover(&replicas, 1, &[]).ends(2).says(&["nothing was done", "--yes"]);
    assert!(
        shown.stdout.contains("cannot be reached") && shown.stdout.contains("is lost"),
        "{shown:#?}"
    );
    recover(&replicas, 1, &["--yes"]).ok().says(&["the only one", "backup"]);
    recover(&replicas, 1, &["--yes"]).ok().says(&["nothing to recover"]);
    replicas.spawn(1);
    replicas.ready(1);
    let new = status(&replicas);
    assert_ne!(text(&old, "/cluster"), text(&new, "/cluster"));
    assert_eq!((number(&new, "/epoch"), list(&new, "/members").len()), (1, 1));
    let names = replicas.names(1);
    assert!((0..30).all(|number| names.contains(&format!("before-{number}"))), "{names:?}");
    replicas.write(1, "alone");
    // A replica of the old life comes back and is a stranger.
    replicas.spawn(0);
    let refused = text(&new, "/cluster");
    until("a refusal in its log", || replicas.log(0).contains(refused).then_some(()));
    replicas.write(1, "still-alone");
    assert!(!replicas.names(1).is_empty());
    assert_eq!(number(&status(&replicas), "/epoch"), 1, "the context leads to the one that lives");
    replicas.kill(0);
    Agent::comes_back(&replicas);
    assert!(procs::alive(pid), "its instance was not restarted");
    // Two fresh ones join, where the lost ones were, and the one that was alone may go.
    let fresh: Vec<u64> = [0, 2].into_iter().map(|index| joins(&mut replicas, index)).collect();
    let names = until("all writes on a fresh one", || {
        let names = replicas.names(0);
        names.contains(&"still-alone".to_owned()).then_some(names)
    });
    assert!((0..30).all(|number| names.contains(&format!("before-{number}"))), "{names:?}");
    replicas.kill(1);
    replicas.write(0, "without-the-survivor");
    let members = status(&replicas);
    let voters = list(&members, "/members").iter().filter(|one| one["voter"] == true);
    let voters: Vec<u64> = voters.map(|one| number(one, "/id")).collect();
    assert_eq!(voters.len(), 3, "{members}");
    assert!(fresh.iter().all(|id| voters.contains(id)), "{members}");
    Agent::comes_back(&replicas);
    assert!(procs::alive(pid), "its instance was not restarted");
    replicas.spawn(1);
    replicas.ready(1);
    replicas.home.palisade(&["workload", "rm", "sleep"]).ok();
    drop(agent);
}

/// A fresh replica joins where one was lost, until it votes; its id.
#[track_caller]
fn joins(replicas: &mut Replicas, index: usize) -> u64 {
    let dir = replicas.dir(index);
    fs::remove_dir_all(&dir).unwrap();
    let (peer, api) = (replicas.peer_addr(index), replicas.api.addrs[index].clone());
    let advertise = format!("{peer},{}", api.rsplit_once(':').unwrap().1);
    let args = ["-o", "json", "cluster", "join", dir.to_str().unwrap(), "--advertise", &advertise];
    let id = number(&replicas.home.palisade(&args).json(), "/replica");
    replicas.spawn(index);
    let pid = replicas.pid(index);
    until("a new voter", || {
        assert!(procs::alive(pid), "it ended:\n{}", replicas.log(index));
        let out = replicas.home.palisade(&["-o", "json", "--timeout", "5s", "cluster", "status"]);
        let status = (out.code == 0).then(|| out.json())?;
        let is_it = |one: &serde_json::Value| number(one, "/id") == id && one["voter"] == true;
        list(&status, "/members").iter().any(is_it).then_some(())
    });
    replicas.ready(index);
    id
}

#[test]
fn a_recovery_in_spite_of_a_quorum_must_be_told_twice() {
    let mut replicas = Replicas::start(3);
    replicas.write(0, "before");
    replicas.kill(2);
    recover(&replicas, 2, &["--even-with-quorum"]).ends(2);
    recover(&replicas, 2, &["--even-with-quorum", "--yes"]).ok();
    // The others are as they were.
    replicas.write(0, "the-others");
}

#[test]
fn a_recovery_that_was_begun_is_not_ended_over_a_quorum_and_can_be_given_up() {
    let mut replicas = Replicas::start(3);
    replicas.write(0, "before");
    (0..3).for_each(|index| replicas.kill(index));
    let dir = replicas.dir(1);
    let marker = dir.join("recovery.json");
    // What is in the place of the new life's data ends it where it begins.
    fs::write(dir.join("data.next"), "in its way").unwrap();
    recover(&replicas, 1, &["--yes"]).ends(1).says(&["data.next"]);
    assert!(marker.exists());
    // The others come back and go on.
    for index in [0, 2] {
        replicas.spawn(index);
    }
    for index in [0, 2] {
        replicas.ready(index);
    }
    replicas.write(0, "meanwhile");
    fs::remove_file(dir.join("data.next")).unwrap();
    for flags in [&[][..], &["--yes"]] {
        recover(&replicas, 1, flags).ends(4).says(&["majority", "--abandon", "--even-with-quorum"]);
    }
    recover(&replicas, 1, &["--abandon", "--yes"]).ends(2);
    recover(&replicas, 1, &["--abandon"]).ok().says(&["again what it was"]);
    recover(&replicas, 1, &["--abandon"]).ok().says(&["nothing to give up"]);
    assert!(!marker.exists());
    replicas.spawn(1);
    replicas.ready(1);
    until("what was written meanwhile", || {
        replicas.names(1).contains(&"meanwhile".to_owned()).then_some(())
    });
}
