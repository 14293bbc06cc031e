//! Decay: either nothing is lost, or the log is refused with a file and an offset.

use std::ops::Range;

use super::*;

/// A settled log of several segments, and what it holds.
fn settled() -> (MemFiles, Vec<Record>) {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    let mut history = Vec::new();
    for nth in 0..30 {
        let group = [vote(nth + 1, 1), entries(nth + 1, nth * 4..nth * 4 + 4)];
        write(&mut wal, &group);
        history.extend(group);
    }
    let purge = [Record::Purge(at(5, 19))];
    write(&mut wal, &purge);
    history.extend(purge);
    wal.settle().unwrap();
    assert!(wal.segments() >= 3, "{} segments", wal.segments());
    (files, history)
}

fn dice(seed: u64, range: Range<u64>) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    range.start + (z ^ (z >> 31)) % (range.end - range.start)
}

/// Damages one file in the way that `seed` chooses; says what it did.
fn hurt(image: &MemFiles, seed: u64) -> String {
    let names = names(image);
    let name = &names[dice(seed, 0..names.len() as u64) as usize];
    let path = dir().join(name);
    let content = image.read(&path).unwrap();
    let used = content.iter().rposition(|byte| *byte != 0).map_or(1, |at| at as u64 + 1);
    let at = dice(seed + 1, 0..used) as usize;
    match seed % 5 {
        0 | 1 => {
            image.flip_bit(&path, at as u64, seed as u8).unwrap();
            format!("{name}: bit flipped in byte {at}")
        }
        2 => {
            let from = at / 512 * 512;
            image.damage(&path, |bytes| bytes[from..from + 512].fill(0)).unwrap();
            format!("{name}: sector at {from} zeroed")
        }
        3 => {
            let from = at / 4096 * 4096;
            image.damage(&path, |bytes| bytes[from..from + 4096].fill(0)).unwrap();
            format!("{name}: page at {from} zeroed")
        }
        _ => {
            image.damage(&path, |bytes| bytes.truncate(at)).unwrap();
            format!("{name}: cut to {at} bytes")
        }
    }
}

/// The outcome of opening a damaged log: everything is there, or an error that names a file.
fn assert_whole_or_refused(image: &MemFiles, history: &[Record], what: &str) -> bool {
    match open_with(image, small()) {
        Ok((_, recovered)) => {
            let (state, entries) = fold(history);
            assert!(recovered.entries == entries, "{what}");
            assert_eq!(recovered.state, state, "{what}");
            false
        }
        Err(WalError::Corrupt { file, offset, .. }) => {
            let len = image.read(&file).map_or(0, |bytes| bytes.len());
            assert!(offset <= len as u64, "{what}: {} at {offset} of {len}", file.display());
            true
        }
        Err(other) => panic!("{what}: {other}"),
    }
}

#[test]
fn any_damage_of_any_file_is_harmless_or_refused() {
    let (files, history) = settled();
    let refused = (0..600)
        .filter(|seed| {
            let image = files.after_kill();
            let what = hurt(&image, *seed);
            assert_whole_or_refused(&image, &history, &what)
        })
        .count();
    assert!((300..600).contains(&refused), "{refused} of 600 were refused");
}

#[test]
fn damage_after_a_kill_under_load_is_harmless_or_refused() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    let history: Vec<_> = (0..25).map(|nth| entries(1, nth * 3..nth * 3 + 3)).collect();
    for record in &history {
        write(&mut wal, std::slice::from_ref(record));
    }
    for seed in 0..300 {
        let image = files.after_kill();
        let what = hurt(&image, seed);
        assert_whole_or_refused(&image, &history, &what);
    }
}

#[test]
fn every_flipped_bit_in_the_last_record_is_refused() {
    let (files, _) = settled();
    let last = names(&files).into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
    let path = dir().join(last);
    let used = files.read(&path).unwrap().iter().rposition(|byte| *byte != 0).unwrap() as u64;
    for byte in used - 24..=used {
        let image = files.after_kill();
        image.flip_bit(&path, byte, 3).unwrap();
        let refused = open_with(&image, small()).err();
        let Some(WalError::Corrupt { file, .. }) = refused else {
            panic!("byte {byte}: {refused:?}")
        };
        assert_eq!(file, path);
    }
}

