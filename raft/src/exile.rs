//! The end of a replica that was removed, and of a copy of one: it says so, and never serves again.
//!
//! # Invariants
//! - `MEMBER-1` A replica that once learnt that it was removed does not start again: the mark is in its data directory
//!   before it stops.
//! - `MEMBER-6` Nor does one that learnt that its data directory is a copy, until somebody has looked and takes the mark
//!   away: each start would be a chance to take its original's place with older data.

use std::{fs, io, io::Write, path::Path, path::PathBuf, sync::Arc};

use palisade_state::ReplicaId;

use crate::{Identity, fault::Fault, peer::PeerError};

const REMOVED: &str = "removed.json";
const COPY: &str = "copy.json";

/// What a replica remembers that must not start.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    cluster: String,
    replica: ReplicaId,
    why: String,
}

/// Where this replica hears that it must not serve again.
#[derive(Debug)]
pub(crate) struct Exile {
    identity: Arc<Identity>,
    fault: Arc<Fault>,
    /// `None`: nothing outlives the process.
    dir: Option<PathBuf>,
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

fn read_mark(dir: &Path, name: &str) -> io::Result<Option<String>> {
    match fs::read(dir.join(name)) {
        // A mark that cannot be read is one all the same.
        Ok(text) => Ok(Some(
            serde_json::from_slice::<Mark>(&text)
                .map_or_else(|_| "its mark cannot be read".to_owned(), |mark| mark.why),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why the replica of a directory must not start, as an operator is told.
pub(crate) enum Barred {
    Removed(String),
    Copy(String),
}

/// Whether the replica of this directory must not start.
pub(crate) fn barred(dir: &Path, identity: &Identity) -> io::Result<Option<Barred>> {
    if let Some(why) = read_mark(dir, REMOVED)? {
        return Ok(Some(Barred::Removed(message(identity, &why))));
    }
    let copy = read_mark(dir, COPY)?;
    Ok(copy.map(|why| Barred::Copy(copy_message(identity, &why, dir))))
}

impl Exile {
    pub(crate) fn new(identity: Arc<Identity>, fault: Arc<Fault>, dir: Option<PathBuf>) -> Self {
        Self { identity, fault, dir }
    }

    /// Takes note when a peer says that this replica was removed.
    pub(crate) fn note(&self, error: &PeerError) {
        if let PeerError::Removed(why) = error {
            self.begin(why);
        }
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
