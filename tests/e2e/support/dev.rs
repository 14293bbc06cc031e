//! A cluster of `palisade dev`.

use std::path::PathBuf;

use serde_json::Value;

use super::{Api, Home, Out, Slot, example, list, number, procs, text, until};

/// A running cluster; it is stopped, and looked after, when it is dropped.
pub struct Dev {
    pub home: Home,
    _slot: Slot,
}

/// An instance, as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub id: String,
    pub name: String,
    pub node: String,
    pub phase: String,
    pub pid: u64,
    pub restarts: u64,
    pub addr: String,
}

impl Dev {
    /// Starts one and waits until it is ready.
    #[track_caller]
    pub fn start() -> Self {
        let slot = Slot::take();
        let dev = Self { home: Home::new(), _slot: slot };
        dev.up(&[]).ok();
        dev
    }

    pub fn dir(&self) -> PathBuf {
        self.home.path().join("dev")
    }

    /// `palisade dev --detach` with more flags.
    #[track_caller]
    pub fn up(&self, flags: &[&str]) -> Out {
        let dir = self.dir();
        let mut args = vec!["dev", "--detach", "--dir", dir.to_str().unwrap()];
        args.extend_from_slice(flags);
        self.home.palisade(&args)
    }

    /// A verb of `dev` in this directory.
    #[track_caller]
    pub fn dev(&self, verb: &str, flags: &[&str]) -> Out {
        let dir = self.dir();
        let mut args = vec!["dev", verb, "--dir", dir.to_str().unwrap()];
        args.extend_from_slice(flags);
        self.home.palisade(&args)
    }

    #[track_caller]
    pub fn palisade(&self, args: &[&str]) -> Out {
        self.home.palisade(args)
    }

    /// Data as JSON.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let mut all = vec!["-o", "json"];
        all.extend_from_slice(args);
        self.home.palisade(&all).json()
    }

    pub fn api(&self) -> Api {
        Api::of_context(&self.dir().join("context.toml"))
    }

    /// Applies the example with so many instances, waits, and answers them.
    #[track_caller]
    pub fn hello(&self, count: usize) -> Vec<Instance> {
        self.palisade(&["workload", "apply", "-f", example("hello.yaml").to_str().unwrap()]).ok();
        if count != 3 {
            self.palisade(&["workload", "scale", "hello", &count.to_string()]).ok();
        }
        let instances = self.instances();
        assert_eq!(instances.len(), count, "{instances:#?}");
        instances
    }

    /// All instances, by name.
    #[track_caller]
    pub fn instances(&self) -> Vec<Instance> {
        let records = self.json(&["instance", "ls"]);
        let mut all: Vec<Instance> = list(&records, "").iter().map(Instance::of).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// The process of `replica-N` or `agent-N`, if it runs.
    #[track_caller]
    pub fn pid(&self, name: &str) -> Option<u64> {
        let status = self.dev("status", &["-o", "json"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let part = list(&status, "/parts").iter().find(|part| text(part, "/name") == name);
        part.unwrap_or_else(|| panic!("no {name} in {status}"))["pid"].as_u64()
    }

    /// Waits until another process than `old` has taken its place.
    #[track_caller]
    pub fn replaced(&self, name: &str, old: u64) -> u64 {
        until("another process in its place", || self.pid(name).filter(|pid| *pid != old))
    }

    /// Waits until all replicas say that they are ready.
    #[track_caller]
    pub fn whole(&self) {
        let api = self.api();
        until("three ready replicas", || (0..3).all(|replica| api.is_ready(replica)).then_some(()));
    }

    /// Waits until no process of this directory is left.
    #[track_caller]
    pub fn nothing_left(&self) {
        until("the end of every process", || {
            procs::naming(self.home.path()).is_empty().then_some(())
        });
    }

    /// Waits until both nodes are ready.
    #[track_caller]
    pub fn nodes_ready(&self) {
        until("two ready nodes", || {
            let nodes = self.json(&["node", "ls"]);
            let ready = |node: &&Value| text(node, "/status/phase") == "ready";
            (list(&nodes, "").iter().filter(ready).count() == 2).then_some(())
        });
    }
}

impl Instance {
    fn of(record: &Value) -> Self {
        let port = record.pointer("/ports/http").and_then(Value::as_u64).unwrap_or(0);
        Self {
            id: text(record, "/id").to_owned(),
            name: text(record, "/name").to_owned(),
            node: text(record, "/nodeName").to_owned(),
            phase: text(record, "/status/phase").to_owned(),
            pid: record.pointer("/status/pid").and_then(Value::as_u64).unwrap_or(0),
            restarts: number(record, "/status/restarts"),
            addr: format!("{}:{port}", text(record, "/address")),
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        // Whatever this says, the home looks for what is left.
        let out = self.dev("stop", &[]);
        if !std::thread::panicking() {
            assert_eq!(out.code, 0, "{out:#?}");
            self.nothing_left();
        }
    }
}

impl Dev {
    fn show_logs(&self) {
        for entry in std::fs::read_dir(self.dir().join("logs")).into_iter().flatten().flatten() {
            let text = std::fs::read(entry.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("== {}", entry.path().display());
            for line in &lines[lines.len().saturating_sub(25)..] {
                eprintln!("{line}");
            }
        }
    }
}
