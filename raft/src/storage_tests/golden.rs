//! Golden files: today's code reads them, and writes the very same bytes.
//!
//! A file stays as long as its format is read. To change a format is to raise its number, to keep the old files
//! and their reading tests, and to add new ones: with `PALISADE_GOLDEN=write` a file that is missing is made.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use openraft::Membership;
use palisade_state::{ReplicaId, command::Entry as KernelEntry};
use sha2::{Digest, Sha256};

use crate::{
    Identity, IdentityError,
    backup::tests::GOLDEN as BACKUP,
    disk::{Files, MemFiles},
    snapshot_file::{Head, SnapshotError, SnapshotReader, SnapshotWriter, newest_good},
    types::{EntryPayload, Node, Payload, decode_payload, encode_payload},
    wal::{self, EntryRecord, Options, Position, Record, Recovered, Vote, Wal, WalError},
};

const ME: wal::Identity = wal::Identity { cluster: *b"golden cluster 1", replica: 3 };

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Asserts that `bytes` are those of the golden file.
fn same(name: &str, bytes: &[u8]) {
    let path = golden(name);
    if !path.exists() && std::env::var("PALISADE_GOLDEN").is_ok_and(|word| word == "write") {
        std::fs::write(&path, bytes).unwrap();
    }
    let kept = std::fs::read(&path).unwrap();
    let differs = kept.iter().zip(bytes).position(|(kept, now)| kept != now);
    assert!(
        kept == bytes,
        "{name}: {} bytes where {} are kept, the first difference at {differs:?}: a change of the bytes is a new format",
        bytes.len(),
        kept.len()
    );
}

fn log_dir() -> &'static Path {
    Path::new("/data/log")
}

fn options() -> Options {
    Options {
        segment_bytes: 4096,
        first_segment_bytes: 4096,
        reserve_bytes: 0,
        ..Options::default()
    }
}

fn open(files: &MemFiles) -> Result<(Wal, Recovered), WalError> {
    Wal::open(Arc::new(files.clone()), log_dir(), ME, options())
}

fn payloads() -> [EntryPayload; 3] {
    let entry =
        KernelEntry { format: 1, proposer_term: 3, delta_ms: 250, ..KernelEntry::default() };
    let node = |n: u64| Node {
        peer_addr: format!("10.0.0.{n}:7400"),
        api_addr: format!("10.0.0.{n}:7401"),
    };
    let nodes: std::collections::BTreeMap<u64, Node> = (1..4).map(|n| (n, node(n))).collect();
    [
        EntryPayload::Membership(Membership::new(vec![[1, 2].into()], nodes).unwrap()),
        EntryPayload::Blank,
        EntryPayload::Normal(Payload::new(entry)),
    ]
}

/// Every type of record, and enough of them for a second segment.
fn records() -> Vec<Record> {
    let at = |term, index| Position { term, index };
    let mut records = vec![
        Record::Vote(Vote { term: 1, node: 3, committed: false }),
        Record::Vote(Vote { term: 1, node: 3, committed: true }),
    ];
    let payloads = payloads().map(|payload| encode_payload(&payload).unwrap());
    records.extend(
        (0..)
            .zip(payloads)
            .map(|(index, payload)| Record::Append(vec![EntryRecord { term: 1, index, payload }])),
    );
    let entry = |term, index: u64| {
        let payload = Bytes::from(vec![index as u8; 900]);
        EntryRecord { term, index, payload }
    };
    records.push(Record::Append(vec![entry(1, 3), entry(1, 4)]));
    records.push(Record::Committed(at(1, 3)));
    records.push(Record::Vote(Vote { term: 2, node: 1, committed: true }));
    records.push(Record::TruncateAfter(Some(at(1, 3))));
    records.push(Record::Append(vec![entry(2, 4)]));
    records.push(Record::Purge(at(1, 1)));
    records.push(Record::Append(vec![entry(2, 5)]));
    records.push(Record::Committed(at(2, 5)));
    records
}

const SEGMENTS: [&str; 2] = ["00000001.seg", "00000002.seg"];

