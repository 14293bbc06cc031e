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
    /// CRC-32 of the file without it, in compact JSON. A flipped bit would otherwise pass for another cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32: Option<String>,
}

/// What is read first, in any format.
#[derive(serde::Deserialize)]
struct Format {
    format: u32,
}

impl File {
    fn sum(&self) -> serde_json::Result<String> {
        let (format, identity) = (self.format, self.identity.clone());
        let bare = serde_json::to_vec(&Self { format, identity, crc32: None })?;
        Ok(format!("{:08x}", crc32fast::hash(&bare)))
    }
}

/// Why a data directory is not this replica's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// It belongs to another replica.
    #[error(
        "{} belongs to replica {} of cluster {} (epoch {}), and this is replica {} of cluster {} (epoch {}): \
         use that replica's own data directory, or rejoin from the other replicas with `palisade cluster repair`",
        file.display(), found.replica, found.cluster, found.epoch,
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
    /// It is gone, and a log lies beside it.
    #[error(
        "{} is gone, and a log lies beside it: whose that is and of which life of the cluster nothing says any more, so \
         it is not used; rejoin from the other replicas with `palisade cluster repair`", file.display()
    )]
    Missing {
        /// The file.
        file: PathBuf,
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
    #[error(
        "{} is damaged at byte {offset} ({what}): rejoin from the other replicas with `palisade cluster repair`",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: usize,
        /// In what way.
        what: String,
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

impl IdentityError {
    /// Whether the data directory is not the replica's any more: damaged, or another's.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Foreign { .. } | Self::Damaged { .. } | Self::Missing { .. } => true,
            Self::NewerFormat { .. } => false,
            Self::Io { source, .. } => crate::disk::is_lost(source),
        }
    }
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
        let damaged = |error: serde_json::Error| IdentityError::Damaged {
            file: file.clone(),
            offset: offset_of(&text, &error),
            what: error.to_string(),
        };
        let found = serde_json::from_slice::<Format>(&text).map_err(damaged)?.format;
        if found > FORMAT {
            return Err(IdentityError::NewerFormat { file, found });
        }
        let parsed: File = serde_json::from_slice(&text).map_err(damaged)?;
        let sum = parsed.sum().map_err(damaged)?;
        // Those of the first builds have none.
        if parsed.crc32.as_ref().is_some_and(|kept| *kept != sum) || found == 0 {
            let what = "its checksum is wrong".to_owned();
            return Err(IdentityError::Damaged { file, offset: 0, what });
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
            None if has_log(dir)? => Err(IdentityError::Missing { file }),
            None => self.write(dir, &file).map_err(|source| IdentityError::Io {
                op: "write",
                file,
                source,
            }),
        }
    }

    fn write(&self, dir: &Path, file: &Path) -> io::Result<()> {
        let mut content = File { format: FORMAT, identity: self.clone(), crc32: None };
        content.crc32 = Some(content.sum()?);
        let text = serde_json::to_vec_pretty(&content)?;
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

/// Whether a replica has run on the directory: it gets its identity before its log.
///
/// # Errors
/// It cannot be found out.
pub(crate) fn has_log(dir: &Path) -> Result<bool, IdentityError> {
    let log = dir.join("log");
    let failed = |source| IdentityError::Io { op: "read", file: log.clone(), source };
    let entries = match fs::read_dir(&log) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(failed(source)),
    };
    for entry in entries {
        if entry.map_err(failed)?.path().extension().is_some_and(|end| end == "seg") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where in `text` a parser found what it complains about.
fn offset_of(text: &[u8], error: &serde_json::Error) -> usize {
    let before = text.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    let line_start = before.map(<[u8]>::len).sum::<usize>();
    (line_start + error.column().saturating_sub(1)).min(text.len())
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
    fn every_flipped_bit_is_found_or_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        identity(1).claim(dir.path()).unwrap();
        let sound = std::fs::read(path(dir.path())).unwrap();
        let mut refused = 0;
        for bit in 0..sound.len() * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(path(dir.path()), bytes).unwrap();
            match identity(1).claim(dir.path()) {
                Ok(()) => {}
                Err(IdentityError::Damaged { offset, .. }) => {
                    assert!(offset <= sound.len());
                    refused += 1;
                }
                Err(IdentityError::NewerFormat { .. }) => refused += 1,
                Err(other) => panic!("bit {bit}: {other}"),
            }
        }
        assert!(refused > sound.len() * 4, "{refused}");
    }

    #[test]
    fn one_that_is_gone_from_beside_a_log_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        identity(1).claim(dir.path()).unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        fs::remove_file(path(dir.path())).unwrap();
        identity(1).claim(dir.path()).unwrap();
        fs::write(dir.path().join("log/00000001.seg"), "").unwrap();
        identity(1).claim(dir.path()).unwrap();
        fs::remove_file(path(dir.path())).unwrap();
        let refused = identity(1).claim(dir.path()).unwrap_err();
        assert!(refused.is_damage() && refused.to_string().contains("cluster repair"), "{refused}");
        assert!(!path(dir.path()).exists());
    }

    #[test]
    fn an_identity_without_a_checksum_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"format":1,"cluster":"c1","lineage":"l1","epoch":0,"replica":1}"#;
        std::fs::write(path(dir.path()), text).unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), Some(identity(1)));
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
