//! The journal of a repair: how far it came, so that it can be taken up again after whatever ended it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::recovery::stages::{FORMAT, JournalError, read_journal, write_journal};

/// The journal's name in a replica's directory.
pub(super) const MARKER: &str = "repair.json";

/// How far a repair came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It is decided, and there is a key for the new replica; nothing was changed, and the old one may start.
    Planned,
    /// The cluster gave a new id, and the new replica's files are whole, beside the old ones.
    Made,
    /// What the old replica had has other names.
    SetAside,
    /// The new replica's files have their names.
    Placed,
}

/// What a replica is to be when it is repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// The id that it had, if that is known.
    pub replica: Option<u64>,
    /// The member whose place it takes, if there is one.
    pub replaces: Option<u64>,
    /// Where peers reach it.
    pub peer_addr: String,
    /// Where operators and agents reach it.
    pub api_addr: String,
    /// Where it listens for peers.
    pub peer_listen: SocketAddr,
    /// Where it listens for operators and agents.
    pub api_listen: SocketAddr,
}

/// What is written down before anything is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairJournal {
    format: u32,
    /// How far it came.
    pub stage: Stage,
    /// What was wrong, in the words of the start.
    pub why: String,
    /// What it is to be.
    pub wanted: Wanted,
    /// Its id, once the cluster gave it one.
    pub id: Option<u64>,
    /// The request for its certificate.
    pub(super) csr: String,
    /// The name of the directory, below the replica's, for what is set aside.
    pub(super) aside: String,
}

impl RepairJournal {
    pub(super) fn begin(why: String, wanted: Wanted, csr: String, aside: String) -> Self {
        Self { format: FORMAT, stage: Stage::Planned, why, wanted, id: None, csr, aside }
    }

    /// The journal in a replica's directory, if a repair was begun there and not ended.
    ///
    /// # Errors
    /// It cannot be read, or is no journal.
    pub fn read(dir: &Path) -> Result<Option<Self>, JournalError> {
        read_journal(dir.join(MARKER))
    }

    /// Whether no replica may start from this directory, because a repair may have moved its files. A journal that
    /// cannot be read says so too.
    #[must_use]
    pub fn blocks(dir: &Path) -> bool {
        !matches!(Self::read(dir), Ok(None | Some(Self { stage: Stage::Planned, .. })))
    }

    /// Enters a stage, durably.
    pub(super) fn enter(&mut self, dir: &Path, stage: Stage) -> Result<(), JournalError> {
        self.stage = stage;
        write_journal(dir.join(MARKER), self)
    }

    /// The directory for what is set aside.
    #[must_use]
    pub fn aside(&self, dir: &Path) -> PathBuf {
        dir.join(&self.aside)
    }
}
