//! What a replica is started with.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use palisade_state::{ReplicaId, Rt};

use crate::{
    Build, Disk, Identity, IdentityError, MembershipTuning, Neighbours, PeerTls, TlsError,
    history::HistorySizes, peer::Transport, snapshots::SnapshotsError, wal,
};

/// Times and sizes. The defaults are for a local network and a disk that syncs in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How often the leader shows that it lives.
    pub heartbeat: Duration,
    /// The shortest election time-out.
    pub election_min: Duration,
    /// The longest one, and the length of the leader's lease.
    pub election_max: Duration,
    /// A follower that heard nothing for this long stands for election; `None`: only openraft's timers.
    pub silence: Option<Duration>,
    /// Whether a port that refuses means that the process is gone. Not so behind a proxy or NAT.
    pub refused_means_gone: bool,
    /// How often the leader lets time pass while something waits for it.
    pub tick: Duration,
    /// A snapshot is taken when so many bytes were written to the log since the last one, or as many as that one has if
    /// those are more; at most four times as many.
    pub snapshot_log_bytes: u64,
    /// How often that is looked at.
    pub snapshot_check: Duration,
    /// Entries kept behind a snapshot for followers that are a little behind.
    pub keep_entries: u64,
    /// Entries that may be in flight at a time.
    pub pipeline: usize,
    /// How long a caller waits for a leader or a quorum.
    pub patience: Duration,
    /// How long a stopping leader waits for its successor.
    pub handover: Duration,
    /// The log's sizes.
    pub log: LogSizes,
    /// How much history is kept.
    pub history: HistorySizes,
    /// Times and bounds of membership.
    pub membership: MembershipTuning,
    /// The shortest time between two reports of what is durable in history.
    pub report: Duration,
    /// The release that runs; another one than this build only to rehearse an upgrade.
    pub build: Build,
    /// Within this time a process that has ended is noticed by its peers. A process is told that it is a copy when an
    /// earlier one under its id is heard of so long after it came.
    pub copy_hold: Duration,
}

/// Sizes of the log's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSizes {
    /// A segment.
    pub segment_bytes: u64,
    /// The first one; the next ones grow.
    pub first_segment_bytes: u64,
    /// Free space below which writes are refused.
    pub reserve_bytes: u64,
}

impl Default for LogSizes {
    fn default() -> Self {
        let wal::Options { segment_bytes, first_segment_bytes, reserve_bytes, .. } =
            wal::Options::default();
        Self { segment_bytes, first_segment_bytes, reserve_bytes }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(1000),
            silence: Some(Duration::from_millis(400)),
            refused_means_gone: true,
            tick: Duration::from_millis(500),
            snapshot_log_bytes: 64 << 20,
            snapshot_check: Duration::from_secs(1),
            keep_entries: 1000,
            pipeline: 4,
            patience: Duration::from_secs(5),
            handover: Duration::from_secs(2),
            log: LogSizes::default(),
            history: HistorySizes::default(),
            membership: MembershipTuning::default(),
            report: Duration::from_secs(10),
            build: Build::default(),
            copy_hold: Duration::from_secs(15),
        }
    }
}

impl Tuning {
    pub(crate) fn openraft(&self, cluster: &str) -> Result<Arc<openraft::Config>, StartError> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let config = openraft::Config {
            cluster_name: cluster.to_owned(),
            heartbeat_interval: ms(self.heartbeat),
            election_timeout_min: ms(self.election_min),
            election_timeout_max: ms(self.election_max),
            enable_pre_vote: Some(true),
            // A leader that was restarted must win a new term: the term is the kernel's fence.
            enable_leader_restore: Some(false),
            broadcast_submitted_on_append: Some(true),
            max_payload_entries: 1024,
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: self.keep_entries,
            purge_batch_size: (self.keep_entries / 4).clamp(1, 256),
            backoff: "50ms 100ms 200ms ...500ms".to_owned(),
            // A snapshot has no deadline of its own: it ends with the leadership or with the connection.
            install_snapshot_timeout: 600_000,
            ..openraft::Config::default()
        };
        config.validate().map(Arc::new).map_err(|error| StartError::Tuning(error.to_string()))
    }
}

/// One member at formation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: ReplicaId,
    /// Where peers reach it, `host:port`.
    pub peer_addr: String,
    /// Where operators and agents reach it, `host:port`.
    pub api_addr: String,
}

