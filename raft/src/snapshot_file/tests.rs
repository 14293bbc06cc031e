use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::disk::{Files, MemFiles, StdFiles};

const CLUSTER: [u8; 16] = [7; 16];

fn dir() -> &'static Path {
    Path::new("/data/snapshots")
}

fn head(term: u64, index: u64) -> Head {
    let (membership, counts) = (Bytes::from_static(b"members"), Bytes::from_static(b"counts"));
    Head { cluster: CLUSTER, position: Position { term, index }, membership, counts }
}

fn chunks(seed: u64) -> Vec<Vec<u8>> {
    (1..6).map(|n| (0..n * 700).map(|i| (i as u64 * 7 + n as u64 + seed) as u8).collect()).collect()
}

fn write_in(files: Arc<dyn Files>, dir: &Path, term: u64, index: u64) -> SnapshotInfo {
    let mut writer = SnapshotWriter::create(files, dir, head(term, index)).unwrap();
    chunks(index).iter().for_each(|chunk| writer.chunk(chunk).unwrap());
    writer.finish().unwrap()
}

fn write(files: &MemFiles, term: u64, index: u64) -> SnapshotInfo {
    write_in(Arc::new(files.clone()), dir(), term, index)
}

fn contents(reader: &SnapshotReader) -> Vec<Vec<u8>> {
    reader.chunks().map(|chunk| chunk.unwrap().to_vec()).collect()
}

fn send(
    reader: &SnapshotReader,
    to: &mut SnapshotReceiver,
    step: usize,
) -> Result<(), SnapshotError> {
    loop {
        let bytes = reader.raw(to.offset(), step)?;
        if bytes.is_empty() {
            return Ok(());
        }
        to.push(&bytes)?;
    }
}

#[test]
fn what_is_written_is_read_back() {
    let files = MemFiles::new();
    let info = write(&files, 3, 900);
    assert_eq!(info.path, dir().join("900-3.snap"));
    assert_eq!(info.totals, Totals { chunks: 5, bytes: 700 * 15 });
    let reader = SnapshotReader::open(&files.crash(1), &info.path).unwrap();
    assert_eq!(*reader.info(), info);
    assert_eq!(contents(&reader), chunks(900));
}

#[test]
fn the_real_disk_keeps_a_snapshot() {
    let tmp = tempfile::tempdir().unwrap();
    let info = write_in(Arc::new(StdFiles), &tmp.path().join("snapshots"), 1, 5);
    let reader = SnapshotReader::open(&StdFiles, &info.path).unwrap();
    assert_eq!(contents(&reader), chunks(5));
}

#[test]
fn a_snapshot_without_chunks_is_fine() {
    let files = MemFiles::new();
    let writer = SnapshotWriter::create(Arc::new(files.clone()), dir(), head(1, 0)).unwrap();
    let info = writer.finish().unwrap();
    assert_eq!(SnapshotReader::open(&files, &info.path).unwrap().info().totals, Totals::default());
}

#[test]
fn chunks_of_many_mebibytes_are_read_back() {
    let files = MemFiles::new();
    let mut writer = SnapshotWriter::create(Arc::new(files.clone()), dir(), head(1, 1)).unwrap();
    let large = vec![9; 5 << 20];
    (0..5).for_each(|_| writer.chunk(&large).unwrap());
    let info = writer.finish().unwrap();
    let reader = SnapshotReader::open(&files, &info.path).unwrap();
    assert!(reader.chunks().all(|chunk| chunk.unwrap() == large));
    assert_eq!(reader.info().totals.bytes, 25 << 20);
}

#[test]
fn an_empty_or_oversized_chunk_is_refused() {
    let files = MemFiles::new();
    let mut writer = SnapshotWriter::create(Arc::new(files), dir(), head(1, 1)).unwrap();
    for bytes in [0, MAX_CHUNK + 1] {
        assert!(matches!(writer.chunk(&vec![0; bytes]), Err(SnapshotError::ChunkSize { .. })));
    }
}

