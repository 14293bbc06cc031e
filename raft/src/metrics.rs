//! Counters of one replica, for Prometheus.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Why a replica stood for election out of turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Cause {
    /// The leader's port refused: its process is gone.
    Refused,
    /// The leader was silent for too long.
    Silence,
    /// It was started, and heard of no leader.
    Start,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CauseLabel {
    pub(crate) cause: Cause,
}

/// Why a peer was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Refused {
    Certificate,
    Cluster,
    Epoch,
    Replica,
    Copy,
    Service,
    Member,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RefusedLabel {
    pub(crate) why: Refused,
}

/// What a replica counts.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(crate) elections: Family<CauseLabel, Counter>,
    pub(crate) leader_changes: Counter,
    pub(crate) applied: Counter,
    pub(crate) entries_proposed: Counter,
    pub(crate) commands_proposed: Counter,
    pub(crate) commands_forwarded: Counter,
    pub(crate) outcomes_unknown: Counter,
    pub(crate) read_rounds: Counter,
    pub(crate) reads: Counter,
    pub(crate) snapshots_taken: Counter,
    pub(crate) snapshots_put_off: Counter,
    pub(crate) snapshots_installed: Counter,
    pub(crate) snapshots_sent: Counter,
    pub(crate) append_streams: Counter,
    pub(crate) entries_dropped: Counter,
    pub(crate) peers_lost: Counter,
    pub(crate) disk_handovers: Counter,
    pub(crate) wal_sync_p99: Gauge<f64, AtomicU64>,
    pub(crate) watches_reset: Counter,
    pub(crate) peers_refused: Family<RefusedLabel, Counter>,
}

impl Metrics {
    /// Elections that a detector of this replica started, by cause.
    #[must_use]
    pub fn elections(&self, cause: Cause) -> u64 {
        self.elections.get_or_create(&CauseLabel { cause }).get()
    }

    /// Snapshots taken here.
    #[must_use]
    pub fn snapshots_taken(&self) -> u64 {
        self.snapshots_taken.get()
    }

    /// Snapshots, taken or received, that had to wait because the disk had no room.
    #[must_use]
    pub fn snapshots_put_off(&self) -> u64 {
        self.snapshots_put_off.get()
    }

    /// Snapshots received from a leader and installed.
    #[must_use]
    pub fn snapshots_installed(&self) -> u64 {
        self.snapshots_installed.get()
    }

    /// ReadIndex rounds, and the readers that they answered.
    #[must_use]
    pub fn reads(&self) -> (u64, u64) {
        (self.read_rounds.get(), self.reads.get())
    }

    /// Append streams begun or tried as leader.
    #[must_use]
    pub fn append_streams(&self) -> u64 {
        self.append_streams.get()
    }

    /// Log entries that left memory before they were purged.
    #[must_use]
    pub fn entries_dropped(&self) -> u64 {
        self.entries_dropped.get()
    }

    /// Times that a peer which could be reached no longer could.
    #[must_use]
    pub fn peers_lost(&self) -> u64 {
        self.peers_lost.get()
    }

    /// Adds all of them to a registry, under `palisade_raft_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("palisade_raft");
        let mut add = |name: &str, help: &str, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        add("leader_changes", "Times that another leader was seen", &self.leader_changes);
        add("applied", "Log entries applied", &self.applied);
        add("entries_proposed", "Log entries proposed as leader", &self.entries_proposed);
        add("commands_proposed", "Commands proposed as leader", &self.commands_proposed);
        add("commands_forwarded", "Commands forwarded to the leader", &self.commands_forwarded);
        add("outcomes_unknown", "Commands whose fate is unknown", &self.outcomes_unknown);
        add("read_rounds", "ReadIndex rounds", &self.read_rounds);
        add("reads", "Linearizable reads", &self.reads);
        add("snapshots_taken", "Snapshots taken", &self.snapshots_taken);
        add(
            "snapshots_put_off",
            "Snapshots that had to wait for room on the disk",
            &self.snapshots_put_off,
        );
        add("snapshots_installed", "Snapshots installed from a leader", &self.snapshots_installed);
        add("snapshots_sent", "Snapshots sent to a follower", &self.snapshots_sent);
        add("append_streams", "Append streams begun or tried as leader", &self.append_streams);
        add(
            "entries_dropped",
            "Log entries that left memory before they were purged",
            &self.entries_dropped,
        );
        add("peers_lost", "Times that a peer could no longer be reached", &self.peers_lost);
        add("watches_reset", "Watches that were too slow and were reset", &self.watches_reset);
        add(
            "disk_handovers",
            "Times that leadership was handed over because the disk was slow",
            &self.disk_handovers,
        );
        registry.register(
            "wal_sync_p99_seconds",
            "What one in a hundred syncs of the log takes",
            self.wal_sync_p99.clone(),
        );
        registry.register(
            "elections",
            "Elections started by a failure detector, by cause",
            self.elections.clone(),
        );
        registry.register(
            "peers_refused",
            "Peers turned away, by reason",
            self.peers_refused.clone(),
        );
    }
}
