//! Does to real processes what the schedule says.

mod damage;
mod disks;
mod members;
mod network;
mod processes;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::sync::MutexGuard;

use crate::{
    clock::{self, Clock},
    history::{Damaged, Exit},
    rig::{Binary, Member, Rig, Seat},
    schedule::{Fault, Lane, Planned, Target},
};

const READY_LIMIT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);
/// A cluster on a slow machine may be without a leader for this long.
const LEADER_LIMIT: Duration = Duration::from_secs(20);
/// So long after its time a fault that has not happened yet still has its turn.
const LATE_MS: u64 = 300_000;
/// So often a fault that could not be done is tried again.
const AGAIN: usize = 2;

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
    /// What exactly was done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// What was damaged, and what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<Damaged>,
    /// Somebody ended otherwise than it should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<Exit>,
    /// Why it could not be done.
    pub error: Option<String>,
}

/// What faults are done with.
pub(crate) struct Tools {
    pub(crate) rig: Arc<Rig>,
    pub(crate) clock: Clock,
    /// The binary that replicas are rolled to.
    pub(crate) next: Binary,
}

/// Carries out the faults of one lane, one after the other. `begin` is when the faults begin, in
/// milliseconds of the run. One that has not happened yet is done all the same when it is late, and again
/// when it could not be done.
pub(crate) async fn lane(
    tools: &Tools,
    begin_ms: u64,
    until_ms: u64,
    planned: Vec<Planned>,
) -> Vec<Injected> {
    let mut injected: Vec<Injected> = Vec::new();
    let now_ms = || tools.clock.millis().saturating_sub(begin_ms);
    for &planned in &planned {
        // One that was late pushes the others back, and those that happened may be left out.
        let late_ms = if has_happened(&injected, planned.fault) { 0 } else { LATE_MS };
        if now_ms() > until_ms + late_ms {
            continue;
        }
        clock::sleep_ms(planned.at_ms.saturating_sub(now_ms())).await;
        injected.push(inject(tools, planned).await);
    }
    for _ in 0..AGAIN {
        for &planned in &planned {
            let is_done = has_happened(&injected, planned.fault) || lacks(tools, planned.fault);
            if !is_done && now_ms() < until_ms + LATE_MS {
                injected.push(inject(tools, planned).await);
            }
        }
    }
    injected
}

fn has_happened(injected: &[Injected], fault: Fault) -> bool {
    injected.iter().any(|done| done.planned.fault == fault && done.error.is_none())
}

/// Whether what the fault needs is missing, so that trying again would not help.
fn lacks(tools: &Tools, fault: Fault) -> bool {
    let Some(wires) = &tools.rig.wires else { return true };
    match fault {
        Fault::Packets => wires.means.packets.is_err(),
        Fault::Clock => wires.means.clocks.is_err(),
        Fault::PowerCut
        | Fault::PowerAll
        | Fault::FullDisk
        | Fault::SlowDisk
        | Fault::StallDisk => wires.means.volumes.is_err(),
        _ => false,
    }
}

async fn inject(tools: &Tools, planned: Planned) -> Injected {
    let began_ms = tools.clock.millis();
    let mut injected = Injected {
        planned,
        hit: Vec::new(),
        began_ms,
        ended_ms: 0,
        ready_ms: None,
        note: String::new(),
        damage: None,
        wrong: None,
        error: None,
    };
    // A change of members waits for the end of others; it is no such end itself.
    let waits = planned.fault.lane() == Lane::Members || planned.fault == Fault::Damage;
    let _going = if waits { None } else { Some(tools.rig.calm.read().await) };
    if let Err(error) = act(tools, &mut injected).await {
        injected.error = Some(format!("{error:#}"));
    }
    if injected.ended_ms == 0 {
        injected.ended_ms = tools.clock.millis();
    }
    injected
}

