//! Replicas alone, made with `init` and run with `serve` by the test itself.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    path::PathBuf,
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use super::{
    Api, Home, Out, Slot, finish,
    http::{Answer, BASE},
    procs, until,
};

/// Ports below those that the system hands out, so that no outgoing connection takes one while
/// its owner is down. The first of a block is held over UDP: two tests never choose the same.
struct Ports {
    base: u16,
    _held: UdpSocket,
}

const FIRST: u16 = 12_000;
const STEP: u16 = 10;
const BLOCKS: u16 = 700;

impl Ports {
    fn choose() -> Self {
        let begin = u16::try_from(std::process::id() % u32::from(BLOCKS)).unwrap();
        for block in (begin..BLOCKS).chain(0..begin) {
            let base = FIRST + block * STEP;
            let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
            if let Ok(held) = UdpSocket::bind((Ipv4Addr::LOCALHOST, base))
                && (base + 1..base + STEP).all(free)
            {
                return Self { base, _held: held };
            }
        }
        panic!("no free ports");
    }
}

/// Replicas, numbered from 0.
pub struct Replicas {
    pub api: Api,
    running: Vec<Option<Child>>,
    ports: Ports,
    /// Below the home: where the directories of the replicas are.
    root: String,
    pub home: Home,
    _slot: Option<Slot>,
}

impl Replicas {
    /// So many, ready.
    #[track_caller]
    pub fn start(count: usize) -> Self {
        let mut all = Self::prepare(count, Some(Slot::take()));
        all.start_all();
        all
    }

    /// One, ready, beside another cluster of the same test.
    #[track_caller]
    pub fn beside() -> Self {
        let mut all = Self::prepare(1, None);
        all.start_all();
        all
    }

    /// So many directories, and nothing runs.
    #[track_caller]
    pub fn prepare(count: usize, slot: Option<Slot>) -> Self {
        let (home, ports) = (Home::new(), Ports::choose());
        let mut args: Vec<String> =
            ["init", "--as", "test", "--dir", "cluster"].map(Into::into).into();
        for id in 1..=u16::try_from(count).unwrap() {
            let (peer, api) = (ports.base + 2 * id - 1, ports.base + 2 * id);
            args.extend(["--replica".into(), format!("{id}=127.0.0.1:{peer},{api}")]);
        }
        home.palisade(&args).ok();
        let api = Api::of_context(&home.context_file());
        let running = (0..count).map(|_| None).collect();
        Self { api, running, ports, root: "cluster".to_owned(), home, _slot: slot }
    }

    /// How `--replica` names so many replicas, with the ports that these have.
    pub fn named(&self, count: usize) -> Vec<String> {
        let named = (1..=count).flat_map(|id| {
            let (peer, api) = (self.peer_addr(id - 1), usize::from(self.ports.base) + 2 * id);
            ["--replica".to_owned(), format!("{id}={peer},{api}")]
        });
        named.collect()
    }

    /// Goes on with other directories below the home, and with the context that leads to them. Nothing may run.
    pub fn move_to(&mut self, root: &str, count: usize) {
        assert!(self.running.iter().all(Option::is_none), "something runs");
        root.clone_into(&mut self.root);
        self.running = (0..count).map(|_| None).collect();
        self.api = Api::of_context(&self.home.context_file());
    }

    #[track_caller]
    pub fn start_all(&mut self) {
        for index in 0..self.running.len() {
            self.spawn(index);
        }
        for index in 0..self.running.len() {
            self.ready(index);
        }
    }

    pub fn dir(&self, index: usize) -> PathBuf {
        self.home.path().join(format!("{}/replica-{}", self.root, index + 1))
    }

    /// The newest segment of a replica's log.
    pub fn segment(&self, index: usize) -> PathBuf {
        let entries = std::fs::read_dir(self.dir(index).join("data/log")).unwrap();
        let segments = entries.map(|entry| entry.unwrap().path());
        segments.filter(|path| path.extension().is_some_and(|end| end == "seg")).max().unwrap()
    }

    /// Two ports that no replica has, when there are three at most.
    pub fn spare_ports(&self) -> (u16, u16) {
        (self.ports.base + 7, self.ports.base + 8)
    }

    pub fn peer_addr(&self, index: usize) -> String {
        format!("127.0.0.1:{}", usize::from(self.ports.base) + 2 * index + 1)
    }