#[test]
fn an_unfinished_snapshot_leaves_nothing() {
    let files = MemFiles::new();
    let mut writer = SnapshotWriter::create(Arc::new(files.clone()), dir(), head(1, 1)).unwrap();
    writer.chunk(b"x").unwrap();
    assert_eq!(files.list(dir()).unwrap(), ["1-1.snap.tmp"]);
    drop(writer);
    assert!(files.list(dir()).unwrap().is_empty());
}

#[test]
fn a_power_cut_leaves_a_whole_snapshot_or_none() {
    let files = MemFiles::new();
    write(&files, 1, 10);
    let mut writer = SnapshotWriter::create(Arc::new(files.clone()), dir(), head(1, 20)).unwrap();
    for chunk in chunks(20) {
        writer.chunk(&chunk).unwrap();
    }
    let check = |seed| {
        let image = files.crash(seed);
        let newest = newest_good(&image, dir(), CLUSTER).unwrap();
        assert!(newest.bad.is_empty(), "{:?}", newest.bad);
        newest.good.unwrap().info().head.position.index
    };
    assert!((0..30).all(|seed| check(seed) == 10));
    writer.finish().unwrap();
    assert!((0..30).all(|seed| check(seed) == 20), "a finished snapshot is durable");
}

#[test]
fn a_failing_disk_gives_no_name_to_a_snapshot() {
    for nth in 0..2 {
        let files = MemFiles::new();
        let mut writer =
            SnapshotWriter::create(Arc::new(files.clone()), dir(), head(1, 1)).unwrap();
        writer.chunk(b"x").unwrap();
        if nth == 0 {
            files.fail_sync_in(0)
        } else {
            files.fail_write_in(0)
        }
        assert!(matches!(writer.finish(), Err(SnapshotError::Io { .. })));
        assert!(files.list(dir()).unwrap().is_empty());
    }
    let files = MemFiles::new();
    let mut writer = SnapshotWriter::create(Arc::new(files.clone()), dir(), head(1, 1)).unwrap();
    files.set_capacity(Some(1000));
    writer.chunk(&[1; 2000]).unwrap();
    let error: std::io::Error = writer.finish().unwrap_err().into();
    assert!(crate::disk::is_full(&error), "{error}");
    assert_eq!(files.used(), 0, "the space is given back");
}

#[test]
fn the_newest_good_one_is_found_behind_bad_ones() {
    let files = MemFiles::new();
    for index in [100, 20, 9] {
        write(&files, 1, index);
    }
    files.flip_bit(&dir().join("100-1.snap"), 3000, 2).unwrap();
    let newest = newest_good(&files, dir(), CLUSTER).unwrap();
    assert_eq!(newest.good.unwrap().info().head.position.index, 20);
    let [SnapshotError::Corrupt { file, offset, .. }] = &newest.bad[..] else {
        panic!("{:?}", newest.bad)
    };
    assert_eq!(file, &dir().join("100-1.snap"));
    assert!((1000..=3000).contains(offset), "{offset}");
}

#[test]
fn one_whose_name_was_not_durable_when_it_was_found_stays() {
    let files = MemFiles::new();
    let info = write(&files, 1, 10);
    let unnamed = dir().join("10-1.tmp");
    files.rename(&info.path, &unnamed).unwrap();
    files.sync_dir(dir()).unwrap();
    // The process that named it is killed before it has synced the name.
    files.rename(&unnamed, &info.path).unwrap();
    let found = |files: &MemFiles| newest_good(files, dir(), CLUSTER).unwrap().good.is_some();
    assert!((0..20).any(|seed| !found(&files.after_kill().crash(seed))), "a power cut may take it");
    for seed in 0..20 {
        let killed = files.after_kill();
        assert!(found(&killed));
        assert!(found(&killed.crash(seed)), "what was found, and the log purged up to, is gone");
    }
}

#[test]
fn no_directory_means_no_snapshot() {
    let newest = newest_good(&MemFiles::new(), dir(), CLUSTER).unwrap();
    assert!(newest.good.is_none() && newest.bad.is_empty());
}

