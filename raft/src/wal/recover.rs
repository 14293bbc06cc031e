//! Reading a log back: the rules of what is recovered, what is cut, and what is refused.
//!
//! * W1 Everything that was acknowledged is in what is recovered, or the log is refused with a file and an offset.
//! * W2 Only bytes of the last segment that no sync had covered are ever cut; then they are overwritten
//!   with zeros, durably, before anything is appended, so they cannot come back.
//!   They are read twice before: what a disk once answers wrongly is no reason to cut.
//! * W3 What is recovered is durable before it is reported: bytes behind the witness's mark are written
//!   and synced again, because after a failed sync the page cache may show what the disk does not have; and so are
//!   the names of the segments, because whoever began one may have been killed before he had synced its name.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use super::error::WalError;
use super::record::{self, Found};
use super::segment::{self, HEADER, Header, Seal};
use super::types::{Cut, EntryRecord, Hooks, Identity, Position, Record, State};
use super::witness::{self, Mark, Witness};
use crate::disk::{self, File, Files};

/// A segment that is no longer written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sealed {
    pub number: u64,
    /// The highest index of its entries, live or not.
    pub max_index: Option<u64>,
}

/// The segment that is written.
pub(super) struct Last {
    pub file: Box<dyn File>,
    pub number: u64,
    pub size: u64,
    pub end: u64,
    pub crc: crc32fast::Hasher,
    pub max_index: Option<u64>,
}

/// A log that was read back.
pub(super) struct Opened {
    pub state: State,
    pub entries: VecDeque<EntryRecord>,
    pub sealed: VecDeque<Sealed>,
    pub last: Last,
    pub cut: Option<Cut>,
}

/// Reads the log in `dir`; `None` when there is none yet.
pub(super) fn recover(
    files: &dyn Files,
    dir: &Path,
    identity: Identity,
    hooks: &dyn Hooks,
) -> Result<(Witness, Option<Opened>), WalError> {
    // W3 for names: whoever was killed behind a rename left one that a power cut would still take back.
    files.sync_dir(dir).map_err(WalError::io("sync", dir))?;
    let names = files.list(dir).map_err(WalError::io("list", dir))?;
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        let path = dir.join(name);
        match files.remove(&path) {
            // Whoever made it has just taken it away by himself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(WalError::io("remove", &path))?,
        }
    }
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment::number_of(name)).collect();
    numbers.sort_unstable();
    let Some((&first, &last)) = numbers.first().zip(numbers.last()) else {
        return Ok((fresh(files, dir, &names)?, None));
    };
    check_complete(dir, &numbers, first, last)?;
    // Before the witness: a newer release's log is newer, and not damaged.
    let segments = headers(files, dir, identity, &numbers)?;
    let (mut witness, mark) = Witness::open(files, dir)?;
    check_complete(dir, &numbers, first, last.max(mark.segment))?;

    let base = segments.first().map(|(_, header)| header.state).unwrap_or_default();
    let mut replay = Replay { state: base, ..Replay::default() };
    let mut sealed = VecDeque::new();
    for (at, (path, header)) in segments.iter().enumerate() {
        if at > 0 {
            replay.enter(header.state, path)?;
        }
        replay.max_index = None;
        if let Some((_, next)) = segments.get(at + 1) {
            read_sealed(files, path, header.number, next.previous, &mut replay)?;
            sealed.push_back(Sealed { number: header.number, max_index: replay.max_index });
            continue;
        }
        let (last, cut) = read_last(files, path, header, mark, &mut replay, hooks)?;
        check_entries(dir, first, base, &replay)?;
        witness.note(Mark { segment: last.number, offset: last.end })?;
        witness.sync()?;
        let Replay { mut state, entries, .. } = replay;
        state.committed = known(state, &entries);
        return Ok((witness, Some(Opened { state, entries, sealed, last, cut })));
    }
    Err(WalError::corrupt(dir, 0, "the log has no segments"))
}

/// Up to where what the log holds is committed. A mark that is ahead of the entries, or of another entry than the log's,
/// says nothing of them: logs of before `W8` have such ones, and what they speak of never came.
fn known(state: State, entries: &VecDeque<EntryRecord>) -> Option<Position> {
    let mark = state.committed?;
    let is_ahead = Some(mark.index) > state.last.map(|last| last.index);
    let nth = entries.front().and_then(|front| mark.index.checked_sub(front.index));
    let entry = nth.and_then(|nth| entries.get(usize::try_from(nth).ok()?));
    let is_other = entry.is_some_and(|entry| entry.term != mark.term);
    if is_ahead || is_other { state.purged } else { Some(mark) }
}

