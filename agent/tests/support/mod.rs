//! What the tests share.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_agent::{
    TokioRuntime,
    driver::{
        Driver, End, Instance, Process, ProcessDriver, SharedDriver, ShimCommand, Start, log,
    },
    engine::{Engine, Handle, Parts, Snapshot},
    health::NetProber,
    port::{Rt, Runtime},
    spec::FileSpecStore,
};
use palisade_proto::agent::{
    Fence, InstancePhase, InstanceSpec, InstanceStatus, NodeSpec, RestartPolicy, Wanted,
};

pub mod gateway;

const LIMIT: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(10);

pub fn shim() -> ShimCommand {
    ShimCommand { program: PathBuf::from(env!("CARGO_BIN_EXE_palisade-shim-test")), args: vec![] }
}

/// Waits until the condition answers something.
#[allow(clippy::disallowed_methods, reason = "a bounded poll on a condition, over real processes")]
pub async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = std::time::Instant::now();
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "never happened: {what}");
        tokio::time::sleep(STEP).await;
    }
}

#[allow(clippy::disallowed_methods, reason = "a real task in a real runtime")]
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
    tokio::spawn(task).abort_handle()
}

/// A directory with a driver; what it started is killed at the end.
pub struct Rig {
    pub dir: tempfile::TempDir,
    pub driver: ProcessDriver,
}

impl Rig {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let driver = ProcessDriver::new(dir.path().join("instances"), shim());
        Self { dir, driver }
    }

    pub fn instance_dir(&self, id: &str) -> PathBuf {
        self.dir.path().join("instances").join(id)
    }

    pub fn file(&self, id: &str, name: &str) -> serde_json::Value {
        let text = fs::read_to_string(self.instance_dir(id).join(name)).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn edit(&self, id: &str, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let mut value = self.file(id, name);
        change(&mut value);
        let text = serde_json::to_string(&value).unwrap();
        fs::write(self.instance_dir(id).join(name), text).unwrap();
    }

    pub async fn start(&self, spec: InstanceSpec, run: u32) -> Instance {
        let id = spec.id.clone();
        self.driver
            .start(Start { spec, run, restarts: 0, node: "node-1".into(), secrets: [].into() })
            .await
            .unwrap();
        self.driver.inspect(&id).await.unwrap().unwrap()
    }

    pub async fn pid(&self, id: &str) -> u32 {
        match self.driver.inspect(id).await.unwrap().unwrap().process {
            Process::Running { pid, .. } => pid,
            other => panic!("not running: {other:?}"),
        }
    }

    pub async fn end(&self, id: &str) -> End {
        until("the end of the run", async || {
            match self.driver.inspect(id).await.unwrap()?.process {
                Process::Ended(end) => Some(end),
                _ => None,
            }
        })
        .await
    }

    pub fn log(&self, id: &str, tail: u32) -> String {
        let mut reader = self.driver.logs(id, tail).unwrap();
        let mut text = String::new();
        while let log::Next::Chunk(chunk) = reader.next_chunk().unwrap() {
            text.push_str(&String::from_utf8_lossy(&chunk.data));
        }
        text
    }

    pub async fn log_has(&self, id: &str, part: &str) {
        until("text in the log", async || self.log(id, 0).contains(part).then_some(())).await;
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        kill_all(&self.dir.path().join("instances"));
    }
}

/// Kills what the instances under `root` have running.
pub fn kill_all(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let state = fs::read_to_string(entry.path().join("state.json")).unwrap_or_default();
        let state: serde_json::Value = serde_json::from_str(&state).unwrap_or_default();
        let process = &state["process"];
        let pid = process["pid"].as_u64().unwrap_or(0);
        if start_ticks(pid).is_some_and(|ticks| Some(ticks) == process["start_ticks"].as_u64()) {
            kill(u32::try_from(pid).unwrap());
        }
    }
}

pub fn start_ticks(pid: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text[text.rfind(')')? + 1..].split_whitespace().nth(19)?.parse().ok()
}

pub fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

pub fn alive(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !text.is_empty() && !text.contains(") Z ")
}

/// Fields 4 (parent) and 6 (session) of /proc/<pid>/stat.
pub fn parent_and_session(pid: u32) -> (u32, u32) {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text[text.rfind(')').unwrap() + 1..].split_whitespace().collect();
    (fields[1].parse().unwrap(), fields[3].parse().unwrap())
}

/// An instance that runs a shell script.
pub fn script(id: &str, script: &str) -> InstanceSpec {
    let mut spec = InstanceSpec {
        id: id.into(),
        name: id.into(),
        workload: "web".into(),
        spec_version: 1,
        driver: "process".into(),
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        stop_grace_ms: 2000,
        restart: Some(RestartPolicy {
            backoff_initial_ms: 20,
            backoff_max_ms: 400,
            crash_loop_threshold: 3,
            crash_loop_window_ms: 60_000,
            ..RestartPolicy::default()
        }),
        ..InstanceSpec::default()
    };
    spec.set_wanted(Wanted::Up);
    spec
}

pub fn node(generation: u64, index: u64, instances: Vec<InstanceSpec>) -> NodeSpec {
    let fence = Some(Fence { epoch: 0, term: 1, index });
    NodeSpec { generation, fence, instances, hash: vec![] }
}

/// The runtime port of production, which counts how often somebody waits.
pub struct Counting {
    inner: Rt,
    pub sleeps: AtomicUsize,
}

impl Counting {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { inner: TokioRuntime::shared(), sleeps: AtomicUsize::new(0) })
    }
}

impl Runtime for Counting {
    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn wall_ms(&self) -> u64 {
        self.inner.wall_ms()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        self.inner.sleep(duration)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.inner.spawn(name, task);
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }
}

/// An engine over a rig; dropping it ends the engine as SIGKILL ends an agent.
pub struct Agent {
    pub handle: Handle,
    task: tokio::task::AbortHandle,
}

impl Agent {
    pub async fn start(rig: &Rig) -> Self {
        Self::start_over(rig, TokioRuntime::shared()).await
    }

    pub async fn start_over(rig: &Rig, rt: Rt) -> Self {
        // As after a restart: nothing but the directory is shared with the agent before.
        let driver: SharedDriver =
            Arc::new(ProcessDriver::new(rig.dir.path().join("instances"), shim()));
        let drivers = Arc::new(BTreeMap::from([("process".to_owned(), driver)]));
        let parts = Parts {
            rt,
            drivers: drivers.clone(),
            store: Arc::new(FileSpecStore::new(rig.dir.path().join("nodespec.bin"))),
            prober: Arc::new(NetProber::new("127.0.0.1", drivers)),
            node: "node-1".into(),
        };
        let (engine, handle) = Engine::open(parts).await.unwrap();
        Self { handle, task: spawn(engine.run()) }
    }

    pub async fn snapshot(&self) -> Snapshot {
        self.handle.snapshot().await
    }

    /// Waits until an instance is in a phase.
    pub async fn reaches(&self, id: &str, phase: InstancePhase) -> InstanceStatus {
        until(&format!("{id} in {phase:?}"), async || {
            let status = self.snapshot().await.status;
            status.instances.into_iter().find(|one| one.id == id && one.phase() == phase)
        })
        .await
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}
