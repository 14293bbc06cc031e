//! The journal of a recovery: how far it came, so that it can be taken up again after whatever ended it.
//!
//! # Invariants
//! - `STAGE-1` A stage is entered into the journal only when what it says is durable; each step may be done twice.
//! - `STAGE-2` While there is a journal in a replica's directory, no replica starts from it; a journal of
//!   a repair, once the cluster knows of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::files;

/// The journal's name in a replica's directory.
pub const MARKER: &str = "recovery.json";

pub(super) const FORMAT: u32 = 1;

/// How far a recovery came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It is decided; nothing was changed. Earlier builds wrote this before the backup; now there is no journal until
    /// the backup is whole.
    Planned,
    /// What the survivor has is in a backup.
    BackedUp,
    /// The new life's data is whole, beside the old.
    Made,
    /// The old data, identity and configuration have other names.
    SetAside,
    /// The new data has its name.
    Placed,
    /// Identity and configuration are the new life's.
    Configured,
}

/// A member of the old life, as the survivor knew it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalMember {
    /// Its id.
    pub id: u64,
    /// Where peers reach it.
    pub peer_addr: String,
    /// Where operators and agents reach it.
    pub api_addr: String,
    /// Whether it has a vote.
    pub voter: bool,
}

/// What is written down before anything of the old life is touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    format: u32,
    /// How far it came.
    pub stage: Stage,
    /// The cluster that ends.
    pub from_cluster: String,
    /// Its epoch.
    pub from_epoch: u64,
    /// The cluster that begins.
    pub cluster: String,
    /// The lineage of both.
    pub lineage: String,
    /// The epoch of the one that begins.
    pub epoch: u64,
    /// The survivor, and the only member.
    pub replica: u64,
    /// Where peers reach it.
    pub peer_addr: String,
    /// Where operators and agents reach it.
    pub api_addr: String,
    /// The members of the cluster that ends: who takes a recovery up again asks them as well. None in what earlier
    /// builds wrote.
    #[serde(default)]
    pub members: Vec<JournalMember>,
}

/// What every format of a journal has.
#[derive(Deserialize)]
struct Numbered {
    format: u32,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("cannot {op} {}", file.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is not one.
    #[error("{} is no journal of a recovery or repair", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// In what way.
        #[source]
        source: serde_json::Error,
    },
    /// Its checksum is wrong.
    #[error(
        "{} is damaged (its checksum is wrong), and nothing is done by what it says: put back a good copy of it, or let \
         this machine join anew, in another directory, with `palisade cluster join`", file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
    },
    /// It is of a newer release.
    #[error(
        "{} has format {found}, and this release knows formats up to {FORMAT}: go on with the newer release", file.display()
    )]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
    },
}

/// Reads a journal of format [`FORMAT`], if there is one.
pub(super) fn read_journal<T: DeserializeOwned>(file: PathBuf) -> Result<Option<T>, JournalError> {
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(JournalError::Io { op: "read", file, source }),
    };
    let malformed = |source| JournalError::Malformed { file: file.clone(), source };
    // A newer one may have other fields.
    let Numbered { format: found } = serde_json::from_slice(&bytes).map_err(malformed)?;
    if found > FORMAT {
        return Err(JournalError::Newer { file, found });
    }
    let mut fields: Fields = serde_json::from_slice(&bytes).map_err(malformed)?;
    // Those of the first builds have none.
    if let Some(kept) = fields.remove(SUM)
        && kept != sum(&fields).map_err(malformed)?
    {
        return Err(JournalError::Damaged { file });
    }
    serde_json::from_value(Value::Object(fields)).map(Some).map_err(malformed)
}

type Fields = serde_json::Map<String, Value>;

/// The field with the SHA-256 of the others, in compact JSON. A flipped bit would otherwise pass for another cluster.
const SUM: &str = "sha256";

fn sum(fields: &Fields) -> serde_json::Result<String> {
    // By name, in whatever order a build keeps them.
    let fields: std::collections::BTreeMap<_, _> = fields.iter().collect();
    let digest = Sha256::digest(serde_json::to_vec(&fields)?);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a journal, durably.
pub(super) fn write_journal(file: PathBuf, journal: &impl Serialize) -> Result<(), JournalError> {
    let write = || {
        let mut value = serde_json::to_value(journal)?;
        if let Value::Object(fields) = &mut value {
            let sum = sum(fields)?;
            fields.insert(SUM.to_owned(), sum.into());
        }
        files::replace(&file, &serde_json::to_vec_pretty(&value)?, 0o644)
    };
    write().map_err(|source| JournalError::Io { op: "write", file: file.clone(), source })
}

impl Journal {
    /// Of a recovery that begins.
    pub(super) fn begin(from: (String, u64), cluster: String, lineage: String, epoch: u64) -> Self {
        let (from_cluster, from_epoch) = from;
        Self {
            format: FORMAT,
            stage: Stage::Planned,
            from_cluster,
            from_epoch,
            cluster,
            lineage,
            epoch,
            replica: 0,
            peer_addr: String::new(),
            api_addr: String::new(),
            members: vec![],
        }
    }

    /// The journal in a replica's directory, if a recovery was begun there and not ended.
    ///
    /// # Errors
    /// It cannot be read, or is no journal.
    pub fn read(dir: &Path) -> Result<Option<Self>, JournalError> {
        read_journal(dir.join(MARKER))
    }

    /// Enters a stage, durably.
    pub(super) fn enter(&mut self, dir: &Path, stage: Stage) -> Result<(), JournalError> {
        self.stage = stage;
        write_journal(dir.join(MARKER), self)
    }

    /// The directory for what is set aside.
    #[must_use]
    pub fn aside(&self, dir: &Path) -> PathBuf {
        dir.join(format!("before-{}", self.cluster))
    }

    /// The backup of what the survivor had.
    #[must_use]
    pub fn backup(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}-before-recovery.backup", self.from_cluster))
    }
}
