//! `palisade cluster repair`: a replica whose data is damaged or gone joins again, from its peers and under a new id.
//!
//! # Invariants
//! - `REP-1` Nothing of the replica is deleted: what it had is renamed, and only once the cluster gave it a new id.
//! - `REP-2` From then on nobody starts from what it had, and the new id's files come only when all of it is away.
//! - `REP-3` It can be ended at any point and taken up again; the cluster is asked again with the same key, which has
//!   one id.

mod finding;
mod journal;

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use palisade_api::pki::{self, PkiError};
use palisade_raft::{
    disk::{DirLock, LockError},
    offline::{Examined, OfflineError},
};

use self::journal::{MARKER, Stage};
pub use self::{
    finding::{Finding, Known},
    journal::{RepairJournal, Wanted},
};
use super::{MARKER as RECOVERY, files, stages::JournalError};
use crate::{
    init::InitError,
    join::{self, Enrolled, write_secret},
    replica_dir::{JOINED, MemberConfig, ReplicaConfig, STARTED},
};

/// The new replica's key until its other files are made.
const KEY: &str = "repair.key";
/// The new replica's files until they have their names.
const NEXT: &str = "repair.next";
/// What a replica's directory may hold, and what is set aside.
const HELD: [&str; 9] = [
    "identity.json",
    "replica.toml",
    "bootstrap.json",
    JOINED,
    STARTED,
    "pki",
    "data",
    "data.next",
    RECOVERY,
];
/// What a replica that joins begins with; with the last one it is whole.
const MADE: [&str; 4] = ["pki", "replica.toml", JOINED, "identity.json"];

