//! What is appended is what is read back.

use super::*;
use crate::disk::StdFiles;

#[test]
fn an_empty_log_opens_empty_and_again() {
    let files = MemFiles::new();
    for _ in 0..2 {
        let (_, recovered) = open(&files);
        assert_eq!(recovered, Recovered { segments: 1, ..Recovered::default() });
    }
}

#[test]
fn every_kind_of_record_is_read_back() {
    let files = MemFiles::new();
    let history = [
        vote(1, 2),
        entries(1, 0..6),
        Record::Committed(at(1, 3)),
        Record::TruncateAfter(Some(at(1, 4))),
        entries(2, 5..9),
        Record::Vote(Vote { term: 2, node: 1, committed: true }),
        Record::Purge(at(1, 2)),
    ];
    let (mut wal, _) = open(&files);
    write(&mut wal, &history);
    assert_eq!(wal.state(), fold(&history).0);
    let (_, recovered) = open(&files.crash(1));
    assert_eq!((recovered.state, recovered.entries), fold(&history));
    assert_eq!(recovered.cut, None);
}

#[test]
fn truncating_everything_leaves_an_empty_log() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[entries(1, 0..9), Record::TruncateAfter(None)]);
    let (mut wal, recovered) = open(&files);
    assert_eq!(recovered.state.last, None);
    write(&mut wal, &[entries(2, 0..1)]);
    assert_eq!(open(&files).1.entries, [entry(2, 0)]);
}

#[test]
fn a_purge_beyond_the_end_moves_the_end() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[entries(1, 0..9), Record::Purge(at(4, 500))]);
    assert_eq!(wal.state().last, Some(at(4, 500)));
    write(&mut wal, &[entries(4, 501..503)]);
    let (_, recovered) = open(&files);
    assert_eq!(recovered.entries.len(), 2);
}

#[test]
fn what_does_not_fit_the_log_is_refused_and_changes_nothing() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[vote(5, 1), entries(5, 0..5), Record::Purge(at(5, 2))]);
    let state = wal.state();
    for bad in
        [entries(5, 7..8), entries(5, 4..5), vote(4, 1), Record::TruncateAfter(Some(at(5, 1)))]
    {
        let error = wal.append(&[entries(5, 5..6), bad]).unwrap_err();
        assert!(matches!(error, WalError::Invalid { .. }), "{error}");
        assert!(error.is_refusal());
    }
    let large = Record::Append(vec![sized(5, 5, 9000)]);
    assert!(matches!(wal.append(&[large]), Err(WalError::TooLarge { bytes: 9040, .. })));
    assert_eq!(wal.state(), state);
    write(&mut wal, &[entries(5, 5..6)]);
}

#[test]
fn an_entry_larger_than_the_next_planned_segment_gets_a_larger_one() {
    let files = MemFiles::new();
    let (mut wal, _) =
        open_with(&files, Options { first_segment_bytes: 4096, segment_bytes: 1 << 20, ..small() })
            .unwrap();
    let large = Record::Append(vec![sized(1, 0, 600_000)]);
    write(&mut wal, std::slice::from_ref(&large));
    assert_eq!(open(&files).1.entries.first().map(|e| e.payload.len()), Some(600_000));
}

#[test]
fn many_segments_are_read_back_in_order() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    for index in 0..500 {
        write(&mut wal, &[entries(1, index..index + 1)]);
    }
    assert!(wal.segments() > 8, "{} segments", wal.segments());
    let (wal, recovered) = open(&files.crash(3));
    assert_eq!(recovered.entries, (0..500).map(|index| entry(1, index)).collect::<Vec<_>>());
    assert_eq!(recovered.segments, wal.segments());
}

