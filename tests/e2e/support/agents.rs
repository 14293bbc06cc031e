//! An agent alone, run by the test itself beside replicas.

use std::{
    path::PathBuf,
    process::{Child, Stdio},
};

use serde_json::Value;

use super::{Home, Replicas, example, list, procs, text, until};
use crate::tokens::{create, join};

/// A running agent; it ends with the test, its instances before it.
pub struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    /// Joins and runs one.
    #[track_caller]
    pub fn start(cluster: &Replicas) -> Self {
        let token = create(cluster, "join-token", &[]);
        join(cluster, "node", &token.file, &token.pin).ok();
        let log = cluster.home.path().join("agent.log");
        let out = std::fs::File::create(&log).unwrap();
        let mut command = cluster.home.command(&["agent", "run", "--data-dir", "node"]);
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        Self { child: command.spawn().unwrap(), log }
    }

    /// The process of the one instance of `sleep`, once it runs.
    #[track_caller]
    pub fn sleeper(cluster: &Replicas) -> u64 {
        let spec = example("sleep.toml");
        cluster.home.palisade(&["workload", "apply", "-f", spec.to_str().unwrap()]).ok();
        Self::pids(&cluster.home).into_iter().next().expect("one instance").1
    }

    /// Name and process of each instance that is up.
    pub fn pids(home: &Home) -> Vec<(String, u64)> {
        let out = home.palisade(&["-o", "json", "instance", "ls"]);
        let records: Value = serde_json::from_str(&out.stdout).unwrap_or_default();
        let all = records.as_array().cloned().unwrap_or_default();
        let pid = |one: &Value| one.pointer("/status/pid").and_then(Value::as_u64);
        all.iter().filter_map(|one| Some((text(one, "/name").to_owned(), pid(one)?))).collect()
    }

    /// Waits until the node is there.
    #[track_caller]
    pub fn comes_back(cluster: &Replicas) {
        until("the agent's return", || {
            let out = cluster.home.palisade(&["-o", "json", "node", "ls"]);
            let nodes: Value = serde_json::from_str(&out.stdout).ok()?;
            let ready = |node: &Value| text(node, "/status/phase") == "ready";
            list(&nodes, "").iter().any(ready).then_some(())
        });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("== agent\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        procs::terminate(self.child.id().into());
        let _ = self.child.wait();
    }
}