    pub fn log(&self, index: usize) -> String {
        let path = self.home.path().join(format!("replica-{}.log", index + 1));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    fn serve(&self, index: usize) -> std::process::Command {
        let dir = self.dir(index);
        self.home.command(&["serve", "--stop-with-stdin", "--dir", dir.to_str().unwrap()])
    }

    /// Starts one; it ends when this process does.
    #[track_caller]
    pub fn spawn(&mut self, index: usize) {
        self.spawn_with(index, &[]);
    }

    /// Runs one that is to refuse its start; its standard input stays open.
    #[track_caller]
    pub fn refuses(&self, index: usize) -> Out {
        let mut command = self.serve(index);
        let (open, _held) = std::io::pipe().unwrap();
        finish(command.stdin(open))
    }

    /// Waits until it says that it is ready.
    #[track_caller]
    pub fn ready(&self, index: usize) {
        let pid = self.pid(index);
        until("a ready replica", || {
            assert!(procs::alive(pid), "it ended:\n{}", self.log(index));
            self.api.is_ready(index).then_some(())
        });
    }

    pub fn pid(&self, index: usize) -> u64 {
        self.running[index].as_ref().expect("it runs").id().into()
    }

    /// Waits until one ends by itself; its exit code.
    #[track_caller]
    pub fn ends(&mut self, index: usize) -> i32 {
        let mut child = self.running[index].take().expect("it runs");
        let status = until("the end of a replica", || child.try_wait().unwrap());
        status.code().unwrap_or(-1)
    }

    /// Is told where it is reached now when it is started next.
    pub fn spawn_with(&mut self, index: usize, args: &[&str]) {
        self.spawn_in(index, args, None);
    }

    /// Starts one that says of itself that it is another release, `VERSION/FORMAT`: debug builds can.
    pub fn spawn_rehearsing(&mut self, index: usize, build: &str) {
        self.spawn_in(index, &[], Some(build));
    }

    fn spawn_in(&mut self, index: usize, args: &[&str], build: Option<&str>) {
        let path = self.home.path().join(format!("replica-{}.log", index + 1));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        let mut command = self.serve(index);
        command.args(args).stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        command.envs(build.map(|build| ("PALISADE_REHEARSED_BUILD", build)));
        self.running[index] = Some(command.spawn().unwrap());
    }

    /// SIGKILL.
    pub fn kill(&mut self, index: usize) {
        let mut child = self.running[index].take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM, and it ends in order.
    #[track_caller]
    pub fn stop(&mut self, index: usize) {
        let mut child = self.running[index].take().expect("it runs");
        procs::terminate(child.id().into());
        let status = until("the end of a replica", || child.try_wait().unwrap());
        assert!(status.success(), "{status}:\n{}", self.log(index));
    }

    /// The replica that leads, as one of them knows it.
    #[track_caller]
    pub fn leader(&self, asked: usize) -> usize {
        until("a leader", || {
            let answer = self.api.get(asked, &format!("{BASE}/cluster?consistency=local")).ok()?;
            let leader = answer.json().get("leader").and_then(Value::as_u64)?;
            Some(usize::try_from(leader).unwrap() - 1)
        })
    }

    /// One write through one replica, which must succeed; its visible effect is an API token.
    #[track_caller]
    pub fn write(&self, through: usize, name: &str) {
        until("a write", || {
            let answer = self.api.post(through, &tokens(), name, &token(name)).ok()?;
            let code = answer.code();
            if matches!(code.as_str(), "UNAVAILABLE" | "NO_QUORUM" | "NO_SPACE") {
                return None;
            }
            answer.done();
            Some(())
        });
    }

    /// One large write, tried once.
    pub fn large(&self, through: usize, name: &str) -> std::io::Result<Answer> {
        let body = json!({
            "name": name, "wanted": "offline",
            "task": {"command": ["true"], "files": {"large": "x".repeat(60_000)}},
        });
        let path = format!("{BASE}/workloads/{name}");
        self.api.send(
            through,
            "PUT",
            &path,
            &[("Idempotency-Key", name)],
            body.to_string().as_bytes(),
        )
    }

    /// The names of all API tokens that a replica knows.
    #[track_caller]
    pub fn names(&self, asked: usize) -> Vec<String> {
        let items = self.api.list(asked, "/api-tokens");
        items.iter().map(|item| super::text(item, "/name").to_owned()).collect()
    }
}

/// Where API tokens are made.
pub fn tokens() -> String {
    format!("{BASE}/api-tokens")
}

/// An API token to make.
pub fn token(name: &str) -> Value {
    json!({"name": name, "roles": ["viewer"], "secretSha256": "0".repeat(64)})
}

impl Drop for Replicas {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for index in 0..self.running.len() {
                eprintln!("== replica-{}\n{}", index + 1, self.log(index));
            }
        }
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
