//! Faults of processes and their clocks.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};

use super::{Injected, Tools, granted, ready, take, take_all};
use crate::{
    clock,
    rig::{Member, Seat},
    schedule::{Fault, Target},
};

/// Kills or pauses one replica.
pub(super) async fn one(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let planned = injected.planned;
    let taken = take(&tools.rig, planned.target).await?;
    let member = &taken.seat.member;
    injected.begin(tools, [member]);
    let lasts = Duration::from_millis(planned.lasts_ms);
    let done = if planned.fault == Fault::Pause {
        let paused = member.pause();
        clock::sleep(lasts).await;
        paused.and(member.resume())
    } else {
        let killed = member.kill();
        clock::sleep(lasts).await;
        // Whatever went wrong, it comes back.
        member.start()?;
        killed
    };
    done?;
    injected.end(tools);
    let ready = ready(&tools.rig, &[taken.seat]).await;
    injected.ready(tools, ready);
    Ok(())
}

/// Kills all replicas at once.
pub(super) async fn all(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let taken = take_all(&tools.rig).await;
    let seats: Vec<&Seat> = taken.iter().map(|taken| taken.seat).collect();
    injected.begin(tools, seats.iter().map(|seat| &seat.member));
    let killed: Vec<Result<u32>> = seats.iter().map(|seat| seat.member.kill()).collect();
    clock::sleep_ms(injected.planned.lasts_ms).await;
    for seat in &seats {
        seat.member.start()?;
    }
    killed.into_iter().collect::<Result<Vec<u32>>>()?;
    injected.end(tools);
    let ready = ready(&tools.rig, &seats).await;
    injected.ready(tools, ready);
    Ok(())
}

/// Kills one agent.
pub(super) async fn agent(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let agent = agent_of(tools, injected.planned.target)?;
    injected.begin(tools, [&agent]);
    let killed = agent.kill();
    clock::sleep_ms(injected.planned.lasts_ms).await;
    agent.start()?;
    killed?;
    injected.end(tools);
    // The cluster takes an agent that is back within its grace for one that never went, so that
    // only its process can be looked at.
    clock::sleep_ms(200).await;
    injected.ready(tools, agent.pid().is_some() && !agent.is_over());
    Ok(())
}

pub(super) fn agent_of(tools: &Tools, target: Target) -> Result<Arc<Member>> {
    let Target::Agent(index) = target else { anyhow::bail!("this fault hits an agent") };
    tools.rig.agents.get(index).cloned().context("there is no such agent")
}

/// Seconds by which a clock is wrong.
fn wrong(pick: u64) -> i64 {
    let size = match pick % 3 {
        0 => 1 + pick / 8 % 20,
        1 => 30 + pick / 8 % 270,
        _ => 300 + pick / 8 % 600,
    };
    let size = i64::try_from(size).unwrap_or(1);
    if pick >> 40 & 1 == 1 { -size } else { size }
}

/// Starts one replica with a wrong clock, lets that jump, and starts it again with the right one.
pub(super) async fn clock(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let library = granted(&tools.wires()?.means.clocks)?;
    let planned = injected.planned;
    let taken = take(&tools.rig, planned.target).await?;
    let member = &taken.seat.member;
    injected.begin(tools, [member]);
    let (first, second) = (wrong(planned.pick), wrong(planned.pick.rotate_left(21)));
    let file = tools.rig.dir.join(format!("clock-{}", taken.seat.place + 1));
    let set = |seconds: i64| {
        std::fs::write(&file, format!("{seconds:+}s\n")).context("cannot set a clock")
    };
    set(first)?;
    member.kill()?;
    member.relaunch(|launch| {
        launch.env = vec![
            ("LD_PRELOAD".into(), library.into()),
            ("FAKETIME_TIMESTAMP_FILE".into(), file.clone().into()),
            ("FAKETIME_CACHE_DURATION".into(), "1".into()),
            // Time that only measures is right: a clock that is wrong by a date is what machines have.
            ("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into()),
            ("FAKETIME_DISABLE_SHM".into(), "1".into()),
        ];
    });
    let started = member.start();
    let was_ready = ready(&tools.rig, &[taken.seat]).await;
    clock::sleep_ms(planned.lasts_ms / 2).await;
    let jumped = set(second);
    clock::sleep_ms(planned.lasts_ms - planned.lasts_ms / 2).await;
    let killed = member.kill();
    member.relaunch(|launch| launch.env.clear());
    member.start()?;
    injected.end(tools);
    let again = ready(&tools.rig, &[taken.seat]).await;
    injected.ready(tools, again);
    injected.note = format!(
        "wrong by {first:+} s, then by {second:+} s{}",
        if was_ready { "" } else { "; it was not ready in that time" }
    );
    started.and(jumped).and(killed).map(drop)
}
