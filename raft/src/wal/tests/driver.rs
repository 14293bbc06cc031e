//! The queue: order, group commit, back-pressure, failure.

use std::future::Future;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::*;
use palisade_state::step::StepRuntime;

use crate::disk::StdFiles;

type Log = Arc<Mutex<Vec<(u64, Result<(), String>)>>>;

fn note(log: &Log, nth: u64) -> Done {
    let log = log.clone();
    Box::new(move |outcome| {
        log.lock().unwrap().push((nth, outcome.map_err(|error| error.to_string())))
    })
}

fn driver(files: &MemFiles, options: Options) -> (Handle, Driver) {
    Driver::new(open_with(files, options).unwrap().0)
}

#[test]
fn one_sync_covers_all_that_waits_and_callbacks_come_in_order() {
    let files = MemFiles::new();
    let (handle, mut driver) =
        driver(&files, Options { segment_bytes: 1 << 20, first_segment_bytes: 1 << 20, ..small() });
    let log = Log::default();
    for index in 0..200 {
        handle.append(vec![entries(1, index..index + 1)], index % 5 != 0, note(&log, index));
    }
    assert!(log.lock().unwrap().is_empty());
    let before = files.syncs();
    assert!(driver.step());
    assert!(!driver.step());
    assert_eq!(files.syncs() - before, 1);
    let log = log.lock().unwrap();
    assert_eq!(*log, (0..200).map(|nth| (nth, Ok(()))).collect::<Vec<_>>());
    let stats = handle.stats();
    assert_eq!((stats.items, stats.batches, stats.syncs), (200, 1, 1));
}

#[test]
fn marks_alone_cause_no_sync_until_the_log_is_idle() {
    let files = MemFiles::new();
    let (handle, mut driver) = driver(&files, small());
    let log = Log::default();
    let before = files.syncs();
    handle.append(vec![Record::Committed(at(0, 0)), Record::Purge(at(0, 0))], false, note(&log, 0));
    driver.step();
    assert_eq!(files.syncs(), before);
    assert_eq!(*log.lock().unwrap(), [(0, Ok(()))]);
    driver.settle();
    assert!(files.syncs() > before);
    assert_eq!(open(&files.crash(1)).1.state.committed, Some(at(0, 0)));
}

#[test]
fn a_callback_finds_its_records_durable() {
    let files = MemFiles::new();
    let (handle, mut driver) = driver(&files, small());
    let seen = Arc::new(Mutex::new(Vec::new()));
    for index in 0..50 {
        let (files, seen) = (files.clone(), seen.clone());
        let done: Done = Box::new(move |outcome| {
            outcome.unwrap();
            let (_, recovered) = open(&files.crash(index));
            seen.lock().unwrap().push(recovered.entries.len() as u64 > index);
        });
        handle.append(vec![entries(1, index..index + 1)], true, done);
        if index % 7 == 0 {
            driver.step();
        }
    }
    driver.step();
    assert_eq!(*seen.lock().unwrap(), vec![true; 50]);
}

#[test]
fn a_failed_sync_fails_its_callbacks_and_all_later_ones() {
    let files = MemFiles::new();
    let (handle, mut driver) = driver(&files, small());
    let log = Log::default();
    handle.append(vec![entries(1, 0..1)], true, note(&log, 0));
    driver.step();
    files.fail_sync_in(0);
    handle.append(vec![entries(1, 1..2)], true, note(&log, 1));
    handle.append(vec![entries(1, 2..3)], true, note(&log, 2));
    driver.step();
    assert!(handle.is_failed());
    assert!(matches!(handle.failure(), Some(WalError::Io { op: "sync", .. })));
    handle.append(vec![vote(2, 1)], true, note(&log, 3));
    driver.step();
    driver.settle();
    let outcomes: Vec<_> =
        log.lock().unwrap().iter().map(|(nth, outcome)| (*nth, outcome.is_ok())).collect();
    assert_eq!(outcomes, [(0, true), (1, false), (2, false), (3, false)]);
}

#[test]
fn what_fails_while_nothing_waits_is_named_with_its_cause_to_whoever_comes_next() {
    let files = MemFiles::new();
    let (handle, mut driver) = driver(&files, small());
    let log = Log::default();
    handle.append(vec![entries(1, 0..1)], true, note(&log, 0));
    driver.step();
    files.fail_sync_in(0);
    driver.settle();
    handle.append(vec![vote(2, 1)], true, note(&log, 1));
    driver.step();
    let log = log.lock().unwrap();
    let told = log[1].1.as_ref().unwrap_err();
    assert!(told.contains("cannot sync") && told.contains("/tail"), "which file: {told}");
    assert!(told.contains("os error 5"), "and why: {told}");
}

#[test]
fn a_failed_rotation_is_reported_as_what_failed() {
    let files = MemFiles::new();
    let (handle, mut driver) = driver(&files, small());
    let log = Log::default();
    files.fail_dir_sync_in(0);
    for index in 0..100 {
        handle.append(vec![entries(1, index..index + 1)], true, note(&log, index));
    }
    driver.step();
    assert!(
        matches!(handle.failure(), Some(WalError::Io { op: "begin", .. })),
        "{:?}",
        handle.failure()
    );
    assert!(log.lock().unwrap().iter().all(|(_, outcome)| outcome.is_err()));
    assert_eq!(log.lock().unwrap().len(), 100);
}

