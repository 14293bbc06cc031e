//! A replica's directory: what `palisade init` writes and `palisade serve` reads.
//!
//! ```text
//! identity.json   cluster, lineage, epoch, replica id
//! replica.toml    addresses, the initial members
//! pki/            ca.pem, ca.key, replica.pem, replica.key, backup.key, secrets-<id>.key (keys 0600)
//! bootstrap.json  id and SHA-256 of the first admin token
//! joined          there when it was made by `palisade cluster join`: it never forms a cluster
//! started         made before the replica's first vote: from then on it must have a log
//! data/           the log and the snapshots
//! LOCK            held by the process that runs or mends it
//! recovery.json   while a recovery is on its way
//! repair.json     while a repair is on its way
//! ```

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use palisade_iam::Bootstrap;
use palisade_raft::{Identity, Member, history::Retention};
use palisade_state::ReplicaId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    limits_config::LimitsConfig,
    recovery::{MARKER, RepairJournal},
    webhooks_config::WebhooksConfig,
};

/// Who the replica is; the last file that a directory gets.
pub(crate) const IDENTITY: &str = "identity.json";
/// The mark of a replica that joined a cluster which was there.
pub(crate) const JOINED: &str = "joined";
/// The mark of a replica that has had a log.
pub(crate) const STARTED: &str = "started";

/// `replica.toml`: what an operator may edit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicaConfig {
    /// Where to listen for peers.
    pub peer_listen: SocketAddr,
    /// Where to listen for operators and agents.
    pub api_listen: SocketAddr,
    /// Where it is reached now, `HOST:PEERPORT,APIPORT`, if that is to be noted at its next start; absent: where the
    /// cluster knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Milliseconds between an agent's heartbeats.
    #[serde(default = "heartbeat_default")]
    pub heartbeat_ms: u32,
    /// Milliseconds after which a node whose session is gone is lost.
    #[serde(default = "lost_default")]
    pub node_lost_ms: u64,
    /// The members at formation, this replica among them. Later they are only where else to look for one that is not
    /// where the cluster knows it.
    pub members: Vec<MemberConfig>,
    /// Backups that are made by themselves; to be the same on all replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupConfig>,
    /// How long this replica keeps what has left the cluster's memory.
    #[serde(default, skip_serializing_if = "HistoryConfig::is_default")]
    pub history: HistoryConfig,
    /// How often somebody may ask this replica.
    #[serde(default, skip_serializing_if = "LimitsConfig::is_default")]
    pub limits: LimitsConfig,
    /// Where it may send events.
    #[serde(default, skip_serializing_if = "WebhooksConfig::is_default")]
    pub webhooks: WebhooksConfig,
}

/// `[history]` in `replica.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct HistoryConfig {
    /// Days for which audit records are kept, 1 to 36,500.
    pub audit_days: u32,
    /// Days for which events are kept, 1 to 36,500.
    pub events_days: u32,
    /// Days for which a version that a record had is kept after it was replaced, 0 to 36,500; with 0 none is.
    pub versions_days: u32,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self { audit_days: 400, events_days: 30, versions_days: 7 }
    }
}

impl HistoryConfig {
    const DAYS_MAX: u32 = 36_500;

    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn is_usable(self) -> bool {
        let days = |days: u32| (1..=Self::DAYS_MAX).contains(&days);
        days(self.audit_days) && days(self.events_days) && self.versions_days <= Self::DAYS_MAX
    }
}

impl From<HistoryConfig> for Retention {
    fn from(config: HistoryConfig) -> Self {
        let days = |days: u32| Duration::from_secs(u64::from(days) * 24 * 60 * 60);
        Self {
            audit: days(config.audit_days),
            events: days(config.events_days),
            versions: days(config.versions_days),
        }
    }
}

/// `[backup]` in `replica.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupConfig {
    /// Where they are written: on one file system for all replicas, or each has some. This or `s3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Hours between two.
    pub every_hours: u32,
    /// How many are kept.
    #[serde(default = "keep_default")]
    pub keep: u32,
    /// The bucket that they are sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Config>,
}

