//! The spec of a workload: what a user writes.
//!
//! Unknown fields are refused with the nearest known name; fields that later versions will know are
//! known here too, so that they are refused as "not supported yet" and never ignored.

mod check;
mod span;

use std::collections::BTreeMap;

use palisade_contract::{
    SecretRef,
    node::{HealthCheck, Probe, RestartMode, RestartPolicy, Wanted, with_secrets},
    ports::PortRequest,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use span::Span;

/// Instances that one workload may have.
pub const COUNT_MAX: u32 = 10_000;

/// A field that a later version will know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Later(Value);

impl JsonSchema for Later {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Later".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "Not supported yet: refused." })
    }
}

/// What is to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The name in the path of the request; must be `name`.
    #[serde(default, skip_serializing)]
    pub workload: Option<String>,
    /// Its name, unique within its tenant.
    pub name: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// How many instances.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = COUNT_MAX))]
    pub count: u32,
    /// The pool whose nodes run it.
    #[serde(default = "default_pool")]
    pub pool: String,
    /// What runs its instances: `process`.
    #[serde(default = "default_driver")]
    pub driver: String,
    /// What its instances are.
    pub task: Task,
    /// Ports that each instance gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSpec>,
    /// What each instance needs, by resource plugin.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, Value>,
    /// Where it may run.
    #[serde(default)]
    pub placement: Placement,
    /// How to find out whether an instance is healthy; absent: it is while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// When a process that ended is started again.
    #[serde(default)]
    pub restart: Restart,
    /// How a new version takes the place of an old one.
    #[serde(default)]
    pub update: Update,
    /// Whether it is to run.
    #[serde(default)]
    pub wanted: Wanted,
    /// The signal that asks it to stop.
    #[serde(default = "default_signal")]
    pub stop_signal: String,
    /// How long it may take to stop before it is killed.
    #[serde(default = "default_grace")]
    pub stop_grace: Span,
    /// Labels of the workload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Only 0 is supported yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disconnect: Option<Later>,
    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_budget: Option<Later>,
    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contributes: Option<Later>,
    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<Later>,
}

/// What an instance is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Task {
    /// The program, and its first arguments.
    pub command: Vec<String>,
    /// More arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment: texts, and `{"secret": "name"}` for what a secret of the same tenant holds. The agent adds `PORT_<NAME>` for
    /// each port, and `PORT` when there is one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    /// Working directory; absent: the instance's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// User; absent: the agent's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Files written into the instance's directory before it starts, by relative path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Later>,
    /// Not supported yet: secrets are in `env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Later>,
    /// Not supported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<Later>,
}

/// What a variable of the environment holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EnvValue {
    /// This text.
    Text(String),
    /// What a secret of the workload's tenant holds when its process is started.
    Secret(SecretRef),
}

/// A port that each instance gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortSpec {
    /// Its name.
    pub name: String,
    /// The port on the node; absent: a free one. With a fixed one, a node takes one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
}

/// Where instances may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Placement {
    /// How to choose among nodes that fit: `auto`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub strategy: String,
    /// Labels that the node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Names of nodes that may be used; empty: all of the pool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub includes: Vec<String>,
    /// Names of nodes that may not be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excludes: Vec<String>,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Later>,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraints: Option<Later>,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Later>,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Later>,
}

/// A port by name or number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PortRef {
    /// One of the workload's ports.
    Name(String),
    /// Any port of the node.
    Number(u16),
}

/// How to find out whether an instance is healthy. Exactly one of `http`, `tcp` and `exec`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Health {
    /// GET answers 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpProbe>,
    /// A connection is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpProbe>,
    /// A command ends with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecProbe>,
    /// How often.
    #[serde(default = "Span::five_seconds")]
    pub interval: Span,
    /// How long one probe may take.
    #[serde(default = "Span::two_seconds")]
    pub timeout: Span,
    /// How long failures do not count after a start.
    #[serde(default = "Span::ten_seconds")]
    pub start_period: Span,
    /// Successes in a row that make it healthy.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub healthy_threshold: u32,
    /// Failures in a row that make it unhealthy.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 100))]
    pub unhealthy_threshold: u32,
}

/// GET answers 200 to 399.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpProbe {
    /// The port.
    pub port: PortRef,
    /// The path.
    #[serde(default = "root_path")]
    pub path: String,
}

/// A connection is accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpProbe {
    /// The port.
    pub port: PortRef,
}

/// A command ends with 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecProbe {
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// When a process that ended is started again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Restart {
    /// In which cases.
    pub mode: RestartMode,
    /// First delay.
    pub backoff_initial: Span,
    /// Longest delay.
    pub backoff_max: Span,
    /// Ends within the window that make a crash loop.
    #[schemars(range(min = 1, max = 1000))]
    pub crash_loop_threshold: u32,
    /// The window.
    pub crash_loop_window: Span,
}