#[test]
fn the_log_is_written_as_it_always_was() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files).unwrap();
    for record in records() {
        wal.append(&[record]).unwrap();
        wal.commit(true).unwrap();
    }
    wal.settle().unwrap();
    assert_eq!(wal.segments(), SEGMENTS.len());
    for name in SEGMENTS.into_iter().chain(["tail"]) {
        same(name, &files.read(&log_dir().join(name)).unwrap());
    }
}

/// A disk with the log that is kept.
fn kept_log() -> MemFiles {
    let files = MemFiles::new();
    files.create_dir_all(log_dir()).unwrap();
    for name in SEGMENTS.into_iter().chain(["tail"]) {
        put(&files, &log_dir().join(name), &std::fs::read(golden(name)).unwrap());
    }
    files
}

fn put(files: &MemFiles, path: &Path, bytes: &[u8]) {
    let file = files.create(path).unwrap();
    file.write_all_at(0, bytes).unwrap();
    file.sync_data().unwrap();
    files.sync_dir(path.parent().unwrap()).unwrap();
}

#[test]
fn the_log_that_is_kept_is_read() {
    let (_, recovered) = open(&kept_log()).unwrap();
    assert_eq!(recovered.state.vote, Some(Vote { term: 2, node: 1, committed: true }));
    assert_eq!(recovered.state.committed, Some(Position { term: 2, index: 5 }));
    assert_eq!(recovered.state.purged, Some(Position { term: 1, index: 1 }));
    assert_eq!(recovered.cut, None);
    let places: Vec<_> = recovered.entries.iter().map(|entry| (entry.term, entry.index)).collect();
    assert_eq!(places, [(1, 2), (1, 3), (2, 4), (2, 5)]);
    assert_eq!(decode_payload(recovered.entries[0].payload.clone()).unwrap(), payloads()[2]);
    assert_eq!(*recovered.entries[2].payload, [4; 900]);
}

#[test]
fn the_payloads_of_entries_are_written_and_read_as_they_always_were() {
    for (name, payload) in
        ["membership.entry", "blank.entry", "normal.entry"].iter().zip(payloads())
    {
        same(name, &encode_payload(&payload).unwrap());
        let kept = std::fs::read(golden(name)).unwrap();
        assert_eq!(decode_payload(kept.into()).unwrap(), payload, "{name}");
    }
}

