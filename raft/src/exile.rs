//! The end of a replica that was removed: it says so, and never serves again.
//!
//! # Invariants
//! - `MEMBER-1` A replica that once learnt that it was removed does not start again: the mark is in its data directory
//!   before it stops.

use std::{fs, io, io::Write, path::Path, path::PathBuf, sync::Arc};

use palisade_state::ReplicaId;

use crate::{Identity, fault::Fault, peer::PeerError};

const MARK: &str = "removed.json";

/// What a removed replica remembers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    cluster: String,
    replica: ReplicaId,
    why: String,
}

/// Where this replica hears that it was removed.
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

/// Why the replica of this directory must not start, if it was removed.
pub(crate) fn removed(dir: &Path, identity: &Identity) -> io::Result<Option<String>> {
    let text = match fs::read(dir.join(MARK)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // A mark that cannot be read is one all the same.
    let why = serde_json::from_slice::<Mark>(&text).map_or(String::new(), |mark| mark.why);
    Ok(Some(message(identity, &why)))
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
        if self.fault.is_removed() {
            return;
        }
        if let Some(dir) = &self.dir
            && let Err(error) = self.mark(dir, why)
        {
            // It is told again at its next start.
            tracing::error!(error = %error, "that this replica was removed could not be noted");
        }
        self.fault.remove(message(&self.identity, why));
    }

    fn mark(&self, dir: &Path, why: &str) -> io::Result<()> {
        let Identity { cluster, replica, .. } = self.identity.as_ref().clone();
        let mark = Mark { cluster, replica, why: why.to_owned() };
        let mut file = fs::File::create(dir.join(MARK))?;
        file.write_all(&serde_json::to_vec_pretty(&mark)?)?;
        file.sync_all()?;
        fs::File::open(dir)?.sync_all()
    }
}
