//! `palisade cluster recover`: the last replica that is left goes on alone.
//!
//! # Invariants
//! - `REC-1` Nothing of the old life is deleted: its data, identity and configuration are renamed.
//! - `REC-2` The new life has another cluster id and a higher epoch, so a replica of the old one that comes back is
//!   refused, and its fences are outranked.
//! - `REC-3` It can be ended at any point and taken up again: each step is done at most once or leaves the same.
//! - `REC-4` However often it is taken up again, the other members are asked first, and until it is through it can be
//!   given up: what was a copy goes, what was renamed gets its name back.
//!
//! The backup comes first. Only when it is whole is there a journal, and only from then on does `palisade serve` refuse
//! the directory: a recovery that fails before that has changed nothing.

mod abandon;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use palisade_api::pki::{Authority, Identity as Certificate, PkiError};
use palisade_raft::{
    Identity, Member,
    backup::{BackupError, BackupMember, write_backup},
    disk::{DirLock, LockError},
    offline::{OfflineError, Reborn, Survivor, SurvivorMember, seed},
};
use palisade_state::{Formation, ReplicaId, Tx, command::AuditDraft};
use serde_json::json;

use super::{
    EPOCH_MAX, Reach, Source, files, reach,
    renew::renew_specs,
    stages::{Journal, JournalError, JournalMember, MARKER, Stage},
};
use crate::{
    edge,
    init::new_id,
    replica_dir::{DirError, MemberConfig, ReplicaDir},
};

pub use abandon::abandon;

/// What `recover` needs.
#[derive(Clone, Debug)]
pub struct RecoverOptions {
    /// The survivor's directory.
    pub dir: PathBuf,
    /// The epoch of the new life; one more than the old one's unless it is said.
    pub epoch: Option<u64>,
    /// Do it without a backup of what the survivor has. Its data is kept under another name all the same.
    pub without_backup: bool,
}

/// Why a survivor was not recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// Its directory.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// Its data.
    #[error(transparent)]
    Data(#[from] OfflineError),
    /// Its certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The backup of what it has.
    #[error("what this replica has cannot be backed up")]
    Backup(#[from] BackupError),
    /// The CA's key cannot be sealed for the backup.
    #[error("the CA's key cannot be sealed for the backup: it needs the cluster's backup key")]
    BackupKey(#[source] BackupError),
    /// Another recovery runs.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// No cluster after it could have a higher one.
    #[error("epoch {given} is too high: the highest is {EPOCH_MAX}")]
    EpochTooHigh {
        /// What was given.
        given: u64,
    },
    /// The epoch is not above the old one.
    #[error("epoch {given} is not above this replica's, {own}")]
    Epoch {
        /// What was given.
        given: u64,
        /// Its own.
        own: u64,
    },
    /// A recovery with another epoch was begun.
    #[error("a recovery to epoch {begun} was begun here, and {given} is another one")]
    Begun {
        /// Of the one that was begun.
        begun: u64,
        /// What was given.
        given: u64,
    },
    /// The first entries of the new life cannot be built.
    #[error("the first entries of the new life cannot be built")]
    First(#[source] palisade_contract::Error),
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
}

/// The new life's data, until it has its name.
const NEXT: &str = "data.next";
/// What the new life has of its own beside its data.
const CONFIGURATION: [&str; 2] = ["identity.json", "replica.toml"];

fn io_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecoverError {
    move |source| RecoverError::Io { op, path: path.to_owned(), source }
}

/// What a survivor knows, and what a recovery would do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What will be written down.
    pub journal: Journal,
    /// Whether it was begun before, and is only to be ended.
    pub is_resumed: bool,
    /// The members that the survivor knows, and whether the others can be reached.
    pub members: Vec<(SurvivorMember, Option<Reach>)>,
    /// Up to where it knows that entries are committed; 0 once the new life's data is made.
    pub committed: u64,
    /// The last entry that it has; 0 once the new life's data is made.
    pub last: u64,
    /// The revision that the new life begins with.
    pub revision: u64,
    /// What its log has lost, in a sentence: it must not serve in its old life again.
    pub lost: Option<String>,
}

impl Plan {
    /// Whether the survivor is its cluster's only voter: then there is nothing to recover.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        let others = |(member, _): &&(SurvivorMember, Option<Reach>)| {
            member.voter && member.id != self.journal.replica
        };
        !self.is_resumed && self.members.iter().find(others).is_none()
    }

    /// How many of the other voters can be reached.
    #[must_use]
    pub fn reachable(&self) -> usize {
        let answers = |reach: &Option<Reach>| *reach == Some(Reach::Answers);
        self.members.iter().filter(|(member, reach)| member.voter && answers(reach)).count()
    }

    /// Whether the survivor and those that it can reach are more than half of the voters.
    #[must_use]
    pub fn has_quorum(&self) -> bool {
        let voters = self.members.iter().filter(|(member, _)| member.voter).count();
        voters > 0 && (self.reachable() + 1) * 2 > voters
    }
}