#[test]
fn a_refused_append_does_not_disturb_its_group() {
    let files = MemFiles::new();
    let (handle, mut driver) = driver(&files, small());
    let log = Log::default();
    handle.append(vec![entries(1, 0..1)], true, note(&log, 0));
    handle.append(vec![entries(1, 7..8)], true, note(&log, 1));
    handle.append(vec![entries(1, 1..2)], true, note(&log, 2));
    driver.step();
    let outcomes: Vec<_> =
        log.lock().unwrap().iter().map(|(nth, outcome)| (*nth, outcome.is_ok())).collect();
    assert_eq!(outcomes, [(0, true), (1, false), (2, true)]);
    assert!(!handle.is_failed());
    assert_eq!(open(&files.crash(2)).1.entries.len(), 2);
}

#[test]
fn a_full_queue_holds_callers_back_until_it_is_written() {
    let files = MemFiles::new();
    let (handle, mut driver) = driver(&files, Options { queue_bytes: 1000, ..small() });
    let mut cx = Context::from_waker(Waker::noop());
    let room = |handle: &Handle, cx: &mut Context<'_>| Box::pin(handle.room()).as_mut().poll(cx);
    assert_eq!(room(&handle, &mut cx), Poll::Ready(()));
    handle.append(vec![Record::Append(vec![sized(1, 0, 2000)])], true, Box::new(|_| {}));
    assert_eq!(room(&handle, &mut cx), Poll::Pending);
    driver.step();
    assert_eq!(room(&handle, &mut cx), Poll::Ready(()));
}

#[test]
fn a_low_disk_is_seen_and_recovers_by_itself() {
    let files = MemFiles::new();
    files.set_capacity(Some(60_000));
    let (handle, mut driver) = driver(&files, Options { reserve_bytes: 50_000, ..small() });
    let log = Log::default();
    for index in 0..400 {
        handle.append(vec![entries(1, index..index + 1)], true, note(&log, index));
        driver.step();
    }
    assert!(handle.is_low());
    let refused = log.lock().unwrap().iter().filter(|(_, outcome)| outcome.is_err()).count();
    assert!(refused > 0 && !handle.is_failed());
    files.set_capacity(None);
    assert!(!handle.is_low());
    let next = 400 - refused as u64;
    handle.append(vec![entries(1, next..next + 1)], true, note(&log, 400));
    driver.step();
    assert_eq!(log.lock().unwrap().last(), Some(&(400, Ok(()))));
}

#[test]
fn a_disk_filled_by_others_is_low_at_once() {
    let files = MemFiles::new();
    let (handle, _driver) = driver(&files, Options { reserve_bytes: 50_000, ..small() });
    assert!(!handle.is_low());
    files.set_capacity(Some(files.used() + 100));
    assert!(handle.is_low(), "before anything is appended");
    files.set_capacity(None);
    assert!(!handle.is_low());
}

#[test]
fn an_append_after_the_driver_is_gone_is_answered() {
    let files = MemFiles::new();
    let (handle, driver) = driver(&files, small());
    drop(driver);
    let log = Log::default();
    handle.append(vec![vote(1, 1)], true, note(&log, 0));
    assert_eq!(*log.lock().unwrap(), [(0, Err("the log is closed".to_owned()))]);
}

#[test]
fn the_driver_runs_on_any_executor_and_ends_with_the_last_handle() {
    let files = MemFiles::new();
    let (handle, driver) = driver(&files, small());
    let mut run = Box::pin(driver.run(StepRuntime::new(1)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(run.as_mut().poll(&mut cx).is_pending());
    let log = Log::default();
    handle.append(vec![entries(1, 0..3)], true, note(&log, 0));
    assert!(run.as_mut().poll(&mut cx).is_pending());
    assert_eq!(*log.lock().unwrap(), [(0, Ok(()))]);
    handle.append(vec![entries(1, 3..4)], true, note(&log, 1));
    drop(handle);
    assert!(run.as_mut().poll(&mut cx).is_ready());
    assert_eq!(log.lock().unwrap().len(), 2);
}

#[test]
fn the_thread_writes_rotates_and_purges_on_the_real_disk() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("log");
    let options = Options { segment_bytes: 64 << 10, first_segment_bytes: 16 << 10, ..small() };
    let (wal, _) = Wal::open(Arc::new(StdFiles), &dir, ME, options.clone()).unwrap();
    let (handle, driver) = Driver::new(wal);
    let running = driver.spawn().unwrap();
    let (sent, received) = mpsc::channel();
    for index in 0..3000 {
        let sent = sent.clone();
        let mut records = vec![entries(1, index..index + 1)];
        if index % 500 == 499 {
            records.push(Record::Purge(at(1, index - 200)));
        }
        handle.append(records, true, Box::new(move |outcome| sent.send((index, outcome)).unwrap()));
    }
    for index in 0..3000 {
        let (nth, outcome) = received.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(nth, index);
        outcome.unwrap();
    }
    assert!(handle.stats().syncs < 3000);
    running.stop();
    let (wal, recovered) = Wal::open(Arc::new(StdFiles), &dir, ME, options).unwrap();
    assert_eq!(recovered.entries.len(), 200);
    assert_eq!(recovered.state.last, Some(at(1, 2999)));
    assert!(wal.segments() < 8, "{} segments", wal.segments());
    assert_eq!(recovered.cut, None);
}

#[test]
fn the_thread_ends_when_the_last_handle_is_dropped() {
    let files = MemFiles::new();
    let (handle, driver) = driver(&files, small());
    let running = driver.spawn().unwrap();
    let log = Log::default();
    handle.clone().append(vec![entries(1, 0..3)], true, note(&log, 0));
    drop(handle);
    running.stop();
    assert_eq!(*log.lock().unwrap(), [(0, Ok(()))]);
    assert_eq!(open(&files.crash(1)).1.entries.len(), 3);
}
