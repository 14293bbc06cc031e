//! The workloads that the rig runs.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    history::ProcessSeen,
    http::{BASE, Http},
    proc,
};

/// A workload of small HTTP servers.
pub(crate) fn hello(name: &str, binary: &Path, count: u64) -> Value {
    json!({
        "name": name,
        "count": count,
        "task": {"command": [binary.display().to_string(), "hello"]},
        "ports": [{"name": "http"}],
        "resources": {"cpumem": {"cpu-request": 0.1, "memory-request": "64MiB"}},
        "health": {"http": {"port": "http", "path": "/healthz"}, "interval": "500ms"},
    })
}

/// A workload that never runs: a register, whose value is a label.
pub(crate) fn register(name: &str, value: u64) -> Value {
    json!({
        "name": name,
        "count": 1,
        "task": {"command": ["/bin/true"]},
        "wanted": "offline",
        "labels": {"value": value.to_string()},
    })
}

/// The value of such a register, from its record.
pub(crate) fn register_value(record: &Value) -> Option<u64> {
    record.pointer("/spec/labels/value")?.as_str()?.parse().ok()
}

/// The version of such a register, from its record: the revision that wrote it.
pub(crate) fn register_version(record: &Value) -> Option<u64> {
    record.get("revision")?.as_u64()
}

/// An instance as the cluster sees it.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) name: String,
    /// Its process, if it is there.
    pub(crate) process: Option<ProcessSeen>,
}

/// The instances of a workload.
pub(crate) async fn instances(http: &Http, workload: &str) -> Result<Vec<Instance>> {
    let path = format!("{BASE}/instances?workload={workload}");
    let records = http.list(&path, Duration::from_secs(10)).await?;
    Ok(records.iter().map(instance).collect())
}

fn instance(record: &Value) -> Instance {
    let pid = record.pointer("/status/pid").and_then(Value::as_u64);
    Instance {
        name: record.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
        process: pid.and_then(|pid| proc::process(u32::try_from(pid).ok()?)),
    }
}