#[test]
fn purged_segments_are_removed_and_vote_and_marks_stay() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[vote(1, 9), Record::Committed(at(1, 0))]);
    for index in 0..300 {
        write(&mut wal, &[entries(1, index..index + 1)]);
    }
    let before = wal.segments();
    write(&mut wal, &[Record::Purge(at(1, 290))]);
    wal.drop_purged();
    assert!(wal.segments() < before / 2, "{} of {before}", wal.segments());
    assert!(!names(&files).contains(&"00000001.seg".to_owned()));
    let (_, recovered) = open(&files.crash(3));
    assert_eq!(recovered.state.vote.map(|vote| (vote.term, vote.node)), Some((1, 9)));
    assert_eq!(recovered.state.committed, Some(at(1, 0)));
    assert_eq!(recovered.entries, (291..300).map(|index| entry(1, index)).collect::<Vec<_>>());
}

#[test]
fn a_purge_that_is_not_yet_durable_removes_nothing() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    for index in 0..300 {
        write(&mut wal, &[entries(1, index..index + 1)]);
    }
    let before = wal.segments();
    wal.append(&[Record::Purge(at(1, 290))]).unwrap();
    wal.commit(false).unwrap();
    wal.drop_purged();
    assert_eq!(wal.segments(), before);
    wal.settle().unwrap();
    assert!(wal.segments() < before);
}

#[test]
fn votes_still_work_when_entries_are_refused_for_want_of_space() {
    let files = MemFiles::new();
    files.set_capacity(Some(100_000));
    let (mut wal, _) = open_with(&files, Options { reserve_bytes: 40_000, ..small() }).unwrap();
    let mut index = 0;
    let refused = loop {
        match wal.append(&[entries(1, index..index + 1)]) {
            Ok(()) => wal.commit(true).unwrap(),
            Err(error) => break error,
        }
        index += 1;
    };
    assert!(matches!(refused, WalError::NoSpace { .. }), "{refused}");
    assert!(files.free_bytes(dir()).unwrap() >= 20_000);
    for term in 2..300 {
        write(&mut wal, &[vote(term, 1)]);
    }
    assert!(wal.append(&[entries(300, index..index + 1)]).is_err());
    files.set_capacity(Some(1_000_000));
    write(&mut wal, &[entries(300, index..index + 1)]);
    let (_, recovered) = open(&files.crash(5));
    assert_eq!(recovered.entries.len() as u64, index + 1);
    assert_eq!(recovered.state.vote.map(|vote| vote.term), Some(299));
}

#[test]
fn on_a_full_disk_what_is_left_of_a_segment_is_for_votes() {
    let files = MemFiles::new();
    let options = Options { reserve_bytes: 40_000, ..small() };
    let (mut wal, _) = open_with(&files, options.clone()).unwrap();
    write(&mut wal, &[entries(1, 0..2)]);
    files.set_capacity(Some(files.used()));
    let commits = (0..10_000).filter(|_| {
        let outcome = wal.append(&[Record::Committed(at(1, 1))]);
        wal.commit(true).unwrap();
        outcome.is_ok()
    });
    assert_eq!(commits.count(), 10_000, "marks that nobody needs take no room from votes");
    for term in 2..12 {
        write(&mut wal, &[vote(term, 1)]);
    }
    assert_eq!(wal.state().committed, Some(at(1, 1)));
    drop(wal);
    let (mut wal, recovered) = open_with(&files, options).unwrap();
    assert_eq!(recovered.state.vote.map(|vote| vote.term), Some(11));
    // What little room there is goes to votes, down to the last few sectors.
    files.set_capacity(Some(files.used() + 30_000));
    let before = wal.segments();
    for term in 12..400 {
        write(&mut wal, &[vote(term, 1)]);
    }
    assert!(wal.segments() > before + 1, "{} segments", wal.segments());
}

