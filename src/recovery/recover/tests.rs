use std::{fs, path::Path};

use palisade_raft::backup::BackupReader;
use palisade_state::{
    Command, Machine, Position, Txn, View,
    command::{Entry, FORMAT, Form, Kind, Write},
};

use super::*;
use crate::{
    init::{InitOptions, NewReplica, init},
    recovery::decay::{CASES, decayed},
    replica_dir::DirError,
};

const STAGES: [Stage; 5] =
    [Stage::BackedUp, Stage::Made, Stage::SetAside, Stage::Placed, Stage::Configured];

fn view(identity: &Identity) -> View {
    let mut machine = Machine::default();
    let Identity { cluster, lineage, epoch, .. } = identity.clone();
    let write = Write { table: "t".into(), key: b"k".to_vec(), value: Some(b"v".to_vec()) };
    let txn = Txn { writes: vec![write], ..Txn::default() };
    let commands: [Command; 2] = [Kind::Form(Form { cluster, lineage, epoch }).into(), txn.into()];
    for (index, command) in (1..).zip(commands) {
        let entry =
            Entry { format: FORMAT, proposer_term: 4, commands: vec![command], ..Entry::default() };
        machine.apply(Position { term: 4, index }, entry).unwrap();
    }
    machine.publish();
    machine.published().view()
}

/// The second of three replicas, which has run; the ports of the others are refused.
fn survivor(home: &Path) -> PathBuf {
    let replica = |id: u16| NewReplica {
        id: id.into(),
        host: "127.0.0.1".into(),
        peer_port: 2 * id,
        api_port: 2 * id + 1,
    };
    let made = init(&InitOptions {
        dir: home.join("cluster"),
        replicas: vec![replica(1), replica(2), replica(3)],
        context: "t".into(),
        heartbeat_ms: 5_000,
        node_lost_ms: 30_000,
    })
    .unwrap();
    let path = made.replicas[1].clone();
    let dir = ReplicaDir::read(&path).unwrap();
    let members: Vec<Member> = dir.config.members.iter().map(Into::into).collect();
    seed(&dir.data(), &dir.identity, &view(&dir.identity), 4, &members).unwrap();
    dir.mark_started().unwrap();
    path
}

fn look(dir: &Path) -> Recovery {
    survey(&options(dir)).unwrap()
}

fn options(dir: &Path) -> RecoverOptions {
    RecoverOptions { dir: dir.to_owned(), epoch: None, without_backup: false }
}

#[track_caller]
fn recovered(path: &Path, old: &Identity) {
    let dir = ReplicaDir::read(path).unwrap();
    dir.check_log().unwrap();
    assert_ne!(dir.identity.cluster, old.cluster);
    assert_eq!((dir.identity.epoch, &dir.identity.lineage), (old.epoch + 1, &old.lineage));
    assert_eq!(dir.identity.replica, old.replica);
    let ids: Vec<u64> = dir.config.members.iter().map(|member| member.id).collect();
    assert_eq!(ids, [2]);
    let after = Survivor::read(&dir.data()).unwrap();
    let view = after.view();
    assert_eq!(view.formation().unwrap().cluster, dir.identity.cluster);
    assert!(view.row("t", b"k").is_some());
    assert_eq!(after.members.len(), 1);
    let asides: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("before-"))
        .collect();
    assert_eq!(asides.len(), 1, "{asides:?}");
    let kept = Survivor::read(&asides[0].join("data")).unwrap();
    assert_eq!(&kept.identity, old, "REC-1");
    assert!(asides[0].join("replica.toml").exists() && asides[0].join("identity.json").exists());
    let backup = path.join(format!("{}-before-recovery.backup", old.cluster));
    assert_eq!(BackupReader::open(&backup).unwrap().info().head.cluster, old.cluster);
    assert!(!path.join("data.next").exists());
}

#[test]
fn a_recovery_that_was_ended_anywhere_is_taken_up_and_refuses_to_serve_until_then() {
    for stage in STAGES {
        let home = tempfile::tempdir().unwrap();
        let path = survivor(home.path());
        let old = ReplicaDir::read(&path).unwrap().identity;
        look(&path).carry_out_until(Some(stage)).unwrap();
        // What a step left half done does not disturb it.
        if stage < Stage::Made {
            fs::create_dir_all(path.join("data.next/log")).unwrap();
            fs::write(path.join("data.next/log/00000001.seg"), b"half").unwrap();
        }
        let serving = ReplicaDir::read(&path).unwrap().check_log();
        assert!(matches!(serving, Err(DirError::Recovering { .. })), "{stage:?}: {serving:?}");
        let again = look(&path);
        assert!(again.plan().is_resumed, "{stage:?}");
        let asked = again.plan().members.iter().filter(|(_, reach)| reach.is_some()).count();
        assert_eq!((again.plan().members.len(), asked), (3, 2), "{stage:?}: REC-4");
        again.carry_out().unwrap();
        recovered(&path, &old);
    }
}