#[test]
fn a_snapshot_of_another_cluster_is_passed_over() {
    let files = MemFiles::new();
    write(&files, 1, 100);
    let newest = newest_good(&files, dir(), [8; 16]).unwrap();
    assert!(newest.good.is_none());
    assert!(matches!(newest.bad[..], [SnapshotError::Foreign { .. }]));
}

#[test]
fn only_the_newest_are_kept() {
    let files = MemFiles::new();
    for (term, index) in [(1, 9), (1, 100), (2, 20), (3, 101)] {
        write(&files, term, index);
    }
    keep_newest(&files, dir(), 2).unwrap();
    assert_eq!(files.crash(1).list(dir()).unwrap(), ["100-1.snap", "101-3.snap"]);
}

#[test]
fn leftovers_are_cleaned_and_snapshots_are_not() {
    let files = MemFiles::new();
    write(&files, 1, 9);
    files.create(&dir().join("incoming.tmp")).unwrap();
    clean(&files, dir()).unwrap();
    assert_eq!(files.list(dir()).unwrap(), ["9-1.snap"]);
}

#[test]
fn a_sent_snapshot_arrives_the_same_whatever_the_pieces() {
    let source = MemFiles::new();
    let info = write(&source, 2, 77);
    let reader = SnapshotReader::open(&source, &info.path).unwrap();
    for step in [1, 7, 512, 4096, 1 << 20] {
        let files = MemFiles::new();
        let mut receiver =
            SnapshotReceiver::create(Arc::new(files.clone()), dir(), CLUSTER).unwrap();
        send(&reader, &mut receiver, step).unwrap();
        assert_eq!(receiver.head().map(|head| head.position), Some(info.head.position));
        let received = receiver.finish().unwrap();
        assert_eq!(received, info, "in steps of {step}");
        assert_eq!(files.crash(1).read(&info.path).unwrap(), source.read(&info.path).unwrap());
    }
}

#[test]
fn a_damaged_or_short_or_long_stream_gets_no_name() {
    let source = MemFiles::new();
    let info = write(&source, 2, 77);
    let whole = source.read(&info.path).unwrap();
    let mut longer = whole.clone();
    longer.push(0);
    let mut flipped = whole.clone();
    flipped[5000] ^= 4;
    for bytes in [&whole[..whole.len() - 1], &whole[..3000], &[], &longer, &flipped] {
        let files = MemFiles::new();
        let mut receiver =
            SnapshotReceiver::create(Arc::new(files.clone()), dir(), CLUSTER).unwrap();
        let pushed = bytes.chunks(100).try_for_each(|piece| receiver.push(piece));
        let finished = receiver.finish();
        assert!(pushed.is_err() || finished.is_err());
        assert!(matches!(finished, Err(SnapshotError::Corrupt { .. })), "{finished:?}");
        assert!(files.list(dir()).unwrap().is_empty());
    }
}

#[test]
fn a_stream_of_another_cluster_is_refused_at_its_header() {
    let source = MemFiles::new();
    let info = write(&source, 2, 77);
    let reader = SnapshotReader::open(&source, &info.path).unwrap();
    let mut receiver = SnapshotReceiver::create(Arc::new(MemFiles::new()), dir(), [8; 16]).unwrap();
    assert!(matches!(send(&reader, &mut receiver, 200), Err(SnapshotError::Foreign { .. })));
    assert!(receiver.offset() < 200);
}

#[test]
fn a_newer_format_is_refused_as_newer() {
    let files = MemFiles::new();
    let info = write(&files, 1, 1);
    files
        .damage(&info.path, |bytes| {
            bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
            let end = 44 + 4 + 7 + 4 + 6;
            let crc = crc32fast::hash(&bytes[..end]);
            bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
        })
        .unwrap();
    let error = SnapshotReader::verify_all(&files, &info.path).unwrap_err();
    assert!(matches!(error, SnapshotError::NewerFormat { found: 9, supported: 1, .. }), "{error}");
}

#[test]
fn a_snapshot_under_another_ones_name_is_refused() {
    let files = MemFiles::new();
    let info = write(&files, 1, 1);
    files.rename(&info.path, &dir().join("2-1.snap")).unwrap();
    let error = SnapshotReader::verify_all(&files, &dir().join("2-1.snap")).unwrap_err();
    assert!(error.to_string().contains("unlike its name"), "{error}");
}

