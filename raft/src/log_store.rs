//! The log as openraft sees it: the newest entries in memory, everything behind the purge point on disk in the WAL.
//!
//! # Invariants
//! - `LOG-1` An append is acknowledged, and a vote answered, only after the sync that covers it.
//! - `LOG-2` The WAL forgets an entry only when the *oldest kept* snapshot covers it, so that a damaged newest
//!   snapshot still leaves a way back.
//! - `LOG-3` An entry that is not purged leaves memory only when it is durable here and applied, so that nothing can
//!   truncate it; who asks for it, a follower that is behind, gets it from the WAL.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use openraft::{
    AsyncRuntime, LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use palisade_state::planted::{self, Defect};
use tokio::sync::oneshot;

use crate::{
    fault::{Fault, chain},
    offload::Disk,
    snapshots::Kept,
    types::{
        Entry, LogId, TypeConfig, Vote, entry_to_record, record_to_entry, term_of, vote_from_wal,
        vote_to_wal,
    },
    wal::{EntryRecord, Handle, LogReader, Record, Recovered, WalError, Wanted},
};

/// About how many payload bytes one read hands out.
const READ_BYTES_MAX: usize = 1024 * 1024;

/// Entries that are on disk alone: those behind the purge point and before the ones in memory.
#[derive(Default)]
struct Dropped {
    last: Option<LogId>,
    /// The terms of all that are not purged, each with the first entry that has it.
    terms: Vec<(u64, u64)>,
}

impl Dropped {
    fn add(&mut self, id: LogId) {
        let term = term_of(&id);
        if self.terms.last().is_none_or(|(_, last)| *last != term) {
            self.terms.push((id.index, term));
        }
        self.last = Some(id);
    }

    fn purge(&mut self, upto: u64) {
        if self.last.is_some_and(|last| last.index <= upto) {
            *self = Self::default();
        }
        let before = self.terms.partition_point(|(first, _)| *first <= upto + 1);
        self.terms.drain(..before.saturating_sub(1));
    }
}

/// Where the entries from some place on are.
enum Piece {
    Memory(Vec<Entry>),
    Disk(Wanted),
}

#[derive(Default)]
struct Tail {
    entries: VecDeque<Entry>,
    dropped: Dropped,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    last: Option<LogId>,
}

/// The log. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    tail: Arc<Mutex<Tail>>,
    wal: Handle,
    kept: Arc<Kept>,
    fault: Arc<Fault>,
    /// The last entry that is durable here.
    flushed: Arc<AtomicU64>,
    /// How entries are read back; without it none leaves memory.
    disk: Option<(Disk, Arc<LogReader>)>,
}

impl Tail {
    fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    fn slice(&self, start: u64, end: u64) -> impl Iterator<Item = &Entry> {
        let first = self.first().unwrap_or(start);
        let skip = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
        let skip = skip.min(self.entries.len());
        self.entries.range(skip..).take_while(move |entry| entry.log_id.index < end)
    }

    /// The entries from `start` to before `end`, or where the first of them are; in memory no more than `fits` takes.
    fn piece(&self, start: u64, end: u64, fits: impl FnMut(&&Entry) -> bool) -> Piece {
        if let Some(dropped) = self.dropped.last {
            let start = start.max(self.purged.map_or(0, |purged| purged.index + 1));
            let end = end.min(dropped.index + 1);
            if start < end {
                let terms = self.dropped.terms.clone();
                return Piece::Disk(Wanted { range: start..end, terms });
            }
        }
        Piece::Memory(self.slice(start, end).take_while(fits).cloned().collect())
    }

    fn push(&mut self, entry: Entry) -> io::Result<()> {
        if let Some(last) = self.last.filter(|last| last.index + 1 != entry.log_id.index) {
            let (index, last) = (entry.log_id.index, last.index);
            return Err(io::Error::other(format!(
                "log entry {index} does not follow entry {last}"
            )));
        }
        self.last = Some(entry.log_id);
        self.entries.push_back(entry);
        Ok(())
    }

    /// Up to where entries must go so that the rest has at most `bytes`.
    fn excess(&self, bytes: usize) -> Option<u64> {
        let mut left = bytes;
        let last = self.entries.iter().rev().find(|entry| {
            let needed = payload_len(entry);
            let fits = needed <= left;
            left = left.saturating_sub(needed);
            !fits
        });
        last.map(|entry| entry.log_id.index)
    }
}

fn payload_len(entry: &Entry) -> usize {
    match &entry.payload {
        openraft::EntryPayload::Normal(payload) => payload.len(),
        _ => 256,
    }
}

