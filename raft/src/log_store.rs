//! The log as openraft sees it: all entries behind the purge point in memory, everything on disk in the WAL.
//!
//! # Invariants
//! - `LOG-1` An append is acknowledged, and a vote answered, only after the sync that covers it.
//! - `LOG-2` The WAL forgets an entry only when the *oldest kept* snapshot covers it, so that a damaged newest
//!   snapshot still leaves a way back. Entries in memory go as soon as openraft is done with them.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use openraft::{
    AsyncRuntime, LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use palisade_state::planted::{self, Defect};
use tokio::sync::oneshot;

use crate::{
    fault::{Fault, chain},
    snapshots::Kept,
    types::{
        Entry, LogId, TypeConfig, Vote, entry_to_record, record_to_entry, vote_from_wal,
        vote_to_wal,
    },
    wal::{Handle, Record, Recovered, WalError},
};

/// About how many payload bytes one read hands out.
const READ_BYTES_MAX: usize = 1024 * 1024;

#[derive(Default)]
struct Tail {
    entries: VecDeque<Entry>,
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
        };
        for record in recovered.entries {
            tail.entries.push_back(record_to_entry(record)?);
        }
        Ok(Self { tail: Arc::new(Mutex::new(tail)), wal, kept, fault })
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to where the log in memory may be purged, because the newest snapshot covers it and more than `bytes` of
    /// entries are behind that.
    pub(crate) fn purgeable(&self, bytes: usize) -> Option<u64> {
        let newest = self.kept.newest()?;
        let tail = self.tail();
        let upto = tail.excess(bytes)?.min(newest.index);
        tail.first().is_some_and(|first| first <= upto).then_some(upto)
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
        Ok(self.tail().slice(start, end).cloned().collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.tail().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let tail = self.tail();
        let mut bytes = 0;
        let entries = tail.slice(start, end).take_while(|entry| {
            let fits = bytes == 0 || bytes + payload_len(entry) <= READ_BYTES_MAX;
            bytes += payload_len(entry);
            fits
        });
        Ok(entries.cloned().collect())
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
        self.write(Record::Append(records), true, move |result| {
            callback.io_completed(result.map_err(io::Error::from));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        {
            let mut tail = self.tail();
            let keep = last.map_or(0, |last| last.index + 1);
            while tail.entries.back().is_some_and(|entry| entry.log_id.index >= keep) {
                tail.entries.pop_back();
            }
            tail.last = tail.entries.back().map(|entry| entry.log_id).or(tail.purged);
        }
        self.write_and_wait(Record::TruncateAfter(last.as_ref().map(Into::into))).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let durable = self.kept.newest();
        if durable.is_none_or(|durable| durable.index < upto.index) {
            let what = format!("purging up to {} without a durable snapshot of it", upto.index);
            return Err(io::Error::other(what));
        }
        let leaves_a_hole = {
            let mut tail = self.tail();
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
