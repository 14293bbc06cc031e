use std::{fs, path::Path};

use palisade_state::{
    Command, Machine, Position, Txn, View,
    command::{Entry, FORMAT as ENTRY_FORMAT, Form, Kind, Write},
    snapshot::hash,
};

use super::*;

/// In `tests/golden/`. It is read and written here; a whole cluster comes back from another one in the end-to-end tests.
pub(crate) const GOLDEN: &str = "backup-1.bin";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(GOLDEN)
}

fn machine() -> Machine {
    let mut machine = Machine::default();
    let form = Form { cluster: "cl_golden".into(), lineage: "ln_golden".into(), epoch: 3 };
    let write = |key: &str, bytes: usize| Write {
        table: "t.things".into(),
        key: key.into(),
        value: Some(vec![b'x'; bytes]),
    };
    let txn = Txn {
        writes: vec![write("one", 10), write("two", 20), write("three", 300)],
        ..Txn::default()
    };
    let commands: [Command; 2] = [Kind::Form(form).into(), txn.into()];
    for (index, command) in (1..).zip(commands) {
        let entry = Entry {
            format: ENTRY_FORMAT,
            proposer_term: 7,
            delta_ms: 5,
            wall_ms: 1_700_000_000_000,
            commands: vec![command],
        };
        let outcomes = machine.apply(Position { term: 7, index }, entry).unwrap();
        assert!(outcomes[0].is_applied(), "{outcomes:?}");
    }
    machine.publish();
    machine
}

fn view() -> View {
    machine().published().view()
}

fn key() -> BackupKey {
    BackupKey::new([9; 32])
}

fn head() -> BackupHead {
    BackupHead {
        cluster: "cl_golden".into(),
        lineage: "ln_golden".into(),
        epoch: 3,
        term: 0,
        index: 0,
        revision: 0,
        created_ms: 1_700_000_000_000,
        palisade: "0.1.0".into(),
        entry_format: 1,
        tables: Default::default(),
        members: vec![BackupMember {
            id: 1,
            peer_addr: "a:1".into(),
            api_addr: "a:2".into(),
            voter: true,
        }],
        ca_pem: "a certificate".into(),
        ca_key: key().seal("ln_golden", "a private key", [1; 12]).unwrap(),
        secret_keys: vec![],
        next_ca: vec![],
    }
}

fn written(dir: &Path) -> PathBuf {
    let path = dir.join("one.backup");
    let info = write_backup(&path, head(), &view()).unwrap();
    assert_eq!(info.file_bytes, fs::metadata(&path).unwrap().len());
    path
}

fn refused(path: &Path) -> BackupError {
    BackupReader::open(path).err().expect("it is refused")
}

#[test]
fn what_was_backed_up_is_loaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    let mut reader = BackupReader::open(&path).unwrap();
    let head = reader.info().head.clone();
    assert_eq!((head.term, head.index, head.revision), (7, 2, 2));
    assert_eq!(head.tables.get("t.things"), Some(&3));
    let loaded = Machine::new(reader.load().unwrap());
    assert_eq!(hash(&loaded.published().view()), hash(&view()));
    assert_eq!(reader.ca_key(&key(), Path::new("k")).unwrap(), "a private key");
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["one.backup"], "no .part is left");
}

#[test]
fn a_backup_of_an_earlier_release_is_read() {
    let mut reader = BackupReader::open(&golden()).unwrap();
    let found = reader.info().head.clone();
    assert_eq!(found, head().of_view(&view()));
    assert_eq!(reader.ca_key(&key(), Path::new("k")).unwrap(), "a private key");
    let loaded = Machine::new(reader.load().unwrap()).published().view();
    let formation = loaded.formation().unwrap();
    assert_eq!((formation.cluster.as_str(), formation.epoch), ("cl_golden", 3));
    assert_eq!(loaded.applied(), Position { term: 7, index: 2 });
    for (key, bytes) in [("one", 10), ("two", 20), ("three", 300)] {
        let row = loaded.row("t.things", key.as_bytes()).unwrap();
        assert_eq!(row.value(), vec![b'x'; bytes], "{key}");
    }
}