impl LogStore {
    /// A log over what the WAL held.
    pub(crate) fn new(
        wal: Handle,
        recovered: Recovered,
        kept: Arc<Kept>,
        fault: Arc<Fault>,
    ) -> io::Result<Self> {
        let state = recovered.state;
        let mut tail = Tail {
            vote: state.vote.map(vote_from_wal),
            committed: state.committed.map(LogId::from),
            purged: state.purged.map(LogId::from),
            last: state.last.map(LogId::from),
            entries: VecDeque::with_capacity(recovered.entries.len()),
            dropped: Dropped::default(),
        };
        for record in recovered.entries {
            tail.entries.push_back(record_to_entry(record)?);
        }
        let flushed = tail.entries.back().map_or(0, |entry| entry.log_id.index);
        let (tail, flushed) = (Arc::new(Mutex::new(tail)), Arc::new(AtomicU64::new(flushed)));
        Ok(Self { tail, wal, kept, fault, flushed, disk: None })
    }

    /// The same, whose entries can leave memory and be read back by `reader`.
    pub(crate) fn reading(self, disk: Disk, reader: LogReader) -> Self {
        Self { disk: Some((disk, Arc::new(reader))), ..self }
    }

    /// Lets go of the oldest entries in memory so that the rest has at most `bytes`; none behind `applied`. Answers how
    /// many went.
    pub(crate) fn shorten(&self, bytes: usize, applied: u64) -> usize {
        if self.disk.is_none() {
            return 0;
        }
        let mut tail = self.tail();
        let durable = self.flushed.load(Ordering::Acquire);
        let Some(upto) = tail.excess(bytes).map(|upto| upto.min(applied).min(durable)) else {
            return 0;
        };
        let before = tail.entries.len();
        while let Some(entry) = tail.entries.pop_front_if(|entry| entry.log_id.index <= upto) {
            tail.dropped.add(entry.log_id);
        }
        let left = tail.entries.len();
        if tail.entries.capacity() > 4 * left {
            tail.entries.shrink_to(2 * left);
        }
        before - left
    }

    async fn read_back(&self, wanted: Wanted, bytes: usize) -> io::Result<Vec<Entry>> {
        let Some((disk, reader)) = self.disk.clone() else {
            return Err(io::Error::other("entries left memory, and cannot be read back"));
        };
        let read = disk.run("log-read", move || reader.read(&wanted, bytes)).await?;
        let records: Vec<EntryRecord> = read.map_err(io::Error::from)?;
        records.into_iter().map(|record| Ok(record_to_entry(record)?)).collect()
    }

    /// The entries in memory that follow `applied`: when it starts, all of them.
    pub(crate) fn behind(&self, applied: u64) -> Vec<Entry> {
        self.tail().slice(applied + 1, u64::MAX).cloned().collect()
    }

    /// The index of the last entry, or of the last one that was purged; 0: there was none.
    pub(crate) fn last_index(&self) -> u64 {
        let tail = self.tail();
        tail.last.max(tail.purged).map_or(0, |last| last.index)
    }

    /// The index of the last entry that is in the log or in a snapshot; 0: none is.
    pub(crate) fn reach(&self) -> u64 {
        // A snapshot that was installed may cover more than the log yet says.
        self.last_index().max(self.kept.newest().map_or(0, |newest| newest.index))
    }

