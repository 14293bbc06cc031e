//! Receiving a snapshot from a peer.

use std::path::Path;
use std::sync::Arc;

use super::format::{Head, Parser, Piece, Totals};
use super::writer::Draft;
use super::{SnapshotError, SnapshotInfo, file_name};
use crate::disk::Files;
use crate::wal::Position;

/// How much is read at a time.
const READ: usize = 1 << 20;

/// Which snapshot file is received. What an earlier attempt left is gone on with only for the very same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The last log entry that it covers.
    pub position: Position,
    /// The file's length.
    pub bytes: u64,
    /// The running checksum in its trailer; 0 when the sender does not say: such a one is not gone on with.
    pub crc: u32,
}

impl Part {
    fn file_name(&self) -> String {
        let Position { term, index } = self.position;
        format!("{index}-{term}-{}-{:08x}{PART}", self.bytes, self.crc)
    }
}

/// What the name of a snapshot ends with of which not all has come.
const PART: &str = ".part";

fn parts(files: &dyn Files, dir: &Path) -> Result<Vec<String>, SnapshotError> {
    match files.list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => {
            let mut names = listed.map_err(SnapshotError::io("list", dir))?;
            names.retain(|name| name.ends_with(PART));
            Ok(names)
        }
    }
}

fn remove(files: &dyn Files, dir: &Path, name: &str) -> Result<(), SnapshotError> {
    let path = dir.join(name);
    files.remove(&path).map_err(SnapshotError::io("remove", &path))
}

/// Removes what was received in part of snapshots up to index `covered`: nobody will send the rest.
pub fn clean_parts(files: &dyn Files, dir: &Path, covered: u64) -> Result<(), SnapshotError> {
    let index = |name: &str| name.split('-').next().and_then(|index| index.parse::<u64>().ok());
    for name in parts(files, dir)? {
        if index(&name).is_none_or(|index| index <= covered) {
            remove(files, dir, &name)?;
        }
    }
    Ok(())
}

/// Writes what a peer sends and checks it as it comes. One that was [created](SnapshotReceiver::create) leaves nothing
/// when it is dropped before it has its name; one that was [resumed](SnapshotReceiver::resume) leaves what it has.
///
/// Errors name the file that is being received; its offsets are those of the sender's file.
pub struct SnapshotReceiver {
    draft: Draft,
    parser: Parser,
    cluster: [u8; 16],
    received: u64,
    head: Option<Head>,
    totals: Totals,
    failed: Option<SnapshotError>,
}

impl SnapshotReceiver {
    /// Begins to receive a snapshot of `cluster` into `dir`. One directory has one receiver at a time.
    pub fn create(
        files: Arc<dyn Files>,
        dir: &Path,
        cluster: [u8; 16],
    ) -> Result<Self, SnapshotError> {
        Ok(Self::over(Draft::create(files, dir, "incoming.tmp")?, cluster))
    }

    /// Goes on with what there is of `part`, and removes what there is of others.
    pub fn resume(
        files: Arc<dyn Files>,
        dir: &Path,
        cluster: [u8; 16],
        part: &Part,
    ) -> Result<Self, SnapshotError> {
        let name = part.file_name();
        for other in parts(files.as_ref(), dir)?.iter().filter(|other| **other != name) {
            remove(files.as_ref(), dir, other)?;
        }
        let mut receiver = Self::over(Draft::resume(files, dir, &name)?, cluster);
        receiver.take_again()?;
        Ok(receiver)
    }

    fn over(draft: Draft, cluster: [u8; 16]) -> Self {
        Self {
            draft,
            parser: Parser::new(),
            cluster,
            received: 0,
            head: None,
            totals: Totals::default(),
            failed: None,
        }
    }

    /// Takes what is whole and sound of what the file holds; the rest will be written again.
    fn take_again(&mut self) -> Result<(), SnapshotError> {
        let mut buffer = vec![0; READ];
        let mut read = 0;
        loop {
            let n = self.draft.read(read, &mut buffer)?;
            read += n as u64;
            self.parser.push(&buffer[..n]);
            match self.pieces() {
                Ok(()) if n == READ => {}
                Ok(()) | Err(SnapshotError::Corrupt { .. }) => break,
                Err(_) => {
                    (self.parser, self.head) = (Parser::new(), None);
                    break;
                }
            }
        }
        self.parser.cut();
        self.received = self.parser.offset();
        self.draft.go_on(self.received);
        Ok(())
    }

    /// Leaves nothing.
    pub fn discard(mut self) {
        self.draft.kept = false;
    }

    /// How many bytes were received: where a broken connection resumes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.received
    }

    /// What the snapshot is of, once its header has come.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Takes the next bytes of the sender's file. After an error only starting over helps.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let taken = self.take(bytes);
        if let Err(error) = &taken {
            self.failed = Some(error.clone());
        }
        taken
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.parser.push(bytes);
        self.pieces()?;
        self.draft.buffer.extend_from_slice(bytes);
        self.received += bytes.len() as u64;
        self.draft.spill()
    }

    fn pieces(&mut self) -> Result<(), SnapshotError> {
        while let Some(piece) = self.parser.next(&self.draft.path)? {
            match piece {
                Piece::Head(head) if head.cluster != self.cluster => {
                    return Err(SnapshotError::Foreign { file: self.draft.path.clone() });
                }
                Piece::Head(head) => self.head = Some(head),
                Piece::Chunk(_) => {}
                Piece::End(totals) => self.totals = totals,
            }
        }
        Ok(())
    }

    /// When all of it has come, makes it durable without a name: after that [`SnapshotReceiver::finish`] needs no
    /// more room.
    pub fn settle(&mut self) -> Result<(), SnapshotError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if self.head.is_none() || !self.parser.is_ended() {
            return Err(self.parser.cut_short(&self.draft.path));
        }
        self.draft.settle()?;
        // From here on it gets its name, or nobody wants it.
        self.draft.kept = false;
        Ok(())
    }

    /// When all of it has come, makes it durable and gives the file its name.
    pub fn finish(mut self) -> Result<SnapshotInfo, SnapshotError> {
        self.name()
    }

    /// What [`SnapshotReceiver::finish`] does; can be tried again when there was no room for the name.
    pub fn name(&mut self) -> Result<SnapshotInfo, SnapshotError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let Some(head) = self.head.clone().filter(|_| self.parser.is_ended()) else {
            return Err(self.parser.cut_short(&self.draft.path));
        };
        let (path, file_bytes) = self.draft.publish(&file_name(head.position))?;
        let (totals, crc) = (self.totals, self.parser.crc());
        Ok(SnapshotInfo { path, head, totals, file_bytes, crc })
    }
}
