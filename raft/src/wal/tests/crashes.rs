//! Power cuts: at every named point, at every record boundary, at every byte.

use proptest::prelude::*;

use super::*;
use crate::disk::data_end;

/// Writes the groups, each with one sync, and cuts the power at every named point.
fn run(groups: &[Vec<Record>], seeds: u64) {
    let files = MemFiles::new();
    let shots = Shots::new(&files, seeds);
    let (mut wal, _) = open_with(&files, shots.options()).unwrap();
    let history: Vec<Record> = groups.iter().flat_map(|group| flat(group)).collect();
    let mut done = 0;
    for (nth, group) in groups.iter().enumerate() {
        for record in group {
            wal.append(std::slice::from_ref(record)).unwrap();
        }
        done += flat(group).len();
        // Every third group rides along without a sync of its own.
        let sync = nth % 3 != 2;
        wal.commit(sync).unwrap();
        if sync {
            shots.acked.store(done, Ordering::SeqCst);
        }
        wal.drop_purged();
        if nth % 7 == 6 {
            wal.settle().unwrap();
            shots.acked.store(done, Ordering::SeqCst);
        }
    }
    shots.on_point("end");
    let images = shots.images.lock().unwrap().len();
    assert!(images >= groups.len(), "{images} images");
    check_images(&shots, &history);
}

#[test]
fn nothing_acknowledged_is_lost_at_any_named_point() {
    let mut groups = Vec::new();
    for nth in 0..40 {
        groups.push(vec![vote(nth + 1, 1), entries(nth + 1, nth * 4..nth * 4 + 4)]);
        if nth % 10 == 9 {
            groups.push(vec![
                Record::Committed(at(nth, nth * 4 - 4)),
                Record::Purge(at(nth, nth * 4 - 9)),
            ]);
        }
    }
    run(&groups, 4);
}

#[test]
fn a_vote_is_durable_once_it_is_acknowledged_and_in_order_with_the_entries() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    let history: Vec<_> =
        (1..30).flat_map(|term| [vote(term, 1), entries(term, term - 1..term)]).collect();
    for (done, record) in history.iter().enumerate() {
        write(&mut wal, std::slice::from_ref(record));
        for seed in 0..5 {
            let (_, recovered) = open(&files.crash(seed));
            assert_prefix(&recovered, &history[..=done], done + 1, "after the sync");
            let term = recovered.state.last.map_or(0, |last| last.term);
            assert!(recovered.state.vote.is_some_and(|vote| vote.term >= term));
        }
    }
}

/// A log with some acknowledged entries and a last group that was written but not synced; says where it begins.
fn unsynced() -> (MemFiles, Vec<Record>, usize, usize) {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    let acked = [vote(1, 1), entries(1, 0..5)];
    write(&mut wal, &acked);
    let before = data_end(&files.read(&segment(1)).unwrap());
    let last = [entries(1, 5..8), vote(2, 3), Record::Committed(at(1, 6))];
    wal.append(&last).unwrap();
    wal.commit(false).unwrap();
    let mut history = flat(&acked);
    let count = history.len();
    history.extend(flat(&last));
    (files, history, count, before)
}

#[test]
fn a_group_torn_at_any_byte_is_cut_to_what_is_whole() {
    let (files, history, acked, before) = unsynced();
    let end = data_end(&files.read(&segment(1)).unwrap());
    let mut cuts = 0;
    for torn in before..end {
        let image = files.after_kill();
        image.damage(&segment(1), |bytes| bytes[torn..].fill(0)).unwrap();
        let (_, recovered) = open(&image);
        assert_prefix(&recovered, &history, acked, &format!("torn at {torn}"));
        cuts += usize::from(recovered.cut.is_some());
        let (_, again) = open(&image.crash(1));
        assert_eq!(again.cut, None, "torn at {torn}: what is cut stays cut");
        assert_eq!(again.entries, recovered.entries);
    }
    assert!(cuts > (end - before) / 2, "{cuts} cuts");
}

#[test]
fn garbage_at_any_byte_of_an_unsynced_group_is_cut() {
    let (files, history, acked, before) = unsynced();
    let end = data_end(&files.read(&segment(1)).unwrap());
    // The padding before it is of what was synced.
    for byte in before.next_multiple_of(8)..end {
        let image = files.after_kill();
        image.flip_bit(&segment(1), byte as u64, (byte % 8) as u8).unwrap();
        let (_, recovered) = open(&image);
        assert_prefix(&recovered, &history, acked, &format!("garbage at {byte}"));
    }
}

#[test]
fn a_later_record_of_the_same_torn_group_does_not_make_it_corruption() {
    let (files, history, acked, before) = unsynced();
    let image = files.after_kill();
    image.damage(&segment(1), |bytes| bytes[before..before + 16].fill(0)).unwrap();
    let (_, recovered) = open(&image);
    assert_prefix(&recovered, &history, acked, "first header lost");
    assert_eq!(recovered.entries.len(), 5);
    assert!(recovered.cut.is_some());
}

#[test]
fn cut_bytes_do_not_come_back_behind_new_records() {
    let (files, _, _, before) = unsynced();
    let image = files.after_kill();
    image.flip_bit(&segment(1), before as u64 + 20, 1).unwrap();
    let (mut wal, recovered) = open(&image);
    let cut = recovered.cut.unwrap();
    assert_eq!((cut.file, cut.offset), (segment(1), before.next_multiple_of(8) as u64));
    let rest = image.crash(9).read(&segment(1)).unwrap()[cut.offset as usize..].to_vec();
    assert!(rest.iter().all(|byte| *byte == 0));
    write(&mut wal, &[entries(7, 5..6)]);
    let (_, again) = open(&image.crash(10));
    assert_eq!(again.entries.len(), 6);
    assert_eq!(again.state.vote.map(|vote| vote.term), Some(1));
}

