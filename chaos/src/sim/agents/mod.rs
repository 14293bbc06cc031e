//! Simulated machines whose agents run the product's convergence, below replicas that run the product's modules.
//!
//! What runs is the agent's engine and session, the gateway, the envelope, inventory, capacity, workloads, placement, and
//! the workers. What is simulated is around it: the streams between them, the driver's process table, the agent's disk.

mod driver;
mod errands;
pub(super) mod faults;
mod host;
mod judge;
mod last;
mod machine;
#[cfg(test)]
mod order_tests;
mod orders;
mod replica;
mod rows;
#[cfg(test)]
mod tests;
mod users;
mod wire;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use palisade_api::LocalApi;
use palisade_state::{Rt, Store, View};

pub(super) use self::users::User;
use self::{
    judge::Book,
    machine::{Machine, Proc},
    replica::Held,
};
use super::{
    eyes::Eyes,
    net::Net,
    nodes::{Life, Nodes, lock},
    world::{Handle, World},
};

/// The number before the first machine's; replicas have smaller ones.
const BEFORE: u64 = 1_000_000;
/// Lives of agents are counted from here; replicas' lives are smaller.
const FIRST_LIFE: Life = 1_000_000;
/// The workload that no user touches.
const STEADY: &str = "steady";

struct Door {
    life: Life,
    api: Arc<LocalApi>,
}

/// All machines of a run, and the doors through which they reach the replicas.
pub(crate) struct Fleet {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) net: Arc<Net>,
    pub(crate) eyes: Arc<Eyes>,
    machines: Vec<Arc<Machine>>,
    lives: AtomicU32,
    /// The join token, once there is one.
    token: OnceLock<String>,
    doors: Mutex<BTreeMap<u64, Door>>,
    held: Mutex<BTreeMap<u64, Arc<Held>>>,
    book: Mutex<Book>,
}

impl Fleet {
    /// So many machines, none of which has joined.
    pub(crate) fn found(world: &World, seed: u64, count: u64) -> Arc<Self> {
        let machine = |nth| Arc::new(Machine::new(seed, nth, BEFORE + nth));
        for id in world.ids() {
            world.net.name(&format!("replica-{id}:2"), id);
        }
        Arc::new(Self {
            nodes: world.nodes.clone(),
            net: world.net.clone(),
            eyes: world.eyes.clone(),
            machines: (1..=count).map(machine).collect(),
            lives: AtomicU32::new(FIRST_LIFE),
            token: OnceLock::new(),
            doors: Mutex::default(),
            held: Mutex::default(),
            book: Mutex::default(),
        })
    }

    pub(crate) fn machines(&self) -> impl Iterator<Item = &Arc<Machine>> {
        self.machines.iter()
    }

    fn next_life(&self) -> Life {
        self.lives.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins what a replica does above consensus.
    pub(crate) fn serve(self: &Arc<Self>, id: u64, life: Life, rt: Rt, replica: Handle) {
        self.net.name(&format!("replica-{id}:2"), id);
        let store = Held::new(replica);
        lock(&self.held).insert(id, store.clone());
        let serving = replica::serve(self.clone(), id, life, rt, store);
        self.nodes.spawn(life, serving.boxed());
    }

    fn attach(&self, id: u64, life: Life, api: Arc<LocalApi>) {
        if !self.nodes.is_gone(life) {
            lock(&self.doors).insert(id, Door { life, api });
        }
    }

    /// A replica has ended; to be called as if by one of its tasks.
    pub(crate) fn leave(&self, id: u64) {
        let door = lock(&self.doors).remove(&id);
        let held = lock(&self.held).remove(&id).and_then(|held| held.let_go());
        drop((door, held));
    }

    /// The gateway of a replica, if its process runs.
    fn door(&self, id: u64) -> Option<(Life, Arc<LocalApi>)> {
        let doors = lock(&self.doors);
        let door = doors.get(&id)?;
        let (life, api) = (door.life, door.api.clone());
        drop(doors);
        (!self.nodes.is_gone(life)).then_some((life, api))
    }

    /// Replicas whose gateway is open.
    fn doors(&self) -> Vec<u64> {
        lock(&self.doors).keys().copied().collect()
    }

    /// Looks at what a replica shows.
    pub(crate) fn look(&self, view: &View) {
        let (breaches, news) = {
            let mut book = lock(&self.book);
            let mut breaches = book.look(&self.machines, view);
            breaches.extend(book.orders.take_breaches());
            (breaches, std::mem::take(&mut book.news))
        };
        for line in news {
            self.nodes.tell(|| line);
        }
        for breach in breaches {
            self.eyes.breach(breach.check, breach.message);
        }
    }

    /// What is not as it must be when everything is quiet.
    pub(crate) fn unsettled(&self, view: &View) -> Vec<super::Breach> {
        self.look(view);
        let mut unsettled = judge::unsettled(&self.machines, view);
        unsettled.extend(lock(&self.book).orders.unsettled(&self.machines, view));
        unsettled
    }

    /// A2: an instance that nobody touches is stopped only where it was given up because its node was lost. When the
    /// machine knew of the instance does not matter: what it was told may wait until it is given up, on the way to a
    /// machine that stands still, or in an agent whose disk is full.
    fn check_steady(&self, machine: &Machine, id: &str, proc: &Proc) {
        if proc.workload != STEADY {
            return;
        }
        let held: Vec<Arc<Held>> = lock(&self.held).values().cloned().collect();
        held.iter().for_each(|held| self.look(&held.view()));
        if !lock(&self.book).is_given_up(id) {
            let name = &machine.name;
            let message = format!("{name}: {id} of a workload that nobody touches is stopped");
            self.eyes.breach("A2", message);
        }
    }

    /// Ends all faults of machines.
    pub(crate) fn end_faults(&self, replicas: &[u64]) {
        for machine in &self.machines {
            self.set_pace(machine, 0);
            self.tell_servers(machine, replicas);
            let life = {
                let mut state = machine.state();
                state.is_full = false;
                state.start_at = state.start_at.map(|at| at.min(super::nodes::now()));
                state.life
            };
            self.nodes.freeze(life, false);
        }
    }

    /// Ends everything.
    pub(crate) fn tear_down(&self) {
        for machine in &self.machines {
            self.end_agent(machine, Duration::MAX / 4);
        }
        let ids: Vec<u64> = lock(&self.held).keys().copied().collect();
        ids.into_iter().for_each(|id| self.leave(id));
    }
}