/// Seed 0.1.0-5:9241 of the simulator: a replica whose disk had been short, and had room again, could not start.
#[test]
fn a_log_that_left_out_committed_marks_for_want_of_room_opens_again() {
    let files = MemFiles::new();
    let options = Options { reserve_bytes: 40_000, ..small() };
    let (mut wal, _) = open_with(&files, options.clone()).unwrap();
    write(&mut wal, &[entries(1, 0..2), Record::Committed(at(1, 0))]);
    files.set_capacity(Some(files.used()));
    // All that is not for votes is full of marks; then there is one more.
    for _ in 0..200 {
        write(&mut wal, &[Record::Committed(at(1, 0))]);
    }
    write(&mut wal, &[Record::Committed(at(1, 1)), vote(2, 1)]);
    files.set_capacity(None);
    let (mut next, before) = (2, wal.segments());
    while wal.segments() < before + 3 {
        write(&mut wal, &[entries(2, next..next + 1)]);
        next += 1;
    }
    drop(wal);
    let (wal, recovered) = open_with(&files, options.clone()).unwrap();
    assert_eq!(recovered.entries.len() as u64, next);
    assert_eq!(wal.state().committed, Some(at(1, 1)), "the next segment's header has it");
    // Its header says nothing else that the segments before it do not.
    let path = segment(before as u64 + 1);
    drop(wal);
    files
        .damage(&path, |bytes| {
            let header = super::super::segment::Header::decode(
                bytes,
                &path,
                before as u64 + 1,
                bytes.len() as u64,
                ME,
            );
            let mut header = header.unwrap();
            header.state.vote = None;
            bytes[..512].copy_from_slice(&header.encode());
        })
        .unwrap();
    let error = open_with(&files, options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("contradicts the segments before it"), "{error}");
}

/// Seed 0.1.0-5:15339 of the simulator: entries were refused for want of room, the mark that committed them was taken, and
/// the replica could not start.
#[test]
fn no_mark_commits_entries_that_were_refused() {
    let files = MemFiles::new();
    let options = Options { reserve_bytes: 40_000, ..small() };
    let (mut wal, _) = open_with(&files, options.clone()).unwrap();
    write(&mut wal, &[entries(1, 0..2), Record::Committed(at(1, 0))]);
    files.set_capacity(Some(files.used()));
    let refused = (2..100).find(|index| wal.append(&[entries(1, *index..index + 1)]).is_err());
    let refused = refused.unwrap();
    files.set_capacity(None);
    write(&mut wal, &[Record::Committed(at(1, refused)), vote(2, 1)]);
    let (_, recovered) = open_with(&files.crash(1), options).unwrap();
    assert_eq!(recovered.state.last, Some(at(1, refused - 1)));
    assert_eq!(recovered.state.committed, Some(at(1, 0)), "W8");
    assert_eq!(recovered.state.vote.map(|vote| vote.term), Some(2));
}

#[test]
fn no_mark_commits_what_a_refused_truncation_would_have_taken_away() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[entries(1, 0..5), Record::Purge(at(1, 1))]);
    let refused = wal.append(&[Record::TruncateAfter(Some(at(1, 0))), entries(2, 1..2)]);
    assert!(refused.is_err_and(|error| error.is_refusal()));
    write(&mut wal, &[Record::Committed(at(2, 3))]);
    assert_eq!(open(&files.crash(1)).1.state.committed, None, "W8");
}

#[test]
fn a_mark_ahead_of_the_log_commits_nothing_when_it_is_opened() {
    for purged in [None, Some(at(1, 1))] {
        let files = MemFiles::new();
        let (mut wal, _) = open(&files);
        write(&mut wal, &[entries(1, 0..5), Record::Committed(at(1, 9))]);
        write(&mut wal, &purged.map(Record::Purge).into_iter().collect::<Vec<_>>());
        let (wal, recovered) = open(&files.crash(1));
        assert_eq!((recovered.state.committed, wal.state().committed), (purged, purged));
    }
}

#[test]
fn a_mark_of_another_entry_than_the_logs_commits_nothing_when_it_is_opened() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[entries(1, 0..5), Record::Purge(at(1, 1)), Record::Committed(at(2, 3))]);
    assert_eq!(open(&files.crash(1)).1.state.committed, Some(at(1, 1)));
}