fn fresh(files: &dyn Files, dir: &Path, names: &[String]) -> Result<Witness, WalError> {
    if !names.iter().any(|name| dir.join(name) == witness::path(dir)) {
        return Witness::create(files, dir);
    }
    let (witness, mark) = Witness::open(files, dir)?;
    if mark.segment > 0 {
        return Err(WalError::corrupt(
            &segment::path(dir, mark.segment),
            0,
            "the segment is missing",
        ));
    }
    Ok(witness)
}

fn check_complete(dir: &Path, numbers: &[u64], first: u64, last: u64) -> Result<(), WalError> {
    match (first..=last).find(|number| numbers.binary_search(number).is_err()) {
        Some(missing) => {
            Err(WalError::corrupt(&segment::path(dir, missing), 0, "the segment is missing"))
        }
        None => Ok(()),
    }
}

/// Whether the entries behind the purged mark are all in the segments that are there.
fn check_entries(dir: &Path, first: u64, base: State, replay: &Replay) -> Result<(), WalError> {
    let purged = replay.state.purged.map(|purged| purged.index);
    let complete = match replay.entries.front() {
        // An empty log may begin at any index, in the first segment that has entries.
        Some(front) => base.last.is_none() || purged.map(|purged| purged + 1) == Some(front.index),
        None => replay.state.last.map(|last| last.index) == purged,
    };
    if complete {
        return Ok(());
    }
    let what = format!(
        "the segment is missing: the log holds entries up to {}, of which those behind {} are not all there",
        replay.state.last.map_or(0, |last| last.index),
        purged.map_or("the beginning".to_owned(), |purged| purged.to_string()),
    );
    Err(WalError::corrupt(&segment::path(dir, first.saturating_sub(1)), 0, what))
}

type Segments = Vec<(PathBuf, Header)>;

fn headers(
    files: &dyn Files,
    dir: &Path,
    identity: Identity,
    numbers: &[u64],
) -> Result<Segments, WalError> {
    let mut headers = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let path = segment::path(dir, number);
        let read = || {
            let file = files.open(&path)?;
            let mut bytes = vec![0; HEADER as usize];
            let n = file.read_full_at(0, &mut bytes)?;
            bytes.truncate(n);
            Ok((bytes, file.size()?))
        };
        let (bytes, len) = read().map_err(WalError::io("read", &path))?;
        let header = Header::decode(&bytes, &path, number, len, identity)?;
        headers.push((path, header));
    }
    Ok(headers)
}

#[derive(Default)]
struct Replay {
    state: State,
    entries: VecDeque<EntryRecord>,
    max_index: Option<u64>,
}

impl Replay {
    /// Goes on with the segment that begins with `begins`. While the disk is low committed marks are not written, so
    /// its header alone has the newest; the rest of it the segments before have, too.
    fn enter(&mut self, begins: State, file: &Path) -> Result<(), WalError> {
        if (State { committed: begins.committed, ..self.state }) != begins {
            let what = "its header contradicts the segments before it";
            return Err(WalError::corrupt(file, 0, what));
        }
        self.state = begins;
        Ok(())
    }

    fn apply(&mut self, record: Record) -> Result<(), String> {
        self.state.apply(&record)?;
        match record {
            Record::Append(entries) => {
                self.max_index = self.max_index.max(entries.last().map(|entry| entry.index));
                self.entries.extend(entries);
            }
            Record::TruncateAfter(after) => {
                let after = after.map(|after| after.index);
                while self.entries.back().is_some_and(|entry| Some(entry.index) > after) {
                    self.entries.pop_back();
                }
            }
            Record::Purge(to) => {
                while self.entries.front().is_some_and(|entry| entry.index <= to.index) {
                    self.entries.pop_front();
                }
            }
            Record::Vote(_) | Record::Committed(_) => {}
        }
        Ok(())
    }

