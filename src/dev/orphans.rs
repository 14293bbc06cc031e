//! What a supervisor that was killed may have left behind.

use std::time::Duration;

use palisade_agent::driver::{Driver, Process, ProcessDriver, ShimCommand};
use rustix::process::Signal;

use super::{AGENTS, REPLICAS, layout::Layout, process::ProcessId};
use crate::{
    edge,
    output::{Exit, Failure, Outcome},
};

const GRACE: Duration = Duration::from_secs(5);
const KILL_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
const INSTANCE_GRACE_MAX: Duration = Duration::from_secs(30);

/// All children's names: agents first, as they are stopped.
pub(super) fn names() -> Vec<String> {
    let agents = (1..=AGENTS).map(|id| format!("agent-{id}"));
    agents.chain((1..=REPLICAS).map(|id| format!("replica-{id}"))).collect()
}

/// Stops children that run without a supervisor; answers how many there were. The caller holds the
/// lock.
pub(super) async fn stop_children(layout: &Layout) -> Outcome<usize> {
    let mut left: Vec<(String, ProcessId)> = names()
        .into_iter()
        .filter_map(|name| Some((name.clone(), ProcessId::read(&layout.pid_file(&name))?)))
        .filter(|(_, process)| process.is_alive())
        .collect();
    let found = left.len();
    for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, KILL_LIMIT)] {
        for (_, process) in &left {
            process.signal(signal);
        }
        let began = edge::now();
        while !left.is_empty() && began.elapsed() < limit {
            edge::sleep(POLL).await;
            left.retain(|(_, process)| process.is_alive());
        }
    }
    if let Some((name, process)) = left.first() {
        return Err(Failure::new(
            Exit::Error,
            format!("{name}, process {}, cannot be stopped", process.pid),
        ));
    }
    for name in names() {
        let _ = std::fs::remove_file(layout.pid_file(&name));
    }
    Ok(found)
}

/// Stops all instances of the agents, which must not run; answers how many there were.
pub(super) async fn stop_instances(layout: &Layout) -> Outcome<usize> {
    let agents = (1..=AGENTS).map(|id| stop_instances_of(layout, id));
    let counts = futures::future::try_join_all(agents).await?;
    Ok(counts.into_iter().sum())
}

/// Stops all instances of one agent, which must not run; answers how many there were.
pub(super) async fn stop_instances_of(layout: &Layout, agent: u64) -> Outcome<usize> {
    let root = layout.agent(agent).join("instances");
    if !root.is_dir() {
        return Ok(0);
    }
    let driver = ProcessDriver::new(root, ShimCommand::current());
    let failed = |problem: palisade_agent::driver::Problem| {
        Failure::new(Exit::Error, format!("cannot stop the instances of agent-{agent}: {problem}"))
    };
    let running: Vec<_> = driver
        .list()
        .await
        .map_err(failed)?
        .into_iter()
        .filter(|one| matches!(one.process, Process::Running { .. }))
        .collect();
    futures::future::try_join_all(running.iter().map(|one| async {
        let grace = one.stop_grace.min(INSTANCE_GRACE_MAX);
        driver.stop(&one.id, one.stop_signal, grace).await?;
        if edge::within(grace, driver.ended(&one.id)).await.is_none() {
            driver.kill(&one.id).await?;
            let _ = edge::within(KILL_LIMIT, driver.ended(&one.id)).await;
        }
        Ok(())
    }))
    .await
    .map_err(failed)?;
    Ok(running.len())
}
