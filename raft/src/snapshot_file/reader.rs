//! Reading a snapshot file, and sending it.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::format::{Parser, Piece};
use super::{SnapshotError, SnapshotInfo, position_of};
use crate::disk::{File, Files};

const READ: usize = 1 << 20;

/// An open snapshot file that was checked from end to end.
pub struct SnapshotReader {
    file: Box<dyn File>,
    info: SnapshotInfo,
}

impl SnapshotReader {
    /// Opens a file and checks all of it, before anything of it is used.
    pub fn open(files: &dyn Files, path: &Path) -> Result<Self, SnapshotError> {
        Self::open_with(files, path, &mut |_| {})
    }

    /// Opens a file and checks all of it, and shows each chunk on the way. What is made of them must be thrown away
    /// when the file is not sound.
    pub fn open_with(
        files: &dyn Files,
        path: &Path,
        seen: &mut dyn FnMut(Bytes),
    ) -> Result<Self, SnapshotError> {
        let file = files.open(path).map_err(SnapshotError::io("open", path))?;
        let info = verify(file.as_ref(), path, seen)?;
        Ok(Self { file, info })
    }

    /// Checks all of a file; the short way to [`SnapshotReader::open`] and its [`SnapshotReader::info`].
    pub fn verify_all(files: &dyn Files, path: &Path) -> Result<SnapshotInfo, SnapshotError> {
        Ok(Self::open(files, path)?.info)
    }

    /// What the file holds.
    #[must_use]
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// The chunks, each checked again as it is read.
    #[must_use]
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks { pieces: Pieces::new(self.file.as_ref(), &self.info.path), ended: false }
    }

    /// Up to `max` bytes of the file from `offset`, to be sent to a peer; empty at the end.
    pub fn raw(&self, offset: u64, max: usize) -> Result<Bytes, SnapshotError> {
        let left =
            usize::try_from(self.info.file_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut buffer = vec![0; max.min(left)];
        let n = self
            .file
            .read_full_at(offset, &mut buffer)
            .map_err(SnapshotError::io("read", &self.info.path))?;
        buffer.truncate(n);
        Ok(buffer.into())
    }
}

fn verify(
    file: &dyn File,
    path: &Path,
    seen: &mut dyn FnMut(Bytes),
) -> Result<SnapshotInfo, SnapshotError> {
    let mut pieces = Pieces::new(file, path);
    let mut head = None;
    let totals = loop {
        match pieces.next()? {
            Piece::Head(found) => head = Some(found),
            Piece::Chunk(chunk) => seen(chunk),
            Piece::End(totals) => break totals,
        }
    };
    pieces.expect_end()?;
    let Some(head) = head else {
        return Err(SnapshotError::corrupt(path, 0, "it has no header"));
    };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if position_of(name) != Some(head.position) {
        let what = format!(
            "it covers index {} of term {}, unlike its name",
            head.position.index, head.position.term
        );
        return Err(SnapshotError::corrupt(path, 0, what));
    }
    let file_bytes = pieces.parser.offset();
    Ok(SnapshotInfo { path: path.to_owned(), head, totals, file_bytes })
}

/// The pieces of a file.
struct Pieces<'a> {
    file: &'a dyn File,
    path: PathBuf,
    parser: Parser,
    read: u64,
}

impl<'a> Pieces<'a> {
    fn new(file: &'a dyn File, path: &Path) -> Self {
        Self { file, path: path.to_owned(), parser: Parser::new(), read: 0 }
    }

    /// Reads more; false at the end of the file.
    fn more(&mut self) -> Result<bool, SnapshotError> {
        let mut buffer = vec![0; READ];
        let n = self
            .file
            .read_full_at(self.read, &mut buffer)
            .map_err(SnapshotError::io("read", &self.path))?;
        self.parser.push(&buffer[..n]);
        self.read += n as u64;
        Ok(n > 0)
    }

    fn next(&mut self) -> Result<Piece, SnapshotError> {
        loop {
            if let Some(piece) = self.parser.next(&self.path)? {
                return Ok(piece);
            }
            if !self.more()? {
                return Err(self.parser.cut_short(&self.path));
            }
        }
    }

    /// Makes sure that nothing follows the trailer.
    fn expect_end(&mut self) -> Result<(), SnapshotError> {
        while self.more()? {}
        self.parser.next(&self.path).map(|_| ())
    }
}

/// The chunks of a snapshot file, in order; ends after the first error.
pub struct Chunks<'a> {
    pieces: Pieces<'a>,
    ended: bool,
}

impl Iterator for Chunks<'_> {
    type Item = Result<Bytes, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.pieces.next() {
                Ok(Piece::Head(_)) => {}
                Ok(Piece::Chunk(chunk)) => return Some(Ok(chunk)),
                Ok(Piece::End(_)) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
