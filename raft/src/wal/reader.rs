//! Reading entries back from the segments, beside the one who writes them.
//!
//! * W8 What is read is what was appended: each record's checksums are held against its place, and an entry of another
//!   term than the one asked for was replaced later and is passed over.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    error::WalError,
    record::{self, Found, HEAD},
    segment::{self, HEADER, Header},
    types::{EntryRecord, Identity, Record},
};
use crate::disk::{File, Files};

/// Where one read ended and the next one probably begins.
#[derive(Clone, Copy)]
struct Bookmark {
    index: u64,
    segment: u64,
    offset: u64,
}

/// Entries that are to be read: durable ones that are not purged and never will be truncated.
pub struct Wanted {
    /// The first and the one behind the last.
    pub range: std::ops::Range<u64>,
    /// Terms, each with the first entry that has it, oldest first; the first of them at or before the range.
    pub terms: Vec<(u64, u64)>,
}

impl Wanted {
    fn term_of(&self, index: u64) -> Option<u64> {
        let after = self.terms.partition_point(|(first, _)| *first <= index);
        self.terms.get(after.checked_sub(1)?).map(|(_, term)| *term)
    }
}

/// Reads the log in one directory.
pub struct LogReader {
    files: Arc<dyn Files>,
    dir: PathBuf,
    identity: Identity,
    bookmark: Mutex<Option<Bookmark>>,
}

/// One segment, open.
struct Open {
    file: Box<dyn File>,
    path: PathBuf,
    number: u64,
    offset: u64,
}

impl Open {
    /// The record here, and where the next one is; `None` at the segment's end.
    fn record(&self) -> Result<Option<(Record, u64)>, WalError> {
        let read = |bytes: usize| {
            let mut buffer = vec![0; bytes];
            let n = self.file.read_full_at(self.offset, &mut buffer)?;
            buffer.truncate(n);
            Ok::<_, io::Error>(buffer)
        };
        let head = read(HEAD).map_err(WalError::io("read", &self.path))?;
        let len = head.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
        let bytes = read(record::padded(len)).map_err(WalError::io("read", &self.path))?;
        match record::find_in(&bytes, self.number, self.offset as u32) {
            Found::Nothing => Ok(None),
            Found::Bad(why) => Err(WalError::corrupt(&self.path, self.offset, why)),
            Found::Record(framed) => {
                let next = self.offset + framed.size() as u64;
                let senseless = "the record's content is senseless";
                let record = framed.decode();
                let record =
                    record.ok_or_else(|| WalError::corrupt(&self.path, self.offset, senseless))?;
                Ok(Some((record, next)))
            }
        }
    }
}

impl LogReader {
    /// Reads what a log with this identity has written in `dir`.
    #[must_use]
    pub fn new(files: Arc<dyn Files>, dir: PathBuf, identity: Identity) -> Self {
        Self { files, dir, identity, bookmark: Mutex::default() }
    }

    fn bookmark(&self) -> std::sync::MutexGuard<'_, Option<Bookmark>> {
        self.bookmark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, number: u64, offset: u64) -> Result<Open, WalError> {
        let path = segment::path(&self.dir, number);
        let file = self.files.open(&path).map_err(WalError::io("open", &path))?;
        Ok(Open { file, path, number, offset })
    }

    /// Reads from the beginning of what is wanted, all of it or about `bytes`, and at least one entry. It blocks.
    ///
    /// # Errors
    /// A segment cannot be read, or does not hold what it must.
    pub fn read(&self, wanted: &Wanted, bytes: usize) -> Result<Vec<EntryRecord>, WalError> {
        let mut next = wanted.range.start;
        let known = self.bookmark().filter(|mark| mark.index == next);
        // It may lie at the end of a segment that is gone by now.
        let known = known.and_then(|mark| self.open(mark.segment, mark.offset).ok());
        let mut open = match known {
            Some(open) => open,
            None => self.open(self.segment_before(next)?, HEADER)?,
        };
        let (mut found, mut size) = (Vec::new(), 0);
        while next < wanted.range.end && (found.is_empty() || size < bytes) {
            let Some((record, after)) = open.record()? else {
                open = self.open(open.number + 1, HEADER)?;
                continue;
            };
            let mut is_read = true;
            if let Record::Append(entries) = record {
                for entry in entries {
                    if next == wanted.range.end {
                        is_read = false;
                        break;
                    }
                    if entry.index == next && wanted.term_of(next) == Some(entry.term) {
                        size += entry.payload.len();
                        next += 1;
                        found.push(entry);
                    }
                }
            }
            if is_read {
                open.offset = after;
            }
        }
        let mark = Bookmark { index: next, segment: open.number, offset: open.offset };
        *self.bookmark() = Some(mark);
        Ok(found)
    }

    /// The last segment that was begun before entry `index` was there.
    fn segment_before(&self, index: u64) -> Result<u64, WalError> {
        let names = self.files.list(&self.dir).map_err(WalError::io("list", &self.dir))?;
        let mut numbers: Vec<u64> =
            names.iter().filter_map(|name| segment::number_of(name)).collect();
        numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
        for number in numbers {
            let open = self.open(number, 0)?;
            let read = || {
                let mut bytes = vec![0; HEADER as usize];
                open.file.read_full_at(0, &mut bytes)?;
                Ok((bytes, open.file.size()?))
            };
            let (bytes, len) = read().map_err(WalError::io("read", &open.path))?;
            let header = Header::decode(&bytes, &open.path, number, len, self.identity)?;
            if header.state.last.is_none_or(|last| last.index < index) {
                return Ok(number);
            }
        }
        let what = format!("no segment holds entry {index}, which was to be kept");
        Err(WalError::corrupt(&self.dir, 0, what))
    }
}
