//! The server's own module: the cluster, the version, events and the audit chain.

mod cluster;
mod members;
mod records;

use std::sync::{Arc, OnceLock, Weak};

use palisade_contract::{
    Catalog, Context, Error, Finding, Method, MethodContext, Module, Nothing, Registry, Resource,
    Result, Severity, Verb, Watched,
};
use palisade_state::{View, limits::IDEMPOTENCY_MAX};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use self::{
    cluster::{shards, status},
    records::{audit, events, time, verify},
};
use crate::{
    methods,
    pki::{Live, not_after_ms},
};

const CLUSTER_READ: &str = "compute:cluster:read";
/// What an operator of the cluster sees of it: the messages name things of all tenants.
pub(crate) const SYSTEM_READ: &str = "compute:system:read";
const VERSION_READ: &str = "compute:version:read";
const TRUST_READ: &str = "compute:trust:read";
const EVENTS_READ: &str = "compute:events:read";
const AUDIT_READ: &str = "compute:audit:read";

const EXPIRY_WARNING_MS: u64 = 60 * 24 * 3600 * 1000;

#[derive(Default)]
struct Attached {
    modules: Vec<Weak<dyn Module>>,
    live: Option<Arc<Live>>,
    undeclared: Option<Finding>,
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

    /// Lets it see the other modules and the certificates of the moment, once the process is put together.
    pub(crate) fn attach(&self, registry: &Registry, live: &Arc<Live>) {
        let modules = registry.modules().iter().map(Arc::downgrade).collect();
        let attached = Attached {
            modules,
            live: Some(live.clone()),
            undeclared: methods::undeclared(registry, methods::TABLE),
        };
        if self.attached.set(attached).is_err() {
            tracing::warn!("the server module was attached twice");
        }
    }
}

/// What a client needs to trust this cluster.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Trust {
    lineage: String,
    cluster: String,
    /// `sha256/<base64>` of the CA's key; of both while it is being replaced, the issuing one's first.
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

/// All records of a kind that a tenant has, or that there are.
fn of_tenant(kind: &'static str) -> impl Fn(&Value) -> Resource + Send + Sync + 'static {
    move |input| {
        let tenant = input.get("tenant").and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant(kind, "", tenant)
    }
}

/// All findings.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// No finding is an error.
    ok: bool,
    findings: Vec<Finding>,
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

/// What is found when idempotency keys leave before their time: how many are known, and how many left
/// early since the cluster was formed. It goes once there is room again.
fn forgotten_early((known, early): (usize, u64)) -> Option<Finding> {
    let is_full = known >= IDEMPOTENCY_MAX / 10 * 9;
    (early > 0 && is_full).then(|| Finding {
        check: "idempotency.forgotten-early".to_owned(),
        severity: Severity::Warning,
        message: format!(
            "{early} idempotency keys were forgotten before their 24 hours were over, because more than \
             {IDEMPOTENCY_MAX} were in use: a request that is repeated under one of them is applied again"
        ),
        fix: "repeat a request within minutes and not hours of the first try; more than 11 writes a second, \
              day and night, leave no room for 24 hours of keys"
            .to_owned(),
        count: Some(early),
    })
}

impl Module for ServerModule {
    fn name(&self) -> &'static str {
        "server"
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![
                CLUSTER_READ,
                members::CLUSTER_WRITE,
                SYSTEM_READ,
                VERSION_READ,
                TRUST_READ,
                EVENTS_READ,
                AUDIT_READ,
            ],
            resource_types: vec!["cluster", "replica", "system", "event", "audit"],
        }
    }

    fn methods(&self) -> Vec<Method> {
        let mut methods = self.cluster_methods();
        methods.extend(members::methods(&self.attached));
        methods.extend(self.system_methods());
        methods.extend([
            Method::read("events", "list", EVENTS_READ, events)
                .summary("Events in commit order.")
                .rest(Verb::Get, "/events")
                .list()
                .watched(Watched::Numbered(View::last_event))
                .on(of_tenant("event")),
            Method::read("audit", "list", AUDIT_READ, audit)
                .summary("Records of the audit chain in order.")
                .rest(Verb::Get, "/audit")
                .list()
                .watched(Watched::Numbered(View::last_audit))
                .on(of_tenant("audit")),
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
        for warning in status.warnings {
            found.push(finding(
                "cluster.replica",
                Severity::Warning,
                format!("replica {}: {warning}", status.replica),
                "docs/storage.md says what each means; the replica serves all the same",
            ));
        }
        if let Some(short) = status.no_space {
            found.push(finding(
                "cluster.no-space",
                Severity::Error,
                format!("{short}: while it leads every write is refused"),
                "make room on that disk: writes go on by themselves; reads and `palisade cluster backup` work meanwhile",
            ));
        }
        if let Err(broken) = view.verify_audit() {
            let fix = "compare with an exported chain; do not trust records from there on";
            found.push(finding("audit.broken", Severity::Error, broken.to_string(), fix));
        }
        found.extend(self.attached.get().and_then(|attached| attached.undeclared.clone()));
        found.extend(forgotten_early(view.idempotency_keys()));
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
        let live = self.attached.get().and_then(|attached| attached.live.clone());
        let expires = live
            .map_or(u64::MAX, |live| not_after_ms(live.authority().cert_der()).unwrap_or(u64::MAX));
        if expires.saturating_sub(view.clock().wall_ms) < EXPIRY_WARNING_MS {
            let message = format!("the cluster's CA expires at {}", time(expires));
            found.push(finding(
                "pki.ca-expires",
                Severity::Warning,
                message,
                "replace it before that: `palisade pki rotate`",
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
                TRUST_READ,
                move |cx: &MethodContext, _, _: Nothing| {
                    let status = cx.context.store.status();
                    let live = attached.get().and_then(|attached| attached.live.as_ref());
                    let live = live.ok_or_else(|| Error::internal("not attached"))?;
                    Ok(Trust {
                        lineage: status.lineage,
                        cluster: status.cluster,
                        pins: live.pins(),
                        ca_pem: live.roots_pem(),
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
                VERSION_READ,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_were_forgotten_early_are_a_finding_until_there_is_room_again() {
        assert!(forgotten_early((IDEMPOTENCY_MAX, 0)).is_none(), "full, and nothing is lost yet");
        let found = forgotten_early((IDEMPOTENCY_MAX, 3)).unwrap();
        assert_eq!((found.severity, found.count), (Severity::Warning, Some(3)));
        assert!(found.message.contains("3 idempotency keys were forgotten"), "{}", found.message);
        assert!(forgotten_early((IDEMPOTENCY_MAX - 1_000, 3)).is_some(), "a tick lets some go");
        assert!(forgotten_early((IDEMPOTENCY_MAX / 2, 3)).is_none());
    }
}