#[test]
fn a_refused_log_is_left_as_it_was() {
    let (files, _) = settled();
    let last = names(&files)
        .iter()
        .filter_map(|name| name.strip_suffix(".seg")?.parse().ok())
        .max()
        .unwrap();
    files.flip_bit(&segment(last), 600, 3).unwrap();
    let before: Vec<_> =
        names(&files).iter().map(|name| files.read(&dir().join(name)).unwrap()).collect();
    assert!(open_with(&files, small()).is_err());
    let after: Vec<_> =
        names(&files).iter().map(|name| files.read(&dir().join(name)).unwrap()).collect();
    assert_eq!(before, after);
}

#[test]
fn any_missing_file_is_refused() {
    let (files, _) = settled();
    for name in names(&files) {
        let image = files.after_kill();
        image.remove(&dir().join(&name)).unwrap();
        let error =
            open_with(&image, small()).err().unwrap_or_else(|| panic!("{name} was not missed"));
        let WalError::Corrupt { file, what, .. } = &error else { panic!("{error}") };
        assert!(what.contains("missing"), "{error}");
        assert_eq!(file, &dir().join(&name), "{error}");
    }
}

#[test]
fn a_log_whose_segments_are_all_gone_is_not_taken_for_a_new_one() {
    let (files, _) = settled();
    for name in names(&files).iter().filter(|name| name.ends_with(".seg")) {
        files.remove(&dir().join(name)).unwrap();
    }
    let error = open_with(&files, small()).err().unwrap();
    assert!(matches!(error, WalError::Corrupt { .. }), "{error}");
}

#[test]
fn a_sealed_segment_that_lost_its_last_record_is_refused() {
    let (files, _) = settled();
    let number =
        names(&files).iter().find_map(|name| name.strip_suffix(".seg")?.parse().ok()).unwrap();
    let used = files.read(&segment(number)).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    files.damage(&segment(number), |bytes| bytes[used - 100..].fill(0)).unwrap();
    let error = open_with(&files, small()).err().unwrap();
    assert!(error.to_string().contains(&format!("{number:08}.seg")), "{error}");
}

#[test]
fn a_late_witness_is_backed_by_the_records_themselves() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    let early = files.read(&dir().join("tail")).unwrap();
    for nth in 0..4 {
        write(&mut wal, &[entries(1, nth..nth + 1)]);
    }
    // After a power cut the witness may be that of the beginning.
    files.damage(&dir().join("tail"), |bytes| bytes.clone_from(&early)).unwrap();
    files.flip_bit(&segment(1), 540, 1).unwrap();
    let error = open_with(&files, small()).err().unwrap();
    assert!(error.to_string().contains("proves"), "{error}");
}

#[test]
fn a_segment_of_another_replica_or_cluster_is_refused() {
    let (files, _) = settled();
    for other in [Identity { replica: 4, ..ME }, Identity { cluster: [8; 16], ..ME }] {
        let error = Wal::open(Arc::new(files.clone()), dir(), other, small()).err().unwrap();
        let WalError::Foreign { found, expected, .. } = &error else { panic!("{error}") };
        assert_eq!((found, expected), (&ME.to_string(), &other.to_string()));
    }
}

#[test]
fn a_newer_format_is_refused_as_newer() {
    let (files, _) = settled();
    let number =
        names(&files).iter().find_map(|name| name.strip_suffix(".seg")?.parse().ok()).unwrap();
    files
        .damage(&segment(number), |bytes| {
            bytes[8..12].copy_from_slice(&2_u32.to_le_bytes());
            let crc = crc32fast::hash(&bytes[..508]);
            bytes[508..512].copy_from_slice(&crc.to_le_bytes());
        })
        .unwrap();
    let error = open_with(&files, small()).err().unwrap();
    assert!(matches!(error, WalError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
}

#[test]
fn a_segment_under_another_ones_name_is_refused() {
    let (files, _) = settled();
    let number: u64 =
        names(&files).iter().find_map(|name| name.strip_suffix(".seg")?.parse().ok()).unwrap();
    files.remove(&segment(number + 1)).unwrap();
    files.rename(&segment(number), &segment(number + 1)).unwrap();
    let error = open_with(&files, small()).err().unwrap();
    assert!(matches!(error, WalError::Corrupt { .. }), "{error}");
}
