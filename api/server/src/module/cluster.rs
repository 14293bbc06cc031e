//! The cluster as its members see it.

use std::collections::BTreeMap;

use palisade_state::{
    ReplicaId, Role, View,
    port::{ClusterStatus, PendingChange, PendingJoin},
    shard::SHARDS,
};
use schemars::JsonSchema;
use serde::Serialize;

/// One member of the cluster.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Member {
    id: u64,
    peer_addr: String,
    api_addr: String,
    voter: bool,
    leader: bool,
    matched_index: Option<u64>,
    lag: Option<u64>,
    last_ack_ms: Option<u64>,
    /// It takes no leadership, no leases and no agents.
    drained: bool,
    /// How far it is with joining, while it does not vote; the leader alone knows.
    phase: Option<String>,
    /// The release that it runs, as it last reported.
    version: Option<String>,
    /// The newest format that it reads, as it last reported.
    format_max: Option<u32>,
}

/// What the answering replica knows of its cluster.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    cluster: String,
    lineage: String,
    epoch: u64,
    /// The answering replica.
    replica: u64,
    leader: Option<u64>,
    term: u64,
    last_index: u64,
    committed_index: u64,
    applied_index: u64,
    snapshot_index: Option<u64>,
    state: String,
    members: Vec<Member>,
    fault: Option<String>,
    /// The format in which the log is written: every member reads it.
    format: u32,
    /// What an operator should know of the answering replica although it serves.
    warnings: Vec<String>,
    /// What the answering replica's disk lacks, if it is nearly full: it takes no writes while it leads.
    no_space: Option<Shortage>,
    /// Who may join and has not come yet.
    pending: Vec<Pending>,
    /// A change of the members that is not over: it waits for those of them that do not answer.
    change: Option<VoterChange>,
}

/// A disk on which less is free than must be.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shortage {
    path: String,
    free_bytes: u64,
    needed_bytes: u64,
}

/// A replica that may join and has not come yet.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pending {
    id: u64,
    peer_addr: String,
    api_addr: String,
    /// The member whose place it takes.
    replaces: Option<u64>,
    /// Milliseconds since it was enrolled, on the cluster's clock.
    for_ms: u64,
}

/// A change of the voters that is not over.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct VoterChange {
    /// Who votes until it is over; empty when that is decided.
    from: Vec<u64>,
    /// Who votes then.
    to: Vec<u64>,
}

fn change(change: PendingChange) -> VoterChange {
    let ids = |ids: Vec<ReplicaId>| ids.into_iter().map(|id| id.0).collect();
    VoterChange { from: ids(change.from), to: ids(change.to) }
}

fn pending(join: PendingJoin) -> Pending {
    let PendingJoin { id, peer_addr, api_addr, replaces, for_ms } = join;
    Pending { id: id.0, peer_addr, api_addr, replaces: replaces.map(|id| id.0), for_ms }
}

pub(super) fn status(status: ClusterStatus) -> Status {
    Status {
        cluster: status.cluster,
        lineage: status.lineage,
        epoch: status.epoch,
        replica: status.replica.0,
        leader: status.leader.map(|leader| leader.0),
        term: status.term,
        last_index: status.last_index,
        committed_index: status.committed_index,
        applied_index: status.applied_index,
        snapshot_index: status.snapshot_index,
        state: status.state,
        members: status
            .members
            .into_iter()
            .map(|member| Member {
                id: member.id.0,
                peer_addr: member.peer_addr,
                api_addr: member.api_addr,
                voter: member.voter,
                leader: member.leader,
                matched_index: member.matched_index,
                lag: member.lag,
                last_ack_ms: member.last_ack_ms,
                drained: member.drained,
                phase: member.phase,
                version: member.version,
                format_max: member.format_max,
            })
            .collect(),
        fault: status.fault,
        format: status.format,
        warnings: status.warnings,
        no_space: status.no_space.map(|short| Shortage {
            path: short.path,
            free_bytes: short.free_bytes,
            needed_bytes: short.needed_bytes,
        }),
        pending: status.pending.into_iter().map(pending).collect(),
        change: status.change.map(change),
    }
}

/// How many shards a replica's worker holds in a role.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Owner {
    role: String,
    /// The worker, which is named after its replica.
    owner: String,
    shards: u64,
}

/// Who holds which leases.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shards {
    /// How many there are in each role.
    total: u64,
    owners: Vec<Owner>,
    /// The owner of each shard of the controllers, by number; null: nobody.
    controllers: Vec<Option<String>>,
    /// Other leases and their owners.
    singletons: BTreeMap<String, String>,
}

pub(super) fn shards(view: &View) -> Shards {
    let mut owners: BTreeMap<(String, String), u64> = Default::default();
    let mut controllers = vec![None; SHARDS.into()];
    let mut singletons = BTreeMap::new();
    for (name, lease) in view.leases() {
        let role = match lease.role {
            Role::Controllers => "controllers",
            Role::Scheduler => "scheduler",
        };
        let within = name.strip_prefix(lease.role.lease_prefix()).unwrap_or(name);
        let Some(shard) = within.strip_prefix("shard:").and_then(|n| n.parse::<usize>().ok())
        else {
            singletons.insert(name.to_string(), lease.owner.to_string());
            continue;
        };
        *owners.entry((role.to_owned(), lease.owner.to_string())).or_default() += 1;
        if lease.role == Role::Controllers
            && let Some(cell) = controllers.get_mut(shard)
        {
            *cell = Some(lease.owner.to_string());
        }
    }
    let owners = owners.into_iter();
    Shards {
        total: SHARDS.into(),
        owners: owners.map(|((role, owner), shards)| Owner { role, owner, shards }).collect(),
        controllers,
        singletons,
    }
}
