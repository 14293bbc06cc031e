//! The methods.

mod apply;
mod change;
mod instances;
mod past;
mod plan;
mod read;
mod signal;

use palisade_contract::{Check, Method, Problems, Resource, Verb, Watched};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::spec::COUNT_MAX;

pub(crate) use apply::store;
pub use apply::{Applied, Change};
pub use plan::{Plan, Start};
pub(crate) use signal::kind as signal_kind;

/// Input of the methods on one workload.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneWorkload {
    /// Its id or name.
    pub workload: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for OneWorkload {}

/// Input of `workloads.scale`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scale {
    /// Its id or name.
    pub workload: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
    /// How many instances are wanted.
    #[schemars(range(min = 1, max = COUNT_MAX))]
    pub count: u32,
}

impl Check for Scale {}

/// Input of `workloads.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListWorkloads {
    /// Only workloads of this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only workloads of this pool.
    #[serde(default)]
    pub pool: Option<String>,
}

impl Check for ListWorkloads {}

/// Input of `instances.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListInstances {
    /// Only instances of this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only instances of this workload, by id or name.
    #[serde(default)]
    pub workload: Option<String>,
    /// Only instances on this node, by id or name.
    #[serde(default)]
    pub node: Option<String>,
}

impl Check for ListInstances {}

/// Input of the methods on one instance.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneInstance {
    /// Its id or name.
    pub instance: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for OneInstance {}

/// Input of `instances.logs`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Logs {
    /// Its id or name.
    pub instance: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Go on with what it writes from now on.
    #[serde(default)]
    pub follow: bool,
    /// Begin with so many of the last lines.
    #[serde(default = "hundred")]
    #[schemars(range(min = 0, max = 100_000))]
    pub tail: u32,
}

fn hundred() -> u32 {
    100
}

impl Check for Logs {}

/// Input of `instances.signal`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signal {
    /// Its id or name.
    pub instance: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Such as `HUP` or `SIGHUP`.
    pub signal: String,
}

impl Check for Signal {
    fn check(&self, at: &str, problems: &mut Problems) {
        signal::check(&self.signal, at, problems);
    }
}

fn resource(kind: &'static str) -> impl Fn(&Value) -> Resource + Send + Sync + Copy + 'static {
    move |value| {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant(kind, text(kind), text("tenant"))
    }
}

/// The methods, in the order of their documentation.
pub fn all() -> Vec<Method> {
    let workload = resource("workload");
    let write = "compute:workloads:write";
    vec![
        Method::mutation("workloads", "apply", write, apply::apply)
            .summary("Makes a workload what its spec says, or says what that would do.")
            .rest(Verb::Put, "/workloads/{workload}")
            .on(workload),
        Method::listing("workloads", "list", "compute:workloads:read", read::list)
            .summary("Lists the workloads.")
            .rest(Verb::Get, "/workloads")
            .past()
            .watched(Watched::Records)
            .on(workload),
        Method::query("workloads", "get", "compute:workloads:read", read::get)
            .summary("Shows a workload.")
            .rest(Verb::Get, "/workloads/{workload}")
            .past()
            .on(workload),
        Method::read("workloads", "history", "compute:workloads:read", past::workload)
            .summary("What became of a workload: each change, when, what differs, and who asked for it.")
            .rest(Verb::Get, "/workloads/{workload}/history")
            .on(workload),
        Method::mutation("workloads", "scale", "compute:workloads:scale", change::scale)
            .summary("Changes how many instances a workload has.")
            .rest(Verb::Post, "/workloads/{workload}/scale")
            .on(workload),
        Method::mutation("workloads", "start", write, change::start)
            .summary("Starts the instances of a workload where they are.")
            .rest(Verb::Post, "/workloads/{workload}/start")
            .on(workload),
        Method::mutation("workloads", "stop", write, change::stop)
            .summary("Stops the instances of a workload; they keep their places.")
            .rest(Verb::Post, "/workloads/{workload}/stop")
            .on(workload),
        Method::mutation("workloads", "restart", write, change::restart)
            .summary("Restarts the instances of a workload where they are, a few at a time.")
            .rest(Verb::Post, "/workloads/{workload}/restart")
            .on(workload),
        Method::mutation("workloads", "remove", "compute:workloads:remove", change::remove)
            .summary("Removes a workload once the agents have let go of its instances.")
            .rest(Verb::Delete, "/workloads/{workload}")
            .destructive()
            .on(workload),
        Method::listing("instances", "list", "compute:instances:read", instances::list)
            .summary("Lists the instances, of all workloads or of one.")
            .rest(Verb::Get, "/instances")
            .past()
            .watched(Watched::Records)
            .on(resource("instance")),
        Method::query("instances", "get", "compute:instances:read", instances::get)
            .summary("Shows an instance.")
            .rest(Verb::Get, "/instances/{instance}")
            .past()
            .on(resource("instance")),
        Method::read("instances", "history", "compute:instances:read", past::instance)
            .summary("What became of an instance: each change, when, what differs, and who asked for it.")
            .rest(Verb::Get, "/instances/{instance}/history")
            .on(resource("instance")),
        Method::stream("instances", "logs", "compute:instances:logs", instances::logs)
            .summary("Shows what an instance has written, and goes on with it.")
            .rest(Verb::Get, "/instances/{instance}/logs")
            .on(resource("instance")),
        Method::mutation("instances", "signal", "compute:instances:signal", signal::signal)
            .summary(
                "Sends a signal to an instance's process; the command that is answered says when it was sent.",
            )
            .rest(Verb::Post, "/instances/{instance}/signal")
            .on(resource("instance")),
    ]
}
