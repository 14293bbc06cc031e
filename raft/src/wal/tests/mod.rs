mod crashes;
mod damage;
mod driver;
mod kills;
mod log;
mod misreads;
mod reader;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::*;
use crate::disk::{Files, MemFiles};

pub(super) const ME: Identity = Identity { cluster: [7; 16], replica: 3 };

pub(super) fn dir() -> &'static Path {
    Path::new("/data/log")
}

pub(super) fn segment(number: u64) -> PathBuf {
    dir().join(format!("{number:08}.seg"))
}

/// Small segments, so that a test of a few hundred entries crosses many.
pub(super) fn small() -> Options {
    Options {
        segment_bytes: 8192,
        first_segment_bytes: 4096,
        reserve_bytes: 0,
        record_bytes: 600,
        ..Options::default()
    }
}

pub(super) fn open_with(files: &MemFiles, options: Options) -> Result<(Wal, Recovered), WalError> {
    Wal::open(Arc::new(files.clone()), dir(), ME, options)
}

pub(super) fn open(files: &MemFiles) -> (Wal, Recovered) {
    open_with(files, small()).unwrap()
}

pub(super) fn entry(term: u64, index: u64) -> EntryRecord {
    sized(term, index, 20 + (index as usize * 37) % 200)
}

pub(super) fn sized(term: u64, index: u64, len: usize) -> EntryRecord {
    let seed = (term * 31 + index) as u8;
    EntryRecord {
        term,
        index,
        payload: Bytes::from(
            (0..len).map(|i| (i as u8).wrapping_mul(seed | 1)).collect::<Vec<_>>(),
        ),
    }
}

pub(super) fn entries(term: u64, range: std::ops::Range<u64>) -> Record {
    Record::Append(range.map(|index| entry(term, index)).collect())
}

pub(super) fn at(term: u64, index: u64) -> Position {
    Position { term, index }
}

pub(super) fn vote(term: u64, node: u64) -> Record {
    Record::Vote(Vote { term, node, committed: false })
}

/// What a log that took these records holds; the model that the real one is compared with.
pub(super) fn fold(records: &[Record]) -> (State, Vec<EntryRecord>) {
    let mut log = (State::default(), Vec::new());
    records.iter().for_each(|record| fold_onto(&mut log, record));
    log
}

/// Takes one more record into the model.
pub(super) fn fold_onto((state, held): &mut (State, Vec<EntryRecord>), record: &Record) {
    match record {
        Record::Append(entries) => {
            held.extend(entries.iter().cloned());
            state.last = held.last().map(EntryRecord::position).or(state.last);
        }
        Record::Vote(vote) => state.vote = Some(*vote),
        Record::Committed(position) => state.committed = Some(*position),
        Record::TruncateAfter(after) => {
            held.retain(|entry| after.is_some_and(|after| entry.index <= after.index));
            if state.last.map(|last| last.index) > after.map(|after| after.index) {
                state.last = *after;
            }
        }
        Record::Purge(to) => {
            held.retain(|entry| entry.index > to.index);
            if state.purged.is_none_or(|purged| purged.index < to.index) {
                state.purged = Some(*to);
            }
            if state.last.is_none_or(|last| last.index < to.index) {
                state.last = Some(*to);
            }
        }
    }
}

/// One record per entry, so that any prefix is something that a crash may leave.
pub(super) fn flat(records: &[Record]) -> Vec<Record> {
    let mut flat = Vec::new();
    for record in records {
        match record {
            Record::Append(entries) => {
                flat.extend(entries.iter().map(|entry| Record::Append(vec![entry.clone()])))
            }
            other => flat.push(other.clone()),
        }
    }
    flat
}

/// Asserts that `recovered` is what some prefix of `history` leaves, of at least `acked` records.
pub(super) fn assert_prefix(recovered: &Recovered, history: &[Record], acked: usize, what: &str) {
    let found = (acked..=history.len()).any(|n| {
        let (state, entries) = fold(&history[..n]);
        state == recovered.state && entries == recovered.entries
    });
    let last = recovered.entries.last().map(|entry| entry.index);
    let (need, _) = fold(&history[..acked]);
    assert!(
        found,
        "{what}: recovered {:?} with entries to {last:?}, acknowledged was {need:?}",
        recovered.state
    );
}

/// Cuts the power at every named point, several times, and kills the process there once.
pub(super) struct Shots {
    pub files: MemFiles,
    pub acked: AtomicUsize,
    pub seeds: u64,
    pub images: Mutex<Vec<(&'static str, u64, usize, MemFiles)>>,
}

impl Shots {
    pub fn new(files: &MemFiles, seeds: u64) -> Arc<Self> {
        Arc::new(Self {
            files: files.clone(),
            acked: AtomicUsize::new(0),
            seeds,
            images: Mutex::default(),
        })
    }

    pub fn options(self: &Arc<Self>) -> Options {
        Options { hooks: self.clone(), ..small() }
    }
}

impl Hooks for Shots {
    fn on_point(&self, point: &'static str) {
        let acked = self.acked.load(Ordering::SeqCst);
        let mut images = self.images.lock().unwrap();
        for nth in 0..self.seeds {
            let seed = images.len() as u64 * 1_000_003 + nth;
            images.push((point, seed, acked, self.files.crash(seed)));
        }
        // The process alone: what is not durable is there still, until the power goes too.
        let seed = images.len() as u64 * 1_000_003;
        images.push((point, seed, acked, self.files.after_kill()));
    }
}

/// Checks every image: it opens with everything acknowledged, a second power cut changes nothing, and it goes on.
pub(super) fn check_images(shots: &Shots, history: &[Record]) {
    let images = std::mem::take(&mut *shots.images.lock().unwrap());
    for (point, seed, acked, image) in images {
        let what = format!("ended at {point}, seed {seed}");
        let (mut wal, recovered) = match open_with(&image, small()) {
            Ok(opened) => opened,
            Err(error) => panic!("{what}: {error}"),
        };
        assert_prefix(&recovered, history, acked, &what);
        let again = open_with(&image.crash(seed + 1), small());
        let (_, again) = again.unwrap_or_else(|error| panic!("{what}, and the power cut: {error}"));
        assert_eq!(
            (again.state, &again.entries),
            (recovered.state, &recovered.entries),
            "{what}, and again"
        );
        let next = recovered.state.next_index().unwrap_or(0);
        let more = entries(recovered.state.last.map_or(1, |last| last.term), next..next + 40);
        wal.append(std::slice::from_ref(&more)).unwrap();
        wal.commit(true).unwrap();
        drop(wal);
        let (_, grown) = open(&image.crash(seed + 2));
        assert_eq!(grown.entries.len(), recovered.entries.len() + 40, "{what}, and 40 more");
    }
}

pub(super) fn write(wal: &mut Wal, records: &[Record]) {
    wal.append(records).unwrap();
    wal.commit(true).unwrap();
}

pub(super) fn names(files: &MemFiles) -> Vec<String> {
    files.list(dir()).unwrap()
}
