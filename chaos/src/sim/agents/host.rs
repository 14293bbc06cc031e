//! The lives of agents: joining, starting from what the machine's disk holds, ending.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use palisade_agent::{
    Grant, Identity,
    commands::{Commands, Executors},
    engine::{Drivers, Engine, Parts},
    health::NetProber,
    session::Session,
};
use palisade_api::gateway::convert;
use palisade_contract::ports::JoinRequest;
use palisade_state::Rt;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::{
    super::{
        clock::NodeClock,
        nodes::now,
        runtime::{NodePort, world_sleep},
    },
    Fleet,
    driver::Rig,
    errands,
    machine::Machine,
    replica::pki,
};

const LOOK: Duration = Duration::from_millis(25);
const JOIN_AGAIN: Duration = Duration::from_millis(300);

impl Fleet {
    /// Looks after all agents until the world ends.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            world_sleep(LOOK).await;
            for machine in &self.machines {
                let (life, is_due) = {
                    let state = machine.state();
                    (state.life, state.start_at.is_some_and(|at| at <= now()))
                };
                if life != 0 && self.nodes.is_gone(life) {
                    let pause = machine.state().random.within(20, 3_000);
                    self.end_agent(machine, Duration::from_millis(pause));
                } else if life == 0 && is_due {
                    self.start_agent(machine);
                }
            }
        }
    }

    /// Ends an agent where it stands; it is started again after `pause`.
    pub(crate) fn end_agent(&self, machine: &Machine, pause: Duration) {
        let life = {
            let mut state = machine.state();
            state.start_at = Some(now() + pause);
            std::mem::take(&mut state.life)
        };
        if life != 0 {
            self.nodes.tell(|| format!("{}: the agent ends", machine.name));
            self.nodes.kill(life);
            self.nodes.note(&[13, machine.number]);
        }
    }

    /// Sets the pace of a machine's clock.
    pub(crate) fn set_pace(&self, machine: &Machine, ppm: i64) {
        let life = {
            let mut state = machine.state();
            state.ppm = ppm;
            state.life
        };
        if let Some(known) = self.nodes.state().lives.get_mut(&life) {
            known.clock.set_pace(now(), ppm);
        }
    }

    /// What an operator does for an agent that was away while every replica that it knew was replaced: names others.
    pub(crate) fn tell_servers(&self, machine: &Machine, present: &[u64]) {
        let servers: Vec<String> = present.iter().map(|id| format!("replica-{id}:2")).collect();
        let is_lost = {
            let mut state = machine.state();
            let Some(identity) = state.identity.as_mut() else { return };
            let knows = |server: &String| present.contains(&self.net.node_at(server));
            let is_lost = !identity.servers.iter().any(knows);
            if is_lost {
                identity.servers = servers;
            }
            is_lost
        };
        if is_lost {
            self.nodes.tell(|| format!("{}: all its servers are gone", machine.name));
            self.end_agent(machine, Duration::from_millis(100));
        }
    }

    fn start_agent(self: &Arc<Self>, machine: &Arc<Machine>) {
        machine.power_on();
        let life = self.next_life();
        let clock = {
            let mut state = machine.state();
            state.life = life;
            state.start_at = None;
            let since = Duration::from_millis(state.random.below(77_000));
            NodeClock::new(now(), since, state.ppm, 0)
        };
        self.nodes.tell(|| format!("{}: the agent starts", machine.name));
        self.nodes.note(&[14, machine.number]);
        self.nodes.begin(life, machine.number, clock, None);
        let port = NodePort { nodes: self.nodes.clone(), life, eyes: self.eyes.clone() };
        let rig = Rig { fleet: self.clone(), machine: machine.clone(), life };
        self.nodes.spawn(life, run(rig, Arc::new(port)).boxed());
    }
}