#[test]
fn stale_bytes_of_another_segment_or_offset_never_pass() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    for index in 0..150 {
        write(&mut wal, &[entries(1, index..index + 1)]);
    }
    assert!(wal.segments() >= 3);
    wal.settle().unwrap();
    let last = wal.segments() as u64;
    let old = files.read(&segment(2)).unwrap();
    let end = data_end(&files.read(&segment(last)).unwrap()).next_multiple_of(8);
    for shift in [0, 8, 64] {
        let image = files.after_kill();
        image
            .damage(&segment(last), |bytes| {
                let n = bytes.len().min(old.len());
                bytes[end..n].copy_from_slice(&old[end - shift..n - shift]);
            })
            .unwrap();
        let (_, recovered) = open(&image);
        assert_eq!(recovered.entries.len(), 150, "shift {shift}");
    }
}

#[test]
fn stale_bytes_of_the_same_segment_at_another_offset_never_pass() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[vote(1, 1), Record::Committed(at(0, 0))]);
    write(&mut wal, &[entries(1, 0..3)]);
    let end = data_end(&files.read(&segment(1)).unwrap()).next_multiple_of(8);
    files.damage(&segment(1), |bytes| bytes.copy_within(512..592, end)).unwrap();
    let (_, recovered) = open(&files);
    assert_eq!(recovered.cut.map(|cut| cut.offset), Some(end as u64));
}

#[test]
fn a_power_cut_while_the_log_is_made_leaves_a_log_that_can_be_made() {
    let files = MemFiles::new();
    let shots = Shots::new(&files, 20);
    open_with(&files, shots.options()).unwrap();
    check_images(&shots, &[]);
}

#[test]
fn a_power_cut_during_recovery_loses_nothing() {
    let (files, history, acked, _) = unsynced();
    for seed in 0..60 {
        let image = files.crash(seed);
        let shots = Shots::new(&image, 4);
        shots.acked.store(acked, Ordering::SeqCst);
        open_with(&image, shots.options()).unwrap();
        check_images(&shots, &history);
    }
}

/// Turns arbitrary numbers into a history that the log accepts.
fn history(choices: &[(u8, u16)]) -> Vec<Vec<Record>> {
    let mut records = Vec::new();
    let (mut term, mut purged, mut committed) = (1, 0_u64, 0_u64);
    // Of each entry.
    let mut terms: Vec<u64> = Vec::new();
    for &(kind, n) in choices {
        let (n, next) = (u64::from(n), terms.len() as u64);
        let position = |index: u64| at(terms[index as usize], index);
        match kind % 8 {
            0 => {
                term += 1;
                records.push(vote(term, n));
            }
            1 if next > purged + 1 => {
                // What is committed is never taken back.
                let keep = (purged + n % (next - purged)).max(committed);
                records.push(Record::TruncateAfter(Some(position(keep))));
                terms.truncate(keep as usize + 1);
                term += 1;
            }
            2 if next > purged + 1 => {
                purged += n % (next - purged);
                records.push(Record::Purge(position(purged)));
            }
            3 if next > 0 => {
                committed = next - 1;
                records.push(Record::Committed(position(committed)));
            }
            _ => {
                let count = 1 + n % 6;
                records.push(entries(term, next..next + count));
                terms.extend((0..count).map(|_| term));
            }
        }
    }
    records.chunks(3).map(<[Record]>::to_vec).collect()
}

/// Takes `history` on a disk that is full now and then, and says what was taken.
fn taken_on_a_short_disk(
    files: &MemFiles,
    history: &[Record],
    room: &[Option<u16>],
) -> Result<Vec<Record>, WalError> {
    let options = Options { reserve_bytes: 24_000, ..small() };
    let mut wal = open_with(files, options.clone())?.0;
    let mut taken = Vec::new();
    for (at, record) in history.iter().enumerate() {
        if let Some(room) = room.get(at % room.len().max(1)) {
            files.set_capacity(room.map(|room| files.used() + u64::from(room)));
        }
        match wal.append(std::slice::from_ref(record)) {
            Ok(()) => taken.push(record.clone()),
            Err(WalError::NoSpace { .. }) if !wal.is_failed() => {}
            Err(WalError::Invalid { .. }) => {}
            Err(error) => return Err(error),
        }
        wal.commit(true)?;
        if at % 16 == 15 {
            drop(wal);
            wal = open_with(files, options.clone())?.0;
        }
    }
    Ok(taken)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_acknowledged_is_lost_in_any_history(choices in prop::collection::vec(any::<(u8, u16)>(), 1..80)) {
        run(&history(&choices), 1);
    }

    #[test]
    fn a_disk_that_fills_and_empties_loses_nothing(
        choices in prop::collection::vec(any::<(u8, u16)>(), 1..160),
        room in prop::collection::vec(prop::option::of(0_u16..30_000), 1..20),
    ) {
        let files = MemFiles::new();
        let taken = taken_on_a_short_disk(&files, &history(&choices).concat(), &room).unwrap();
        files.set_capacity(None);
        let (_, recovered) = open(&files.crash(1));
        let (state, entries) = fold(&taken);
        prop_assert_eq!(&recovered.entries, &entries);
        // Marks may be left out while there is little room; none is of what the log does not hold.
        let committed = recovered.state.committed;
        let held = |mark: Position| entries.iter().any(|entry| entry.position() == mark);
        let is_held = committed == recovered.state.purged || committed.is_none_or(held);
        let is_purged = committed.map(|c| c.index) <= recovered.state.purged.map(|p| p.index);
        prop_assert!(is_held || is_purged, "{:?}", committed);
        prop_assert_eq!(State { committed: state.committed, ..recovered.state }, state);
    }
}
