//! The log itself, synchronous: records are encoded, written, synced, and segments come and go.
//!
//! * W4 A segment has its name only after its zeros and its header are durable, and is written only after
//!   its name is; the segment before it is durable by then.
//! * W5 Old segments are removed oldest first, each durably before the next, and only once the purge mark
//!   that covers them is durable.
//! * W6 After a failed write or sync nothing succeeds any more.
//! * W8 After entries or a truncation were refused no committed mark is taken: it would speak of entries that are not the
//!   log's. A mark may always be left out.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::WalError;
use super::record::{self, MARK, Place};
use super::recover::{self, Last, Opened, Sealed};
use super::segment::{self, HEADER, Header, Seal};
use super::space::{Ahead, Gauge, Order, Space};
use super::types::{EntryRecord, Identity, Options, Record, Recovered, State};
use super::witness::{Mark, Witness};
use crate::disk::{File, Files};
use crate::fault::chain;

/// A replica's log on disk.
///
/// [`Wal::append`] gathers records in memory, [`Wal::commit`] writes them with one write and, when asked, one
/// sync. Nothing may be acknowledged before a `commit(true)` that follows it has returned `Ok`.
pub struct Wal {
    files: Arc<dyn Files>,
    dir: PathBuf,
    identity: Identity,
    options: Options,
    state: State,
    active: Active,
    sealed: VecDeque<Sealed>,
    durable_purged: Option<u64>,
    witness: Witness,
    ahead: Ahead,
    space: Arc<Space>,
    gauge: Gauge,
    /// Entries or a truncation were refused: `W8`.
    lacks: bool,
    failed: Option<String>,
    written: u64,
    syncs: u64,
}

struct Active {
    file: Box<dyn File>,
    path: PathBuf,
    number: u64,
    size: u64,
    written: u64,
    synced: u64,
    crc: crc32fast::Hasher,
    max_index: Option<u64>,
    buffer: Vec<u8>,
}

/// The end of a segment that entries leave to votes and marks, for when there is no room for another.
fn mark_room(size: u64) -> u64 {
    (size / 8).min(64 << 10)
}

impl Active {
    fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn place(&self) -> Place {
        Place { segment: self.number, offset: self.end() as u32, synced: self.synced as u32 }
    }

    fn room_for_entries(&self) -> u64 {
        (self.size - mark_room(self.size)).saturating_sub(self.end())
    }

    fn room_for_marks(&self) -> u64 {
        self.size.saturating_sub(self.end())
    }
}

impl From<(Last, PathBuf)> for Active {
    fn from((last, path): (Last, PathBuf)) -> Self {
        Self {
            file: last.file,
            path,
            number: last.number,
            size: last.size,
            written: last.end,
            synced: last.end,
            crc: last.crc,
            max_index: last.max_index,
            buffer: Vec::new(),
        }
    }
}

impl Wal {
    /// Opens the log in `dir`, or makes an empty one, and reads back what it holds.
    ///
    /// `dir` must be locked by the caller (see [`crate::disk::DirLock`]).
    pub fn open(
        files: Arc<dyn Files>,
        dir: &Path,
        identity: Identity,
        options: Options,
    ) -> Result<(Self, Recovered), WalError> {
        check_options(&options)?;
        files.create_dir_all(dir).map_err(WalError::io("create", dir))?;
        let space = Arc::new(Space::new(files.clone(), dir, options.reserve_bytes));
        space.free();
        let mut ahead = Ahead::new(space.clone(), options.clone());
        let (mut witness, opened) =
            recover::recover(files.as_ref(), dir, identity, options.hooks.as_ref())?;
        let opened = match opened {
            Some(opened) => opened,
            None => create_first(files.as_ref(), dir, identity, &mut ahead, &mut witness)?,
        };
        let Opened { state, entries, sealed, last, cut } = opened;
        let recovered =
            Recovered { state, entries: entries.into(), cut, segments: sealed.len() + 1 };
        let path = segment::path(dir, last.number);
        let wal = Self {
            dir: dir.to_owned(),
            active: (last, path).into(),
            durable_purged: state.purged.map(|purged| purged.index),
            files,
            identity,
            options,
            state,
            sealed,
            witness,
            ahead,
            space,
            gauge: Gauge::default(),
            lacks: false,
            failed: None,
            written: 0,
            syncs: 0,
        };
        Ok((wal, recovered))
    }

