//! The engine over the real driver: what is wanted becomes so, and stays so.

use std::sync::atomic::Ordering;

use palisade_agent::fence;
use palisade_proto::agent::{
    ExecCheck, HealthCheck, InstancePhase, RestartMode, Up, Wanted, health_check::Kind, up,
};
use tokio::sync::mpsc;

use crate::support::{Agent, Counting, Rig, alive, node, script, until};

async fn refusal(sent: &mut mpsc::Receiver<Up>) -> palisade_proto::agent::SpecRefused {
    until("a refusal", async || match sent.try_recv().ok()?.msg? {
        up::Msg::SpecRefused(refused) => Some(refused),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_killed_agent_ends_nothing_and_the_next_one_goes_on_without_a_control_plane() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    agent.handle.offer(node(1, 5, vec![script("a", "sleep 100"), script("b", "sleep 100")])).await;
    let (a, b) = (
        agent.reaches("a", InstancePhase::Healthy).await.pid,
        agent.reaches("b", InstancePhase::Healthy).await.pid,
    );
    drop(agent);
    crate::support::kill(b);
    until("the end of b", async || (!alive(b)).then_some(())).await;
    assert!(alive(a));
    let agent = Agent::start(&rig).await;
    assert_eq!(agent.reaches("a", InstancePhase::Healthy).await.pid, a);
    until("another run of b", async || {
        (agent.reaches("b", InstancePhase::Healthy).await.pid != b).then_some(())
    })
    .await;
    assert_eq!(agent.snapshot().await.generation, 1);
}

#[tokio::test]
async fn a_stale_fence_is_refused_also_after_a_restart() {
    let rig = Rig::new();
    for restart in [false, true] {
        let agent = Agent::start(&rig).await;
        if !restart {
            agent.handle.offer(node(7, 5, vec![script("a", "sleep 100")])).await;
            agent.reaches("a", InstancePhase::Healthy).await;
        }
        let (up, mut sent) = mpsc::channel(64);
        agent.handle.attach(up).await;
        agent.handle.offer(node(9, 4, vec![])).await;
        let refused = refusal(&mut sent).await;
        assert_eq!((refused.code.as_str(), refused.generation), ("FENCED", 9));
        assert_eq!(refused.highest_generation, 7);
        assert_eq!(refused.highest_fence.unwrap().index, 5);
        agent.handle.offer(node(6, 5, vec![])).await;
        assert_eq!(refusal(&mut sent).await.code, "FENCED");
        let snapshot = agent.snapshot().await;
        assert_eq!(snapshot.fence, fence::Fence { epoch: 0, term: 1, index: 5 });
        agent.reaches("a", InstancePhase::Healthy).await;
    }
}

#[tokio::test]
async fn a_damaged_spec_is_not_acted_on() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    agent.handle.offer(node(1, 1, vec![])).await;
    let path = rig.dir.path().join("nodespec.bin");
    until("the stored spec", async || path.exists().then_some(())).await;
    drop(agent);
    std::fs::write(&path, b"PALSPEC1 torn").unwrap();
    let store = palisade_agent::spec::FileSpecStore::new(path);
    assert!(store.read().unwrap_err().to_string().contains("damaged"));
}

#[tokio::test]
async fn a_program_that_fails_is_restarted_and_then_a_visible_crash_loop() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    agent.handle.offer(node(1, 1, vec![script("a", "echo run; exit 3")])).await;
    let status = agent.reaches("a", InstancePhase::CrashLoop).await;
    assert_eq!(status.last_exit.unwrap().code, 3);
    assert_eq!(status.code, "EXIT_CODE");
    assert!(status.restarts >= 2 && status.next_try_in_ms > 0, "{status:?}");
    let runs = rig.log("a", 0).lines().count();
    until("another run", async || (rig.log("a", 0).lines().count() > runs).then_some(())).await;
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_never_told_as_healthy() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    let (up, mut sent) = mpsc::channel(1024);
    agent.handle.attach(up).await;
    agent.handle.offer(node(1, 1, vec![script("a", "exit 3")])).await;
    agent.reaches("a", InstancePhase::CrashLoop).await;
    while let Ok(message) = sent.try_recv() {
        let Some(up::Msg::Status(status)) = message.msg else { continue };
        assert!(status.instances.iter().all(|one| one.phase() != InstancePhase::Healthy));
    }
}

#[tokio::test]
async fn a_process_that_is_adopted_stays_healthy() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    agent.handle.offer(node(1, 1, vec![script("a", "sleep 100")])).await;
    agent.reaches("a", InstancePhase::Starting).await;
    agent.reaches("a", InstancePhase::Healthy).await;
    drop(agent);
    let agent = Agent::start(&rig).await;
    let first = agent.snapshot().await.status.instances.remove(0);
    assert_eq!(first.phase(), InstancePhase::Healthy);
}

#[tokio::test]
async fn never_and_on_failure_let_a_finished_program_rest() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    let mut done = script("done", "exit 0");
    done.restart.as_mut().unwrap().set_mode(RestartMode::OnFailure);
    let mut failed = script("failed", "exit 2");
    failed.restart.as_mut().unwrap().set_mode(RestartMode::Never);
    agent.handle.offer(node(1, 1, vec![done, failed])).await;
    assert_eq!(agent.reaches("done", InstancePhase::Exited).await.restarts, 0);
    assert_eq!(agent.reaches("failed", InstancePhase::Failed).await.restarts, 0);
}