#[test]
fn a_step_that_was_done_and_not_noted_is_done_again_without_harm() {
    for stage in STAGES {
        let home = tempfile::tempdir().unwrap();
        let path = survivor(home.path());
        let old = ReplicaDir::read(&path).unwrap().identity;
        look(&path).carry_out_until(Some(stage)).unwrap();
        let journal = fs::read(path.join(MARKER)).unwrap();
        let Some(next) = STAGES.into_iter().find(|next| *next > stage) else { continue };
        look(&path).carry_out_until(Some(next)).unwrap();
        fs::write(path.join(MARKER), journal).unwrap();
        look(&path).carry_out().unwrap();
        recovered(&path, &old);
    }
}

/// What every look at a replica's data writes, and the journal.
const KEPT_ANEW: [&str; 3] = [MARKER, "LOCK", "log/tail"];

type Content = std::collections::BTreeMap<String, Vec<u8>>;

/// What a replica of the old life is: all of it by name and content, and the journal and the backup apart.
fn content(path: &Path) -> Content {
    let mut found = Content::new();
    let mut left = vec![path.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap().path();
            let name = entry.strip_prefix(path).unwrap().to_str().unwrap().to_owned();
            if entry.is_dir() {
                found.insert(name, vec![]);
                left.push(entry);
            } else if !name.ends_with(".backup")
                && !KEPT_ANEW.iter().any(|kept| name.ends_with(kept))
            {
                found.insert(name, fs::read(&entry).unwrap());
            }
        }
    }
    found
}

#[track_caller]
fn same(before: &Content, after: &Content, what: &str) {
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let other: Vec<_> =
        names.into_iter().filter(|name| before.get(*name) != after.get(*name)).collect();
    assert!(other.is_empty(), "{what}: {other:?}");
}

#[test]
fn a_recovery_that_was_ended_anywhere_can_be_given_up() {
    for stage in STAGES {
        let home = tempfile::tempdir().unwrap();
        let path = survivor(home.path());
        let old = ReplicaDir::read(&path).unwrap().identity;
        drop(look(&path));
        let before = content(&path);
        look(&path).carry_out_until(Some(stage)).unwrap();
        // A step that was done and is not in the journal is undone as well.
        if let Some(next) = STAGES.into_iter().find(|next| *next > stage) {
            let journal = fs::read(path.join(MARKER)).unwrap();
            look(&path).carry_out_until(Some(next)).unwrap();
            fs::write(path.join(MARKER), journal).unwrap();
        }
        assert_eq!(abandon(&path).unwrap().unwrap().from_cluster, old.cluster, "{stage:?}");
        same(&before, &content(&path), "REC-4");
        let dir = ReplicaDir::read(&path).unwrap();
        dir.check_log().unwrap();
        assert_eq!(Survivor::read(&dir.data()).unwrap().identity, old);
        assert!(abandon(&path).unwrap().is_none());
        look(&path).carry_out().unwrap();
        recovered(&path, &old);
    }
}

#[test]
fn giving_up_can_be_ended_anywhere_and_either_way_is_open_then() {
    for stage in STAGES.into_iter().take(4) {
        for goes_on in [true, false] {
            let home = tempfile::tempdir().unwrap();
            let path = survivor(home.path());
            let old = ReplicaDir::read(&path).unwrap().identity;
            drop(look(&path));
            let before = content(&path);
            look(&path).carry_out_until(Some(Stage::Configured)).unwrap();
            abandon::back_to(&path, Some(stage)).unwrap();
            if goes_on {
                look(&path).carry_out().unwrap();
                recovered(&path, &old);
            } else {
                abandon(&path).unwrap();
                same(&before, &content(&path), "REC-5");
            }
        }
    }
}

#[test]
fn a_recovery_whose_backup_fails_has_not_begun() {
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    let old = ReplicaDir::read(&path).unwrap().identity;
    fs::remove_file(path.join("pki/backup.key")).unwrap();
    let refused = look(&path).carry_out();
    assert!(matches!(refused, Err(RecoverError::BackupKey(_))), "{refused:?}");
    ReplicaDir::read(&path).unwrap().check_log().expect("it may be started again");
    let without = RecoverOptions { without_backup: true, ..options(&path) };
    survey(&without).unwrap().carry_out().unwrap();
    assert_eq!(ReplicaDir::read(&path).unwrap().identity.epoch, old.epoch + 1);
    assert!(!path.join(format!("{}-before-recovery.backup", old.cluster)).exists());
}

#[test]
fn what_an_earlier_build_planned_is_taken_up_and_asks_for_a_quorum_as_well() {
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    let old = ReplicaDir::read(&path).unwrap().identity;
    let journal = look(&path).plan.journal;
    let mut planned = serde_json::to_value(&journal).unwrap();
    planned["stage"] = "planned".into();
    planned.as_object_mut().unwrap().remove("members");
    fs::write(path.join(MARKER), planned.to_string()).unwrap();
    let again = look(&path);
    assert!(again.plan().is_resumed && again.plan().members.len() == 3);
    again.carry_out().unwrap();
    recovered(&path, &old);
}