/// A recovery that can be carried out.
pub struct Recovery {
    dir: ReplicaDir,
    plan: Plan,
    source: Source,
    survivor: Option<Survivor>,
    without_backup: bool,
    _only: DirLock,
}

/// Looks at a survivor: what it knows, whom it reaches, what would be done. Changes nothing but the torn end of a
/// log, as a start would. It blocks.
///
/// # Errors
/// It is in use, damaged, or not a replica's directory.
pub fn survey(options: &RecoverOptions) -> Result<Recovery, RecoverError> {
    let dir = ReplicaDir::read(&options.dir)?;
    let only = DirLock::acquire(&options.dir)?;
    let authority = Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key"))?;
    let certificate = Certificate::load(&dir.pki("replica.pem"), &dir.pki("replica.key"))?;
    let source = Source::new(&dir, &authority);
    let begun = Journal::read(&options.dir)?;
    let needs_survivor = begun.as_ref().is_none_or(|journal| journal.stage < Stage::Made);
    let survivor = if needs_survivor { Some(Survivor::read(&dir.data())?) } else { None };
    let mut plan = match (begun, &survivor) {
        (Some(journal), survivor) => resumed(journal, survivor.as_ref(), options.epoch)?,
        (None, Some(survivor)) => plan(&dir, survivor, options.epoch)?,
        // `needs_survivor` is true without a journal.
        (None, None) => return Err(OfflineError::Unused { dir: dir.data() }.into()),
    };
    // REC-4: they may have come back since it was begun.
    let me = plan.journal.replica;
    for (member, found) in plan.members.iter_mut().filter(|(member, _)| member.id != me) {
        *found = Some(reach(member.id, &member.peer_addr, &authority, &certificate));
    }
    let without_backup = options.without_backup;
    Ok(Recovery { dir, plan, source, survivor, without_backup, _only: only })
}

/// What is left to do of a recovery that was begun.
fn resumed(
    mut journal: Journal,
    survivor: Option<&Survivor>,
    epoch: Option<u64>,
) -> Result<Plan, RecoverError> {
    if let Some(given) = epoch.filter(|given| *given != journal.epoch) {
        return Err(RecoverError::Begun { begun: journal.epoch, given });
    }
    if let Some(survivor) = survivor.filter(|_| journal.members.is_empty()) {
        journal.members = survivor.members.iter().map(noted).collect();
    }
    let members = journal.members.iter().map(|member| (known(member), None)).collect();
    Ok(Plan {
        is_resumed: true,
        members,
        committed: survivor.and_then(|survivor| survivor.committed).unwrap_or(0),
        last: survivor.map_or(0, |survivor| survivor.last),
        revision: survivor.map_or(0, |survivor| survivor.view().revision()),
        lost: survivor.and_then(|survivor| survivor.lost.clone()),
        journal,
    })
}

fn noted(member: &SurvivorMember) -> JournalMember {
    let SurvivorMember { id, peer_addr, api_addr, voter } = member.clone();
    JournalMember { id, peer_addr, api_addr, voter }
}