#[test]
fn a_disk_full_of_other_files_stops_nothing_that_has_room_in_its_segment() {
    let files = MemFiles::new();
    let options = Options {
        segment_bytes: 4 << 20,
        first_segment_bytes: 4 << 20,
        reserve_bytes: 1 << 20,
        ..small()
    };
    let (mut wal, _) = open_with(&files, options).unwrap();
    files.set_capacity(Some(files.used() + 100));
    let refused = (0..100)
        .map(|index| wal.append(&[Record::Append(vec![sized(1, index, 60_000)])]))
        .position(|outcome| matches!(outcome, Err(WalError::NoSpace { .. })));
    assert!(refused.is_some_and(|at| at * 60_000 > 3 << 20), "{refused:?}");
    assert!(!wal.is_failed());
    files.set_capacity(None);
    let next = wal.state().next_index().unwrap();
    wal.append(&[entries(1, next..next + 1)]).unwrap();
}

#[test]
fn a_failed_sync_is_final() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    write(&mut wal, &[entries(1, 0..3)]);
    wal.append(&[entries(1, 3..4)]).unwrap();
    files.fail_sync_in(0);
    let error = wal.commit(true).unwrap_err();
    assert!(matches!(error, WalError::Io { op: "sync", .. }), "{error}");
    assert!(matches!(wal.commit(true), Err(WalError::Stopped { .. })));
    assert!(matches!(wal.append(&[vote(2, 1)]), Err(WalError::Stopped { .. })));
    assert!(wal.is_failed());
    // The process restarts and the page cache shows what the disk does not have: see W3.
    let (_, seen) = open(&files);
    let (_, durable) = open(&files.crash(1));
    assert_eq!(seen.entries, durable.entries);
}

#[test]
fn a_failed_write_is_final() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    wal.append(&[entries(1, 0..4)]).unwrap();
    files.fail_write_in(0);
    assert!(matches!(wal.commit(true), Err(WalError::Io { op: "write", .. })));
    assert!(matches!(wal.commit(true), Err(WalError::Stopped { .. })));
}

#[test]
fn any_failing_operation_of_a_rotation_is_final_and_loses_nothing() {
    for (nth, kind) in (0..6).flat_map(|nth| [(nth, 0), (nth, 1), (nth, 2)]) {
        let files = MemFiles::new();
        let (mut wal, _) = open(&files);
        match kind {
            0 => files.fail_sync_in(20 + nth),
            1 => files.fail_write_in(40 + nth),
            _ => files.fail_dir_sync_in(nth),
        }
        let mut acked = 0;
        let failed = (0..400).any(|index| {
            let done = wal.append(&[entries(1, index..index + 1)]).and_then(|()| wal.commit(true));
            acked += u64::from(done.is_ok());
            done.is_err()
        });
        assert!(failed);
        assert!(wal.append(&[vote(9, 9)]).is_err());
        let (_, recovered) = open(&files.crash(nth));
        assert!(recovered.entries.len() as u64 >= acked, "kind {kind}, operation {nth}");
    }
}

#[test]
fn short_writes_are_completed() {
    let files = MemFiles::new();
    let (mut wal, _) = open(&files);
    files.short_writes(true);
    for index in 0..60 {
        write(&mut wal, &[entries(1, index..index + 1)]);
    }
    assert_eq!(open(&files.crash(4)).1.entries.len(), 60);
}

#[test]
fn the_real_disk_keeps_a_log_across_segments_and_purges() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data/log");
    let reopen = || Wal::open(Arc::new(StdFiles), &dir, ME, small()).unwrap();
    let (mut wal, _) = reopen();
    for index in 0..100 {
        write(&mut wal, &[vote(index + 1, 2), entries(1, index..index + 1)]);
    }
    write(&mut wal, &[Record::Purge(at(1, 79))]);
    wal.settle().unwrap();
    let segments = wal.segments();
    drop(wal);
    let (wal, recovered) = reopen();
    assert_eq!(recovered.entries, (80..100).map(|index| entry(1, index)).collect::<Vec<_>>());
    assert_eq!(recovered.state.vote.map(|vote| vote.term), Some(100));
    assert_eq!(wal.segments(), segments);
}
