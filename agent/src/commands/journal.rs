//! The journal of commands: which ones this node has begun, and what became of them.
//!
//! # Invariants
//! - `SPEC-1` (its like) What is on disk is whole: its checksum is compared before it is believed.

use std::{collections::BTreeMap, io, path::PathBuf};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{driver::Problem, durable, edge::blocking, fence::Fence};

const MAGIC: &[u8; 8] = b"PALCMDS1";
const HEADER_BYTES: usize = 8 + 32;
/// Ended and taken commands whose ids are remembered.
const TAKEN_MAX: usize = 256;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// What went wrong; nothing: it was done.
    pub problem: Option<Problem>,
    /// What it answers.
    pub data: Value,
}

/// A command that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place among all.
    pub seq: u64,
    /// Its kind.
    pub kind: String,
    /// It may be begun again when its end is not known.
    pub retry_safe: bool,
    /// The agent ends with it.
    pub self_terminating: bool,
    /// How it ended, if it has.
    pub ended: Option<Ended>,
    /// The control plane has its end.
    pub taken: bool,
}

/// All that is remembered of commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// The highest fence that was heard.
    pub fence: Fence,
    /// An earlier journal was damaged: of a command that is not in this one, nothing is known.
    #[serde(default)]
    pub lost: bool,
    /// The last entry's place.
    pub seq: u64,
    /// By id.
    pub entries: BTreeMap<String, Entry>,
}

impl Journal {
    /// Notes a command that is about to begin.
    pub(super) fn begin(&mut self, id: &str, kind: &str, retry_safe: bool, self_terminating: bool) {
        self.seq += 1;
        let (seq, kind) = (self.seq, kind.to_owned());
        let entry = Entry { seq, kind, retry_safe, self_terminating, ended: None, taken: false };
        self.entries.insert(id.to_owned(), entry);
    }

    /// Decides about what was begun and not ended when the agent itself ended (`ACMD-1`).
    pub(super) fn restarted(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.ended.is_none()) {
            let problem = if entry.self_terminating {
                None
            } else if entry.retry_safe {
                continue;
            } else {
                Some(Problem::new(
                    "INTERRUPTED",
                    "the agent was ended in the middle of it: whether it was done is not known",
                ))
            };
            entry.ended = Some(Ended { problem, data: Value::Null });
        }
    }

    /// Forgets the answer of a command that the control plane has taken, and the oldest of those.
    pub(super) fn take(&mut self, id: &str) -> bool {
        let Some(entry) = self.entries.get_mut(id) else { return false };
        let Some(ended) = entry.ended.as_mut().filter(|_| !entry.taken) else { return false };
        ended.data = Value::Null;
        entry.taken = true;
        let mut taken: Vec<(u64, String)> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.taken)
            .map(|(id, entry)| (entry.seq, id.clone()))
            .collect();
        taken.sort();
        let surplus = taken.len().saturating_sub(TAKEN_MAX);
        for (_, id) in taken.into_iter().take(surplus) {
            self.entries.remove(&id);
        }
        true
    }
}

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: check the disk", path.display())]
pub struct JournalError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Where the journal is kept. When `save` has answered, it is durable.
pub trait JournalStore: Send + Sync + 'static {
    /// The last one saved; a damaged one is put aside, and the new one says so.
    fn load(&self) -> BoxFuture<'static, Result<Journal, JournalError>>;
    /// Keeps it durably.
    fn save(&self, journal: &Journal) -> BoxFuture<'static, Result<(), JournalError>>;
}

/// A file with a checksum.
#[derive(Clone, Debug)]
pub struct FileJournal {
    path: PathBuf,
}

impl FileJournal {
    /// Kept at `path`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn read(&self) -> io::Result<Journal> {
        let Some(bytes) = durable::read(&self.path)? else { return Ok(Journal::default()) };
        if let Some(journal) = decode(&bytes) {
            return Ok(journal);
        }
        let aside = self.path.with_extension("damaged");
        tracing::error!(
            path = %self.path.display(),
            aside = %aside.display(),
            "the journal of commands is damaged: of commands that were sent before nothing is known any more"
        );
        std::fs::rename(&self.path, aside)?;
        let journal = Journal { lost: true, ..Journal::default() };
        durable::write(&self.path, &encode(&journal)?, 0o600)?;
        Ok(journal)
    }
}

