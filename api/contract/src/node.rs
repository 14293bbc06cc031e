//! The vocabulary of nodes: what a machine is, what it reports, what it is told.

use std::collections::BTreeMap;

use palisade_state::Fence;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    id::{InstanceId, NodeId, SessionId},
    secrets::SecretUse,
};

/// Where a node is in its life. `schedulable` is a separate flag.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum NodePhase {
    /// Its certificate was issued; no session yet.
    Joining,
    /// It has a session.
    Ready,
    /// Its session broke; it may come back within the grace.
    Unhealthy,
    /// It did not come back within the grace.
    Lost,
    /// Its instances are being moved away.
    Draining,
    /// It was removed.
    Retired,
}

/// The session through which a node is reached now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSession {
    /// The session.
    pub id: SessionId,
    /// The replica that holds it.
    pub replica: u64,
    /// Which start of the agent.
    pub agent_incarnation: String,
}

/// A machine with an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its name, unique among nodes that are not retired.
    pub name: String,
    /// The pool that it belongs to.
    pub pool: String,
    /// The tenant that it belongs to; empty: the cluster.
    #[serde(default)]
    pub tenant: String,
    /// Labels from its agent and from operators.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Where it is in its life.
    pub phase: NodePhase,
    /// Whether new instances may be placed on it.
    pub schedulable: bool,
    /// How it is reached.
    #[serde(default)]
    pub session: Option<NodeSession>,
    /// Logical milliseconds at which its session broke.
    #[serde(default)]
    pub disconnected_at_ms: Option<u64>,
    /// What the machine is.
    pub facts: HostFacts,
    /// SHA-256 of the SPKI of its current certificate, hex; then of the one before.
    #[serde(default)]
    pub keys: Vec<String>,
    /// Wall-clock milliseconds at which it joined.
    pub joined_at_ms: u64,
    /// The version of its agent.
    #[serde(default)]
    pub agent_version: String,
}

/// What a machine is, as its agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostFacts {
    /// Host name.
    pub hostname: String,
    /// Operating system.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Architecture.
    pub arch: String,
    /// SMBIOS product UUID; empty when it cannot be read.
    pub product_uuid: String,
    /// The kernel's boot id.
    pub boot_id: String,
    /// CPU model.
    pub cpu_model: String,
    /// CPU sockets.
    pub sockets: u32,
    /// CPU cores.
    pub cores: u32,
    /// CPU threads.
    pub threads: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Thousandths of a CPU thread that workloads may have; 0: all.
    pub offered_cpu_milli: u64,
    /// Memory that workloads may have; 0: all.
    pub offered_memory_bytes: u64,
    /// Block devices.
    pub disks: Vec<Disk>,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// Drivers that work on it.
    pub drivers: Vec<String>,
    /// First port that instances may be given.
    pub port_first: u16,
    /// Last port that instances may be given.
    pub port_last: u16,
    /// The address under which its instances are reached.
    pub address: String,
    /// Isolation features: `enforced`, or why not.
    pub isolation: BTreeMap<String, String>,
    /// Labels from the agent's configuration.
    pub labels: BTreeMap<String, String>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether it spins.
    pub rotational: bool,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Hardware address.
    pub mac: String,
    /// IP addresses.
    pub addresses: Vec<String>,
}

/// What an agent reports of its convergence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// The generation that it converges to.
    pub generation: u64,
    /// Every instance that it knows.
    pub instances: Vec<InstanceStatus>,
    /// What it could not do.
    pub conditions: Vec<Condition>,
}

/// What one instance does, as its agent sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// The instance.
    pub id: InstanceId,
    /// What it does.
    pub phase: InstancePhase,
    /// Its process; 0: none.
    #[serde(default)]
    pub pid: u32,
    /// Wall-clock milliseconds of the node at which its process began.
    #[serde(default)]
    pub started_at_ms: u64,
    /// How often its process was started again.
    #[serde(default)]
    pub restarts: u32,
    /// How its process last ended.
    #[serde(default)]
    pub last_exit: Option<Exit>,
    /// What is wrong; empty: nothing.
    #[serde(default)]
    pub message: String,
    /// A word for what is wrong, such as `COMMAND_NOT_FOUND`.
    #[serde(default)]
    pub code: String,
    /// The spec version that its process was started from.
    #[serde(default)]
    pub spec_version: u64,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// Exit code.
    pub code: i32,
    /// Signal, or 0.
    pub signal: i32,
    /// Wall-clock milliseconds of the node.
    pub at_ms: u64,
    /// It had more memory than it may.
    #[serde(default)]
    pub out_of_memory: bool,
}