    /// The index up to which all is in the log or in a snapshot, durably; 0: nothing is. A leader may have applied more,
    /// which others made durable.
    pub(crate) fn durable(&self) -> u64 {
        let flushed = self.flushed.load(Ordering::Acquire);
        flushed.max(self.kept.newest().map_or(0, |newest| newest.index))
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to where the log in memory may be purged, because the newest snapshot covers it and more than `bytes` of
    /// entries are behind that.
    pub(crate) fn purgeable(&self, bytes: usize) -> Option<u64> {
        let newest = self.kept.newest()?;
        let tail = self.tail();
        let dropped = tail.dropped.last.map(|last| last.index);
        let upto = tail.excess(bytes).max(dropped)?.min(newest.index);
        let purged = tail.purged.map_or(0, |purged| purged.index);
        (upto > purged).then_some(upto)
    }

    /// What openraft can see of it, for a comparison with another.
    #[cfg(test)]
    pub(crate) fn shown(&self) -> impl PartialEq + Debug + use<> {
        let tail = self.tail();
        let entries: Vec<Entry> = tail.entries.iter().cloned().collect();
        (tail.vote, tail.committed, tail.purged, tail.last, entries)
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Hands records to the WAL; `done` runs after the sync.
    fn write(
        &self,
        record: Record,
        sync: bool,
        done: impl FnOnce(Result<(), WalError>) + Send + 'static,
    ) {
        let fault = self.fault.clone();
        self.wal.append(
            vec![record],
            sync,
            Box::new(move |result| {
                if let Err(error) = &result
                    && !matches!(error, WalError::Closed)
                {
                    fault.raise(chain(error));
                }
                done(result);
            }),
        );
    }

    async fn write_and_wait(&self, record: Record) -> io::Result<()> {
        let (tx, rx) = oneshot::channel();
        self.write(record, true, move |result| {
            let _ = tx.send(result);
        });
        rx.await.map_err(|_| io::Error::other(WalError::Closed))?.map_err(io::Error::from)
    }
}

impl<R: AsyncRuntime> RaftLogReader<TypeConfig<R>> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let mut entries = Vec::new();
        let mut next = start;
        loop {
            let piece = self.tail().piece(next, end, |_| true);
            match piece {
                Piece::Memory(last) => {
                    entries.extend(last);
                    return Ok(entries);
                }
                Piece::Disk(wanted) => {
                    let some = self.read_back(wanted, READ_BYTES_MAX).await?;
                    next = some.last().map_or(end, |last| last.log_id.index + 1);
                    entries.extend(some);
                }
            }
        }
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.tail().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let mut bytes = 0;
        let piece = self.tail().piece(start, end, |entry| {
            let fits = bytes == 0 || bytes + payload_len(entry) <= READ_BYTES_MAX;
            bytes += payload_len(entry);
            fits
        });
        match piece {
            Piece::Memory(entries) => Ok(entries),
            Piece::Disk(wanted) => self.read_back(wanted, READ_BYTES_MAX).await,
        }
    }
}

impl<R: AsyncRuntime> RaftLogStorage<TypeConfig<R>> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig<R>>> {
        let tail = self.tail();
        Ok(LogState { last_purged_log_id: tail.purged, last_log_id: tail.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        if planted::is(Defect::VoteNotSynced) {
            self.write(Record::Vote(vote_to_wal(vote)), false, |_| {});
        } else {
            self.write_and_wait(Record::Vote(vote_to_wal(vote))).await?;
        }
        self.tail().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(committed) = committed {
            self.tail().committed = Some(committed);
            self.write(Record::Committed((&committed).into()), false, |_| {});
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.tail().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig<R>>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut records = Vec::new();
        {
            let mut tail = self.tail();
            for entry in entries {
                records.push(entry_to_record(&entry)?);
                tail.push(entry)?;
            }
        }
        let (last, flushed) = (records.last().map(|record| record.index), self.flushed.clone());
        self.write(Record::Append(records), true, move |result| {
            if let (Ok(()), Some(last)) = (&result, last) {
                flushed.store(last, Ordering::Release);
            }
            callback.io_completed(result.map_err(io::Error::from));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let keep = last.map_or(0, |last| last.index + 1);
        {
            let mut tail = self.tail();
            if tail.dropped.last.is_some_and(|dropped| dropped.index >= keep) {
                let what = format!("truncating from {keep} on, which was applied");
                return Err(io::Error::other(what));
            }
            while tail.entries.back().is_some_and(|entry| entry.log_id.index >= keep) {
                tail.entries.pop_back();
            }
            let before = tail.dropped.last.or(tail.purged);
            tail.last = tail.entries.back().map(|entry| entry.log_id).or(before);
        }
        self.write_and_wait(Record::TruncateAfter(last.as_ref().map(Into::into))).await?;
        // Everything that was appended before has been called back by now.
        self.flushed.fetch_min(keep.saturating_sub(1), Ordering::AcqRel);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let durable = self.kept.newest();
        if durable.is_none_or(|durable| durable.index < upto.index) {
            let what = format!("purging up to {} without a durable snapshot of it", upto.index);
            return Err(io::Error::other(what));
        }
        let leaves_a_hole = {
            let mut tail = self.tail();
            tail.dropped.purge(upto.index);
            while tail.entries.front().is_some_and(|entry| entry.log_id.index <= upto.index) {
                tail.entries.pop_front();
            }
            if tail.purged.is_none_or(|purged| purged.index < upto.index) {
                tail.purged = Some(upto);
            }
            let passes_the_end = tail.last.is_none_or(|last| last.index < upto.index);
            if passes_the_end {
                tail.last = Some(upto);
            }
            passes_the_end
        };
        let oldest = self.kept.oldest().filter(|oldest| oldest.index < upto.index);
        let on_disk = if leaves_a_hole { upto } else { oldest.unwrap_or(upto) };
        self.write(Record::Purge((&on_disk).into()), false, |_| {});
        Ok(())
    }
}
