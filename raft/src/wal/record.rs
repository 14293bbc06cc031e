//! The bytes of a record.
//!
//! ```text
//! 0  len     u32  bytes of the body
//! 4  synced  u32  offset in this segment up to which everything was durable when this was written
//! 8  crc     u32  CRC-32 over segment number, offset, kind, synced, len and the body
//! 12 kind    u8
//! 13 zero    u8
//! 14 head    u16  low half of the CRC-32 over segment number, offset, kind, synced and len
//! 16 body, then zeros up to a multiple of 8
//! ```
//! All integers are little-endian. `head` lets a reader trust `len` before it reads the body, so that looking
//! for a valid record behind a bad one is cheap. `synced` tells a torn write from decay: a valid record
//! proves that everything before its `synced` had been durable, and nothing about what lies between.

use bytes::Bytes;

use super::types::{EntryRecord, Position, Record, Vote};

/// The size of a record's header.
pub(super) const HEAD: usize = 16;
/// The size of an entry's header inside a record.
const ENTRY_HEAD: usize = 20;

const APPEND: u8 = 1;
const VOTE: u8 = 2;
const COMMITTED: u8 = 3;
const TRUNCATE_AFTER: u8 = 4;
const PURGE: u8 = 5;

/// The space that a record with a body of `len` bytes takes.
pub(super) fn padded(len: usize) -> usize {
    (HEAD + len).next_multiple_of(8)
}

/// The space that an entry takes inside a record.
pub(super) fn entry_len(entry: &EntryRecord) -> usize {
    ENTRY_HEAD + entry.payload.len()
}

fn preamble(segment: u64, offset: u32, kind: u8, synced: u32, len: u32) -> [u8; 21] {
    let mut bytes = [0; 21];
    bytes[0..8].copy_from_slice(&segment.to_le_bytes());
    bytes[8..12].copy_from_slice(&offset.to_le_bytes());
    bytes[12..16].copy_from_slice(&synced.to_le_bytes());
    bytes[16..20].copy_from_slice(&len.to_le_bytes());
    bytes[20] = kind;
    bytes
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(&position.term.to_le_bytes());
    out.extend_from_slice(&position.index.to_le_bytes());
}

/// Where a record is written.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub segment: u64,
    pub offset: u32,
    pub synced: u32,
}

fn put(out: &mut Vec<u8>, place: Place, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + HEAD, 0);
    body(out);
    let len = (out.len() - start - HEAD) as u32;
    let preamble = preamble(place.segment, place.offset, kind, place.synced, len);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&preamble);
    let head = crc.clone().finalize() as u16;
    crc.update(&out[start + HEAD..]);
    let slot = &mut out[start..start + HEAD];
    slot[0..4].copy_from_slice(&len.to_le_bytes());
    slot[4..8].copy_from_slice(&place.synced.to_le_bytes());
    slot[8..12].copy_from_slice(&crc.finalize().to_le_bytes());
    slot[12] = kind;
    slot[14..16].copy_from_slice(&head.to_le_bytes());
    out.resize(start + padded(len as usize), 0);
}

/// Writes entries as one record.
pub(super) fn put_entries(out: &mut Vec<u8>, place: Place, entries: &[EntryRecord]) {
    put(out, place, APPEND, |out| {
        for entry in entries {
            out.extend_from_slice(&entry.term.to_le_bytes());
            out.extend_from_slice(&entry.index.to_le_bytes());
            out.extend_from_slice(&(entry.payload.len() as u32).to_le_bytes());
            out.extend_from_slice(&entry.payload);
        }
    });
}

/// The space that any record other than entries takes.
pub(super) const MARK: usize = 40;

/// Writes a record other than entries, in [`MARK`] bytes; of entries it writes nothing.
pub(super) fn put_mark(out: &mut Vec<u8>, place: Place, record: &Record) {
    match record {
        Record::Append(_) => {}
        Record::Vote(vote) => put(out, place, VOTE, |out| {
            out.extend_from_slice(&vote.term.to_le_bytes());
            out.extend_from_slice(&vote.node.to_le_bytes());
            out.push(u8::from(vote.committed));
        }),
        Record::Committed(to) => put(out, place, COMMITTED, |out| put_position(out, *to)),
        Record::TruncateAfter(after) => put(out, place, TRUNCATE_AFTER, |out| {
            out.push(u8::from(after.is_some()));
            put_position(out, after.unwrap_or(Position { term: 0, index: 0 }));
        }),
        Record::Purge(to) => put(out, place, PURGE, |out| put_position(out, *to)),
    }
}

