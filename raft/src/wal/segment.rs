//! The header of a segment file, and its name.
//!
//! The header fills the first 512-byte sector and ends with its own CRC-32 in every format, so "newer"
//! and "damaged" are told apart. It carries the state at its beginning (vote, committed, purged, last entry), so
//! older segments can be dropped, and seals the previous segment: its length and the CRC-32 of all its bytes up to there.

use std::path::{Path, PathBuf};

use super::error::WalError;
use super::record::Reader;
use super::types::{Identity, Position, State, Vote};

/// The size of a segment's header.
pub(super) const HEADER: u64 = 512;
const MAGIC: &[u8; 8] = b"PALSEGMT";
/// The newest format known.
pub(super) const FORMAT: u32 = 1;

/// The name of segment `number`.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:08}.seg")
}

/// The path of segment `number`.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(file_name(number))
}

/// The number in a segment's name; `None` for any other file.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".seg")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// How the previous segment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seal {
    /// Its length.
    pub end: u64,
    /// The CRC-32 of its bytes up to there.
    pub crc: u32,
}

/// A segment's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub identity: Identity,
    pub number: u64,
    pub size: u64,
    pub previous: Seal,
    pub state: State,
}

fn put_option(out: &mut Vec<u8>, position: Option<Position>) {
    out.push(u8::from(position.is_some()));
    let position = position.unwrap_or(Position { term: 0, index: 0 });
    out.extend_from_slice(&position.term.to_le_bytes());
    out.extend_from_slice(&position.index.to_le_bytes());
}

fn option(reader: &mut Reader<'_>) -> Option<Option<Position>> {
    let some = reader.u8()? != 0;
    let position = reader.position()?;
    Some(some.then_some(position))
}

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER as usize);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.identity.cluster);
        out.extend_from_slice(&self.identity.replica.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        // For readers of a dump; recovery takes it from the last position.
        out.extend_from_slice(&self.state.next_index().unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.previous.end.to_le_bytes());
        out.extend_from_slice(&self.previous.crc.to_le_bytes());
        let vote = self.state.vote.unwrap_or(Vote { term: 0, node: 0, committed: false });
        out.push(u8::from(self.state.vote.is_some()));
        out.extend_from_slice(&vote.term.to_le_bytes());
        out.extend_from_slice(&vote.node.to_le_bytes());
        out.push(u8::from(vote.committed));
        put_option(&mut out, self.state.committed);
        put_option(&mut out, self.state.purged);
        put_option(&mut out, self.state.last);
        out.resize(HEADER as usize - 4, 0);
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and checks the header of segment `number` in `file`, which has `len` bytes.
    pub fn decode(
        bytes: &[u8],
        file: &Path,
        number: u64,
        len: u64,
        identity: Identity,
    ) -> Result<Self, WalError> {
        if bytes.len() < HEADER as usize {
            let what = "the file ends before its header does";
            return Err(WalError::corrupt(file, bytes.len() as u64, what));
        }
        let (content, crc) = bytes[..HEADER as usize].split_at(HEADER as usize - 4);
        if crc32fast::hash(content).to_le_bytes() != crc {
            return Err(WalError::corrupt(
                file,
                0,
                "the checksum of the segment's header is wrong",
            ));
        }
        if !content.starts_with(MAGIC) {
            return Err(WalError::corrupt(file, 0, "it is not a log segment"));
        }
        let mut reader = Reader(&content[MAGIC.len()..]);
        let format = reader.u32().unwrap_or_default();
        if format > FORMAT {
            return Err(WalError::NewerFormat {
                file: file.to_owned(),
                found: format,
                supported: FORMAT,
            });
        }
        let header = Self::fields(&mut reader)
            .ok_or_else(|| WalError::corrupt(file, 0, "the segment's header is too short"))?;
        if header.identity != identity {
            let (found, expected) = (header.identity.to_string(), identity.to_string());
            return Err(WalError::Foreign { file: file.to_owned(), found, expected });
        }
        if header.number != number {
            let what =
                format!("it is segment {} under the name of segment {number}", header.number);
            return Err(WalError::corrupt(file, 0, what));
        }
        if header.size != len {
            let what = format!("the file has {len} bytes and should have {}", header.size);
            return Err(WalError::corrupt(file, len.min(header.size), what));
        }
        Ok(header)
    }

    fn fields(reader: &mut Reader<'_>) -> Option<Self> {
        let cluster = reader.take(16)?.try_into().ok()?;
        let identity = Identity { cluster, replica: reader.u64()? };
        let (number, size, _first) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let previous = Seal { end: reader.u64()?, crc: reader.u32()? };
        let some_vote = reader.u8()? != 0;
        let vote = Vote { term: reader.u64()?, node: reader.u64()?, committed: reader.u8()? != 0 };
        let state = State {
            vote: some_vote.then_some(vote),
            committed: option(reader)?,
            purged: option(reader)?,
            last: option(reader)?,
        };
        Some(Self { identity, number, size, previous, state })
    }
}
