//! The server's own module: the cluster, the version, events and the audit chain.

use std::sync::{Arc, OnceLock, Weak};

use palisade_contract::{
    Catalog, Check, Context, Error, Finding, Method, MethodContext, Module, Nothing, Problems,
    Registry, Resource, Result, Severity, Verb,
};
use palisade_state::{Role, View, port::ClusterStatus, shard::SHARDS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pki::{Authority, not_after_ms};

const CLUSTER_READ: &str = "compute:cluster:read";
const SYSTEM_READ: &str = "compute:system:read";
const EVENTS_READ: &str = "compute:events:read";
const AUDIT_READ: &str = "compute:audit:read";

/// Records of an event or audit list when no limit is given, and at most.
const RECORDS_DEFAULT: u64 = 100;
const RECORDS_MAX: u64 = 1000;
const EXPIRY_WARNING_MS: u64 = 60 * 24 * 3600 * 1000;

#[derive(Default)]
struct Attached {
    modules: Vec<Weak<dyn Module>>,
    ca_pem: String,
    pin: String,
    ca_not_after_ms: u64,
}

/// The module `server`.
pub struct ServerModule {
    version: String,
    attached: Arc<OnceLock<Attached>>,
}

impl ServerModule {
    /// For a program of this version.
    #[must_use]
    pub fn new(version: &str) -> Arc<Self> {
        Arc::new(Self { version: version.to_owned(), attached: Arc::default() })
    }

    /// Lets it see the other modules and the CA, once the process is put together.
    pub(crate) fn attach(&self, registry: &Registry, authority: &Authority) {
        let modules = registry.modules().iter().map(Arc::downgrade).collect();
        let attached = Attached {
            modules,
            ca_pem: authority.cert_pem().to_owned(),
            pin: authority.pin(),
            ca_not_after_ms: not_after_ms(authority.cert_der()).unwrap_or(u64::MAX),
        };
        if self.attached.set(attached).is_err() {
            tracing::warn!("the server module was attached twice");
        }
    }
}

/// One member of the cluster.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Member {
    id: u64,
    peer_addr: String,
    api_addr: String,
    voter: bool,
    leader: bool,
    matched_index: Option<u64>,
    lag: Option<u64>,
    last_ack_ms: Option<u64>,
}

/// What the answering replica knows of its cluster.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Status {
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
}

fn status(status: ClusterStatus) -> Status {
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
            })
            .collect(),
        fault: status.fault,
    }
}

/// How many shards a replica's worker holds in a role.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Owner {
    role: String,
    /// The worker, which is named after its replica.
    owner: String,
    shards: u64,
}

/// Who holds which leases.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Shards {
    /// How many there are in each role.
    total: u64,
    owners: Vec<Owner>,
    /// The owner of each shard of the controllers, by number; null: nobody.
    controllers: Vec<Option<String>>,
    /// Other leases and their owners.
    singletons: std::collections::BTreeMap<String, String>,
}

fn shards(view: &View) -> Shards {
    let mut owners: std::collections::BTreeMap<(String, String), u64> = Default::default();
    let mut controllers = vec![None; SHARDS.into()];
    let mut singletons = std::collections::BTreeMap::new();
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

/// What a client needs to trust this cluster.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Trust {
    lineage: String,
    cluster: String,
    /// `sha256/<base64>` of the CA's key.
    pins: Vec<String>,
    ca_pem: String,
}

/// The program that answers.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: String,
    replica: u64,
    entry_format: u32,
}

/// All findings.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// No finding is an error.
    ok: bool,
    findings: Vec<Finding>,
}

/// From where a list of records begins.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct From {
    /// The first sequence number; absent: the newest records.
    #[serde(default)]
    from: Option<u64>,
    /// Records at most.
    #[serde(default)]
    limit: Option<u64>,
    /// The `nextCursor` of the part before.
    #[serde(default)]
    cursor: Option<String>,
}

impl Check for From {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.limit.is_some_and(|limit| limit == 0 || limit > RECORDS_MAX) {
            problems.add(format!("{at}/limit"), format!("must be 1 to {RECORDS_MAX}"));
        }
        if self.cursor.as_ref().is_some_and(|cursor| cursor.parse::<u64>().is_err()) {
            problems.add(format!("{at}/cursor"), "is not one that a list was answered with");
        }
    }
}

impl From {
    /// The first sequence number and how many records.
    fn window(&self, last: u64) -> (u64, usize) {
        let limit = self.limit.unwrap_or(RECORDS_DEFAULT);
        let newest = last.saturating_add(1).saturating_sub(limit).max(1);
        let cursor = self.cursor.as_ref().and_then(|cursor| cursor.parse().ok());
        let from = cursor.or(self.from).unwrap_or(newest);
        (from, usize::try_from(limit).unwrap_or(usize::MAX))
    }
}

