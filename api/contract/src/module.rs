//! The module: the unit of extension, ours and other people's alike.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::{BoxFuture, ready};
use palisade_state::{Declared, Role, Tx, View, past::Kept};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::command::CommandKind;
use crate::{
    audit::RegisteredAuditSink,
    context::{Context, ReconcileContext},
    error::Result,
    events::RegisteredSink,
    id::NodeId,
    method::Method,
    node::{Node, NodeStatus},
    node_spec::NodeSpecPart,
    secrets::{SecretRef, SecretUsers},
};

/// What a module is. Everything but its name has a default.
pub trait Module: Send + Sync {
    /// Its name, unique and well formed: `^[a-z][a-z0-9-]{0,63}$`.
    fn name(&self) -> &'static str;

    /// Its id when it is a plugin, unique: `^[a-z][a-z0-9-]{0,63}$`. Its routes are under
    /// `/plugins/<id>`, its actions `compute:<id>:…`, its tables `plg_<id>_…`.
    fn plugin(&self) -> Option<&'static str> {
        None
    }

    /// Modules that must be registered too.
    fn requires(&self) -> &[&'static str] {
        &[]
    }

    /// The tables that it writes, all of them: `^[a-z][a-z0-9_-]{0,95}$`, a plugin's
    /// `plg_<id>_…`. A transaction that writes another one is refused.
    fn tables(&self) -> Vec<Declared> {
        vec![]
    }

    /// Those of its tables that methods read as they were.
    fn kept(&self) -> Vec<Kept> {
        vec![]
    }

    /// Steps that bring its tables up to date, in order.
    fn migrations(&self) -> Vec<Migration> {
        vec![]
    }

    /// What it adds by kind (drivers, attestors, sinks …).
    fn extensions(&self) -> Vec<Extension> {
        vec![]
    }

    /// The code of its extensions of kind `audit-sink`: one for each.
    fn audit_sinks(&self) -> Vec<RegisteredAuditSink> {
        vec![]
    }

    /// The code of its extensions of kind `event-sink`: one for each.
    fn event_sinks(&self) -> Vec<RegisteredSink> {
        vec![]
    }

    /// Its typed API.
    fn methods(&self) -> Vec<Method> {
        vec![]
    }

    /// Its level-triggered workers.
    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![]
    }

    /// The commands that it sends to agents.
    fn command_kinds(&self) -> Vec<CommandKind> {
        vec![]
    }

    /// Its part of a node's desired state.
    ///
    /// # Errors
    /// A record cannot be read.
    fn node_spec(&self, _cx: &Context, _view: &View, _node: &Node) -> Result<NodeSpecPart> {
        Ok(NodeSpecPart::default())
    }

    /// Who looks at what agents report.
    fn status_handlers(&self) -> Vec<StatusHandler> {
        vec![]
    }

    /// Its actions and resource types, for authorization.
    fn catalog(&self) -> Catalog {
        Catalog::default()
    }

    /// What an operator could mend, read only.
    ///
    /// # Errors
    /// The check itself failed; becomes one error finding `module.<name>`.
    fn self_check(&self, _cx: &Context, _view: &View) -> Result<Vec<Finding>> {
        Ok(vec![])
    }

    /// Runs before the process serves, in every role; idempotent. Ports are filled here.
    fn start<'a>(&'a self, _cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(ready(Ok(())))
    }

    /// Releases what `start` took.
    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(ready(Ok(())))
    }

    /// The tenants that its records name, so that those of before there were any are known.
    ///
    /// # Errors
    /// A record cannot be read.
    fn tenants_in_use(&self, _view: &View) -> Result<BTreeSet<String>> {
        Ok(BTreeSet::new())
    }

    /// Who uses a secret of a tenant, so that it is not removed, and so that nodes are told of its next version. It is read through the
    /// transaction: whoever begins to use the secret meanwhile, and whoever removes it, are not both right.
    ///
    /// # Errors
    /// A record cannot be read.
    fn secret_users(
        &self,
        _tx: &mut Tx,
        _tenant: &str,
        _secret: &SecretRef,
    ) -> Result<SecretUsers> {
        Ok(SecretUsers::default())
    }

    /// Removes at most [`crate::tenants::SWEEP_MAX`] rows of each kind of a tenant that is being deleted, in which nothing
    /// is made any more. It is asked until it and all others are done; what it commits is safe to be asked for again.
    ///
    /// # Errors
    /// A record cannot be read; the sweep asks again, and `palisade doctor` says so.
    fn tenant_deleted(&self, _cx: &Context, _tx: &mut Tx, _tenant: &str) -> Result<Sweep> {
        Ok(Sweep::Done)
    }
}

