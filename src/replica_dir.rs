//! A replica's directory: what `palisade init` writes and `palisade serve` reads.
//!
//! ```text
//! identity.json   cluster, lineage, epoch, replica id
//! replica.toml    addresses, the initial members
//! pki/            ca.pem, ca.key, replica.pem, replica.key (keys 0600)
//! bootstrap.json  id and SHA-256 of the first admin token
//! data/           the log and the snapshots
//! ```

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use palisade_iam::Bootstrap;
use palisade_raft::{Identity, Member};
use palisade_state::ReplicaId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// `replica.toml`: what an operator may edit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicaConfig {
    /// Where to listen for peers.
    pub peer_listen: SocketAddr,
    /// Where to listen for operators and agents.
    pub api_listen: SocketAddr,
    /// Milliseconds between an agent's heartbeats.
    #[serde(default = "heartbeat_default")]
    pub heartbeat_ms: u32,
    /// Milliseconds after which a node whose session is gone is lost.
    #[serde(default = "lost_default")]
    pub node_lost_ms: u64,
    /// The members at formation, this replica among them.
    pub members: Vec<MemberConfig>,
}

fn heartbeat_default() -> u32 {
    5_000
}

fn lost_default() -> u64 {
    30_000
}

/// A member at formation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemberConfig {
    /// Its id.
    pub id: u64,
    /// Where peers reach it, `host:port`.
    pub peer_addr: String,
    /// Where operators and agents reach it, `host:port`.
    pub api_addr: String,
}

impl From<&MemberConfig> for Member {
    fn from(member: &MemberConfig) -> Self {
        let MemberConfig { id, peer_addr, api_addr } = member.clone();
        Self { id: ReplicaId(id), peer_addr, api_addr }
    }
}

/// `bootstrap.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BootstrapFile {
    /// The first admin token's id.
    pub token_id: String,
    /// SHA-256 of its secret, hex.
    pub secret_sha256: String,
}

impl From<BootstrapFile> for Bootstrap {
    fn from(file: BootstrapFile) -> Self {
        Self { token_id: file.token_id, secret_sha256: file.secret_sha256 }
    }
}

/// Why a replica's directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirError {
    /// A file cannot be read.
    #[error("cannot read {}: is this a replica's directory, made by `palisade init`?", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} is not what it should be: {why}", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// A replica's directory, read.
#[derive(Clone, Debug)]
pub struct ReplicaDir {
    /// Where it is.
    pub path: PathBuf,
    /// Who the replica is.
    pub identity: Identity,
    /// What an operator may edit.
    pub config: ReplicaConfig,
    /// The first admin token; absent once the file was removed.
    pub bootstrap: Option<BootstrapFile>,
}

impl ReplicaDir {
    /// Reads a directory.
    ///
    /// # Errors
    /// A file is missing or malformed; the message names it.
    pub fn read(path: &Path) -> Result<Self, DirError> {
        let identity = json(&path.join("identity.json"))?;
        let config = read_config(&path.join("replica.toml"))?;
        let bootstrap_path = path.join("bootstrap.json");
        let bootstrap = if bootstrap_path.exists() { Some(json(&bootstrap_path)?) } else { None };
        Ok(Self { path: path.to_owned(), identity, config, bootstrap })
    }

    /// Where the log and the snapshots are.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// A file of the PKI, such as `ca.pem`.
    #[must_use]
    pub fn pki(&self, file: &str) -> PathBuf {
        self.path.join("pki").join(file)
    }

    /// This replica as a member.
    ///
    /// # Errors
    /// The members do not name it.
    pub fn member(&self) -> Result<Member, DirError> {
        let me = self.identity.replica;
        self.config.members.iter().find(|member| member.id == me.0).map(Into::into).ok_or_else(
            || {
                let why = format!("replica {me} is not among its members");
                DirError::Malformed { path: self.path.join("replica.toml"), why }
            },
        )
    }
}

fn read(path: &Path) -> Result<String, DirError> {
    fs::read_to_string(path).map_err(|source| DirError::Read { path: path.to_owned(), source })
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, DirError> {
    serde_json::from_str(&read(path)?)
        .map_err(|error| DirError::Malformed { path: path.to_owned(), why: error.to_string() })
}

fn read_config(path: &Path) -> Result<ReplicaConfig, DirError> {
    let malformed = |why: String| DirError::Malformed { path: path.to_owned(), why };
    let config: ReplicaConfig =
        toml::from_str(&read(path)?).map_err(|error| malformed(error.to_string()))?;
    let mut ids: Vec<u64> = config.members.iter().map(|member| member.id).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != config.members.len() || ids.is_empty() {
        return Err(malformed(
            "member ids must be unique, and there must be one at least".to_owned(),
        ));
    }
    Ok(config)
}
