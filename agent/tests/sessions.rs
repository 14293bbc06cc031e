//! The whole daemon against a gateway.

use std::{path::PathBuf, sync::Arc};

use palisade_agent::{
    Identity, TokioRuntime,
    commands::Executors,
    config::Config,
    daemon::{RunError, RunOptions, run},
    join::{JoinOptions, join},
};
use palisade_proto::agent::{Goodbye, InstancePhase, LogRequest, up};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{
    alive,
    gateway::{Ca, Fake, Script, token_file},
    kill_all, node, script, shim, spawn, until,
};

/// A daemon that joined some gateway.
struct Node {
    dir: tempfile::TempDir,
    task: Option<tokio::task::AbortHandle>,
}

impl Node {
    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    async fn joined(gateway: &Fake, ca: &Ca) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path().join("data"));
        config.servers = vec![gateway.address.clone()];
        let options = JoinOptions {
            config,
            token_file: token_file(dir.path()),
            pins: vec![ca.pin()],
            agent_version: "1".into(),
        };
        join(&TokioRuntime::shared(), options).await.unwrap();
        Self { dir, task: None }
    }

    fn options(&self) -> RunOptions {
        RunOptions {
            config: Config::load(&self.data()).unwrap(),
            shim: shim(),
            agent_version: "1".into(),
            executors: Executors::default(),
        }
    }

    fn run(&mut self) {
        let options = self.options();
        self.task = Some(spawn(async move {
            run(&TokioRuntime::shared(), options, std::future::pending()).await.unwrap();
        }));
    }

    fn set_servers(&self, servers: &[&Fake]) {
        let mut identity = Identity::load(&self.data()).unwrap().unwrap();
        identity.servers = servers.iter().map(|server| server.address.clone()).collect();
        identity.save(&self.data()).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        kill_all(&self.data().join("instances"));
    }
}