/// What a sweep left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Nothing.
    Done,
    /// Something.
    Again,
}

impl Sweep {
    /// What both left.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Self::Done { other } else { self }
    }
}

type MigrationFn = dyn Fn(&mut Tx) -> Result<()> + Send + Sync;

/// One step of a module's tables.
#[derive(Clone)]
pub struct Migration {
    /// `<owner>/<nnnn>_<slug>`.
    pub name: &'static str,
    /// What it does. Commits with its row in the ledger, or not at all.
    pub run: Arc<MigrationFn>,
}

/// The kinds of extensions that there are.
pub const EXTENSION_KINDS: [&str; 7] =
    ["driver", "attestor", "provider", "placement", "pool-policy", "event-sink", "audit-sink"];

/// Something that a module adds by kind. Unique by `kind:id@version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// One of [`EXTENSION_KINDS`].
    pub kind: &'static str,
    /// `^[a-z][a-z0-9._-]{0,63}$`.
    pub id: &'static str,
    /// `^[0-9a-z][0-9a-z.-]{0,31}$`.
    pub version: &'static str,
}

/// By what a reconciler's keys are spread over the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardBy {
    /// Keys are node ids.
    Node,
    /// Keys are pool names.
    Pool,
    /// Keys are its own, as [`Reconciler::keys`] lists them.
    Key,
    /// One worker at a time runs all keys, under `singleton:<name>`.
    None,
}

/// A key that comes back by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Periodic {
    /// The key.
    pub key: String,
    /// How long after each run; at least 1 s.
    pub every: Duration,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Converged.
    Done,
    /// To be run again soon (`SYNC_AGAIN`).
    Again,
    /// To be run again after this long, although nothing is wrong.
    After(Duration),
}

/// A level-triggered worker: looks at the state for a key and converges it. Safe to run twice.
pub trait Reconciler: Send + Sync {
    /// Its name, and the kind of its work: `^[a-z][a-z0-9._-]{0,63}$`.
    fn name(&self) -> &'static str;

    /// By what its keys are spread.
    fn shard_by(&self) -> ShardBy;

    /// Which workers run it.
    fn role(&self) -> Role {
        Role::Controllers
    }

    /// Keys that come back by themselves.
    fn periodic(&self) -> Vec<Periodic> {
        vec![]
    }

    /// All keys, for the resync that heals a missed wake-up.
    ///
    /// # Errors
    /// A record cannot be read.
    fn keys(&self, _view: &View) -> Result<Vec<String>> {
        Ok(vec![])
    }

    /// Converges one key.
    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>>;
}

type StatusFn = dyn Fn(&Context, &mut Tx, &NodeId, &NodeStatus) -> Result<()> + Send + Sync;

/// Looks at a node's status report, in the transaction that takes it in. Writes only what changed:
/// a report that says nothing new must leave the transaction empty.
#[derive(Clone)]
pub struct StatusHandler {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub handle: Arc<StatusFn>,
}

/// What authorization knows of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// `compute:<area>:<verb>`.
    pub actions: Vec<&'static str>,
    /// Resource types.
    pub resource_types: Vec<&'static str>,
}

/// How bad a finding is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The report is not ok.
    Error,
    /// Look at it.
    Warning,
    /// Good to know.
    Info,
}

/// Something that an operator can act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// For example `nodes.lost`.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is so.
    pub message: String,
    /// What to do, spelled out.
    pub fix: String,
    /// How many things it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}
