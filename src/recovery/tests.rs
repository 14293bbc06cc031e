use std::{fs, path::Path};

use palisade_api::pki::Authority;
use palisade_raft::{
    backup::{BackupError, BackupReader, write_backup},
    offline::Survivor,
};
use palisade_state::{
    Command, Machine, Position, ReplicaId, Tx, View,
    command::{Entry, FORMAT, Form, Kind},
    roster::{self, Enrolment, REPLICAS, Replica, Standing},
};

use super::*;
use crate::{
    init::{InitError, InitOptions, NewReplica, init},
    replica_dir::ReplicaDir,
};

fn kept(_: &crate::context_file::Context) -> Result<(), std::io::Error> {
    Ok(())
}

#[test]
fn a_cluster_whose_only_token_cannot_be_kept_is_not_made() {
    let home = tempfile::tempdir().unwrap();
    let (_, options) = backed_up(home.path());
    let full = |_: &crate::context_file::Context| Err(std::io::Error::other("the disk is full"));
    let error = restore(&options, full).unwrap_err();
    assert!(matches!(error, RestoreError::Keep(_)), "{error}");
    assert_eq!(fs::read_dir(&options.dir).unwrap().count(), 0, "RES-1");
    restore(&options, kept).unwrap();
}

fn replica(id: u16) -> NewReplica {
    NewReplica {
        id: id.into(),
        host: "127.0.0.1".into(),
        peer_port: 7410 + id,
        api_port: 7400 + id,
    }
}

/// A state whose second entry enrolled a replica, number 2.
fn view(dir: &ReplicaDir) -> View {
    let mut machine = Machine::default();
    let (cluster, lineage) = (dir.identity.cluster.clone(), dir.identity.lineage.clone());
    let form: Command = Kind::Form(Form { cluster, lineage, epoch: 0 }).into();
    let mut tx = Tx::new(machine.published().view());
    let (peer_addr, api_addr) = ("a:1".to_owned(), "a:2".to_owned());
    let enrolment = Enrolment { peer_addr, api_addr, replaces: None, at_ms: 0 };
    roster::enrol(&mut tx, "key", &enrolment).unwrap();
    tx.put(&REPLICAS, &3, &Replica { standing: Standing::Removed, ..Replica::default() }).unwrap();
    for (index, command) in (1..).zip([form, tx.build().unwrap().into()]) {
        let entry =
            Entry { format: FORMAT, proposer_term: 9, commands: vec![command], ..Entry::default() };
        machine.apply(Position { term: 9, index }, entry).unwrap();
    }
    machine.publish();
    machine.published().view()
}

/// A cluster's first replica and a backup of it.
fn backed_up(home: &Path) -> (ReplicaDir, RestoreOptions) {
    let made = init(&InitOptions {
        dir: home.join("cluster"),
        replicas: vec![replica(1)],
        context: "t".into(),
        heartbeat_ms: 5_000,
        node_lost_ms: 30_000,
    })
    .unwrap();
    let dir = ReplicaDir::read(&made.replicas[0]).unwrap();
    let authority = Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key")).unwrap();
    let life = (dir.identity.cluster.clone(), dir.identity.lineage.clone(), 0);
    let head = Source::new(&dir, &authority).head_of(life, vec![], 1).unwrap();
    let file = home.join("a.backup");
    write_backup(&file, head, &view(&dir)).unwrap();
    let options = RestoreOptions {
        file,
        key: Some(dir.pki("backup.key")),
        dir: home.join("restored"),
        replicas: vec![replica(1), replica(3), replica(4)],
        fork: false,
        epoch: None,
        context: "r".into(),
        heartbeat_ms: 5_000,
        node_lost_ms: 30_000,
    };
    (dir, options)
}

#[test]
fn a_restored_cluster_is_of_the_same_lineage_and_another_life() {
    let home = tempfile::tempdir().unwrap();
    let (old, options) = backed_up(home.path());
    let made = restore(&options, kept).unwrap();
    assert_eq!((&made.lineage, made.epoch), (&old.identity.lineage, 1));
    assert_ne!(made.cluster, old.identity.cluster);
    assert_eq!(made.replicas.len(), 3);
    for path in &made.replicas {
        let dir = ReplicaDir::read(path).unwrap();
        assert_eq!(fs::read(dir.pki("ca.pem")).unwrap(), fs::read(old.pki("ca.pem")).unwrap());
        assert_eq!(
            fs::read(dir.pki("backup.key")).unwrap(),
            fs::read(old.pki("backup.key")).unwrap()
        );
        Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key")).unwrap();
        let data = Survivor::read(&dir.data()).unwrap();
        assert_eq!((data.identity.clone(), data.members.len()), (dir.identity, 3));
        assert_eq!(data.view().formation().unwrap().cluster, made.cluster);
        assert!(data.term >= 9, "OFF-1");
        assert!(!roster::is_removed(&data.view(), ReplicaId(3)), "it is another replica 3");
    }
}

#[test]
fn a_fork_has_a_lineage_a_ca_and_a_key_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let (old, options) = backed_up(home.path());
    let made = restore(&RestoreOptions { fork: true, key: None, ..options }, kept).unwrap();
    assert_ne!(made.lineage, old.identity.lineage);
    let dir = ReplicaDir::read(&made.replicas[0]).unwrap();
    for file in ["ca.pem", "backup.key"] {
        assert_ne!(fs::read(dir.pki(file)).unwrap(), fs::read(old.pki(file)).unwrap(), "{file}");
    }
    assert_eq!(
        Survivor::read(&dir.data()).unwrap().view().formation().unwrap().lineage,
        made.lineage
    );
}

#[test]
fn what_cannot_be_restored_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (_, good) = backed_up(home.path());
    let refused = |options: RestoreOptions| {
        let error = restore(&options, kept).unwrap_err();
        assert!(!good.dir.join("replica-1").exists(), "RES-1: {error}");
        error
    };
    assert!(matches!(refused(RestoreOptions { key: None, ..good.clone() }), RestoreError::NoKey));
    let wrong = home.path().join("wrong.key");
    fs::write(&wrong, [7; 32]).unwrap();
    let error = refused(RestoreOptions { key: Some(wrong), ..good.clone() });
    assert!(matches!(error, RestoreError::Backup(BackupError::WrongKey { .. })), "{error}");
    let error = refused(RestoreOptions { epoch: Some(0), ..good.clone() });
    assert!(matches!(error, RestoreError::Epoch { given: 0, backup: 0 }));
    // After it no cluster could have a higher one.
    let error = refused(RestoreOptions { epoch: Some(u64::MAX), ..good.clone() });
    assert!(matches!(error, RestoreError::EpochTooHigh { .. }), "{error}");
    let cut = home.path().join("cut.backup");
    let bytes = fs::read(&good.file).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let error = refused(RestoreOptions { file: cut, ..good.clone() });
    assert!(error.to_string().contains("cut short"), "{error}");
    let taken = vec![replica(1), replica(2), replica(3)];
    let error = refused(RestoreOptions { replicas: taken, ..good.clone() });
    assert!(matches!(error, RestoreError::UsedId { id: 2, free: 4 }), "{error}");
    let two = vec![replica(1), replica(3)];
    assert!(matches!(
        refused(RestoreOptions { replicas: two, ..good.clone() }),
        RestoreError::Replicas(_)
    ));
    fs::create_dir_all(good.dir.join("precious")).unwrap();
    let error = refused(good.clone());
    assert!(matches!(error, RestoreError::Replicas(InitError::NotEmpty { .. })), "{error}");
    assert!(error.to_string().contains("precious"), "{error}");
    BackupReader::open(&good.file).unwrap();
}