#[test]
fn a_recovery_is_not_taken_up_with_another_epoch() {
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    look(&path).carry_out_until(Some(Stage::BackedUp)).unwrap();
    let refused = survey(&RecoverOptions { epoch: Some(7), ..options(&path) });
    assert!(matches!(refused, Err(RecoverError::Begun { begun: 1, given: 7 })));
}

#[test]
fn one_that_was_recovered_is_alone_and_has_nothing_to_recover() {
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    let old = ReplicaDir::read(&path).unwrap().identity;
    let first = look(&path);
    assert!(!first.plan().is_alone() && !first.plan().has_quorum());
    assert_eq!((first.plan().last, first.plan().committed), (2, 2));
    first.carry_out().unwrap();
    recovered(&path, &old);
    assert!(look(&path).plan().is_alone());
}

#[test]
fn two_recoveries_of_one_replica_do_not_run_at_once() {
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    let _first = look(&path);
    let second = survey(&options(&path));
    assert!(matches!(second, Err(RecoverError::Lock(_))));
}

#[test]
fn a_journal_of_a_newer_release_is_refused_with_both_formats() {
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    fs::write(path.join(MARKER), r#"{"format": 9}"#).unwrap();
    let refused = survey(&options(&path));
    let said = refused.err().map(|error| error.to_string()).unwrap();
    assert!(said.contains("format 9") && said.contains("up to 1"), "{said}");
}

#[test]
fn a_replica_that_was_removed_or_is_a_copy_is_not_recovered() {
    for (mark, word) in [("removed.json", "was removed"), ("copy.json", "is a copy")] {
        let home = tempfile::tempdir().unwrap();
        let path = survivor(home.path());
        let mark = path.join("data").join(mark);
        fs::write(&mark, br#"{"cluster":"c","replica":1,"why":"a test"}"#).unwrap();
        match survey(&options(&path)) {
            Err(RecoverError::Data(OfflineError::Removed(told))) => {
                assert!(told.contains(word), "{told}");
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
        fs::remove_file(&mark).unwrap();
        look(&path);
    }
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    fs::write(path.join("data/lost.json"), b"{}").unwrap();
    look(&path);
}

#[test]
fn an_epoch_that_is_not_higher_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = survivor(home.path());
    let refused = survey(&RecoverOptions { epoch: Some(0), ..options(&path) });
    assert!(matches!(refused, Err(RecoverError::Epoch { given: 0, own: 0 })));
}

#[test]
fn a_survivor_that_reaches_one_of_two_others_has_a_quorum() {
    let member =
        |id| SurvivorMember { id, peer_addr: String::new(), api_addr: String::new(), voter: true };
    let silent = || Some(Reach::Silent("refused".into()));
    let mut plan = Plan {
        journal: Journal::begin(("a".into(), 0), "b".into(), "l".into(), 1),
        is_resumed: false,
        members: vec![(member(1), None), (member(2), silent()), (member(3), silent())],
        committed: 0,
        last: 0,
        revision: 0,
        lost: None,
    };
    assert!(!plan.has_quorum());
    plan.members[2].1 = Some(Reach::Answers);
    assert!(plan.has_quorum());
    plan.members.extend([(member(4), silent()), (member(5), silent())]);
    assert!(!plan.has_quorum(), "two of five");
}

#[test]
fn a_journal_that_decays_is_refused_by_name_and_never_taken_for_another() {
    for stage in STAGES {
        let home = tempfile::tempdir().unwrap();
        let path = survivor(home.path());
        let old = ReplicaDir::read(&path).unwrap().identity;
        look(&path).carry_out_until(Some(stage)).unwrap();
        let (marker, journal) = (path.join(MARKER), Journal::read(&path).unwrap());
        let whole = fs::read(&marker).unwrap();
        let mut refused = 0;
        for seed in 0..CASES {
            let (bytes, what) = decayed(&whole, seed);
            fs::write(&marker, bytes).unwrap();
            match Journal::read(&path) {
                Ok(found) => assert_eq!(found, journal, "{stage:?}, {what}"),
                Err(error) => {
                    assert!(
                        error.to_string().contains(marker.to_str().unwrap()),
                        "{what}: {error}"
                    );
                    refused += 1;
                }
            }
            let serving = ReplicaDir::read(&path).unwrap().check_log();
            assert!(matches!(serving, Err(DirError::Recovering { .. })), "STAGE-2: {what}");
        }
        assert!(refused > CASES / 2, "{stage:?}: {refused}");
        fs::write(&marker, whole).unwrap();
        look(&path).carry_out().unwrap();
        recovered(&path, &old);
    }
}