/// A part of a list of numbered records.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Records<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

fn records<T>(found: impl Iterator<Item = (u64, T)>, limit: usize) -> Records<T> {
    let mut items = vec![];
    for (seq, item) in found {
        if items.len() == limit {
            return Records { items, next_cursor: Some(seq.to_string()) };
        }
        items.push(item);
    }
    Records { items, next_cursor: None }
}

/// An event.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EventRecord {
    /// Its place in the order of all events.
    seq: u64,
    /// The revision that published it.
    revision: u64,
    kind: String,
    tenant: String,
    subject: String,
    at: String,
    data: Value,
}

/// One record of the audit chain.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AuditEntry {
    /// Its place in the chain.
    seq: u64,
    /// The revision that it describes.
    revision: u64,
    at: String,
    actor: String,
    method: String,
    resource: String,
    tenant: String,
    /// `ok` or an error's code.
    outcome: String,
    request_id: String,
    prev_hash: String,
    hash: String,
}

/// Whether the audit chain is whole.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Verified {
    ok: bool,
    /// Records that are kept and were checked.
    records: u64,
    first_seq: Option<u64>,
    last_seq: Option<u64>,
    /// The hash of the last record.
    head: String,
    /// The first record that does not fit.
    broken_at: Option<u64>,
}

fn time(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map(|at| at.to_string()).unwrap_or_default()
}

#[expect(clippy::unnecessary_wraps, reason = "a method's handler")]
fn events(_: &MethodContext, view: &View, input: From) -> Result<Records<EventRecord>> {
    let (from, limit) = input.window(view.last_event());
    let found = view.events(from).map(|(seq, event)| {
        let record = EventRecord {
            seq,
            revision: event.revision,
            kind: event.kind.to_string(),
            tenant: event.tenant.to_string(),
            subject: event.subject.to_string(),
            at: time(event.at_ms),
            data: serde_json::from_slice(&event.data).unwrap_or_default(),
        };
        (seq, record)
    });
    Ok(records(found, limit))
}

#[expect(clippy::unnecessary_wraps, reason = "a method's handler")]
fn audit(_: &MethodContext, view: &View, input: From) -> Result<Records<AuditEntry>> {
    let last = view.audit(0).last().map_or(0, |record| record.seq);
    let (from, limit) = input.window(last);
    let found = view.audit(from).map(|record| {
        let body = record.body.clone().unwrap_or_default();
        let entry = AuditEntry {
            seq: record.seq,
            revision: record.revision,
            at: time(record.at_ms),
            actor: body.actor,
            method: body.method,
            resource: body.resource,
            tenant: body.tenant,
            outcome: body.outcome,
            request_id: body.request_id,
            prev_hash: hex::encode(&record.prev_hash),
            hash: hex::encode(&record.hash),
        };
        (record.seq, entry)
    });
    Ok(records(found, limit))
}

#[expect(clippy::unnecessary_wraps, reason = "a method's handler")]
fn verify(_: &MethodContext, view: &View, _: Nothing) -> Result<Verified> {
    let verified = view.verify_audit();
    let (first, last) = (view.audit(0).next(), view.audit(0).last());
    Ok(Verified {
        ok: verified.is_ok(),
        records: u64::try_from(view.audit(0).count()).unwrap_or(u64::MAX),
        first_seq: first.map(|record| record.seq),
        last_seq: last.map(|record| record.seq),
        head: last.map(|record| hex::encode(&record.hash)).unwrap_or_default(),
        broken_at: verified.err().map(|broken| broken.seq),
    })
}

fn findings(attached: &Attached, cx: &Context, view: &View) -> Report {
    let mut findings = vec![];
    for module in attached.modules.iter().filter_map(Weak::upgrade) {
        match module.self_check(cx, view) {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(Finding {
                check: format!("module.{}", module.name()),
                severity: Severity::Error,
                message: format!("the module's self-check failed: {error}"),
                fix: "look at the replica's log; what the module holds may be damaged".to_owned(),
                count: None,
            }),
        }
    }
    findings.sort_by(|a, b| (a.severity, &a.check).cmp(&(b.severity, &b.check)));
    let ok = findings.iter().all(|finding| finding.severity != Severity::Error);
    Report { ok, findings }
}