    /// Replays records from the header to `limit`, or to the first that is not sound; says where and why.
    fn scan(
        &mut self,
        bytes: &[u8],
        file: &Path,
        number: u64,
        limit: usize,
    ) -> Result<(usize, &'static str), WalError> {
        let mut offset = HEADER as usize;
        while offset < limit {
            let framed = match record::find(bytes, number, offset) {
                Found::Record(framed) => framed,
                Found::Nothing => return Ok((offset, "there is no record")),
                Found::Bad(why) => return Ok((offset, why)),
            };
            let at = offset as u64;
            let record = framed
                .decode()
                .ok_or_else(|| WalError::corrupt(file, at, "the record's content is senseless"))?;
            self.apply(record)
                .map_err(|what| WalError::corrupt(file, at, format!("it holds {what}")))?;
            offset += framed.size();
        }
        Ok((offset, ""))
    }
}

fn read_sealed(
    files: &dyn Files,
    path: &Path,
    number: u64,
    seal: Seal,
    replay: &mut Replay,
) -> Result<(), WalError> {
    let bytes =
        files.open(path).and_then(|file| file.read_all()).map_err(WalError::io("read", path))?;
    let end = seal.end as usize;
    let Some(content) = bytes.get(..end) else {
        let what = format!("the file ends before byte {end}, where the next segment says it ends");
        return Err(WalError::corrupt(path, bytes.len() as u64, what));
    };
    match replay.scan(content, path, number, end)? {
        (offset, _) if offset == end => {}
        (offset, "") => {
            return Err(WalError::corrupt(
                path,
                offset as u64,
                "a record crosses the segment's end",
            ));
        }
        (offset, why) => {
            let what =
                format!("{why}, and the next segment says that this one is sound up to byte {end}");
            return Err(WalError::corrupt(path, offset as u64, what));
        }
    }
    if crc32fast::hash(content) != seal.crc {
        return Err(WalError::corrupt(
            path,
            HEADER,
            "its content is not what the next segment vouches for",
        ));
    }
    Ok(())
}

fn read_last(
    files: &dyn Files,
    path: &Path,
    header: &Header,
    mark: Mark,
    replay: &mut Replay,
    hooks: &dyn Hooks,
) -> Result<(Last, Option<Cut>), WalError> {
    let open = || files.open(path).and_then(|file| Ok((file.read_all()?, file)));
    let (bytes, file) = open().map_err(WalError::io("read", path))?;
    // The next segment will vouch for what was read here, all of it: what no record covers is looked at anew.
    let again = Header::decode(&bytes, path, header.number, bytes.len() as u64, header.identity)?;
    if again.state != header.state {
        return Err(WalError::corrupt(path, 0, "its header is another than a moment ago"));
    }
    let (end, why) = replay.scan(&bytes, path, header.number, bytes.len())?;
    let marked = if mark.segment == header.number { mark.offset } else { HEADER };
    if marked > end as u64 {
        let what = format!("{why}, although everything up to byte {marked} had been durable");
        return Err(WalError::corrupt(path, end as u64, what));
    }
    let data_end = disk::data_end(&bytes).max(end);
    if let Some(proof) = later_proof(&bytes[..data_end], header.number, end) {
        let what = format!(
            "{why}, although a sound record at byte {proof} proves that it had been durable"
        );
        return Err(WalError::corrupt(path, end as u64, what));
    }
    if data_end > end {
        let reread = file.read_all().map_err(WalError::io("read", path))?;
        if reread != bytes {
            let what = "two readings of it differ: check the disk, then start again";
            return Err(WalError::corrupt(path, end as u64, what));
        }
    }
    let again = bytes.get(marked as usize..end).unwrap_or_default();
    let settle = || {
        file.write_all_at(marked, again)?;
        disk::write_zeros(file.as_ref(), end as u64, data_end as u64)?;
        hooks.on_point("wal.open.rewritten");
        file.sync_data()
    };
    settle().map_err(WalError::io("repair the end of", path))?;
    hooks.on_point("wal.open.settled");
    let cut = (data_end > end).then(|| Cut {
        file: path.to_owned(),
        offset: end as u64,
        bytes: (data_end - end) as u64,
    });
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..end]);
    let (number, size, max_index) = (header.number, header.size, replay.max_index);
    Ok((Last { file, number, size, end: end as u64, crc, max_index }, cut))
}

/// The offset of a sound record behind `end` that was written when `end` was already durable.
fn later_proof(bytes: &[u8], number: u64, end: usize) -> Option<usize> {
    (end..bytes.len()).step_by(8).skip(1).find(|&offset| {
        match record::find(bytes, number, offset) {
            Found::Record(framed) => framed.synced as usize > end,
            Found::Nothing | Found::Bad(_) => false,
        }
    })
}
