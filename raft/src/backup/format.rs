//! The bytes of a backup, and a parser that takes them as they come.

use std::path::Path;

use bytes::{Buf, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::{BackupError, BackupHead};

const MAGIC: &[u8; 8] = b"PALBKUP1";
/// The newest format that this release reads, and the one that it writes.
pub const FORMAT: u32 = 1;
const HEAD_FIXED: usize = 8 + 4 + 4;
const MAX_HEAD: usize = 4 << 20;
const TRAILER_MARK: u32 = u32::MAX;
const TRAILER: usize = 4 + 4 + 8 + 8 + 32;
const CHUNK_HEAD: usize = 8;

/// The largest chunk.
pub const MAX_CHUNK: usize = 16 << 20;

/// How much a backup holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Chunks.
    pub chunks: u64,
    /// Bytes of all chunks.
    pub bytes: u64,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn chunk_crc(number: u64, chunk: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&number.to_le_bytes());
    crc.update(&(chunk.len() as u32).to_le_bytes());
    crc.update(chunk);
    crc.finalize()
}

/// The running state that writer and parser share.
#[derive(Clone, Default)]
pub(super) struct Sums {
    pub totals: Totals,
    sha: Sha256,
}

impl Sums {
    pub fn head(&mut self, head: &BackupHead) -> Result<Vec<u8>, BackupError> {
        let json = serde_json::to_vec(head)?;
        if json.len() > MAX_HEAD {
            return Err(BackupError::Unfit(format!("a header of {} bytes", json.len())));
        }
        let mut out = Vec::with_capacity(HEAD_FIXED + json.len() + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&(json.len() as u32).to_le_bytes());
        out.extend_from_slice(&json);
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        self.sha.update(&out);
        Ok(out)
    }

    pub fn chunk(&mut self, chunk: &[u8]) -> Result<Vec<u8>, BackupError> {
        if chunk.is_empty() || chunk.len() > MAX_CHUNK {
            return Err(BackupError::Unfit(format!("a chunk of {} bytes", chunk.len())));
        }
        let mut out = Vec::with_capacity(CHUNK_HEAD + chunk.len());
        out.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
        out.extend_from_slice(&chunk_crc(self.totals.chunks, chunk).to_le_bytes());
        out.extend_from_slice(chunk);
        self.count(&out);
        Ok(out)
    }

    /// Takes a framed chunk into account.
    fn count(&mut self, framed: &[u8]) {
        self.totals.chunks += 1;
        self.totals.bytes += (framed.len() - CHUNK_HEAD) as u64;
        self.sha.update(framed);
    }

    fn trailer_content(&self) -> [u8; TRAILER - 8] {
        let mut content = [0; TRAILER - 8];
        content[0..8].copy_from_slice(&self.totals.chunks.to_le_bytes());
        content[8..16].copy_from_slice(&self.totals.bytes.to_le_bytes());
        content[16..48].copy_from_slice(&self.sha.clone().finalize());
        content
    }

    pub fn trailer(&self) -> Vec<u8> {
        let content = self.trailer_content();
        let mut out = Vec::with_capacity(TRAILER);
        out.extend_from_slice(&TRAILER_MARK.to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&content).to_le_bytes());
        out.extend_from_slice(&content);
        out
    }

    pub fn sha256(&self) -> [u8; 32] {
        self.sha.clone().finalize().into()
    }
}

/// One piece of a backup.
#[derive(Debug)]
pub(super) enum Piece {
    Head(Box<BackupHead>),
    Chunk(Bytes),
    End(Totals),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Head,
    Chunks,
    Nothing,
}

/// Takes a backup's bytes as they come and gives its pieces, each checked.
pub(super) struct Parser {
    buffer: BytesMut,
    /// The offset of `buffer` in the file.
    offset: u64,
    expect: Expect,
    pub sums: Sums,
}

impl Parser {
    pub fn new() -> Self {
        Self { buffer: BytesMut::new(), offset: 0, expect: Expect::Head, sums: Sums::default() }
    }

    /// Where the next piece begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn is_ended(&self) -> bool {
        self.expect == Expect::Nothing
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece; `None` when more bytes are needed for it.
    pub fn next(&mut self, file: &Path) -> Result<Option<Piece>, BackupError> {
        match self.expect {
            Expect::Head => self.head(file),
            Expect::Chunks => self.chunk(file),
            Expect::Nothing if self.buffer.is_empty() => Ok(None),
            Expect::Nothing => Err(self.bad(file, "there is something behind the trailer")),
        }
    }

    /// What is wrong when no more bytes come.
    pub fn cut_short(&self, file: &Path) -> BackupError {
        let at = self.offset + self.buffer.len() as u64;
        BackupError::corrupt(file, at, "it is cut short: it ends before its trailer does")
    }

    fn bad(&self, file: &Path, what: &str) -> BackupError {
        BackupError::corrupt(file, self.offset, what)
    }

    fn consume(&mut self, n: usize) -> Bytes {
        self.offset += n as u64;
        self.buffer.split_to(n).freeze()
    }

    fn head(&mut self, file: &Path) -> Result<Option<Piece>, BackupError> {
        let magic = &MAGIC[..self.buffer.len().min(MAGIC.len())];
        if !self.buffer.starts_with(magic) {
            return Err(self.bad(file, "it is no backup of a cluster"));
        }
        let Some(len) = u32_at(&self.buffer, MAGIC.len() + 4) else { return Ok(None) };
        if len as usize > MAX_HEAD {
            return Err(self.bad(file, "its header is damaged"));
        }
        let end = HEAD_FIXED + len as usize;
        if self.buffer.len() < end + 4 {
            return Ok(None);
        }
        let (content, crc) = self.buffer[..end + 4].split_at(end);
        if crc32fast::hash(content).to_le_bytes() != crc {
            return Err(self.bad(file, "the checksum of its header is wrong"));
        }
        let found = u32_at(content, MAGIC.len()).unwrap_or_default();
        if found > FORMAT {
            let file = file.to_owned();
            return Err(BackupError::NewerFormat { file, found, supported: FORMAT });
        }
        let bytes = self.consume(end + 4);
        self.sums.sha.update(&bytes);
        self.expect = Expect::Chunks;
        let head = serde_json::from_slice(&bytes[HEAD_FIXED..end]).map_err(|error| {
            BackupError::corrupt(file, 0, format!("its header is senseless: {error}"))
        })?;
        Ok(Some(Piece::Head(Box::new(head))))
    }

    fn chunk(&mut self, file: &Path) -> Result<Option<Piece>, BackupError> {
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
        let mut framed = self.consume(end);
        self.sums.count(&framed);
        framed.advance(CHUNK_HEAD);
        Ok(Some(Piece::Chunk(framed)))
    }

    fn trailer(&mut self, file: &Path, crc: u32) -> Result<Option<Piece>, BackupError> {
        let Some(content) = self.buffer.get(CHUNK_HEAD..TRAILER) else { return Ok(None) };
        if crc32fast::hash(content) != crc {
            return Err(self.bad(file, "the checksum of the trailer is wrong"));
        }
        if content != self.sums.trailer_content() {
            return Err(self.bad(file, "it does not hold what its trailer says"));
        }
        self.consume(TRAILER);
        self.expect = Expect::Nothing;
        Ok(Some(Piece::End(self.sums.totals)))
    }
}