    /// The vote and the marks as of the last appended record.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// How many segment files there are.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.sealed.len() + 1
    }

    /// Bytes written and syncs made since the log was opened.
    #[must_use]
    pub fn counters(&self) -> (u64, u64) {
        (self.written, self.syncs)
    }

    pub(super) fn space(&self) -> Arc<Space> {
        self.space.clone()
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Starts the helper thread that makes segments ahead of their use.
    pub(super) fn start_helper(&mut self) -> std::io::Result<()> {
        self.ahead.start()?;
        self.ahead.request(self.active.number + 1);
        Ok(())
    }

    fn check_running(&self) -> Result<(), WalError> {
        match &self.failed {
            Some(first) => Err(WalError::Stopped { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Remembers an error that is final.
    fn settled<T>(&mut self, result: Result<T, WalError>) -> Result<T, WalError> {
        if let Err(error) = &result
            && !error.is_refusal()
            && self.failed.is_none()
        {
            self.failed = Some(chain(error));
        }
        result
    }

    /// Whether an earlier failure has stopped the log.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Takes records, all of them or, when the error [is a refusal](WalError::is_refusal), none.
    pub fn append(&mut self, records: &[Record]) -> Result<(), WalError> {
        self.check_running()?;
        let taken = self.check(records).and_then(|()| self.make_room(records));
        self.lacks |= taken.is_err()
            && records.iter().any(|r| matches!(r, Record::Append(_) | Record::TruncateAfter(_)));
        self.settled(taken)?;
        let encoded = records.iter().try_for_each(|record| match record {
            Record::Append(entries) => self.put_entries(entries),
            Record::Committed(_) if self.lacks => Ok(()),
            mark => self.put_mark(mark),
        });
        match encoded {
            // Part of it is in the stream already: too late to refuse only this.
            Err(error) if error.is_refusal() => {
                self.failed.get_or_insert(chain(&error));
                Err(error)
            }
            other => self.settled(other),
        }
    }

    /// Whether the records fit the log's state, and each entry a segment.
    fn check(&self, records: &[Record]) -> Result<(), WalError> {
        let mut state = self.state;
        let limit =
            (self.options.segment_bytes - mark_room(self.options.segment_bytes) - HEADER) as usize;
        for record in records {
            state.apply(record).map_err(|what| WalError::Invalid { what })?;
            let Record::Append(entries) = record else { continue };
            if let Some(bytes) =
                entries.iter().map(|e| record::padded(record::entry_len(e))).find(|b| *b > limit)
            {
                return Err(WalError::TooLarge { bytes: bytes as u64, limit: limit as u64 });
            }
        }
        Ok(())
    }

    /// Refuses for want of space, while it is still possible to refuse.
    fn make_room(&mut self, records: &[Record]) -> Result<(), WalError> {
        let (mut entries, mut largest, mut marks) = (0, 0, 0);
        for record in records {
            let Record::Append(appended) = record else {
                marks += MARK as u64;
                continue;
            };
            for entry in appended {
                let bytes = record::padded(record::entry_len(entry)) as u64;
                entries += bytes;
                largest = largest.max(bytes);
            }
        }
        let number = self.active.number + 1;
        if entries == 0 {
            if marks <= self.active.room_for_marks() {
                return Ok(());
            }
            return self.ahead.obtain(Order {
                number,
                at_least: self.size_for(marks),
                keep_free: 0,
            });
        }
        self.gauge.admit(&self.space)?;
        if entries + marks <= self.active.room_for_entries() {
            return Ok(());
        }
        let order =
            Order { number, at_least: self.size_for(largest), keep_free: self.space.floor() };
        // What room votes then find must not be taken by entries.
        self.ahead.obtain(order).inspect_err(|_| self.gauge.suspect())
    }

    /// The smallest segment in which a record of `bytes` fits.
    fn size_for(&self, bytes: u64) -> u64 {
        // The room for marks is an eighth, or 64 KiB if that is less.
        let needed = HEADER + bytes;
        (needed + needed / 7 + 8).min(needed + (64 << 10)).min(self.options.segment_bytes)
    }

    fn put_entries(&mut self, mut entries: &[EntryRecord]) -> Result<(), WalError> {
        while let Some(first) = entries.first() {
            let single = record::padded(record::entry_len(first)) as u64;
            if single > self.active.room_for_entries() {
                self.rotate(single)?;
            }
            let room = self.active.room_for_entries() as usize;
            let mut body = 0;
            let fitting = entries
                .iter()
                .take_while(|entry| {
                    let more = body + record::entry_len(entry);
                    let fits = record::padded(more) <= room
                        && (body == 0 || more <= self.options.record_bytes);
                    body = more;
                    fits
                })
                .count();
            let (now, later) = entries.split_at(fitting.max(1));
            let place = self.active.place();
            record::put_entries(&mut self.active.buffer, place, now);
            let last = now.last().map(|entry| entry.position());
            self.state.last = last;
            self.active.max_index = self.active.max_index.max(last.map(|last| last.index));
            entries = later;
        }
        Ok(())
    }

    fn put_mark(&mut self, mark: &Record) -> Result<(), WalError> {
        if matches!(mark, Record::Committed(_))
            && MARK as u64 > self.active.room_for_entries()
            && self.space.is_low()
        {
            // Only votes need what is left. Without the mark a restart learns from the others what is committed; the
            // next segment's header has it.
            return self.state.apply(mark).map_err(|what| WalError::Invalid { what });
        }
        if MARK as u64 > self.active.room_for_marks() {
            self.rotate(MARK as u64)?;
        }
        let place = self.active.place();
        record::put_mark(&mut self.active.buffer, place, mark);
        self.state.apply(mark).map_err(|what| WalError::Invalid { what })
    }

    /// Writes what was gathered and, with `sync`, makes everything written so far durable.
    pub fn commit(&mut self, sync: bool) -> Result<(), WalError> {
        self.check_running()?;
        let done = self.flush().and_then(|()| if sync { self.sync() } else { Ok(()) });
        self.settled(done)
    }

    fn flush(&mut self) -> Result<(), WalError> {
        let active = &mut self.active;
        if active.buffer.is_empty() {
            return Ok(());
        }
        active
            .file
            .write_all_at(active.written, &active.buffer)
            .map_err(WalError::io("write", &active.path))?;
        active.crc.update(&active.buffer);
        active.written += active.buffer.len() as u64;
        self.written += active.buffer.len() as u64;
        active.buffer.clear();
        // A large batch should not keep its memory for ever.
        active.buffer.shrink_to(self.options.batch_bytes);
        self.options.hooks.on_point("wal.after_write");
        Ok(())
    }

    fn sync(&mut self) -> Result<(), WalError> {
        if self.active.synced < self.active.written {
            self.options.hooks.on_point("wal.before_sync");
            self.sync_active()?;
            let mark = Mark { segment: self.active.number, offset: self.active.synced };
            self.witness.note(mark)?;
            self.options.hooks.on_point("wal.after_sync");
        }
        Ok(())
    }

    fn sync_active(&mut self) -> Result<(), WalError> {
        self.active.file.sync_data().map_err(WalError::io("sync", &self.active.path))?;
        self.active.synced = self.active.written;
        self.syncs += 1;
        self.durable_purged = self.state.purged.map(|purged| purged.index);
        Ok(())
    }

    /// Seals the active segment and begins one in which `bytes` fit.
    fn rotate(&mut self, bytes: u64) -> Result<(), WalError> {
        let number = self.active.number + 1;
        let at_least = self.size_for(bytes);
        self.ahead.obtain(Order { number, at_least, keep_free: 0 })?;
        self.flush()?;
        self.sync()?;
        self.options.hooks.on_point("wal.rotate.sealed");
        let previous = Seal { end: self.active.written, crc: self.active.crc.clone().finalize() };
        let identity = self.identity;
        let last =
            begin(self.files.as_ref(), &self.dir, &mut self.ahead, &mut self.witness, |size| {
                Header { identity, number, size, previous, state: self.state }
            })?;
        self.sealed
            .push_back(Sealed { number: self.active.number, max_index: self.active.max_index });
        let buffer = std::mem::take(&mut self.active.buffer);
        self.active = (last, segment::path(&self.dir, number)).into();
        self.active.buffer = buffer;
        self.options.hooks.on_point("wal.rotate.done");
        self.ahead.request(number + 1);
        Ok(())
    }

    /// What is done when nothing waits: makes everything durable, the witness too, and drops what is purged.
    pub fn settle(&mut self) -> Result<(), WalError> {
        self.commit(true)?;
        if self.witness.unsynced {
            let synced = self.witness.sync();
            self.settled(synced)?;
        }
        self.drop_purged();
        Ok(())
    }

    /// Whether [`Wal::settle`] has something to do.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.witness.unsynced && self.active.synced == self.active.end()
    }

    /// Removes segments whose entries are all purged.
    pub fn drop_purged(&mut self) {
        let purged = self.durable_purged;
        while let Some(oldest) = self.sealed.front().filter(|oldest| oldest.max_index <= purged) {
            self.ahead.remove(segment::path(&self.dir, oldest.number));
            self.sealed.pop_front();
        }
    }
}

fn check_options(options: &Options) -> Result<(), WalError> {
    let sizes = 4096..=u64::from(u32::MAX);
    if sizes.contains(&options.segment_bytes) && sizes.contains(&options.first_segment_bytes) {
        return Ok(());
    }
    Err(WalError::Invalid { what: "a segment size outside of 4 KiB to 4 GiB".to_owned() })
}

/// Gives the prepared file its header and its name.
fn begin(
    files: &dyn Files,
    dir: &Path,
    ahead: &mut Ahead,
    witness: &mut Witness,
    header: impl FnOnce(u64) -> Header,
) -> Result<Last, WalError> {
    let Some(prepared) = ahead.take() else {
        return Err(WalError::Invalid { what: "a segment that was not prepared".to_owned() });
    };
    let header = header(prepared.size);
    let path = segment::path(dir, header.number);
    let bytes = header.encode();
    let name = || {
        prepared.file.write_all_at(0, &bytes)?;
        prepared.file.sync_data()?;
        files.rename(&prepared.path, &path)?;
        ahead.on_point("wal.rotate.created");
        files.sync_dir(dir)
    };
    name().map_err(WalError::io("begin", &path))?;
    witness.note(Mark { segment: header.number, offset: HEADER })?;
    witness.sync()?;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes);
    let (number, size) = (header.number, header.size);
    Ok(Last { file: prepared.file, number, size, end: HEADER, crc, max_index: None })
}

fn create_first(
    files: &dyn Files,
    dir: &Path,
    identity: Identity,
    ahead: &mut Ahead,
    witness: &mut Witness,
) -> Result<Opened, WalError> {
    ahead.obtain(Order { number: 1, at_least: 4096, keep_free: 0 })?;
    let last = begin(files, dir, ahead, witness, |size| Header {
        identity,
        number: 1,
        size,
        previous: Seal::default(),
        state: State::default(),
    })?;
    let (state, entries, sealed) = (State::default(), VecDeque::new(), VecDeque::new());
    Ok(Opened { state, entries, sealed, last, cut: None })
}