/// One life of an agent, put together as its daemon does.
async fn run(rig: Rig, rt: Rt) {
    let identity = loop {
        if let Some(identity) = rig.machine.state().identity.clone() {
            break identity;
        }
        if let Some(identity) = rig.joins().await {
            rig.machine.state().identity = Some(identity);
        } else {
            rt.sleep(JOIN_AGAIN).await;
        }
    };
    let rig = Arc::new(rig);
    let process: palisade_agent::driver::SharedDriver = rig.clone();
    let drivers: Drivers = Arc::new(BTreeMap::from([("process".to_owned(), process)]));
    let parts = Parts {
        rt: rt.clone(),
        drivers: drivers.clone(),
        store: rig.clone(),
        prober: Arc::new(NetProber::new("", drivers.clone())),
        node: identity.node_name.clone(),
    };
    let (engine, handle) = match Engine::open(parts).await {
        Ok(opened) => opened,
        Err(error) => {
            let name = &rig.machine.name;
            return rig.fleet.eyes.breach("start", format!("{name}: no agent runs: {error}"));
        }
    };
    let mut executors = errands::executors(&rig);
    executors.extend(&Executors::built_in(&drivers, "sim"));
    let (commands, commands_handle) = match Commands::open(&rt, rig.clone(), executors).await {
        Ok(opened) => opened,
        Err(error) => {
            let name = &rig.machine.name;
            return rig.fleet.eyes.breach("start", format!("{name}: no agent runs: {error}"));
        }
    };
    let machine = rig.machine.clone();
    let session = Session {
        rt: rt.clone(),
        transport: rig.clone(),
        engine: handle,
        commands: commands_handle,
        drivers,
        identities: rig.clone(),
        agent_version: "sim".to_owned(),
        incarnation: format!("{:016x}", rt.random()),
        inventory: Arc::new(move || machine.inventory()),
        identity,
    };
    rt.spawn("engine", engine.run().boxed());
    rt.spawn("commands", commands.run().boxed());
    session.run().await;
    // Nobody is removed in these runs.
    let name = &rig.machine.name;
    rig.fleet.eyes.breach("agent", format!("{name}: the session is over for good"));
}

impl Rig {
    /// Joins through any replica. Who the node is decides the replica; the certificate is not simulated.
    async fn joins(&self) -> Option<Identity> {
        let token = self.fleet.token.get()?.clone();
        let doors = self.fleet.doors();
        let link = {
            let to = *doors.get(self.machine.state().random.index(doors.len()))?;
            self.link(&format!("replica-{to}:2"))
        };
        if !link.cross().await {
            return None;
        }
        let (there, api) = self.fleet.door(link.to)?;
        let request = JoinRequest {
            token,
            key: self.machine.key(),
            name: self.machine.name.clone(),
            facts: convert::facts_from_wire(self.machine.inventory()),
            agent_version: "sim".to_owned(),
        };
        let (answer, answered) = tokio::sync::oneshot::channel();
        let joining = async move {
            let _ = answer.send(api.join(&request).await);
        };
        self.fleet.nodes.spawn(there, joining.boxed());
        let answered = answered.await;
        link.back().cross().await;
        let (node, name) = answered.ok()?.ok()?;
        self.fleet.nodes.tell(|| format!("{name} has joined"));
        // Those of when it was asked: the answer names members, whether they run or not.
        let servers = doors.into_iter().map(|id| format!("replica-{id}:2"));
        grant(node.to_string(), name, servers.collect())
    }
}

/// An identity whose certificate is valid for longer than any run.
fn grant(node_id: String, node_name: String, servers: Vec<String>) -> Option<Identity> {
    let key = KeyPair::generate().ok()?;
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2220, 1, 1);
    let leaf = params.self_signed(&key).ok()?;
    let grant = Grant {
        node_id,
        node_name,
        lineage: "sim".to_owned(),
        servers,
        chain_der: vec![leaf.der().to_vec()],
        ca_der: vec![pki().ok()?.authority.cert_der().to_vec()],
    };
    Identity::new(grant, &key).ok()
}