/// Why a replica was not repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// There is no such directory.
    #[error("there is no directory {}", dir.display())]
    Missing {
        /// Which.
        dir: PathBuf,
    },
    /// A process runs on it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A process runs on its data.
    #[error(transparent)]
    Data(#[from] OfflineError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The new replica's key cannot be made.
    #[error("cannot make the new replica's key")]
    Key(#[from] PkiError),
    /// The new replica's files cannot be made.
    #[error("cannot make the new replica's files")]
    Files(#[from] InitError),
    /// A file cannot be moved or written.
    #[error("cannot {op} {}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It was not begun.
    #[error("no repair was begun in {}", dir.display())]
    NotBegun {
        /// The directory.
        dir: PathBuf,
    },
}

fn io_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RepairError {
    move |source| RepairError::Io { op, path: path.to_owned(), source }
}

/// What came of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The new id.
    pub id: u64,
    /// The member whose place it takes.
    pub replaces: Option<u64>,
    /// Where what it had is.
    pub aside: PathBuf,
}

/// A replica's directory that can be repaired. While it lives, no process starts from it.
pub struct Repair {
    path: PathBuf,
    finding: Finding,
    known: Known,
    config: Option<ReplicaConfig>,
    journal: Option<RepairJournal>,
    _examined: Option<Examined>,
    _only: DirLock,
}

/// Looks at a replica's directory. Changes no more than a start would. It blocks.
///
/// # Errors
/// A process runs on it, or a journal in it cannot be used.
pub fn survey_damage(path: &Path) -> Result<Repair, RepairError> {
    if !path.is_dir() {
        return Err(RepairError::Missing { dir: path.to_owned() });
    }
    let only = DirLock::acquire(path)?;
    let journal = RepairJournal::read(path)?;
    let (finding, examined) = match &journal {
        // There is nothing to be looked at any more, or not all of it.
        Some(journal) if journal.stage >= Stage::Made => {
            (Finding::Damaged(journal.why.clone()), None)
        }
        _ => finding::look(path)?,
    };
    Ok(Repair {
        path: path.to_owned(),
        finding,
        known: finding::known(path),
        config: finding::config(path),
        journal,
        _examined: examined,
        _only: only,
    })
}

impl Repair {
    /// What was found.
    #[must_use]
    pub fn finding(&self) -> &Finding {
        &self.finding
    }

    /// Whose directory it is.
    #[must_use]
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Its configuration, if that can be used.
    #[must_use]
    pub fn config(&self) -> Option<&ReplicaConfig> {
        self.config.as_ref()
    }

    /// The journal of a repair that was begun, and has only to be ended: the cluster knows of it.
    #[must_use]
    pub fn resumed(&self) -> Option<&RepairJournal> {
        self.journal.as_ref().filter(|journal| journal.stage >= Stage::Made)
    }

    /// Where what it has will be.
    #[must_use]
    pub fn aside(&self) -> PathBuf {
        match &self.journal {
            Some(journal) => journal.aside(&self.path),
            None => self.path.join(self.free_name()),
        }
    }

    fn free_name(&self) -> String {
        let id = self.known.replica.map(|id| format!("-{id}")).unwrap_or_default();
        let plain = format!("damaged{id}");
        let taken = |name: &String| fs::symlink_metadata(self.path.join(name)).is_ok();
        let more = (2_u64..).map(|number| format!("{plain}.{number}"));
        std::iter::once(plain.clone()).chain(more).find(|name| !taken(name)).unwrap_or(plain)
    }

    /// Writes down what it is to be, and answers the request for its certificate. Changes nothing else.
    ///
    /// # Errors
    /// The key cannot be made, or a file not be written.
    pub fn begin(&mut self, wanted: Wanted) -> Result<String, RepairError> {
        let key = self.path.join(KEY);
        // `REP-3`: whoever was asked before and could not answer may have enrolled that key.
        if let Some(journal) = &self.journal
            && journal.wanted == wanted
            && key.exists()
        {
            return Ok(journal.csr.clone());
        }
        let pki::Requested { key_pem, csr_pem } = pki::request_replica()?;
        write_secret(&key, key_pem.as_bytes()).map_err(io_error("write", &key))?;
        let (why, aside) = (self.finding.why().to_owned(), self.free_name());
        let mut journal = RepairJournal::begin(why, wanted, csr_pem.clone(), aside);
        journal.enter(&self.path, Stage::Planned)?;
        self.journal = Some(journal);
        Ok(csr_pem)
    }

    /// Makes the new replica's files beside the old ones, with what the cluster answered.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(crate) fn enrolled(&mut self, enrolled: &Enrolled) -> Result<(), RepairError> {
        let (path, not_begun) = (self.path.clone(), self.not_begun());
        let key = path.join(KEY);
        let key_pem = fs::read_to_string(&key).map_err(io_error("read", &key))?;
        let config = self.config.clone();
        let journal = self.journal.as_mut().ok_or(not_begun)?;
        let Wanted { peer_addr, api_addr, peer_listen, api_listen, .. } = journal.wanted.clone();
        let mut config = config.unwrap_or_else(|| join::plain_config(peer_listen, api_listen));
        (config.peer_listen, config.api_listen) = (peer_listen, api_listen);
        let is_it = |text: &String| {
            join::advertised(text).is_ok_and(|to| {
                let member = to.member();
                (member.peer_addr, member.api_addr) == (peer_addr.clone(), api_addr.clone())
            })
        };
        config.advertise = config.advertise.filter(is_it);
        let next = path.join(NEXT);
        match fs::remove_dir_all(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove what was begun in", &next)(error));
            }
            _ => {}
        }
        let id = enrolled.identity.replica.0;
        let me = MemberConfig { id, peer_addr, api_addr };
        join::write_joining(&next, enrolled, &key_pem, me, config)?;
        journal.id = Some(id);
        Ok(journal.enter(&path, Stage::Made)?)
    }

    fn not_begun(&self) -> RepairError {
        RepairError::NotBegun { dir: self.path.clone() }
    }

    /// Renames what there was, and puts the new replica in its place.
    ///
    /// # Errors
    /// A file cannot be moved; run again, it goes on where it stopped.
    pub fn carry_out(self) -> Result<Repaired, RepairError> {
        self.carry_out_until(None)
    }

    /// As [`Repair::carry_out`], and ends when it has entered a stage.
    fn carry_out_until(mut self, until: Option<Stage>) -> Result<Repaired, RepairError> {
        let not_begun = self.not_begun();
        let Some(mut journal) = self.journal.take() else { return Err(not_begun) };
        let aside = journal.aside(&self.path);
        let Some(id) = journal.id else { return Err(not_begun) };
        let repaired = Repaired { id, replaces: journal.wanted.replaces, aside: aside.clone() };
        while until != Some(journal.stage) {
            let next = match journal.stage {
                Stage::Planned => return Err(not_begun),
                Stage::Made => {
                    self.set_aside(&aside)?;
                    Stage::SetAside
                }
                Stage::SetAside => {
                    self.place()?;
                    Stage::Placed
                }
                Stage::Placed => {
                    self.end(&aside)?;
                    break;
                }
            };
            journal.enter(&self.path, next)?;
        }
        Ok(repaired)
    }

    /// `REP-1`
    fn set_aside(&self, aside: &Path) -> Result<(), RepairError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(aside)
            .map_err(io_error("make", aside))?;
        for name in HELD {
            let from = self.path.join(name);
            match fs::symlink_metadata(&from) {
                Ok(_) => files::rename_once(&from, &aside.join(name))
                    .map_err(io_error("rename", &from))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("look at", &from)(error)),
            }
        }
        Ok(())
    }

    fn place(&self) -> Result<(), RepairError> {
        let next = self.path.join(NEXT);
        for name in MADE {
            let from = next.join(name);
            files::rename_once(&from, &self.path.join(name)).map_err(io_error("rename", &from))?;
        }
        Ok(())
    }

    fn end(&self, aside: &Path) -> Result<(), RepairError> {
        let (next, key) = (self.path.join(NEXT), self.path.join(KEY));
        for (path, removed) in [(&next, fs::remove_dir(&next)), (&key, fs::remove_file(&key))] {
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", path)(error));
                }
                _ => {}
            }
        }
        let marker = self.path.join(MARKER);
        files::rename_once(&marker, &aside.join(MARKER)).map_err(io_error("rename", &marker))
    }
}

#[cfg(test)]
mod tests;
