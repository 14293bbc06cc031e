//! What goes wrong with machines and their agents.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        faults::Fault,
        points::{Armed, End},
        runtime::world_sleep,
        world::World,
    },
    Fleet,
    machine::{Machine, Proc},
};
use crate::random::Random;

/// Places in the agent that are aimed at.
const POINTS: [&str; 2] = ["agent_command_recorded", "agent_spec_stored"];
/// How long it is waited for that an agent comes to one.
const POINT_LIMIT: Duration = Duration::from_secs(10);

/// All of them.
pub(crate) const ALL: [Fault; 6] = [
    Fault::AgentKill,
    Fault::MachinePower,
    Fault::AgentCut,
    Fault::AgentPause,
    Fault::AgentDisk,
    Fault::ProcessEnd,
];

pub(crate) fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::AgentKill => "agent-kill",
        Fault::MachinePower => "machine-power",
        Fault::AgentCut => "agent-cut",
        Fault::AgentPause => "agent-pause",
        Fault::AgentDisk => "agent-disk",
        _ => "process-end",
    }
}

pub(crate) fn describe(fault: Fault) -> &'static str {
    match fault {
        Fault::AgentKill => "an agent's process ends; what it started runs on",
        Fault::MachinePower => "a machine's power is cut, and with it all that runs on it",
        Fault::AgentCut => {
            "an agent is cut off from some or all replicas, in one direction or both"
        }
        Fault::AgentPause => "an agent's process stands still",
        Fault::AgentDisk => "an agent cannot write its disk",
        _ => "a process of an instance ends by itself",
    }
}

/// How often it is chosen.
pub(crate) fn weight(fault: Fault) -> u64 {
    match fault {
        Fault::AgentKill | Fault::MachinePower | Fault::AgentCut => 4,
        Fault::ProcessEnd => 2,
        _ => 1,
    }
}

struct Strike {
    world: Arc<World>,
    fleet: Arc<Fleet>,
    machine: Arc<Machine>,
    random: Random,
}

/// Does one of them to one machine.
pub(crate) async fn strike(world: Arc<World>, fault: Fault, mut random: Random) {
    let Some(fleet) = world.fleet() else { return };
    let count = fleet.machines.len();
    let Some(machine) = fleet.machines.get(random.index(count)).cloned() else { return };
    let mut strike = Strike { world, fleet, machine, random };
    match fault {
        Fault::AgentKill if strike.random.below(3) == 0 => strike.point().await,
        Fault::AgentKill => {
            let pause = strike.away();
            strike.fleet.end_agent(&strike.machine, pause);
        }
        Fault::MachinePower => strike.power(),
        Fault::AgentCut => strike.cut().await,
        Fault::AgentPause => strike.pause().await,
        Fault::AgentDisk => strike.disk().await,
        Fault::ProcessEnd => strike.end_process(),
        _ => {}
    }
}

impl Strike {
    fn tell(&self, line: impl FnOnce() -> String) {
        let name = &self.machine.name;
        self.fleet.nodes.tell(|| format!("{name}: {}", line()));
    }

    /// Mostly short; in one of three cases longer than a node is waited for.
    fn away(&mut self) -> Duration {
        let (low, high) = if self.random.below(3) == 0 { (10_000, 20_000) } else { (100, 4_000) };
        Duration::from_millis(self.random.within(low, high))
    }

    /// The agent's process ends at a named place, if it comes there in time.
    async fn point(&mut self) {
        let point = POINTS[self.random.index(POINTS.len())];
        let (node, after) = (self.machine.number, self.random.below(2));
        let seed = self.random.next();
        let armed = Armed { node, point, after, end: End::Process, seed };
        self.tell(|| format!("the agent is to end at {point}, {after} times later"));
        self.fleet.nodes.state().armed.push(armed);
        world_sleep(POINT_LIMIT).await;
        let is_it = |armed: &Armed| armed.node == node && armed.point == point;
        self.fleet.nodes.state().armed.retain(|armed| !is_it(armed));
    }

    fn power(&mut self) {
        let pause = self.away();
        self.tell(|| format!("its power is cut for {} ms", pause.as_millis()));
        self.fleet.end_agent(&self.machine, pause);
        self.machine.power_off();
    }

    /// The agent's ways to some replicas or to all are cut, in one direction or both.
    async fn cut(&mut self) {
        let mut replicas = self.world.ids();
        if self.random.coin() {
            self.random.shuffle(&mut replicas);
            let some = self.random.within(1, replicas.len() as u64);
            replicas.truncate(usize::try_from(some).unwrap_or(1));
        }
        let (out, back) = match self.random.below(4) {
            0 => (true, false),
            1 => (false, true),
            _ => (true, true),
        };
        let length = self.away();
        self.tell(|| format!("cut off from {replicas:?} for {} ms", length.as_millis()));
        let here = self.machine.number;
        for there in &replicas {
            if out {
                self.world.net.cut(here, *there);
            }
            if back {
                self.world.net.cut(*there, here);
            }
        }
        world_sleep(length).await;
        self.tell(|| "in reach again".to_owned());
        for there in replicas {
            self.world.net.mend(here, there);
            self.world.net.mend(there, here);
        }
    }

    async fn pause(&mut self) {
        let life = self.machine.state().life;
        let length = self.away();
        self.tell(|| format!("the agent stands still for {} ms", length.as_millis()));
        self.fleet.nodes.freeze(life, true);
        world_sleep(length).await;
        self.fleet.nodes.freeze(life, false);
    }

    async fn disk(&mut self) {
        let length = self.away();
        self.tell(|| format!("the agent's disk is full for {} ms", length.as_millis()));
        self.machine.state().is_full = true;
        world_sleep(length).await;
        self.machine.state().is_full = false;
    }

    /// A process ends by itself.
    fn end_process(&mut self) {
        let running: Vec<(String, u32)> = {
            let state = self.machine.state();
            let running = state.procs.iter().filter(|(_, proc)| Proc::runs(proc));
            running.map(|(id, proc)| (id.clone(), proc.run)).collect()
        };
        let Some((id, run)) = running.get(self.random.index(running.len())).cloned() else {
            return;
        };
        self.tell(|| format!("run {run} of {id} ends by itself"));
        self.machine.end(&id, run, 11);
    }
}