#[test]
fn what_came_in_part_and_decays_is_sent_again_or_refused_and_never_named() {
    let source = MemFiles::new();
    let info = write(&source, 2, 77);
    let whole = source.read(&info.path).unwrap();
    let part = Part { position: info.head.position, bytes: whole.len() as u64, crc: info.crc };
    let name = dir().join(format!("77-2-{}-{:08x}.part", whole.len(), info.crc));
    let mut again = 0;
    for seed in 0..300_usize {
        let files = MemFiles::new();
        let port: Arc<dyn Files> = Arc::new(files.clone());
        let resume = || SnapshotReceiver::resume(port.clone(), dir(), CLUSTER, &part).unwrap();
        let came = 1 + (seed * 7919 + 100) % (whole.len() - 1);
        files.create_dir_all(dir()).unwrap();
        let at = (seed * 4099 + 13) % came;
        let mut hurt = whole[..came].to_vec();
        match seed % 4 {
            0 => hurt.truncate(at),
            1 => hurt[at] ^= 1 << (seed % 8),
            2 => hurt[at..].iter_mut().take(512).for_each(|byte| *byte = 0),
            _ => hurt[at..].iter_mut().take(64).for_each(|byte| *byte ^= 0xff),
        }
        let kept = |bytes: &[u8]| {
            // There is none yet the first time.
            let _ = files.remove(&name);
            let file = files.create(&name).unwrap();
            file.write_all_at(0, bytes).unwrap();
            file.sync_data().unwrap();
            resume()
        };
        let sound = kept(&whole[..came]).offset();
        let mut receiver = kept(&hurt);
        assert!(receiver.offset() <= sound, "case {seed}");
        again += usize::from(receiver.offset() < sound);
        let from = usize::try_from(receiver.offset()).unwrap();
        receiver.push(&whole[from..]).unwrap();
        let received = receiver.finish().unwrap();
        assert_eq!(received, info, "case {seed}");
        assert!(files.read(&info.path).unwrap() == whole, "case {seed}: it has its name");
    }
    assert!(again > 100, "{again}: none of the damage was found");
}

#[test]
fn every_flipped_bit_and_every_length_is_found() {
    let files = MemFiles::new();
    let mut writer = SnapshotWriter::create(Arc::new(files.clone()), dir(), head(1, 1)).unwrap();
    writer.chunk(b"hello").unwrap();
    writer.chunk(&[0; 40]).unwrap();
    let info = writer.finish().unwrap();
    for byte in 0..info.file_bytes {
        for bit in 0..8 {
            let image = files.after_kill();
            image.flip_bit(&info.path, byte, bit).unwrap();
            let error = SnapshotReader::verify_all(&image, &info.path).unwrap_err();
            assert!(
                matches!(error, SnapshotError::Corrupt { .. }),
                "byte {byte} bit {bit}: {error}"
            );
        }
        let image = files.after_kill();
        image.damage(&info.path, |bytes| bytes.truncate(byte as usize)).unwrap();
        let error = SnapshotReader::verify_all(&image, &info.path).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Corrupt { offset, .. } if offset <= byte),
            "cut to {byte}: {error}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damage_is_found_or_changed_nothing(at in 0_usize..11_000, len in 1_usize..5000, fill in any::<Option<u8>>()) {
        let files = MemFiles::new();
        let info = write(&files, 1, 1);
        let before = files.read(&info.path).unwrap();
        files
            .damage(&info.path, |bytes| {
                let (from, to) = (at.min(bytes.len()), (at + len).min(bytes.len()));
                match fill {
                    Some(byte) => bytes[from..to].fill(byte),
                    None => { bytes.drain(from..to); }
                }
            })
            .unwrap();
        let changed = files.read(&info.path).unwrap() != before;
        let found = SnapshotReader::verify_all(&files, &info.path);
        prop_assert_eq!(found.is_err(), changed);
    }
}