async fn hello(gateway: &Fake, count: usize) {
    until("a session", async || (gateway.seen(|seen| seen.hellos.len()) >= count).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_becomes_healthy_instances_and_logs_quickly() {
    let ca = Ca::new();
    let spec = node(
        3,
        1,
        (0..3).map(|n| script(&format!("i{n}"), "echo line $PALISADE_NODE; sleep 100")).collect(),
    );
    let logs = LogRequest { request_id: 9, instance_id: "i1".into(), follow: true, tail_lines: 0 };
    let script =
        Script { spec: Some(spec), logs: Some(logs), heartbeat_ms: 50, ..Script::default() };
    let gateway = Fake::start(&ca, script).await;
    let mut node = Node::joined(&gateway, &ca).await;
    node.run();
    let status = until("three healthy instances", async || {
        let status = gateway.status()?;
        let healthy = status.instances.iter().filter(|one| one.phase() == InstancePhase::Healthy);
        (healthy.count() == 3).then_some(status)
    })
    .await;
    assert_eq!(status.generation, 3);
    let (first, _) = gateway.seen(|seen| seen.hellos[0].clone());
    assert_eq!(first.generation, 0);
    let inventory = first.inventory.unwrap();
    assert_eq!(inventory.drivers, ["process", "process.secrets"]);
    assert_eq!(inventory.address, "127.0.0.1");
    assert!(inventory.isolation.contains_key("memory"));
    until("heartbeats", async || {
        gateway.seen(|seen| {
            let beats = seen.ups.iter().filter(|up| matches!(up.msg, Some(up::Msg::Heartbeat(_))));
            (beats.count() >= 3).then_some(())
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_lets_instances_of_other_users_pass_through_its_directory() {
    use std::os::unix::fs::PermissionsExt;
    let ca = Ca::new();
    let gateway = Fake::start(&ca, Script::default()).await;
    let mut node = Node::joined(&gateway, &ca).await;
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(node.data(), closed).unwrap();
    node.run();
    hello(&gateway, 1).await;
    let mode = |path: std::path::PathBuf| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(node.data()), 0o711);
    assert_eq!(mode(node.data().join("instances")), 0o711);
    assert_eq!(mode(node.data().join("identity.json")), 0o600);
}

/// The daemon as a process of its own, leading a group as a shell's foreground job does.
fn process(node: &Node) -> std::process::Child {
    use std::os::unix::process::CommandExt;
    std::process::Command::new(env!("CARGO_BIN_EXE_palisade-shim-test"))
        .arg("daemon")
        .arg(node.data())
        .process_group(0)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_killed_or_interrupted_ends_no_instance() {
    let ca = Ca::new();
    let spec = node(1, 1, vec![script("i", "while :; do echo tick; sleep 0.05; done")]);
    let gateway = Fake::start(&ca, Script { spec: Some(spec), ..Script::default() }).await;
    let one = Node::joined(&gateway, &ca).await;
    let mut pids = Vec::new();
    for (count, signal) in [(1, Signal::KILL), (2, Signal::INT)] {
        let mut daemon = process(&one);
        hello(&gateway, count).await;
        pids.push(
            until("a healthy instance", async || {
                let status = gateway.status()?;
                let mut all = status.instances.into_iter();
                all.find(|one| one.phase() == InstancePhase::Healthy).map(|one| one.pid)
            })
            .await,
        );
        let group = Pid::from_raw(i32::try_from(daemon.id()).unwrap()).unwrap();
        kill_process_group(group, signal).unwrap();
        daemon.wait().unwrap();
        let log = one.data().join("instances/i/log");
        let length = || std::fs::metadata(&log).map_or(0, |meta| meta.len());
        let before = length();
        until("more output", async || (length() > before).then_some(())).await;
    }
    assert_eq!(pids[0], pids[1]);
    assert!(alive(pids[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_an_unknown_instance_end_with_a_sentence() {
    let ca = Ca::new();
    let logs = LogRequest { request_id: 9, instance_id: "nope".into(), ..LogRequest::default() };
    let script = Script { logs: Some(logs), ..Script::default() };
    let gateway = Fake::start(&ca, script).await;
    let mut node = Node::joined(&gateway, &ca).await;
    node.run();
    let chunk = until("the answer", async || {
        gateway.seen(|seen| {
            seen.ups.iter().find_map(|up| match up.msg.as_ref()? {
                up::Msg::LogChunk(chunk) => Some(chunk.clone()),
                _ => None,
            })
        })
    })
    .await;
    assert!(chunk.eof && chunk.error.contains("nope"), "{chunk:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_tailed_over_the_session() {
    let ca = Ca::new();
    let lines = script("i", "for n in 1 2 3 4 5; do echo line $n; done; sleep 100");
    let gateway =
        Fake::start(&ca, Script { spec: Some(node(1, 1, vec![lines])), ..Script::default() }).await;
    let mut one = Node::joined(&gateway, &ca).await;
    one.run();
    until("a healthy instance", async || {
        let status = gateway.status()?;
        status.instances.iter().any(|one| one.phase() == InstancePhase::Healthy).then_some(())
    })
    .await;
    until("its output", async || {
        let log = std::fs::read_to_string(one.data().join("instances/i/log")).ok()?;
        log.contains("line 5").then_some(())
    })
    .await;
    let logs = LogRequest { request_id: 4, instance_id: "i".into(), follow: false, tail_lines: 2 };
    gateway.script(|script| script.logs = Some(logs));
    one.task.take().unwrap().abort();
    until("the old daemon's end", async || {
        // Its lock is let go when it is gone.
        palisade_agent::DirLock::acquire(&one.data()).ok()
    })
    .await;
    one.run();
    let text = until("the whole tail", async || {
        gateway.seen(|seen| {
            let mut text = String::new();
            for up in &seen.ups {
                if let Some(up::Msg::LogChunk(chunk)) = &up.msg {
                    text.push_str(&String::from_utf8_lossy(&chunk.data));
                    if chunk.eof {
                        return Some(text);
                    }
                }
            }
            None
        })
    })
    .await;
    assert_eq!(text, "line 4\nline 5\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_replica_is_left_for_another_at_once() {
    let ca = Ca::new();
    let script = Script { heartbeat_ms: 50, ..Script::default() };
    let (first, second) = (Fake::start(&ca, script.clone()).await, Fake::start(&ca, script).await);
    let mut node = Node::joined(&first, &ca).await;
    node.set_servers(&[&first, &second]);
    node.run();
    hello(&first, 1).await;
    first.stop();
    hello(&second, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_replica_is_left_for_another() {
    let ca = Ca::new();
    let silent = Script { heartbeat_ms: 50, silent: true, ..Script::default() };
    let (first, second) =
        (Fake::start(&ca, silent).await, Fake::start(&ca, Script::default()).await);
    let mut node = Node::joined(&first, &ca).await;
    node.set_servers(&[&first, &second]);
    node.run();
    hello(&first, 1).await;
    hello(&second, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_authority_gets_no_session() {
    let (ca, evil) = (Ca::new(), Ca::new());
    let script = Script::default();
    let (good, bad) = (Fake::start(&ca, script.clone()).await, Fake::start(&evil, script).await);
    let mut node = Node::joined(&good, &ca).await;
    node.set_servers(&[&bad, &good]);
    node.run();
    hello(&good, 1).await;
    assert_eq!(bad.seen(|seen| seen.hellos.len()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_welcome_names_other_servers_and_they_are_kept() {
    let ca = Ca::new();
    let second = Fake::start(&ca, Script::default()).await;
    let script = Script { servers: vec![second.address.clone()], ..Script::default() };
    let first = Fake::start(&ca, Script::default()).await;
    let mut node = Node::joined(&first, &ca).await;
    first.script(|current| *current = script);
    node.run();
    hello(&first, 1).await;
    until("the stored list", async || {
        let identity = Identity::load(&node.data()).ok()??;
        (identity.servers == [second.address.as_str()]).then_some(())
    })
    .await;
    first.stop();
    hello(&second, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_servers_that_are_named_within_a_session_are_kept_too() {
    let ca = Ca::new();
    let second = Fake::start(&ca, Script::default()).await;
    let script = Script { heartbeat_ms: 50, ..Script::default() };
    let first = Fake::start(&ca, script).await;
    let mut node = Node::joined(&first, &ca).await;
    node.run();
    hello(&first, 1).await;
    first.script(|current| current.later_servers = vec![second.address.clone()]);
    until("the stored list", async || {
        let identity = Identity::load(&node.data()).ok()??;
        (identity.servers == [second.address.as_str()]).then_some(())
    })
    .await;
    first.stop();
    hello(&second, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_past_half_its_life_is_renewed_with_another_key() {
    let ca = Ca::new();
    let script = Script { old_certificates: true, ..Script::default() };
    let gateway = Fake::start(&ca, script).await;
    let mut node = Node::joined(&gateway, &ca).await;
    node.run();
    hello(&gateway, 2).await;
    let keys =
        gateway.seen(|seen| seen.hellos.iter().map(|hello| hello.1.clone()).collect::<Vec<_>>());
    assert_ne!(keys[0], keys[1]);
    assert_eq!(gateway.seen(|seen| seen.renewals), 1);
    assert!(!node.data().join("renew-key.pem").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_stops_trying_and_remembers() {
    let ca = Ca::new();
    let goodbye = Goodbye { reason: "cloned disk".into(), revoked: true, ..Goodbye::default() };
    let gateway = Fake::start(&ca, Script { goodbye: Some(goodbye), ..Script::default() }).await;
    let mut node = Node::joined(&gateway, &ca).await;
    node.run();
    until("the mark", async || Identity::load(&node.data()).ok()??.revoked.then_some(())).await;
    assert_eq!(gateway.seen(|seen| seen.hellos.len()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_in_one_directory_is_told_who_has_it() {
    let ca = Ca::new();
    let gateway = Fake::start(&ca, Script::default()).await;
    let mut node = Node::joined(&gateway, &ca).await;
    node.run();
    hello(&gateway, 1).await;
    let rt = TokioRuntime::shared();
    let error = run(&rt, node.options(), std::future::pending()).await.unwrap_err();
    assert!(matches!(error, RunError::Lock(_)));
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
}

#[tokio::test]
async fn a_node_that_has_not_joined_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let options = RunOptions {
        config: Config::new(dir.path()),
        shim: shim(),
        agent_version: "1".into(),
        executors: Executors::default(),
    };
    let rt = Arc::clone(&TokioRuntime::shared());
    let error = run(&rt, options, std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("agent join"), "{error}");
}