/// `[backup.s3]` in `replica.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Config {
    /// `https://host` or `http://host:port`; the bucket's name is put into the path.
    pub endpoint: String,
    /// The bucket; it must be there.
    pub bucket: String,
    /// The region that requests are signed for.
    #[serde(default = "region_default")]
    pub region: String,
    /// What objects' names begin with, such as `palisade/`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// A TOML file of mode 0600 with `accessKeyId` and `secretAccessKey`; absent: the environment has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// The CA certificates to check the server by; absent: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

fn region_default() -> String {
    "us-east-1".to_owned()
}

fn keep_default() -> u32 {
    7
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
    /// The replica had a log and has none any more.
    #[error(
        "{} holds no log, and this replica had one: it may have voted and acknowledged writes that it no longer \
         knows, so it must not come back under its id, and an older copy of its data is refused, too. Rejoin from the \
         other replicas with `palisade cluster repair {}`, or let a new one take its place with `palisade cluster join \
         --replace {replica}`",
        log.display(), dir.display()
    )]
    LogGone {
        /// Where it was.
        log: PathBuf,
        /// The replica's directory.
        dir: PathBuf,
        /// Which it is.
        replica: ReplicaId,
    },
    /// A recovery was begun and did not end.
    #[error(
        "a recovery was begun in {} and did not end: end it with `palisade cluster recover {} --yes`, or, if the \
         others are back, give it up with `palisade cluster recover {} --abandon`",
        dir.display(), dir.display(), dir.display()
    )]
    Recovering {
        /// The replica's directory.
        dir: PathBuf,
    },
    /// A repair was begun and did not end.
    #[error(
        "a repair was begun in {} and did not end: end it with `palisade cluster repair {} --yes`",
        dir.display(), dir.display()
    )]
    Repairing {
        /// The replica's directory.
        dir: PathBuf,
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
    /// A file is missing or malformed, and the message names it; or a repair of it did not end.
    pub fn read(path: &Path) -> Result<Self, DirError> {
        if RepairJournal::blocks(path) {
            return Err(DirError::Repairing { dir: path.to_owned() });
        }
        let identity = json(&path.join("identity.json"))?;
        let config = read_config(&path.join("replica.toml"))?;
        let bootstrap_path = path.join("bootstrap.json");
        let bootstrap = if bootstrap_path.exists() { Some(json(&bootstrap_path)?) } else { None };
        Ok(Self { path: path.to_owned(), identity, config, bootstrap })
    }

    /// Says durably that the replica has had a log. Belongs before it votes for the first time.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub fn mark_started(&self) -> io::Result<()> {
        let mark = self.path.join(STARTED);
        if mark.exists() {
            return Ok(());
        }
        fs::File::create(&mark)?.sync_all()?;
        fs::File::open(&self.path)?.sync_all()
    }

    /// Whether it has had a log.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.path.join(STARTED).exists()
    }

    /// Refuses a replica that had a log and has none any more. It may have voted and acknowledged
    /// what it no longer knows; if it came back under its id, a write could be lost in silence.
    ///
    /// # Errors
    /// The log is gone, or a recovery of this replica did not end.
    pub fn check_log(&self) -> Result<(), DirError> {
        if self.path.join(MARKER).exists() {
            return Err(DirError::Recovering { dir: self.path.clone() });
        }
        let log = self.data().join("log");
        let is_segment = |entry: &fs::DirEntry| {
            Path::new(&entry.file_name()).extension().is_some_and(|ext| ext == "seg")
        };
        let has_segment = fs::read_dir(&log)
            .is_ok_and(|entries| entries.flatten().any(|entry| is_segment(&entry)));
        if has_segment || !self.has_started() {
            return Ok(());
        }
        Err(DirError::LogGone { log, dir: self.path.clone(), replica: self.identity.replica })
    }

    /// Whether it joined a cluster that was there.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.path.join(JOINED).exists()
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