fn decode(bytes: &[u8]) -> Option<Journal> {
    let (magic, sum, body) =
        (bytes.get(..8)?, bytes.get(8..HEADER_BYTES)?, bytes.get(HEADER_BYTES..)?);
    let is_whole = magic == MAGIC && Sha256::digest(body).as_slice() == sum;
    is_whole.then(|| serde_json::from_slice(body).ok())?
}

fn encode(journal: &Journal) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(journal)?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&Sha256::digest(&body));
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

impl JournalStore for FileJournal {
    fn load(&self) -> BoxFuture<'static, Result<Journal, JournalError>> {
        let this = self.clone();
        Box::pin(async move {
            let path = this.path.clone();
            blocking(move || this.read())
                .await
                .and_then(|result| result)
                .map_err(|source| JournalError { path, source })
        })
    }

    fn save(&self, journal: &Journal) -> BoxFuture<'static, Result<(), JournalError>> {
        let (path, bytes) = (self.path.clone(), encode(journal));
        Box::pin(async move {
            let file = path.clone();
            let written = match bytes {
                Ok(bytes) => blocking(move || durable::write(&file, &bytes, 0o600)).await,
                Err(error) => Ok(Err(error)),
            };
            written.and_then(|result| result).map_err(|source| JournalError { path, source })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended() -> Option<Ended> {
        Some(Ended { problem: None, data: Value::from(1) })
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let file = FileJournal::new(dir.path().join("commands"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert_eq!(file.load().await.unwrap(), Journal::default());
            let mut journal = Journal::default();
            journal.begin("a", "k", false, false);
            journal.fence = Fence { epoch: 1, term: 0, index: 7 };
            file.save(&journal).await.unwrap();
            assert_eq!(file.load().await.unwrap(), journal);
        });
    }

    #[test]
    fn a_damaged_one_is_put_aside_and_the_next_one_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("commands");
        let file = FileJournal::new(path.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut journal = Journal::default();
            journal.begin("a", "k", false, false);
            file.save(&journal).await.unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            let last = bytes.len() - 3;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            for _ in 0..2 {
                let loaded = file.load().await.unwrap();
                assert!(loaded.lost && loaded.entries.is_empty(), "{loaded:?}");
            }
        });
        assert!(dir.path().join("commands.damaged").exists());
    }

    #[test]
    fn a_restart_ends_what_may_not_be_begun_again() {
        let mut journal = Journal::default();
        journal.begin("once", "k", false, false);
        journal.begin("again", "k", true, false);
        journal.begin("ends-agent", "k", false, true);
        journal.begin("done", "k", false, false);
        journal.entries.get_mut("done").unwrap().ended = ended();
        journal.restarted();
        let of = |id: &str| journal.entries[id].ended.clone();
        assert_eq!(of("once").unwrap().problem.unwrap().code, "INTERRUPTED");
        assert_eq!(of("again"), None);
        assert_eq!(of("ends-agent").unwrap().problem, None);
        assert_eq!(of("done"), ended());
    }

    #[test]
    fn ids_of_what_was_taken_are_remembered_for_a_while_and_all_others_as_long_as_it_takes() {
        let mut journal = Journal::default();
        for n in 0..TAKEN_MAX + 10 {
            let id = n.to_string();
            journal.begin(&id, "k", false, false);
            assert!(!journal.take(&id), "it has not ended");
            if n != 3 {
                journal.entries.get_mut(&id).unwrap().ended = ended();
                assert!(journal.take(&id) && !journal.take(&id));
            }
        }
        assert_eq!(journal.entries.len(), TAKEN_MAX + 1);
        assert!(journal.entries.contains_key("3") && !journal.entries.contains_key("2"));
        assert!(!journal.take("nobody"));
    }
}
