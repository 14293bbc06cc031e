//! Drivers: what runs instances on a node. Each verb is idempotent and addressed by instance id.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use palisade_proto::agent as wire;

use crate::fence::Fence;

mod cgroup;
mod files;
mod launch;
pub mod log;
mod netlink;
mod pid;
mod prepare;
mod process;
mod secret;
mod signal;
mod user;

use cgroup::isolation;
pub(crate) use cgroup::{Cgroup, oom_kills};
pub(crate) use files::{Ended, InstanceDir, Limits, RunConfig, RunState, read_json, write_json};
pub(crate) use launch::{LaunchError, exec_problem, not_enterable, resolve_command};
pub(crate) use netlink::interface_addresses;
pub(crate) use pid::{ProcessId, children_of};
pub(crate) use prepare::{id_is_sound, passable};
pub(crate) use process::boot_id_or_empty;
pub use process::{ProcessDriver, ShimCommand};
pub use secret::SecretValue;
pub(crate) use secret::{given as secrets_given, of_run as secrets_of_run};
pub use signal::SignalName;
pub(crate) use user::lookup as lookup_user;

/// What went wrong, for a machine and for a person.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Problem {
    /// Such as `COMMAND_NOT_FOUND`.
    pub code: String,
    /// A sentence.
    pub message: String,
}

impl Problem {
    /// A problem.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Problem {}

/// Why a run is over.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Cause {
    /// Its process ended.
    Exited,
    /// It could not be started.
    NotStarted(Problem),
    /// The machine was restarted meanwhile.
    Rebooted,
    /// It is gone and nobody saw how: its shim was killed.
    Unknown,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// The exit code; -1 when a signal ended it or it is not known.
    pub code: i32,
    /// The signal, or 0.
    pub signal: i32,
    /// When, by the node's clock; for people only.
    pub at_ms: u64,
    /// The kernel ended it for its use of memory.
    pub out_of_memory: bool,
    /// For how long it ran.
    pub ran_for: Duration,
}

impl End {
    /// Whether it ended as a program that has done its work.
    #[must_use]
    pub fn success(&self) -> bool {
        self.cause == Cause::Exited && self.code == 0 && self.signal == 0
    }
}

/// What an instance's process is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// Its directory is there, but it was never started.
    Prepared,
    /// It runs.
    Running {
        /// The process id.
        pid: u32,
        /// When it was started, by the node's clock; for people only.
        started_at_ms: u64,
    },
    /// It ran and does not any more.
    Ended(End),
}

/// That a stop was asked for, as it is kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopAsked {
    /// The grace that was given.
    pub grace: Duration,
}

/// An instance as a driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its id.
    pub id: String,
    /// Which run of it this is; the first is 1.
    pub run: u32,
    /// The revision of the spec that it was started from.
    pub spec_version: u64,
    /// The fence of the allocation that it was started under.
    pub fence: Fence,
    /// The signal that asks it to stop.
    pub stop_signal: SignalName,
    /// How long it may take to stop.
    pub stop_grace: Duration,
    /// What its process is doing.
    pub process: Process,
    /// How long its process had run at this look; zero when none runs.
    pub ran_for: Duration,
    /// How often it was started again since its revision was first started.
    pub restarts: u32,
    /// A stop of this run was asked for.
    pub stop_asked: Option<StopAsked>,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The spec.
    pub spec: wire::InstanceSpec,
    /// The number of this run: one more than the last one.
    pub run: u32,
    /// How many runs of this revision ended by themselves before.
    pub restarts: u32,
    /// The node's name, for the environment.
    pub node: String,
    /// What the variables of the spec's `secret_env` hold. In no file: `SEC-12`.
    pub secrets: BTreeMap<String, SecretValue>,
}

/// What an instance uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time used since its start.
    pub cpu: Duration,
    /// Memory in use.
    pub memory_bytes: u64,
}

/// Runs instances. See the module documentation.
pub trait Driver: Send + Sync + 'static {
    /// Its name in instance specs.
    fn name(&self) -> &'static str;

    /// Starts a run, unless this run was started before; answers when its process is there or
    /// could not be made (then [`Process::Ended`] with [`Cause::NotStarted`] is what is seen).
    fn start(&self, start: Start) -> BoxFuture<'static, Result<(), Problem>>;

    /// Records that the run is to stop and sends the signal; answers at once. The caller kills
    /// after the grace.
    fn stop(
        &self,
        id: &str,
        signal: SignalName,
        grace: Duration,
    ) -> BoxFuture<'static, Result<(), Problem>>;

    /// Sends the signal to its process and to no other; `false`: none runs. Not what stops an instance: nothing is
    /// recorded, and what ends because of it is started again as its policy says.
    fn signal(&self, _id: &str, _signal: SignalName) -> BoxFuture<'static, Result<bool, Problem>> {
        let why = format!("the driver {} sends no signals", self.name());
        Box::pin(std::future::ready(Err(Problem::new("UNSUPPORTED", why))))
    }

    /// Ends it and all it has started, at once.
    fn kill(&self, id: &str) -> BoxFuture<'static, Result<(), Problem>>;

    /// One instance, or `None` when there is no trace of it.
    fn inspect(&self, id: &str) -> BoxFuture<'static, Result<Option<Instance>, Problem>>;

    /// All instances that this driver has traces of.
    fn list(&self) -> BoxFuture<'static, Result<Vec<Instance>, Problem>>;

    /// Ends when the run that is going on now has ended (at once if none is).
    fn ended(&self, id: &str) -> BoxFuture<'static, ()>;

    /// What it uses, if that can be known.
    fn usage(&self, id: &str) -> BoxFuture<'static, Option<Usage>>;

    /// Its log, for reading.
    fn logs(&self, id: &str, tail_lines: u32) -> Result<log::Reader, Problem>;

    /// Removes all traces of an instance that does not run.
    fn remove(&self, id: &str) -> BoxFuture<'static, Result<(), Problem>>;

    /// Runs a command in the instance's environment, for health checks; answers its exit code.
    fn exec(&self, id: &str, command: Vec<String>) -> BoxFuture<'static, Result<i32, Problem>>;

    /// Whether it can start instances whose environment holds secrets.
    fn takes_secrets(&self) -> bool {
        false
    }

    /// Per isolation feature, `enforced` or why it is not.
    fn isolation(&self) -> BTreeMap<String, String>;
}

/// A shared driver.
pub type SharedDriver = Arc<dyn Driver>;
