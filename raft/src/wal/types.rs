//! What the log stores, as its users see it.

use bytes::Bytes;

/// A place in the log: the entry's index and the term it was proposed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The term of the entry's proposer.
    pub term: u64,
    /// The entry's index.
    pub index: u64,
}

/// A vote, as the election protocol persists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The term voted in.
    pub term: u64,
    /// The candidate, or the leader.
    pub node: u64,
    /// Whether a quorum granted it, so that `node` is the leader.
    pub committed: bool,
}

/// One log entry; the payload is opaque here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRecord {
    /// The entry's term.
    pub term: u64,
    /// The entry's index.
    pub index: u64,
    /// The encoded entry.
    pub payload: Bytes,
}

impl EntryRecord {
    /// The entry's place.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { term: self.term, index: self.index }
    }
}

/// One change of the log. All kinds go into one stream, which orders them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Entries that follow the last one without a gap.
    Append(Vec<EntryRecord>),
    /// The vote from now on; its term never decreases.
    Vote(Vote),
    /// Everything up to here is known to be committed; a hint, never awaited.
    Committed(Position),
    /// All entries behind this place (all entries, for `None`) are void.
    TruncateAfter(Option<Position>),
    /// All entries up to and including this place are covered by a durable snapshot.
    Purge(Position),
}

/// Whose log it is; a segment of another cluster or replica is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's id.
    pub cluster: [u8; 16],
    /// The replica's id.
    pub replica: u64,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cluster ")?;
        self.cluster.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " replica {}", self.replica)
    }
}

/// The log's state besides its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// The newest vote.
    pub vote: Option<Vote>,
    /// The newest committed mark.
    pub committed: Option<Position>,
    /// Everything up to here is purged.
    pub purged: Option<Position>,
    /// The last entry, or `purged` when there is none behind it.
    pub last: Option<Position>,
}

impl State {
    /// The index that the next entry must have, if that is determined: an empty log may begin anywhere.
    #[must_use]
    pub fn next_index(&self) -> Option<u64> {
        self.last.map(|last| last.index.saturating_add(1))
    }

    /// Takes one record into account; the error says in what way the record does not fit.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Append(entries) => self.append(entries)?,
            Record::Vote(vote) => {
                if let Some(had) = self.vote.filter(|had| had.term > vote.term) {
                    return Err(format!(
                        "a vote in term {} after one in term {}",
                        vote.term, had.term
                    ));
                }
                self.vote = Some(*vote);
            }
            Record::Committed(position) => self.committed = Some(*position),
            Record::TruncateAfter(after) => {
                if after.map(|p| p.index) < self.purged.map(|p| p.index) {
                    return Err("a truncation of entries that are purged".to_owned());
                }
                if after.map(|p| p.index) < self.last.map(|p| p.index) {
                    self.last = *after;
                }
            }
            Record::Purge(to) => {
                if self.purged.is_none_or(|purged| purged.index < to.index) {
                    self.purged = Some(*to);
                }
                if self.last.is_none_or(|last| last.index < to.index) {
                    self.last = Some(*to);
                }
            }
        }
        Ok(())
    }

    fn append(&mut self, entries: &[EntryRecord]) -> Result<(), String> {
        for entry in entries {
            if let Some(next) = self.next_index().filter(|next| *next != entry.index) {
                return Err(format!("entry {} where entry {next} was expected", entry.index));
            }
            self.last = Some(entry.position());
        }
        Ok(())
    }
}

/// What was on disk when the log was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// The vote, committed, purged and last marks.
    pub state: State,
    /// All entries behind `state.purged`, in order and without a gap.
    pub entries: Vec<EntryRecord>,
    /// Bytes that were written but never acknowledged, and were cut away.
    pub cut: Option<Cut>,
    /// How many segments there are.
    pub segments: usize,
}

/// A torn tail that was cut when the log was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: std::path::PathBuf,
    /// Where the log now ends.
    pub offset: u64,
    /// How many bytes were cut, up to the last one that was not zero.
    pub bytes: u64,
}

/// Observes the named points of the log's life; the simulator and the crash tests stop there.
///
/// The points: `wal.open.rewritten`, `wal.open.settled`; `wal.after_write`, `wal.before_sync`, `wal.after_sync`,
/// `wal.before_callback`; `wal.prepare.zeroed`, `wal.rotate.sealed`, `wal.rotate.created` (before its directory is
/// synced), `wal.rotate.done`; `wal.drop.removed`. Some are reported from the helper thread.
pub trait Hooks: Send + Sync {
    /// The log is at `point`; it goes on when this returns.
    fn on_point(&self, point: &'static str);
}

/// Observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {
    fn on_point(&self, _point: &'static str) {}
}

/// Sizes and limits of a log.
#[derive(Clone)]
pub struct Options {
    /// The size of a segment, and with it the largest entry.
    pub segment_bytes: u64,
    /// The size of the first segment; each following one is four times larger, up to
    /// `segment_bytes`. A new replica then need not wait for 64 MiB of zeros.
    pub first_segment_bytes: u64,
    /// Below this much free space the log calls itself low; below half of it entries are refused.
    pub reserve_bytes: u64,
    /// Entries are gathered into records of about this size.
    pub record_bytes: usize,
    /// How many waiting requests one sync may cover.
    pub batch_items: usize,
    /// How many waiting bytes one sync may cover.
    pub batch_bytes: usize,
    /// How many bytes may wait before [`super::Handle::room`] makes callers wait.
    pub queue_bytes: usize,
    /// Where the named points are reported.
    pub hooks: std::sync::Arc<dyn Hooks>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            first_segment_bytes: 4 << 20,
            reserve_bytes: 64 << 20,
            record_bytes: 256 << 10,
            batch_items: 512,
            batch_bytes: 4 << 20,
            queue_bytes: 32 << 20,
            hooks: std::sync::Arc::new(NoHooks),
        }
    }
}