/// How a replica is connected to its peers.
pub enum Wires {
    /// Mutual TLS over TCP.
    Tls {
        /// Where to listen for peers.
        listen: SocketAddr,
        /// The certificates.
        tls: PeerTls,
    },
    /// A simulation's own wires.
    Custom(Arc<dyn Transport>),
}

/// What a replica is started with.
pub struct ReplicaOptions {
    /// The data directory.
    pub dir: PathBuf,
    /// The disk.
    pub disk: Disk,
    /// Who the replica is.
    pub identity: Identity,
    /// How its peers are reached.
    pub wires: Wires,
    /// Times and sizes.
    pub tuning: Tuning,
    /// Time, randomness and tasks; all of the replica runs there.
    pub rt: Rt,
    /// What it knows of the others, and what they may have from it.
    pub neighbours: Neighbours,
}

impl ReplicaOptions {
    /// A replica on the machine's disk, with peers over TLS, and default times and sizes.
    #[must_use]
    pub fn new(dir: PathBuf, identity: Identity, listen: SocketAddr, tls: PeerTls, rt: Rt) -> Self {
        let (disk, tuning) = (Disk::real(), Tuning::default());
        let (wires, neighbours) = (Wires::Tls { listen, tls }, Neighbours::default());
        Self { dir, disk, identity, wires, tuning, rt, neighbours }
    }
}

/// Why a replica did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory cannot be made or read.
    #[error("cannot use data directory {}", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The data directory is in use.
    #[error(transparent)]
    Lock(#[from] crate::disk::LockError),
    /// The data directory is another's.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The replica was removed from its cluster.
    #[error("{0}")]
    Removed(String),
    /// The replica's log has lost something that it had confirmed.
    #[error("{0}")]
    Lost(String),
    /// The data directory was found to be a copy of another one in use.
    #[error("{0}")]
    Copy(String),
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] wal::WalError),
    /// The snapshots cannot be read.
    #[error(transparent)]
    Snapshots(#[from] SnapshotsError),
    /// A new log would be full before its first entry.
    #[error(
        "the disk under {} has {free_mib} MiB free, and a new replica needs {needed_mib} MiB: free some space, or use \
         another directory", dir.display()
    )]
    NoRoom {
        /// The data directory.
        dir: PathBuf,
        /// What is free.
        free_mib: u64,
        /// What the log keeps free, and its first segment.
        needed_mib: u64,
    },
    /// No good snapshot covers the beginning of the log.
    #[error(
        "the log begins behind index {purged} and no good snapshot covers that ({damage}): this replica cannot \
         start from its own data; rejoin from the other replicas with `palisade cluster repair`"
    )]
    Gap {
        /// Up to where the log was purged.
        purged: u64,
        /// What is wrong with the snapshots.
        damage: String,
    },
    /// The TLS material cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The peer address cannot be listened on.
    #[error("cannot listen for peers on {addr}: is another process using it?")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Times that do not fit together.
    #[error("the consensus settings do not fit together: {0}")]
    Tuning(String),
    /// Which keys are revoked is not known.
    #[error("the replica's own state does not say which keys are revoked: {0}")]
    Revoked(String),
    /// Consensus did not start.
    #[error("consensus did not start: {0}")]
    Consensus(String),
}

impl StartError {
    /// Whether what the replica had is damaged or gone, so that it must be repaired.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Identity(error) => error.is_damage(),
            Self::Log(error) => error.is_damage(),
            Self::Snapshots(error) => error.is_damage(),
            Self::Gap { .. } | Self::Lost(_) => true,
            _ => false,
        }
    }
}

/// Why a cluster was not formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// This replica is not among the members.
    #[error("replica {0} is not among the members of the cluster to be formed")]
    NotAMember(ReplicaId),
    /// Consensus refused.
    #[error("consensus refused to form the cluster: {0}")]
    Refused(String),
    /// No quorum came together.
    #[error("the cluster was not formed")]
    Store(#[from] palisade_state::StoreError),
}

pub(crate) fn nodes(members: &[Member]) -> BTreeMap<u64, crate::types::Node> {
    members
        .iter()
        .map(|member| {
            let (peer_addr, api_addr) = (member.peer_addr.clone(), member.api_addr.clone());
            (member.id.0, crate::types::Node { peer_addr, api_addr })
        })
        .collect()
}