#[tokio::test]
async fn one_instance_that_cannot_start_does_not_stop_another() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    let mut bad = script("bad", "");
    bad.command = vec!["no-such-program".into()];
    let mut alien = script("alien", "true");
    alien.driver = "vm".into();
    agent.handle.offer(node(1, 1, vec![bad, alien, script("good", "sleep 100")])).await;
    agent.reaches("good", InstancePhase::Healthy).await;
    let status = agent.reaches("bad", InstancePhase::Failed).await;
    assert_eq!(status.code, "COMMAND_NOT_FOUND");
    assert!(status.message.contains("no-such-program"), "{status:?}");
    assert_eq!(agent.reaches("alien", InstancePhase::Failed).await.code, "DRIVER_UNKNOWN");
}

#[tokio::test]
async fn what_ignores_its_stop_signal_is_killed_after_its_grace_and_forgotten() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    let mut stubborn = script("a", "trap '' TERM; echo up; while :; do sleep 0.02; done");
    stubborn.stop_grace_ms = 150;
    agent.handle.offer(node(1, 1, vec![stubborn])).await;
    let pid = agent.reaches("a", InstancePhase::Healthy).await.pid;
    rig.log_has("a", "up").await;
    agent.handle.offer(node(2, 2, vec![])).await;
    until("its end", async || (!alive(pid)).then_some(())).await;
    until("its removal", async || (!rig.instance_dir("a").exists()).then_some(())).await;
    until("its absence", async || agent.snapshot().await.status.instances.is_empty().then_some(()))
        .await;
}

#[tokio::test]
async fn offline_stops_and_up_starts_again_and_a_new_revision_replaces() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    let mut spec = script("a", "sleep 100");
    agent.handle.offer(node(1, 1, vec![spec.clone()])).await;
    let first = agent.reaches("a", InstancePhase::Healthy).await.pid;
    spec.set_wanted(Wanted::Offline);
    agent.handle.offer(node(2, 2, vec![spec.clone()])).await;
    agent.reaches("a", InstancePhase::Stopped).await;
    assert!(!alive(first));
    spec.set_wanted(Wanted::Up);
    agent.handle.offer(node(3, 3, vec![spec.clone()])).await;
    let second = agent.reaches("a", InstancePhase::Healthy).await.pid;
    spec.spec_version = 2;
    agent.handle.offer(node(4, 4, vec![spec])).await;
    let third = until("the new revision", async || {
        let one = agent.reaches("a", InstancePhase::Healthy).await;
        (one.spec_version == 2).then_some(one.pid)
    })
    .await;
    assert_ne!(second, third);
    assert!(!alive(second));
}

#[tokio::test]
async fn the_engine_rests_while_something_with_a_health_check_is_on_its_way_out() {
    let rig = Rig::new();
    let rt = Counting::new();
    let agent = Agent::start_over(&rig, rt.clone()).await;
    let mut spec = script("a", "trap '' TERM; while :; do sleep 0.1; done");
    let exec = ExecCheck { command: vec!["/bin/true".into()] };
    spec.health = Some(HealthCheck {
        kind: Some(Kind::Exec(exec)),
        interval_ms: 50,
        ..HealthCheck::default()
    });
    agent.handle.offer(node(1, 5, vec![spec])).await;
    agent.reaches("a", InstancePhase::Healthy).await;
    let before = rt.sleeps.load(Ordering::Relaxed);
    agent.handle.offer(node(2, 5, vec![])).await;
    until("its end", async || agent.snapshot().await.status.instances.is_empty().then_some(()))
        .await;
    // Two seconds of grace, in which this test asks a hundred times a second; without rest it is tens of thousands.
    let slept = rt.sleeps.load(Ordering::Relaxed) - before;
    assert!(slept < 2_000, "{slept}");
}

#[tokio::test]
async fn health_is_noticed_and_its_loss_too() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    let mut spec = script("a", "sleep 0.2; touch ready; sleep 100");
    spec.health = Some(HealthCheck {
        kind: Some(Kind::Exec(ExecCheck {
            command: ["test", "-f", "ready"].map(str::to_owned).to_vec(),
        })),
        interval_ms: 100,
        start_period_ms: 10_000,
        unhealthy_threshold: 2,
        ..HealthCheck::default()
    });
    agent.handle.offer(node(1, 1, vec![spec])).await;
    agent.reaches("a", InstancePhase::Starting).await;
    agent.reaches("a", InstancePhase::Healthy).await;
    std::fs::remove_file(rig.instance_dir("a").join("work/ready")).unwrap();
    let status = agent.reaches("a", InstancePhase::Unhealthy).await;
    assert_eq!(status.code, "HEALTH_CHECK_FAILED");
}

#[tokio::test]
async fn the_plan_tells_what_would_be_done_and_does_nothing() {
    let rig = Rig::new();
    let agent = Agent::start(&rig).await;
    agent.handle.offer(node(1, 1, vec![script("a", "sleep 100"), script("b", "sleep 100")])).await;
    let pid = agent.reaches("a", InstancePhase::Healthy).await.pid;
    agent.reaches("b", InstancePhase::Healthy).await;
    drop(agent);
    let dir = rig.dir.path();
    assert!(palisade_agent::plan::describe(dir).unwrap().contains("nothing to do"));
    crate::support::kill(pid);
    until("the end of a", async || {
        let text = palisade_agent::plan::describe(dir).unwrap();
        text.contains("start   a  (run 2)").then_some(())
    })
    .await;
    assert!(!alive(pid));
}
