//! Receiving a snapshot from a peer.

use std::path::Path;
use std::sync::Arc;

use super::format::{Head, Parser, Piece, Totals};
use super::writer::Draft;
use super::{SnapshotError, SnapshotInfo, file_name};
use crate::disk::Files;

/// Writes what a peer sends and checks it as it comes; dropped before [`SnapshotReceiver::finish`], it leaves nothing.
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
        Ok(Self {
            draft: Draft::create(files, dir, "incoming.tmp")?,
            parser: Parser::new(),
            cluster,
            received: 0,
            head: None,
            totals: Totals::default(),
            failed: None,
        })
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
        self.draft.buffer.extend_from_slice(bytes);
        self.received += bytes.len() as u64;
        self.draft.spill()
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
        self.draft.settle()
    }

    /// When all of it has come, makes it durable and gives the file its name.
    pub fn finish(self) -> Result<SnapshotInfo, SnapshotError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let Some(head) = self.head.filter(|_| self.parser.is_ended()) else {
            return Err(self.parser.cut_short(&self.draft.path));
        };
        let (path, file_bytes) = self.draft.publish(&file_name(head.position))?;
        Ok(SnapshotInfo { path, head, totals: self.totals, file_bytes })
    }
}
