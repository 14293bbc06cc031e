use std::collections::BTreeMap;

use palisade_raft::Identity;
use palisade_state::ReplicaId;

use super::*;
use crate::{
    init::{InitOptions, NewReplica, init},
    recovery::{
        decay::{CASES, decayed},
        stages::JournalError,
    },
    replica_dir::{DirError, ReplicaDir},
};

const STAGES: [Stage; 4] = [Stage::Planned, Stage::Made, Stage::SetAside, Stage::Placed];

/// The second of three replicas, whose log is gone.
fn damaged(home: &Path) -> PathBuf {
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
        heartbeat_ms: 1_234,
        node_lost_ms: 30_000,
    })
    .unwrap();
    let path = made.replicas[1].clone();
    ReplicaDir::read(&path).unwrap().mark_started().unwrap();
    fs::create_dir_all(path.join("data/snapshots")).unwrap();
    fs::write(path.join("data/snapshots/7-1.snap"), b"what it held").unwrap();
    path
}

fn wanted() -> Wanted {
    Wanted {
        replica: Some(2),
        replaces: Some(2),
        peer_addr: "127.0.0.1:4".into(),
        api_addr: "127.0.0.1:5".into(),
        peer_listen: "127.0.0.1:4".parse().unwrap(),
        api_listen: "127.0.0.1:5".parse().unwrap(),
    }
}

fn member(id: u64) -> MemberConfig {
    let (peer_addr, api_addr) =
        (format!("127.0.0.1:{}", 2 * id), format!("127.0.0.1:{}", 2 * id + 1));
    MemberConfig { id, peer_addr, api_addr }
}

fn answer() -> Enrolled {
    let identity =
        Identity { cluster: "cl".into(), lineage: "ln".into(), epoch: 0, replica: ReplicaId(57) };
    let members = vec![member(1), member(2), member(3)];
    Enrolled { identity, cert_pem: "cert".into(), ca_pem: "ca".into(), members }
}

/// All files below a directory that are not of this repair.
fn content(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![path.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap().path();
            let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("repair.") || name.starts_with("damaged") || name == "LOCK" {
                continue;
            }
            if entry.is_dir() {
                dirs.push(entry);
            } else {
                found.insert(
                    entry.strip_prefix(path).unwrap().to_owned(),
                    fs::read(&entry).unwrap(),
                );
            }
        }
    }
    found
}

fn look(path: &Path) -> Repair {
    survey_damage(path).unwrap()
}

/// Comes so far.
fn until(path: &Path, stage: Stage) {
    let mut repair = look(path);
    if repair.resumed().is_none() {
        repair.begin(wanted()).unwrap();
        if stage == Stage::Planned {
            return;
        }
        repair.enrolled(&answer()).unwrap();
    }
    repair.carry_out_until(Some(stage)).unwrap();
}

fn end(path: &Path) -> Repaired {
    let mut repair = look(path);
    if repair.resumed().is_none() {
        repair.begin(wanted()).unwrap();
        repair.enrolled(&answer()).unwrap();
    }
    repair.carry_out().unwrap()
}

#[track_caller]
fn repaired(path: &Path, before: &BTreeMap<PathBuf, Vec<u8>>, came: &Repaired) {
    assert_eq!((came.id, came.replaces), (57, Some(2)));
    assert_eq!(came.aside, path.join("damaged-2"));
    assert_eq!(&content(&came.aside), before, "REP-1");
    let dir = ReplicaDir::read(path).unwrap();
    dir.check_log().unwrap();
    assert!(dir.is_joined() && !dir.has_started() && join::lacks_secrets(&dir));
    assert_eq!(dir.identity, answer().identity);
    assert_eq!(dir.member().unwrap().peer_addr, "127.0.0.1:4");
    let ids: Vec<u64> = dir.config.members.iter().map(|member| member.id).collect();
    assert_eq!(ids, [1, 3, 57]);
    assert_eq!(dir.config.heartbeat_ms, 1_234, "what the operator had written is kept");
    for left in [MARKER, NEXT, KEY, "data", "bootstrap.json"] {
        assert!(!path.join(left).exists(), "{left}");
    }
    assert_eq!(look(path).finding(), &Finding::Fresh);
}

#[test]
fn a_repair_that_was_ended_anywhere_is_taken_up_and_refuses_to_serve_until_then() {
    for stage in STAGES {
        let home = tempfile::tempdir().unwrap();
        let path = damaged(home.path());
        let before = content(&path);
        until(&path, stage);
        let serving = ReplicaDir::read(&path);
        if stage == Stage::Planned {
            assert_eq!(serving.unwrap().identity.replica.0, 2, "nothing was changed");
            assert_eq!(content(&path), before);
            // What a step left half done does not disturb it.
            fs::create_dir_all(path.join(NEXT)).unwrap();
            fs::write(path.join(NEXT).join("replica.toml"), b"half").unwrap();
        } else {
            let refused = serving.unwrap_err();
            assert!(matches!(refused, DirError::Repairing { .. }), "{stage:?}: {refused}");
            assert!(look(&path).resumed().is_some());
        }
        let came = end(&path);
        repaired(&path, &before, &came);
    }
}

