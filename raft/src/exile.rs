//! The end of a replica that was removed, of a copy of one, and of one that has lost some of its log: it says so, and
//! never serves again.
//!
//! # Invariants
//! - `MEMBER-1` A replica that once learnt that it was removed does not start again: the mark is in its data directory
//!   before it stops.
//! - `MEMBER-6` Nor does one that learnt that its data directory is a copy, until somebody has looked and takes the mark
//!   away: each start would be a chance to take its original's place with older data.

use std::{fs, io, io::Write, path::Path, path::PathBuf, sync::Arc};

use palisade_state::ReplicaId;

use crate::{
    Identity, StartError, fault::Fault, known, log_store::LogStore, offline::OfflineError,
    peer::PeerError,
};

const REMOVED: &str = "removed.json";
const COPY: &str = "copy.json";
const LOST: &str = "lost.json";

/// What a replica remembers that must not start.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    cluster: String,
    replica: ReplicaId,
    why: String,
}

/// Where this replica hears that it must not serve again.
pub(crate) struct Exile {
    identity: Arc<Identity>,
    fault: Arc<Fault>,
    /// `None`: nothing outlives the process.
    dir: Option<PathBuf>,
    log: LogStore,
}

/// What an operator is told.
pub(crate) fn message(identity: &Identity, why: &str) -> String {
    let Identity { cluster, replica, .. } = identity;
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    format!(
        "replica {replica} was removed from cluster {cluster}{why}: it must not serve again under this id. To let \
         this machine join again, run `palisade cluster repair` on this directory, or make a new one with `palisade \
         cluster join`; this one may be deleted"
    )
}

/// What an operator is told of a copy.
fn copy_message(identity: &Identity, why: &str, dir: &Path) -> String {
    let Identity { cluster, replica, .. } = identity;
    format!(
        "this data directory is a copy of replica {replica}'s of cluster {cluster} ({why}): it is older, and must not \
         serve. To use this machine, make a new directory with `palisade cluster join`. If this is the original and the \
         other one is the copy: stop that one for good, remove {}, and start this one again",
        dir.join(COPY).display()
    )
}

/// What an operator is told of a replica whose data went back in time.
fn lost_message(identity: &Identity, why: &str) -> String {
    let Identity { cluster, replica, .. } = identity;
    format!(
        "replica {replica} of cluster {cluster} must not serve with this data: {why}. If it came back under its id, \
         writes that the cluster has acknowledged could be lost. Let it join again under a new id, with \
         `palisade cluster repair` or `palisade cluster join --replace {replica}`"
    )
}

fn read_mark(dir: &Path, name: &str) -> io::Result<Option<String>> {
    let file = dir.join(name);
    match fs::read(&file) {
        // A mark that cannot be read is one all the same.
        Ok(text) => Ok(Some(serde_json::from_slice::<Mark>(&text).map_or_else(
            |_| format!("so says {}, which is damaged itself", file.display()),
            |mark| mark.why,
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why the replica of a directory must not start.
pub(crate) enum Barred {
    Removed(String),
    Copy(String),
    Lost(String),
    /// That cannot be found out.
    Dir {
        dir: PathBuf,
        source: io::Error,
    },
}

impl From<Barred> for StartError {
    fn from(barred: Barred) -> Self {
        match barred {
            Barred::Removed(told) => Self::Removed(told),
            Barred::Copy(told) => Self::Copy(told),
            Barred::Lost(told) => Self::Lost(told),
            Barred::Dir { dir, source } => Self::Dir { dir, source },
        }
    }
}

impl From<Barred> for OfflineError {
    fn from(barred: Barred) -> Self {
        match barred {
            Barred::Removed(told) | Barred::Copy(told) => Self::Removed(told),
            Barred::Lost(told) => Self::Lost(told),
            Barred::Dir { dir, source } => Self::Dir { dir, source },
        }
    }
}

/// Fails when the replica of this directory must not start.
pub(crate) fn check(dir: &Path, identity: &Identity) -> Result<(), Barred> {
    let in_dir = |source| Barred::Dir { dir: dir.to_owned(), source };
    if let Some(why) = read_mark(dir, REMOVED).map_err(in_dir)? {
        return Err(Barred::Removed(message(identity, &why)));
    }
    if let Some(why) = read_mark(dir, LOST).map_err(in_dir)? {
        return Err(Barred::Lost(lost_message(identity, &why)));
    }
    match read_mark(dir, COPY).map_err(in_dir)? {
        Some(why) => Err(Barred::Copy(copy_message(identity, &why, dir))),
        None => Ok(()),
    }
}

impl Exile {
    pub(crate) fn new(
        identity: Arc<Identity>,
        fault: Arc<Fault>,
        dir: Option<PathBuf>,
        log: LogStore,
    ) -> Self {
        Self { identity, fault, dir, log }
    }

    /// Takes note when a peer says that this replica was removed, or that its log ends too early.
    pub(crate) fn note(&self, error: &PeerError) {
        match error {
            PeerError::Removed(why) => self.begin(why),
            PeerError::Lost { floor, .. } if self.check(*floor).is_ok() => {
                tracing::debug!(floor, "a peer judged by what this log was, not by what it is");
            }
            _ => {}
        }
    }

    /// `LOST-2`: ends this replica when its log ends before `floor`.
    ///
    /// # Errors
    /// It does.
    pub(crate) fn check(&self, floor: u64) -> Result<(), PeerError> {
        let last = self.log.reach();
        if last >= floor {
            return Ok(());
        }
        let why = known::lost(self.identity.replica.0, last, floor);
        self.end(LOST, &why, lost_message(&self.identity, &why));
        Err(PeerError::Refused(why))
    }

    /// This replica was removed.
    pub(crate) fn begin(&self, why: &str) {
        self.end(REMOVED, why, message(&self.identity, why));
    }

    /// This replica's data directory is a copy.
    pub(crate) fn copied(&self, why: &str) {
        let dir = self.dir.as_deref().unwrap_or(Path::new("its data directory"));
        self.end(COPY, why, copy_message(&self.identity, why, dir));
    }

    fn end(&self, name: &str, why: &str, told: String) {
        if self.fault.is_barred() {
            return;
        }
        if let Some(dir) = &self.dir
            && let Err(error) = self.mark(dir, name, why)
        {
            // It is told again at its next start.
            tracing::error!(error = %error, mark = name, "why this replica must not start again could not be noted");
        }
        self.fault.bar(told);
    }

    fn mark(&self, dir: &Path, name: &str, why: &str) -> io::Result<()> {
        let Identity { cluster, replica, .. } = self.identity.as_ref().clone();
        let mark = Mark { cluster, replica, why: why.to_owned() };
        let mut file = fs::File::create(dir.join(name))?;
        file.write_all(&serde_json::to_vec_pretty(&mark)?)?;
        file.sync_all()?;
        fs::File::open(dir)?.sync_all()
    }
}