#[test]
fn a_newer_segment_is_refused_with_both_formats() {
    let files = kept_log();
    let path = log_dir().join(SEGMENTS[1]);
    files
        .damage(&path, |bytes| {
            bytes[8] = 2;
            let crc = crc32fast::hash(&bytes[..508]);
            bytes[508..512].copy_from_slice(&crc.to_le_bytes());
        })
        .unwrap();
    let error = open(&files).err().unwrap();
    assert!(matches!(error, WalError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
    says(
        &error.to_string(),
        "/data/log/00000002.seg has format 2, and this release knows formats up to 1",
    );
}

#[test]
fn a_newer_witness_is_refused_with_both_formats() {
    let files = kept_log();
    files
        .damage(&log_dir().join("tail"), |bytes| {
            for at in [0, 4096] {
                bytes[at + 7] = b'2';
                let crc = crc32fast::hash(&bytes[at..at + 32]);
                bytes[at + 32..at + 36].copy_from_slice(&crc.to_le_bytes());
            }
        })
        .unwrap();
    let error = open(&files).err().unwrap();
    assert!(matches!(error, WalError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
    says(&error.to_string(), "/data/log/tail has format 2, and this release knows formats up to 1");
}

const SNAPSHOT: &str = "900-3.snap";

fn snapshots_dir() -> &'static Path {
    Path::new("/data/snapshots")
}

fn head() -> Head {
    Head {
        cluster: ME.cluster,
        position: Position { term: 3, index: 900 },
        membership: Bytes::from_static(br#"{"members":[]}"#),
        counts: Bytes::from_static(br#"{"t":2}"#),
    }
}

#[test]
fn a_snapshot_is_written_as_it_always_was() {
    let files = MemFiles::new();
    let files_port: Arc<dyn Files> = Arc::new(files.clone());
    let mut writer = SnapshotWriter::create(files_port, snapshots_dir(), head()).unwrap();
    writer.chunk(b"the first chunk").unwrap();
    writer.chunk(&[0xa5; 300]).unwrap();
    writer.finish().unwrap();
    same(SNAPSHOT, &files.read(&snapshots_dir().join(SNAPSHOT)).unwrap());
}

#[test]
fn the_snapshot_that_is_kept_is_read() {
    let files = MemFiles::new();
    files.create_dir_all(snapshots_dir()).unwrap();
    let path = snapshots_dir().join(SNAPSHOT);
    put(&files, &path, &std::fs::read(golden(SNAPSHOT)).unwrap());
    let reader = SnapshotReader::open(&files, &path).unwrap();
    assert_eq!(reader.info().head, head());
    let chunks: Vec<Bytes> = reader.chunks().map(Result::unwrap).collect();
    assert_eq!(chunks, [b"the first chunk".as_slice(), [0xa5; 300].as_slice()]);
}

#[test]
fn a_newer_snapshot_is_refused_with_both_formats_and_not_passed_over() {
    let files = MemFiles::new();
    files.create_dir_all(snapshots_dir()).unwrap();
    let mut bytes = std::fs::read(golden(SNAPSHOT)).unwrap();
    put(&files, &snapshots_dir().join(SNAPSHOT), &bytes);
    bytes[8] = 2;
    let end = 44 + 4 + head().membership.len() + 4 + head().counts.len();
    let crc = crc32fast::hash(&bytes[..end]);
    bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    put(&files, &snapshots_dir().join("901-3.snap"), &bytes);
    let error = newest_good(&files, snapshots_dir(), ME.cluster).err().unwrap();
    assert!(matches!(error, SnapshotError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
    says(
        &error.to_string(),
        "/data/snapshots/901-3.snap has format 2, and this release knows formats up to 1",
    );
}

fn identity() -> Identity {
    Identity {
        cluster: "01k0golden0000000000000001".into(),
        lineage: "01k0golden0000000000000002".into(),
        epoch: 4,
        replica: ReplicaId(3),
    }
}

#[test]
fn an_identity_is_written_and_read_as_it_always_was() {
    let dir = tempfile::tempdir().unwrap();
    identity().claim(dir.path()).unwrap();
    same("identity.json", &std::fs::read(dir.path().join("identity.json")).unwrap());
    let kept = tempfile::tempdir().unwrap();
    std::fs::copy(golden("identity.json"), kept.path().join("identity.json")).unwrap();
    assert_eq!(Identity::read(kept.path()).unwrap(), Some(identity()));
}

#[test]
fn a_newer_identity_is_refused_with_both_formats_whatever_else_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("identity.json");
    std::fs::write(&file, r#"{"format": 2, "members": [1, 2]}"#).unwrap();
    let error = Identity::read(dir.path()).unwrap_err();
    assert!(matches!(error, IdentityError::NewerFormat { found: 2, .. }), "{error}");
    says(&error.to_string(), "identity.json has format 2, and this release knows formats up to 1");
}

/// `sha256sum * > SHA256`, for a new file: those that are kept stay as they are, whatever the writers write by then.
#[test]
fn the_golden_files_are_those_that_were_kept() {
    let dir = golden("");
    let mut found = std::collections::BTreeMap::new();
    for file in std::fs::read_dir(&dir).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if name != "SHA256" {
            let digest = Sha256::digest(std::fs::read(dir.join(&name)).unwrap());
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            found.insert(name, digest);
        }
    }
    let pinned = std::fs::read_to_string(dir.join("SHA256")).unwrap();
    for line in pinned.lines() {
        let (digest, name) = line.split_once("  ").unwrap();
        assert_eq!(found.get(name).map(String::as_str), Some(digest), "{name} was changed");
    }
    assert_eq!(pinned.lines().count(), found.len(), "a new file has a new line");
    let tested = SEGMENTS.len() + ["tail", SNAPSHOT, "identity.json", BACKUP].len() + 3;
    assert_eq!(found.len(), tested, "every file is read by a test");
}

fn says(text: &str, what: &str) {
    assert!(text.contains(what), "{text:?} does not say {what:?}");
}