pub(crate) fn read_config(path: &Path) -> Result<ReplicaConfig, DirError> {
    let malformed = |why: String| DirError::Malformed { path: path.to_owned(), why };
    let config: ReplicaConfig =
        toml::from_str(&read(path)?).map_err(|error| malformed(error.to_string()))?;
    let is_usable = |backup: &BackupConfig| {
        let is_placed = match (&backup.directory, &backup.s3) {
            (Some(directory), None) => directory.is_absolute(),
            (None, Some(s3)) => !s3.endpoint.is_empty() && !s3.bucket.is_empty(),
            _ => false,
        };
        backup.every_hours > 0 && backup.keep > 0 && is_placed
    };
    if config.backup.as_ref().is_some_and(|backup| !is_usable(backup)) {
        return Err(malformed(
            "[backup] needs either an absolute directory or [backup.s3] with endpoint and bucket, and everyHours and \
             keep of 1 at least"
                .to_owned(),
        ));
    }
    if !config.history.is_usable() {
        return Err(malformed(format!(
            "[history] needs auditDays and eventsDays of 1 to {max}, and versionsDays of 0 to {max} (0: no versions)",
            max = HistoryConfig::DAYS_MAX
        )));
    }
    if !config.limits.is_usable() {
        return Err(malformed(format!(
            "[limits] needs numbers of 1 to {} (which limits nothing)",
            LimitsConfig::MAX
        )));
    }
    config.webhooks.options().map_err(|why| malformed(format!("[webhooks] allow: {why}")))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(path: &Path) -> ReplicaDir {
        let identity =
            Identity { cluster: "c".into(), lineage: "l".into(), epoch: 0, replica: ReplicaId(1) };
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = ReplicaConfig {
            peer_listen: listen,
            api_listen: listen,
            advertise: None,
            heartbeat_ms: 1,
            node_lost_ms: 1,
            members: vec![],
            backup: None,
            history: HistoryConfig::default(),
            limits: LimitsConfig::default(),
            webhooks: WebhooksConfig::default(),
        };
        ReplicaDir { path: path.to_owned(), identity, config, bootstrap: None }
    }

    #[test]
    fn a_replica_whose_log_was_wiped_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let replica = replica(dir.path());
        replica.check_log().expect("a new replica has no log yet");
        fs::create_dir_all(replica.data().join("log")).unwrap();
        let segment = replica.data().join("log/00000001.seg");
        fs::write(&segment, b"x").unwrap();
        replica.mark_started().unwrap();
        replica.mark_started().unwrap();
        replica.check_log().expect("its log is there");
        fs::remove_file(&segment).unwrap();
        assert!(matches!(replica.check_log(), Err(DirError::LogGone { .. })));
        fs::remove_dir_all(replica.data()).unwrap();
        let error = replica.check_log().unwrap_err().to_string();
        assert!(error.contains("must not come back"), "{error}");
        let verbs = format!("cluster repair {}`", dir.path().display());
        assert!(error.contains(&verbs) && error.contains("join --replace 1`"), "{error}");
    }

    #[test]
    fn the_days_of_history_are_read_and_those_that_make_no_sense_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replica.toml");
        let read = |history: &str| {
            let text = format!(
                "peerListen = \"127.0.0.1:1\"\napiListen = \"127.0.0.1:2\"\n[[members]]\nid = 1\n\
                 peerAddr = \"a:1\"\napiAddr = \"a:2\"\n{history}"
            );
            fs::write(&path, text).unwrap();
            read_config(&path).map(|config| config.history).map_err(|error| error.to_string())
        };
        assert_eq!(read("").unwrap(), HistoryConfig::default());
        let some = HistoryConfig { versions_days: 0, ..HistoryConfig::default() };
        assert_eq!(read("[history]\nversionsDays = 0\n").unwrap(), some);
        assert_eq!(Retention::from(HistoryConfig::default()), Retention::default());
        for wrong in ["auditDays = 0", "eventsDays = 0", "versionsDays = 36501", "days = 1"] {
            let error = read(&format!("[history]\n{wrong}\n")).unwrap_err();
            assert!(error.contains("replica.toml") && error.contains("ays"), "{error}");
        }
    }
}