async fn act(tools: &Tools, injected: &mut Injected) -> Result<()> {
    match injected.planned.fault {
        Fault::Kill | Fault::Pause => processes::one(tools, injected).await,
        Fault::KillAll => processes::all(tools, injected).await,
        Fault::KillAgent => processes::agent(tools, injected).await,
        Fault::Clock => processes::clock(tools, injected).await,
        Fault::PowerCut => disks::power_cut(tools, injected).await,
        Fault::PowerAll => disks::power_all(tools, injected).await,
        Fault::FullDisk | Fault::SlowDisk | Fault::StallDisk => {
            disks::trouble(tools, injected).await
        }
        Fault::Damage => damage::one(tools, injected).await,
        Fault::Partition | Fault::OneWay | Fault::Packets => network::cut(tools, injected).await,
        Fault::Delay => network::delay(tools, injected).await,
        Fault::Stutter => network::stutter(tools, injected).await,
        Fault::Reset => network::reset(tools, injected).await,
        Fault::Overtake => network::overtake(tools, injected).await,
        Fault::CutAgent => network::cut_agent(tools, injected).await,
        Fault::Change => members::change(tools, injected).await,
        Fault::Replace => members::replace(tools, injected).await,
        Fault::Transfer => members::transfer(tools, injected).await,
        Fault::Drain => members::drain(tools, injected).await,
        Fault::Roll => members::roll(tools, injected).await,
    }
}

impl Injected {
    /// It begins now, and hits these.
    fn begin<'a>(&mut self, tools: &Tools, members: impl IntoIterator<Item = &'a Arc<Member>>) {
        self.began_ms = tools.clock.millis();
        self.hit = members.into_iter().map(|member| member.name.clone()).collect();
    }

    fn end(&mut self, tools: &Tools) {
        self.ended_ms = tools.clock.millis();
    }

    fn ready(&mut self, tools: &Tools, ready: bool) {
        self.ready_ms = ready.then(|| tools.clock.millis());
    }
}

/// The place of the replica that is meant.
async fn place(rig: &Rig, target: Target) -> Result<usize> {
    match target {
        Target::Leader => {
            let leader = clock::poll(LEADER_LIMIT, LOOK, || rig.leader()).await;
            leader.context("no leader is known")
        }
        Target::Replica(index) => {
            let places = rig.places();
            let place = places.get(index % places.len().max(1));
            place.copied().context("there is no replica")
        }
        Target::Agent(_) | Target::AllReplicas => bail!("this fault hits one replica"),
    }
}

/// A seat that nothing else disturbs until the guard is dropped.
struct Taken<'a> {
    seat: &'a Seat,
    _guard: MutexGuard<'a, ()>,
}

/// The seat that is meant, or another one when that one is busy.
async fn take(rig: &Rig, target: Target) -> Result<Taken<'_>> {
    let meant = place(rig, target).await?;
    let mut places = rig.places();
    places.sort_by_key(|place| *place != meant);
    let seats = || places.iter().filter_map(|place| rig.seats.get(*place));
    for seat in seats() {
        if let Ok(guard) = seat.busy.try_lock() {
            return Ok(Taken { seat, _guard: guard });
        }
    }
    let seat = seats().next().context("there is no replica")?;
    take_seat(seat).await
}

async fn take_seat(seat: &Seat) -> Result<Taken<'_>> {
    let guard = seat.busy.lock().await;
    if seat.id().is_none() {
        bail!("{} has gone", seat.member.name);
    }
    Ok(Taken { seat, _guard: guard })
}

/// All seats, in their order: whoever waits for one holds none behind it.
async fn take_all(rig: &Rig) -> Vec<Taken<'_>> {
    let mut all = Vec::new();
    for seat in &rig.seats {
        let guard = seat.busy.lock().await;
        if seat.id().is_some() {
            all.push(Taken { seat, _guard: guard });
        }
    }
    all
}

/// Waits until these are ready again.
async fn ready(rig: &Rig, seats: &[&Seat]) -> bool {
    for seat in seats {
        let ready = clock::poll(READY_LIMIT, LOOK, || async {
            rig.is_ready(seat.place).await.then_some(())
        });
        if ready.await.is_none() {
            return false;
        }
    }
    true
}

/// Why a means is missing, as an error.
fn granted<T: Clone>(means: &Result<T, String>) -> Result<T> {
    means.clone().map_err(anyhow::Error::msg)
}

impl Tools {
    fn wires(&self) -> Result<&crate::rig::Wires> {
        self.rig.wires.as_ref().context("the cluster is not wired for faults")
    }
}
