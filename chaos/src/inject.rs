//! Does to real processes what the schedule says.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{
    clock::{self, Clock},
    rig::{Member, Rig},
    schedule::{Fault, Planned, Target},
};

const READY_LIMIT: Duration = Duration::from_secs(20);

/// A fault that was to happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Injected {
    /// What was planned.
    #[serde(flatten)]
    pub planned: Planned,
    /// Whom it hit.
    pub hit: Vec<String>,
    /// When it began, in milliseconds of the run.
    pub began_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
    /// When all that it hit was ready again.
    pub ready_ms: Option<u64>,
    /// Why it could not be done.
    pub error: Option<String>,
}

/// Carries out the faults of one lane, one after the other. `begin` is when the faults begin, in
/// milliseconds of the run; none begins after `within_ms` from there.
pub(crate) async fn lane(
    rig: Arc<Rig>,
    clock: Clock,
    begin_ms: u64,
    within_ms: u64,
    planned: Vec<Planned>,
) -> Vec<Injected> {
    let mut injected = Vec::new();
    for planned in planned {
        let now_ms = clock.millis().saturating_sub(begin_ms);
        if now_ms > within_ms {
            break;
        }
        clock::sleep_ms(planned.at_ms.saturating_sub(now_ms)).await;
        injected.push(inject(&rig, clock, planned).await);
    }
    injected
}

async fn inject(rig: &Rig, clock: Clock, planned: Planned) -> Injected {
    let mut injected = Injected {
        planned,
        hit: Vec::new(),
        began_ms: clock.millis(),
        ended_ms: 0,
        ready_ms: None,
        error: None,
    };
    let members = match members(rig, planned.target).await {
        Ok(members) => members,
        Err(error) => {
            injected.error = Some(format!("{error:#}"));
            return injected;
        }
    };
    injected.began_ms = clock.millis();
    injected.hit = members.iter().map(|member| member.name.clone()).collect();
    if let Err(error) = begin_and_end(&members, planned).await {
        injected.error = Some(format!("{error:#}"));
    }
    injected.ended_ms = clock.millis();
    let ready = match planned.fault {
        Fault::KillAgent => agents_run(&members).await,
        _ => rig.until_ready(READY_LIMIT).await.is_ok(),
    };
    injected.ready_ms = ready.then(|| clock.millis());
    injected
}

async fn begin_and_end(members: &[Arc<Member>], planned: Planned) -> Result<()> {
    let lasts = Duration::from_millis(planned.lasts_ms);
    match planned.fault {
        Fault::Pause => {
            for member in members {
                member.pause()?;
            }
            clock::sleep(lasts).await;
            for member in members {
                member.resume()?;
            }
        }
        Fault::Kill | Fault::KillAll | Fault::KillAgent => {
            let killed: Vec<Result<u32>> = members.iter().map(|member| member.kill()).collect();
            clock::sleep(lasts).await;
            // Whatever went wrong, they come back.
            for member in members {
                member.start()?;
            }
            for killed in killed {
                killed?;
            }
        }
    }
    Ok(())
}

async fn members(rig: &Rig, target: Target) -> Result<Vec<Arc<Member>>> {
    let one = |members: &[Arc<Member>], index: usize| {
        members.get(index).cloned().map(|member| vec![member]).context("there is no such process")
    };
    match target {
        Target::Leader => {
            let leader =
                clock::poll(Duration::from_secs(5), Duration::from_millis(50), || rig.leader())
                    .await;
            match leader {
                Some(index) => one(&rig.replicas, index),
                None => bail!("no leader is known"),
            }
        }
        Target::Replica(index) => one(&rig.replicas, index),
        Target::Agent(index) => one(&rig.agents, index),
        Target::AllReplicas => Ok(rig.replicas.clone()),
    }
}

/// The cluster takes an agent that is back within its grace for one that never went, so that only
/// its process can be looked at.
async fn agents_run(agents: &[Arc<Member>]) -> bool {
    clock::sleep_ms(200).await;
    agents.iter().all(|agent| agent.pid().is_some() && !agent.is_over())
}