#[test]
fn a_step_that_was_done_and_not_noted_is_done_again_without_harm() {
    for (stage, next) in STAGES.into_iter().zip(STAGES.into_iter().skip(1)) {
        let home = tempfile::tempdir().unwrap();
        let path = damaged(home.path());
        let before = content(&path);
        until(&path, stage);
        let journal = fs::read(path.join(MARKER)).unwrap();
        until(&path, next);
        fs::write(path.join(MARKER), journal).unwrap();
        let came = end(&path);
        repaired(&path, &before, &came);
    }
}

#[test]
fn the_cluster_is_asked_again_with_the_same_key() {
    let home = tempfile::tempdir().unwrap();
    let path = damaged(home.path());
    let first = look(&path).begin(wanted()).unwrap();
    assert_eq!(look(&path).begin(wanted()).unwrap(), first, "REP-3");
    let other = Wanted { peer_addr: "127.0.0.1:9".into(), ..wanted() };
    assert_ne!(look(&path).begin(other).unwrap(), first, "it would be enrolled as it was");
}

#[test]
fn whose_it_is_is_known_by_whatever_is_left() {
    let home = tempfile::tempdir().unwrap();
    let path = damaged(home.path());
    let whole = look(&path).known().clone();
    assert_eq!(whole.replica, Some(2));
    fs::write(path.join("identity.json"), [0; 40]).unwrap();
    let repair = look(&path);
    assert!(matches!(repair.finding(), Finding::Damaged(why) if why.contains("identity.json")));
    let by_certificate = Known { life: None, ..whole };
    assert_eq!(repair.known(), &by_certificate);
    drop(repair);
    fs::remove_dir_all(path.join("pki")).unwrap();
    assert_eq!(look(&path).known(), &Known::default());
}

#[test]
fn what_is_no_damage_is_said_to_be_none() {
    let home = tempfile::tempdir().unwrap();
    let path = damaged(home.path());
    assert!(matches!(look(&path).finding(), Finding::Damaged(why) if why.contains("holds no log")));
    let config = fs::read(path.join("replica.toml")).unwrap();
    fs::write(path.join("replica.toml"), b"peerListen = 7").unwrap();
    assert!(matches!(look(&path).finding(), Finding::Unable(why) if why.contains("replica.toml")));
    fs::write(path.join("replica.toml"), config).unwrap();
    fs::remove_file(path.join(STARTED)).unwrap();
    assert_eq!(look(&path).finding(), &Finding::Fresh);
    fs::write(path.join("pki/replica.key"), b"no key").unwrap();
    assert!(matches!(look(&path).finding(), Finding::Damaged(why) if why.contains("replica.key")));
}

#[test]
fn two_repairs_of_one_replica_do_not_run_at_once() {
    let home = tempfile::tempdir().unwrap();
    let path = damaged(home.path());
    let _first = look(&path);
    assert!(matches!(survey_damage(&path), Err(RepairError::Lock(_))));
}

#[test]
fn a_journal_of_a_newer_release_is_refused_and_so_is_a_start() {
    let home = tempfile::tempdir().unwrap();
    let path = damaged(home.path());
    fs::write(path.join(MARKER), r#"{"format": 9}"#).unwrap();
    let refused = survey_damage(&path).err().unwrap();
    assert!(matches!(refused, RepairError::Journal(JournalError::Newer { found: 9, .. })));
    assert!(matches!(ReplicaDir::read(&path), Err(DirError::Repairing { .. })));
}

#[test]
fn a_journal_that_decays_is_refused_by_name_and_never_taken_for_another() {
    for stage in STAGES {
        let home = tempfile::tempdir().unwrap();
        let path = damaged(home.path());
        let before = content(&path);
        until(&path, stage);
        let (marker, journal) = (path.join(MARKER), RepairJournal::read(&path).unwrap());
        let whole = fs::read(&marker).unwrap();
        let mut refused = 0;
        for seed in 0..CASES {
            let (bytes, what) = decayed(&whole, seed);
            fs::write(&marker, bytes).unwrap();
            match RepairJournal::read(&path) {
                Ok(found) => assert_eq!(found, journal, "{stage:?}, {what}"),
                Err(error) => {
                    assert!(
                        error.to_string().contains(marker.to_str().unwrap()),
                        "{what}: {error}"
                    );
                    assert!(
                        matches!(ReplicaDir::read(&path), Err(DirError::Repairing { .. })),
                        "STAGE-2: {stage:?}, {what}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused > CASES / 2, "{stage:?}: {refused}");
        fs::write(&marker, whole).unwrap();
        let came = end(&path);
        repaired(&path, &before, &came);
    }
}
