//! The bytes of a snapshot, and a parser that takes them as they come.

use std::path::Path;

use bytes::{Buf, Bytes, BytesMut};

use super::SnapshotError;
use crate::wal::Position;

const MAGIC: &[u8; 8] = b"PALSNAP1";
const FORMAT: u32 = 1;
/// The header up to the opaque parts.
const HEAD_FIXED: usize = 8 + 4 + 16 + 8 + 8;
/// The largest opaque part of a header.
const MAX_OPAQUE: usize = 1 << 20;
const TRAILER_MARK: u32 = u32::MAX;
const TRAILER: usize = 4 + 4 + 8 + 8 + 4;
const CHUNK_HEAD: usize = 8;

/// The largest chunk.
pub const MAX_CHUNK: usize = 16 << 20;

/// What a snapshot is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The cluster's id.
    pub cluster: [u8; 16],
    /// The last log entry that it covers.
    pub position: Position,
    /// The membership at that entry, encoded by the caller.
    pub membership: Bytes,
    /// How much it holds of what, encoded by the caller.
    pub counts: Bytes,
}

/// How much a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Chunks.
    pub chunks: u64,
    /// Bytes of all chunks.
    pub bytes: u64,
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The running state that writer and parser share.
#[derive(Clone, Default)]
pub(super) struct Sums {
    pub totals: Totals,
    crc: crc32fast::Hasher,
}

fn chunk_crc(number: u64, chunk: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&number.to_le_bytes());
    crc.update(&(chunk.len() as u32).to_le_bytes());
    crc.update(chunk);
    crc.finalize()
}

impl Sums {
    /// The running checksum, as the trailer has it.
    pub fn crc(&self) -> u32 {
        self.crc.clone().finalize()
    }

    fn add(&mut self, chunk: &[u8]) {
        self.totals.chunks += 1;
        self.totals.bytes += chunk.len() as u64;
        self.crc.update(chunk);
    }

    pub fn put_head(&mut self, out: &mut Vec<u8>, head: &Head) {
        let start = out.len();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&head.cluster);
        out.extend_from_slice(&head.position.term.to_le_bytes());
        out.extend_from_slice(&head.position.index.to_le_bytes());
        for part in [&head.membership, &head.counts] {
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
            out.extend_from_slice(part);
        }
        let crc = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        self.crc.update(&out[start..]);
    }

    pub fn put_chunk(&mut self, out: &mut Vec<u8>, chunk: &[u8]) {
        out.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
        out.extend_from_slice(&chunk_crc(self.totals.chunks, chunk).to_le_bytes());
        out.extend_from_slice(chunk);
        self.add(chunk);
    }

    pub fn put_trailer(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&TRAILER_MARK.to_le_bytes());
        let content = self.trailer();
        out.extend_from_slice(&crc32fast::hash(&content).to_le_bytes());
        out.extend_from_slice(&content);
    }

    fn trailer(&self) -> [u8; TRAILER - 8] {
        let mut content = [0; TRAILER - 8];
        content[0..8].copy_from_slice(&self.totals.chunks.to_le_bytes());
        content[8..16].copy_from_slice(&self.totals.bytes.to_le_bytes());
        content[16..20].copy_from_slice(&self.crc().to_le_bytes());
        content
    }
}

/// True when the opaque parts are small enough to be written.
pub(super) fn head_fits(head: &Head) -> bool {
    head.membership.len() <= MAX_OPAQUE && head.counts.len() <= MAX_OPAQUE
}

/// One piece of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Head(Head),
    Chunk(Bytes),
    End(Totals),
}

enum Expect {
    Head,
    Chunks,
    Nothing,
}

/// Takes a snapshot's bytes as they come and gives its pieces, each checked.
pub(super) struct Parser {
    buffer: BytesMut,
    /// The offset of `buffer` in the file.
    offset: u64,
    expect: Expect,
    sums: Sums,
}

impl Parser {
    pub fn new() -> Self {
        Self { buffer: BytesMut::new(), offset: 0, expect: Expect::Head, sums: Sums::default() }
    }

    /// Where the next piece begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The running checksum of what was taken.
    pub fn crc(&self) -> u32 {
        self.sums.crc()
    }

    /// Forgets what is not a whole piece.
    pub fn cut(&mut self) {
        self.buffer.clear();
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.expect, Expect::Nothing)
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece; `None` when more bytes are needed for it.
    pub fn next(&mut self, file: &Path) -> Result<Option<Piece>, SnapshotError> {
        match self.expect {
            Expect::Head => self.head(file),
            Expect::Chunks => self.chunk(file),
            Expect::Nothing if self.buffer.is_empty() => Ok(None),
            Expect::Nothing => Err(self.bad(file, "there is something behind the trailer")),
        }
    }