fn known(member: &JournalMember) -> SurvivorMember {
    let JournalMember { id, peer_addr, api_addr, voter } = member.clone();
    SurvivorMember { id, peer_addr, api_addr, voter }
}

fn plan(dir: &ReplicaDir, survivor: &Survivor, epoch: Option<u64>) -> Result<Plan, RecoverError> {
    let Identity { cluster, lineage, epoch: own, replica } = survivor.identity.clone();
    let epoch = epoch.unwrap_or(own.saturating_add(1));
    if epoch > EPOCH_MAX {
        return Err(RecoverError::EpochTooHigh { given: epoch });
    }
    if epoch <= own {
        return Err(RecoverError::Epoch { given: epoch, own });
    }
    let mut journal = Journal::begin((cluster, own), new_id("cl"), lineage, epoch);
    journal.replica = replica.0;
    journal.members = survivor.members.iter().map(noted).collect();
    // The record of the membership knows of changed addresses; the file only of the first.
    let recorded = survivor.members.iter().find(|member| member.id == replica.0);
    (journal.peer_addr, journal.api_addr) = match recorded {
        Some(member) => (member.peer_addr.clone(), member.api_addr.clone()),
        None => {
            let Member { peer_addr, api_addr, .. } = dir.member()?;
            (peer_addr, api_addr)
        }
    };
    Ok(Plan {
        journal,
        is_resumed: false,
        members: survivor.members.iter().map(|member| (member.clone(), None)).collect(),
        committed: survivor.committed.unwrap_or(0),
        last: survivor.last,
        revision: survivor.view().revision(),
        lost: survivor.lost.clone(),
    })
}

impl Recovery {
    /// What it would do.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where what is set aside goes, and the backup.
    #[must_use]
    pub fn places(&self) -> (PathBuf, PathBuf) {
        let journal = &self.plan.journal;
        (journal.aside(&self.dir.path), journal.backup(&self.dir.path))
    }

    /// Does it. It blocks.
    ///
    /// # Errors
    /// See [`RecoverError`]; it can be taken up again.
    pub fn carry_out(self) -> Result<(), RecoverError> {
        self.carry_out_until(None)
    }

    /// Does it, and stops once `until` is entered into the journal.
    fn carry_out_until(mut self, until: Option<Stage>) -> Result<(), RecoverError> {
        let dir = self.dir.path.clone();
        if !self.plan.is_resumed {
            self.back_up()?;
            self.plan.journal.enter(&dir, Stage::BackedUp)?;
        }
        while until != Some(self.plan.journal.stage) {
            let next = match self.plan.journal.stage {
                Stage::Planned => {
                    self.back_up()?;
                    Stage::BackedUp
                }
                Stage::BackedUp => {
                    self.make()?;
                    Stage::Made
                }
                Stage::Made => {
                    self.set_aside()?;
                    Stage::SetAside
                }
                Stage::SetAside => {
                    let (from, to) = (dir.join(NEXT), self.dir.data());
                    files::rename_once(&from, &to).map_err(io_error("rename", &from))?;
                    Stage::Placed
                }
                Stage::Placed => {
                    self.configure()?;
                    Stage::Configured
                }
                Stage::Configured => return self.end(),
            };
            self.plan.journal.enter(&dir, next)?;
        }
        Ok(())
    }

    fn survivor(&self) -> Result<&Survivor, RecoverError> {
        let unused = || OfflineError::Unused { dir: self.dir.data() };
        Ok(self.survivor.as_ref().ok_or_else(unused)?)
    }

    fn back_up(&self) -> Result<(), RecoverError> {
        if self.without_backup {
            return Ok(());
        }
        let survivor = self.survivor()?;
        let Identity { cluster, lineage, epoch, .. } = survivor.identity.clone();
        let member = |member: &SurvivorMember| BackupMember {
            id: member.id,
            peer_addr: member.peer_addr.clone(),
            api_addr: member.api_addr.clone(),
            voter: member.voter,
        };
        let members = survivor.members.iter().map(member).collect();
        let head = self.source.head_of((cluster, lineage, epoch), members, edge::wall_ms());
        let head = head.map_err(RecoverError::BackupKey)?;
        write_backup(&self.plan.journal.backup(&self.dir.path), head, &survivor.view())?;
        Ok(())
    }