/// Reads little-endian integers off a slice.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).and_then(|bytes| bytes.first().copied())
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take(2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    }

    pub fn position(&mut self) -> Option<Position> {
        Some(Position { term: self.u64()?, index: self.u64()? })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A record whose checksums are right, not yet decoded.
pub(super) struct Framed<'a> {
    pub synced: u32,
    kind: u8,
    body: &'a [u8],
}

impl Framed<'_> {
    /// The space it takes.
    pub fn size(&self) -> usize {
        padded(self.body.len())
    }

    /// Its content; `None` when the body is not what its kind promises.
    pub fn decode(&self) -> Option<Record> {
        let mut body = Reader(self.body);
        let record = match self.kind {
            APPEND => Record::Append(entries(&mut body)?),
            VOTE => Record::Vote(Vote {
                term: body.u64()?,
                node: body.u64()?,
                committed: body.u8()? != 0,
            }),
            COMMITTED => Record::Committed(body.position()?),
            TRUNCATE_AFTER => {
                let some = body.u8()? != 0;
                let position = body.position()?;
                Record::TruncateAfter(some.then_some(position))
            }
            PURGE => Record::Purge(body.position()?),
            _ => return None,
        };
        body.is_empty().then_some(record)
    }
}

fn entries(body: &mut Reader<'_>) -> Option<Vec<EntryRecord>> {
    let mut entries = Vec::new();
    while !body.is_empty() {
        let (term, index, len) = (body.u64()?, body.u64()?, body.u32()?);
        let payload = Bytes::copy_from_slice(body.take(len as usize)?);
        entries.push(EntryRecord { term, index, payload });
    }
    Some(entries)
}

/// What is at an offset of a segment.
pub(super) enum Found<'a> {
    /// A record with right checksums.
    Record(Framed<'a>),
    /// Zeros where a record's header would be, or too little space for one.
    Nothing,
    /// Something else.
    Bad(&'static str),
}

/// Looks at `offset` of the segment whose bytes are `segment`.
pub(super) fn find(segment: &[u8], number: u64, offset: usize) -> Found<'_> {
    find_in(segment.get(offset..).unwrap_or_default(), number, offset as u32)
}

/// The same in what a segment has from `offset` on.
pub(super) fn find_in(rest: &[u8], number: u64, offset: u32) -> Found<'_> {
    let Some((head, rest)) = rest.split_at_checked(HEAD) else {
        return if rest.iter().all(|byte| *byte == 0) {
            Found::Nothing
        } else {
            Found::Bad("half a header")
        };
    };
    if head.iter().all(|byte| *byte == 0) {
        return Found::Nothing;
    }
    let mut reader = Reader(head);
    let (Some(len), Some(synced), Some(crc), Some(kind), Some(0), Some(check)) =
        (reader.u32(), reader.u32(), reader.u32(), reader.u8(), reader.u8(), reader.u16())
    else {
        return Found::Bad("the record's header is damaged");
    };
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&preamble(number, offset, kind, synced, len));
    if hasher.clone().finalize() as u16 != check {
        return Found::Bad("the record's header is damaged");
    }
    let Some(body) = rest.get(..len as usize) else {
        return Found::Bad("the record reaches beyond the end of the file");
    };
    hasher.update(body);
    if hasher.finalize() != crc {
        return Found::Bad("the record's checksum is wrong");
    }
    // No checksum of its own covers them, and the segment's does.
    let padding = rest.get(len as usize..padded(len as usize) - HEAD).unwrap_or_default();
    if padding.iter().any(|byte| *byte != 0) {
        return Found::Bad("the record's padding is not zeros");
    }
    Found::Record(Framed { synced, kind, body })
}