    /// What is wrong when no more bytes come.
    pub fn cut_short(&self, file: &Path) -> SnapshotError {
        let at = self.offset + self.buffer.len() as u64;
        SnapshotError::corrupt(file, at, "it ends before its trailer does")
    }

    fn bad(&self, file: &Path, what: &str) -> SnapshotError {
        SnapshotError::corrupt(file, self.offset, what)
    }

    fn consume(&mut self, n: usize) -> Bytes {
        self.offset += n as u64;
        self.buffer.split_to(n).freeze()
    }

    /// The header's length; `None` when more bytes are needed to know it.
    fn head_len(&self, file: &Path) -> Result<Option<usize>, SnapshotError> {
        let magic = &MAGIC[..self.buffer.len().min(MAGIC.len())];
        if !self.buffer.starts_with(magic) {
            return Err(self.bad(file, "it is not a snapshot"));
        }
        let mut len = HEAD_FIXED;
        for _ in 0..2 {
            let Some(part) = u32_at(&self.buffer, len) else { return Ok(None) };
            if part as usize > MAX_OPAQUE {
                return Err(self.bad(file, "its header is damaged"));
            }
            len += 4 + part as usize;
        }
        Ok(Some(len + 4).filter(|len| self.buffer.len() >= *len))
    }

    fn head(&mut self, file: &Path) -> Result<Option<Piece>, SnapshotError> {
        let Some(len) = self.head_len(file)? else { return Ok(None) };
        let (content, crc) = self.buffer[..len].split_at(len - 4);
        if crc32fast::hash(content).to_le_bytes() != crc {
            return Err(self.bad(file, "the checksum of its header is wrong"));
        }
        let format = u32_at(content, MAGIC.len()).unwrap_or_default();
        if format > FORMAT {
            return Err(SnapshotError::NewerFormat {
                file: file.to_owned(),
                found: format,
                supported: FORMAT,
            });
        }
        let bytes = self.consume(len);
        self.sums.crc.update(&bytes);
        self.expect = Expect::Chunks;
        let head = decode_head(&bytes)
            .ok_or_else(|| SnapshotError::corrupt(file, 0, "its header is senseless"))?;
        Ok(Some(Piece::Head(head)))
    }

    fn chunk(&mut self, file: &Path) -> Result<Option<Piece>, SnapshotError> {
        let Some((len, crc)) = u32_at(&self.buffer, 0).zip(u32_at(&self.buffer, 4)) else {
            return Ok(None);
        };
        if len == TRAILER_MARK {
            return self.trailer(file, crc);
        }
        if len == 0 || len as usize > MAX_CHUNK {
            return Err(self.bad(file, "the length of a chunk is damaged"));
        }
        let end = CHUNK_HEAD + len as usize;
        let Some(chunk) = self.buffer.get(CHUNK_HEAD..end) else { return Ok(None) };
        if chunk_crc(self.sums.totals.chunks, chunk) != crc {
            return Err(self.bad(file, "the checksum of a chunk is wrong"));
        }
        self.sums.add(chunk);
        let mut chunk = self.consume(end);
        chunk.advance(CHUNK_HEAD);
        Ok(Some(Piece::Chunk(chunk)))
    }

    fn trailer(&mut self, file: &Path, crc: u32) -> Result<Option<Piece>, SnapshotError> {
        let Some(content) = self.buffer.get(CHUNK_HEAD..TRAILER) else { return Ok(None) };
        if crc32fast::hash(content) != crc {
            return Err(self.bad(file, "the checksum of the trailer is wrong"));
        }
        if content != self.sums.trailer() {
            return Err(self.bad(file, "it does not hold what its trailer says"));
        }
        self.consume(TRAILER);
        self.expect = Expect::Nothing;
        Ok(Some(Piece::End(self.sums.totals)))
    }
}

fn decode_head(bytes: &[u8]) -> Option<Head> {
    let mut rest = bytes.get(MAGIC.len() + 4..)?;
    let cluster = take(&mut rest)?;
    let term = u64::from_le_bytes(take(&mut rest)?);
    let index = u64::from_le_bytes(take(&mut rest)?);
    let mut part = || {
        let len = u32::from_le_bytes(take(&mut rest)?) as usize;
        let (part, left) = rest.split_at_checked(len)?;
        rest = left;
        Some(Bytes::copy_from_slice(part))
    };
    let (membership, counts) = (part()?, part()?);
    Some(Head { cluster, position: Position { term, index }, membership, counts })
}