    /// The new life's data, beside the old.
    fn make(&mut self) -> Result<(), RecoverError> {
        let journal = &self.plan.journal;
        let unused = || OfflineError::Unused { dir: self.dir.data() };
        let survivor = self.survivor.take().ok_or_else(unused)?;
        let unsure = survivor.last.saturating_sub(survivor.committed.unwrap_or(0));
        let term = survivor.term;
        let formation = Formation {
            cluster: journal.cluster.clone(),
            lineage: journal.lineage.clone(),
            epoch: journal.epoch,
        };
        let (state, _locked) = survivor.into_state();
        let mut reborn = Reborn::new(state, formation);
        let mut tx = Tx::new(reborn.view());
        tx.audit(AuditDraft {
            actor: format!("replica/{}", journal.replica),
            method: "cluster.recover".to_owned(),
            resource: "cluster/*".to_owned(),
            outcome: "ok".to_owned(),
            ..AuditDraft::default()
        });
        let data = json!({"fromCluster": journal.from_cluster, "replica": journal.replica,
            "entriesThatMayNotHaveBeenCommitted": unsure});
        tx.publish("cluster.recovered", "", "cluster/*".to_owned(), &data);
        reborn.commit(edge::wall_ms(), tx)?;
        renew_specs(&mut reborn).map_err(RecoverError::First)?;
        let next = self.dir.path.join(NEXT);
        remove_begun(&next)?;
        seed(&next, &self.identity(), &reborn.view(), term, &[self.member()])?;
        Ok(())
    }

    fn identity(&self) -> Identity {
        let Journal { cluster, lineage, epoch, replica, .. } = self.plan.journal.clone();
        Identity { cluster, lineage, epoch, replica: ReplicaId(replica) }
    }

    fn member(&self) -> Member {
        (&self.member_config()).into()
    }

    fn member_config(&self) -> MemberConfig {
        let Journal { replica: id, peer_addr, api_addr, .. } = self.plan.journal.clone();
        MemberConfig { id, peer_addr, api_addr }
    }

    /// `REC-1`.
    fn set_aside(&self) -> Result<(), RecoverError> {
        let (dir, aside) = (&self.dir.path, self.plan.journal.aside(&self.dir.path));
        fs::create_dir_all(&aside).map_err(io_error("make", &aside))?;
        files::sync_dir(dir).map_err(io_error("make", &aside))?;
        for name in CONFIGURATION {
            // Durable before the originals are replaced.
            let copy = |bytes: Vec<u8>| files::replace(&aside.join(name), &bytes, 0o644);
            fs::read(dir.join(name)).and_then(copy).map_err(io_error("copy", &dir.join(name)))?;
        }
        let data = self.dir.data();
        files::rename_once(&data, &aside.join("data")).map_err(io_error("rename", &data))
    }

    fn configure(&self) -> Result<(), RecoverError> {
        let mut config = self.dir.config.clone();
        config.members = vec![self.member_config()];
        let config = toml::to_string(&config).map_err(io::Error::other);
        let identity = serde_json::to_string(&self.identity()).map_err(io::Error::other);
        for (name, text) in [("replica.toml", config), ("identity.json", identity)] {
            let path = self.dir.path.join(name);
            text.and_then(|text| files::replace(&path, text.as_bytes(), 0o644))
                .map_err(io_error("write", &path))?;
        }
        Ok(())
    }

    fn end(&self) -> Result<(), RecoverError> {
        let marker = self.dir.path.join(MARKER);
        let kept = self.plan.journal.aside(&self.dir.path).join(MARKER);
        files::rename_once(&marker, &kept).map_err(io_error("rename", &marker))
    }
}

fn remove_begun(next: &Path) -> Result<(), RecoverError> {
    match fs::remove_dir_all(next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove what was begun in", next)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