/// How a new version takes the place of an old one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Update {
    /// Instances above `count` while it lasts.
    #[schemars(range(min = 0, max = COUNT_MAX))]
    pub max_surge: u32,
    /// Instances below `count` that may be missing while it lasts.
    #[schemars(range(min = 0, max = COUNT_MAX))]
    pub max_unavailable: u32,
    /// How long a new instance may take to become healthy before the update counts as stuck.
    pub health_deadline: Span,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Later>,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Later>,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_revert: Option<Later>,
    /// Not supported yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manual_promote: Option<Later>,
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

fn default_pool() -> String {
    "default".to_owned()
}

fn default_driver() -> String {
    "process".to_owned()
}

fn default_signal() -> String {
    "SIGTERM".to_owned()
}

fn default_grace() -> Span {
    Span::ten_seconds()
}

fn root_path() -> String {
    "/".to_owned()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            mode: RestartMode::Always,
            backoff_initial: Span::of_ms(500),
            backoff_max: Span::of_ms(60_000),
            crash_loop_threshold: 5,
            crash_loop_window: Span::of_ms(600_000),
        }
    }
}

impl Default for Update {
    fn default() -> Self {
        Self {
            max_surge: 1,
            max_unavailable: 0,
            health_deadline: Span::of_ms(300_000),
            order: None,
            canary: None,
            auto_revert: None,
            manual_promote: None,
        }
    }
}

impl Task {
    /// The variables that are texts.
    #[must_use]
    pub fn texts(&self) -> BTreeMap<String, String> {
        let text = |(name, value): (&String, &EnvValue)| match value {
            EnvValue::Text(text) => Some((name.clone(), text.clone())),
            EnvValue::Secret(_) => None,
        };
        self.env.iter().filter_map(text).collect()
    }

    /// The variables that are secrets.
    pub fn secrets(&self) -> impl Iterator<Item = (&String, &SecretRef)> {
        self.env.iter().filter_map(|(name, value)| match value {
            EnvValue::Secret(secret) => Some((name, secret)),
            EnvValue::Text(_) => None,
        })
    }
}

impl Spec {
    /// Whether instances of `self` need not be replaced to become instances of `other`: all but
    /// the count, what is wanted, and how updates go, is the same.
    #[must_use]
    pub fn same_template(&self, other: &Self) -> bool {
        let bare = |spec: &Self| Self {
            workload: None,
            count: 1,
            wanted: Wanted::Up,
            update: Update::default(),
            priority: 0,
            ..spec.clone()
        };
        bare(self) == bare(other)
    }

    /// Its ports as capacity is asked for them.
    #[must_use]
    pub fn port_requests(&self) -> Vec<PortRequest> {
        let request = |port: &PortSpec| PortRequest { name: port.name.clone(), fixed: port.port };
        self.ports.iter().map(request).collect()
    }

    /// The driver that its instances need.
    #[must_use]
    pub fn wanted_driver(&self) -> String {
        match self.task.secrets().next() {
            Some(_) => with_secrets(&self.driver),
            None => self.driver.clone(),
        }
    }

    /// The program and all of its arguments.
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        self.task.command.iter().chain(&self.task.args).cloned().collect()
    }

    /// Its restart policy as agents are told it.
    #[must_use]
    pub fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy {
            mode: self.restart.mode,
            backoff_initial_ms: self.restart.backoff_initial.ms(),
            backoff_max_ms: self.restart.backoff_max.ms(),
            crash_loop_threshold: self.restart.crash_loop_threshold,
            crash_loop_window_ms: self.restart.crash_loop_window.ms(),
        }
    }

    /// Its health check as agents are told it, with the ports that an instance has.
    #[must_use]
    pub fn health_check(&self, ports: &BTreeMap<String, u16>) -> Option<HealthCheck> {
        let health = self.health.as_ref()?;
        let number = |port: &PortRef| match port {
            PortRef::Number(number) => *number,
            PortRef::Name(name) => ports.get(name).copied().unwrap_or(0),
        };
        let probe = match (&health.http, &health.tcp, &health.exec) {
            (Some(http), _, _) => Probe::Http { port: number(&http.port), path: http.path.clone() },
            (_, Some(tcp), _) => Probe::Tcp { port: number(&tcp.port) },
            (_, _, Some(exec)) => Probe::Exec { command: exec.command.clone() },
            _ => return None,
        };
        Some(HealthCheck {
            probe,
            interval_ms: health.interval.ms(),
            timeout_ms: health.timeout.ms(),
            start_period_ms: health.start_period.ms(),
            healthy_threshold: health.healthy_threshold,
            unhealthy_threshold: health.unhealthy_threshold,
        })
    }
}