impl Module for ServerModule {
    fn name(&self) -> &'static str {
        "server"
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![CLUSTER_READ, SYSTEM_READ, EVENTS_READ, AUDIT_READ],
            resource_types: vec!["cluster", "system", "event", "audit"],
        }
    }

    fn methods(&self) -> Vec<Method> {
        let mut methods = self.cluster_methods();
        methods.extend(self.system_methods());
        methods.extend([
            Method::query("events", "list", EVENTS_READ, events)
                .summary("Events in commit order.")
                .rest(Verb::Get, "/events")
                .list()
                .on(|_| Resource::cluster("event", "")),
            Method::query("audit", "list", AUDIT_READ, audit)
                .summary("Records of the audit chain in order.")
                .rest(Verb::Get, "/audit")
                .list()
                .on(|_| Resource::cluster("audit", "")),
            Method::query("audit", "verify", AUDIT_READ, verify)
                .summary("Checks the audit chain as far as this replica keeps it.")
                .rest(Verb::Get, "/audit/verify")
                .on(|_| Resource::cluster("audit", "")),
        ]);
        methods
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        let mut found = vec![];
        let status = cx.store.status();
        let finding = |check: &str, severity, message: String, fix: &str| Finding {
            check: check.to_owned(),
            severity,
            message,
            fix: fix.to_owned(),
            count: None,
        };
        if let Some(fault) = status.fault {
            let message = format!("replica {} does not serve: {fault}", status.replica);
            found.push(finding(
                "cluster.fault",
                Severity::Error,
                message,
                "look at its log, mend the cause and restart it",
            ));
        }
        if let Err(broken) = view.verify_audit() {
            let fix = "compare with an exported chain; do not trust records from there on";
            found.push(finding("audit.broken", Severity::Error, broken.to_string(), fix));
        }
        let silent = status.members.iter().filter(|m| m.last_ack_ms.is_some_and(|ms| ms > 10_000));
        for member in silent {
            let message = format!("replica {} ({}) does not answer", member.id, member.peer_addr);
            found.push(finding(
                "cluster.member-silent",
                Severity::Warning,
                message,
                "start it, or mend the network between the replicas",
            ));
        }
        let expires = self.attached.get().map_or(u64::MAX, |attached| attached.ca_not_after_ms);
        if expires.saturating_sub(view.clock().wall_ms) < EXPIRY_WARNING_MS {
            let message = format!("the cluster's CA expires at {}", time(expires));
            found.push(finding(
                "pki.ca-expires",
                Severity::Warning,
                message,
                "replace the cluster's CA before that",
            ));
        }
        Ok(found)
    }
}

impl ServerModule {
    fn cluster_methods(&self) -> Vec<Method> {
        let attached = self.attached.clone();
        vec![
            Method::query(
                "cluster",
                "status",
                CLUSTER_READ,
                |cx: &MethodContext, _, _: Nothing| Ok(status(cx.context.store.status())),
            )
            .summary("The members, the leader and how far each is.")
            .rest(Verb::Get, "/cluster")
            .on(|_| Resource::cluster("cluster", "")),
            Method::query("cluster", "shards", CLUSTER_READ, |_, view: &View, _: Nothing| {
                Ok(shards(view))
            })
            .summary("Which replica owns how many shards in each role.")
            .rest(Verb::Get, "/cluster/shards")
            .on(|_| Resource::cluster("cluster", "")),
            Method::query(
                "cluster",
                "trust",
                CLUSTER_READ,
                move |cx: &MethodContext, _, _: Nothing| {
                    let status = cx.context.store.status();
                    let attached = attached.get().ok_or_else(|| Error::internal("not attached"))?;
                    Ok(Trust {
                        lineage: status.lineage,
                        cluster: status.cluster,
                        pins: vec![attached.pin.clone()],
                        ca_pem: attached.ca_pem.clone(),
                    })
                },
            )
            .summary("What a client needs to trust this cluster.")
            .rest(Verb::Get, "/cluster/trust")
            .on(|_| Resource::cluster("cluster", "")),
        ]
    }

    fn system_methods(&self) -> Vec<Method> {
        let (version, attached) = (self.version.clone(), self.attached.clone());
        vec![
            Method::query(
                "system",
                "version",
                SYSTEM_READ,
                move |cx: &MethodContext, _, _: Nothing| {
                    Ok(Version {
                        version: version.clone(),
                        replica: cx.context.store.replica().0,
                        entry_format: palisade_state::command::FORMAT,
                    })
                },
            )
            .summary("The program that answers.")
            .rest(Verb::Get, "/version")
            .on(|_| Resource::cluster("system", "")),
            Method::query(
                "system",
                "selfCheck",
                SYSTEM_READ,
                move |cx: &MethodContext, view: &View, _: Nothing| {
                    let attached = attached.get().ok_or_else(|| Error::internal("not attached"))?;
                    Ok(findings(attached, &cx.context, view))
                },
            )
            .summary("What all modules find that an operator could mend.")
            .rest(Verb::Get, "/self-check")
            .on(|_| Resource::cluster("system", "")),
        ]
    }
}