/// What an instance does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum InstancePhase {
    /// No node yet, or its node has not begun.
    Pending,
    /// Runs; its health is not known yet.
    Starting,
    /// Runs and is healthy.
    Healthy,
    /// Runs and fails its health check.
    Unhealthy,
    /// Is being stopped.
    Stopping,
    /// Ended with success and is not started again.
    Exited,
    /// Ended with an error, or could not start.
    Failed,
    /// Ended too often; waits before the next try.
    CrashLoop,
    /// Wanted offline, and down.
    Stopped,
    /// Its node is lost.
    Lost,
}

/// Something that an agent could not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// A word for it.
    pub code: String,
    /// A sentence.
    pub message: String,
}

/// Whether something is to run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// It runs.
    #[default]
    Up,
    /// It does not.
    Offline,
}

/// The desired state of one instance on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// The instance.
    pub id: InstanceId,
    /// Its name.
    pub name: String,
    /// The name of its workload.
    pub workload: String,
    /// Changes when its process must be replaced.
    pub spec_version: u64,
    /// Whether it is to run.
    pub wanted: Wanted,
    /// The driver.
    pub driver: String,
    /// argv.
    pub command: Vec<String>,
    /// Environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the environment that hold secrets, by name; what they hold is not here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_env: BTreeMap<String, SecretUse>,
    /// Working directory; empty: its own.
    #[serde(default)]
    pub working_dir: String,
    /// User; empty: the agent's.
    #[serde(default)]
    pub user: String,
    /// Limits.
    #[serde(default)]
    pub resources: InstanceResources,
    /// Ports by name.
    #[serde(default)]
    pub ports: BTreeMap<String, u16>,
    /// Health check.
    #[serde(default)]
    pub health: Option<HealthCheck>,
    /// Restart policy.
    pub restart: RestartPolicy,
    /// Stop signal, such as `SIGTERM`.
    pub stop_signal: String,
    /// How long it may take to stop.
    pub stop_grace_ms: u64,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Files written into its directory before it starts.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The fence under which it was allocated.
    #[serde(default)]
    #[schemars(with = "FenceShape")]
    pub fence: Fence,
}

/// The name under which a driver starts instances whose environment holds secrets. An agent that knows nothing of secrets does not
/// offer it, so that it is never asked to start one without them.
#[must_use]
pub fn with_secrets(driver: &str) -> String {
    format!("{driver}.secrets")
}

/// The kernel's fence as a schema shows it: the kernel itself knows of no schemas.
#[derive(JsonSchema)]
#[schemars(rename = "Fence")]
#[expect(dead_code, reason = "a shape for schema generation, never built")]
struct FenceShape {
    epoch: u64,
    term: u64,
    index: u64,
}

/// Limits of one instance; 0: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceResources {
    /// Thousandths of a CPU thread, charged.
    pub cpu_request_milli: u64,
    /// Thousandths of a CPU thread, at most.
    pub cpu_limit_milli: u64,
    /// Bytes, charged.
    pub memory_request_bytes: u64,
    /// Bytes, at most.
    pub memory_limit_bytes: u64,
    /// Processes, at most.
    pub pids_max: u32,
}

/// How an agent finds out whether an instance is healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// How often.
    pub interval_ms: u64,
    /// How long one probe may take.
    pub timeout_ms: u64,
    /// How long failures do not count after a start.
    pub start_period_ms: u64,
    /// Successes in a row that make it healthy.
    pub healthy_threshold: u32,
    /// Failures in a row that make it unhealthy.
    pub unhealthy_threshold: u32,
}

/// One kind of health check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Probe {
    /// GET answers 200 to 399.
    Http {
        /// The port.
        port: u16,
        /// The path.
        path: String,
    },
    /// A connection is accepted.
    Tcp {
        /// The port.
        port: u16,
    },
    /// A command ends with 0.
    Exec {
        /// argv.
        command: Vec<String>,
    },
}

/// When a process that ended is started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicy {
    /// In which cases.
    pub mode: RestartMode,
    /// First delay.
    pub backoff_initial_ms: u64,
    /// Longest delay.
    pub backoff_max_ms: u64,
    /// Ends within the window that make a crash loop.
    pub crash_loop_threshold: u32,
    /// The window.
    pub crash_loop_window_ms: u64,
}

/// In which cases a process is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RestartMode {
    /// However it ended.
    #[default]
    Always,
    /// When it ended with an error.
    OnFailure,
    /// Not at all.
    Never,
}