#[test]
fn a_backup_is_written_as_it_always_was() {
    let dir = tempfile::tempdir().unwrap();
    let now = fs::read(written(dir.path())).unwrap();
    if !golden().exists() && std::env::var("PALISADE_GOLDEN").is_ok_and(|word| word == "write") {
        fs::write(golden(), &now).unwrap();
    }
    let kept = fs::read(golden()).unwrap();
    let differs = kept.iter().zip(&now).position(|(kept, now)| kept != now);
    assert!(
        kept == now,
        "the first difference is at {differs:?}: a change of the bytes is a new format"
    );
}

#[test]
fn every_flipped_bit_is_found_with_file_and_offset() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    let whole = fs::read(&path).unwrap();
    let hurt = dir.path().join("hurt.backup");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&hurt, &bytes).unwrap();
        match refused(&hurt) {
            BackupError::Corrupt { file, offset, .. } => {
                assert_eq!(file, hurt);
                assert!(offset <= at as u64 || offset == whole.len() as u64, "{offset} for {at}");
            }
            other => panic!("byte {at}: {other}"),
        }
    }
}

#[test]
fn every_cut_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    let whole = fs::read(&path).unwrap();
    let cut = dir.path().join("cut.backup");
    for length in 0..whole.len() {
        fs::write(&cut, &whole[..length]).unwrap();
        let said = refused(&cut).to_string();
        assert!(said.contains("cut short") && said.contains(&format!("byte {length}:")), "{said}");
    }
    let mut longer = whole;
    longer.push(0);
    fs::write(&cut, &longer).unwrap();
    assert!(refused(&cut).to_string().contains("behind the trailer"));
}

#[test]
fn chunks_that_changed_places_are_found() {
    let mut sums = format::Sums::default();
    let head = sums.head(&head()).unwrap();
    let (one, two) = (sums.chunk(b"one").unwrap(), sums.chunk(b"two").unwrap());
    let mut checker = Checker::new(Path::new("b"));
    let swapped = [head, two, one, sums.trailer()].concat();
    assert!(matches!(checker.push(&swapped), Err(BackupError::Corrupt { .. })));
}

#[test]
fn a_newer_format_is_named_with_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path());
    let mut bytes = fs::read(&path).unwrap();
    bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
    let end = 16 + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let crc = crc32fast::hash(&bytes[..end]);
    bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let said = refused(&path).to_string();
    assert!(said.contains("format 9") && said.contains("up to 1"), "{said}");
}

#[test]
fn another_key_opens_nothing_and_both_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let reader = BackupReader::open(&written(dir.path())).unwrap();
    let other = BackupKey::new([8; 32]);
    let error = reader.ca_key(&other, Path::new("other.key")).unwrap_err();
    let said = error.to_string();
    assert!(said.contains(&key().id()) && said.contains(&other.id()), "{said}");
    assert!(said.contains("other.key"), "{said}");
    assert_eq!(key().open("ln_other", &reader.info().head.ca_key), None, "bound to its lineage");
}

#[test]
fn the_key_is_in_no_backup_and_in_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = fs::read(written(dir.path())).unwrap();
    let holds = |secret: &[u8]| bytes.windows(secret.len()).any(|window| window == secret);
    assert!(!holds(b"a private key"), "BAK-3");
    assert!(!holds(key().bytes()), "BAK-3");
    assert_eq!(format!("{:?}", key()), format!("BackupKey({})", key().id()));
}

#[test]
fn a_key_file_of_another_length_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backup.key");
    fs::write(&path, b"short").unwrap();
    assert!(matches!(BackupKey::load(&path), Err(BackupError::NoKey { bytes: 5, .. })));
    fs::write(&path, [9; 32]).unwrap();
    assert_eq!(BackupKey::load(&path).unwrap(), key());
}
