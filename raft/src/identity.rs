//! Whose data directory it is: written once, checked at each start.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use palisade_state::ReplicaId;
use sha2::{Digest, Sha256};

use crate::wal;

/// The format of `identity.json` and of the directory around it.
const FORMAT: u32 = 1;

/// Who a replica is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// One life of the replica set.
    pub cluster: String,
    /// Survives recovery and restore.
    pub lineage: String,
    /// 0 at birth, raised by each restore or recovery.
    pub epoch: u64,
    /// This replica.
    pub replica: ReplicaId,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct File {
    format: u32,
    #[serde(flatten)]
    identity: Identity,
}

/// Why a data directory is not this replica's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// It belongs to another replica.
    #[error(
        "{} belongs to replica {} of cluster {} (epoch {}), and this is replica {} of cluster {} (epoch {}): \
         use that replica's own data directory", file.display(), found.replica, found.cluster, found.epoch,
        expected.replica, expected.cluster, expected.epoch
    )]
    Foreign {
        /// The file that says so.
        file: PathBuf,
        /// Whose it is.
        found: Box<Identity>,
        /// Who we are.
        expected: Box<Identity>,
    },
    /// It was written by a newer release.
    #[error("{} has format {found}, and this release knows formats up to {FORMAT}: start the newer release", file.display())]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
    },
    /// It cannot be understood.
    #[error("{} is damaged: restore it from this replica's backup, or rejoin under a new id", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// In what way.
        #[source]
        source: serde_json::Error,
    },
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
}

fn path(dir: &Path) -> PathBuf {
    dir.join("identity.json")
}

impl Identity {
    /// Reads the identity that `dir` has, if it has one.
    ///
    /// # Errors
    /// The file is there and cannot be used.
    pub fn read(dir: &Path) -> Result<Option<Self>, IdentityError> {
        let file = path(dir);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(IdentityError::Io { op: "read", file, source }),
        };
        let parsed: File = match serde_json::from_slice(&text) {
            Ok(parsed) => parsed,
            Err(source) => return Err(IdentityError::Damaged { file, source }),
        };
        if parsed.format > FORMAT {
            return Err(IdentityError::NewerFormat { file, found: parsed.format });
        }
        Ok(Some(parsed.identity))
    }

    /// Writes the identity into a directory that has none, durably; checks the one that is there otherwise.
    pub(crate) fn claim(&self, dir: &Path) -> Result<(), IdentityError> {
        let file = path(dir);
        match Self::read(dir)? {
            Some(found) if found == *self => Ok(()),
            Some(found) => Err(IdentityError::Foreign {
                file,
                found: Box::new(found),
                expected: Box::new(self.clone()),
            }),
            None => self.write(dir, &file).map_err(|source| IdentityError::Io {
                op: "write",
                file,
                source,
            }),
        }
    }

    fn write(&self, dir: &Path, file: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&File { format: FORMAT, identity: self.clone() })?;
        let temporary = dir.join("identity.json.tmp");
        let mut out = fs::File::create(&temporary)?;
        out.write_all(&text)?;
        out.sync_all()?;
        fs::rename(&temporary, file)?;
        fs::File::open(dir)?.sync_all()
    }

    /// What the log's segments carry. A cluster id is any text, a segment has 16 bytes for it.
    pub(crate) fn for_wal(&self) -> wal::Identity {
        let digest = Sha256::digest(self.cluster.as_bytes());
        let mut cluster = [0; 16];
        cluster.copy_from_slice(&digest[..16]);
        wal::Identity { cluster, replica: self.replica.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(replica: u64) -> Identity {
        Identity {
            cluster: "c1".into(),
            lineage: "l1".into(),
            epoch: 0,
            replica: ReplicaId(replica),
        }
    }

    #[test]
    fn a_directory_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), None);
        identity(1).claim(dir.path()).unwrap();
        identity(1).claim(dir.path()).unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), Some(identity(1)));
        let refused = identity(2).claim(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("belongs to replica 1"), "{refused}");
    }

    #[test]
    fn a_newer_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"format":9,"cluster":"c","lineage":"l","epoch":0,"replica":1}"#;
        std::fs::write(path(dir.path()), text).unwrap();
        assert!(matches!(
            Identity::read(dir.path()),
            Err(IdentityError::NewerFormat { found: 9, .. })
        ));
    }
}
