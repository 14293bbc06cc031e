//! The simulator: a whole cluster of real replicas in one thread, under faults that one seed decides.
//!
//! What runs is the product: its consensus, log, snapshots, kernel, detectors, membership. What is simulated is what
//! is around it: time, the network, disks, randomness, tasks. See `docs/chaos.md`.

mod agents;
mod campaign;
mod chores;
mod cli;
mod clients;
mod clock;
mod disk;
mod eyes;
mod faults;
#[cfg(test)]
mod faults_tests;
mod judge;
#[cfg(test)]
mod judge_tests;
mod l1;
mod leases;
mod members;
mod net;
mod nodes;
mod pace;
mod past;
mod planted;
mod points;
mod record;
mod runtime;
mod setup;
mod shrink;
mod wire;
mod world;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use openraft::AsyncRuntime;
use palisade_state::{View, planted::Defect};

pub(crate) use self::eyes::Breach;
use self::{
    agents::{Fleet, User},
    clients::Client,
    faults::Planned,
    nodes::{Entered, Nodes, lock, now},
    record::Record,
    runtime::{NodesRt, world_sleep},
    world::World,
};
pub(crate) use self::{cli::Sim, faults::Fault};
use crate::random::Random;

/// What is checked of each run, by its id.
pub(crate) const CHECKS: [(&str, &str); 24] = [
    ("L1", "each register's reads, writes and swaps have an order that explains them all"),
    ("L2", "no acknowledged write is lost, none is done twice, and none that was refused"),
    ("L3", "revisions that a client sees never go back, and a read misses no acknowledged write"),
    ("I1", "each fence of a lease has one holder"),
    ("I2", "fences only grow"),
    ("I3", "what a worker commits is under the fence that it holds"),
    (
        "I4",
        "fences and generations on a machine's disk never fall, and nothing is started from elsewhere",
    ),
    ("I5", "at the end every shard lease has an owner that lives"),
    ("CLOCK", "logical time is one everywhere, and no faster than time"),
    ("Q1", "no wake-up is lost: at the end nothing is left to do, and what was asked for is done"),
    ("Q2", "no generation of a key is done twice"),
    ("E1", "events are dense and in commit order; the audit chain verifies"),
    ("H1", "what histories say of earlier revisions is what was"),
    ("S1", "replicas at one applied index have one state"),
    ("M1", "at most one leader for each term"),
    ("C1", "nodes never give away more than they have; their books equal their instances"),
    ("C2", "a command is carried out at most once, ends once, and is told as it was done"),
    ("A1", "no instance runs twice; at the end what is wanted runs, and nothing else"),
    ("A2", "nothing is stopped that nobody wants stopped"),
    ("agent", "no agent gives up its session for good"),
    ("start", "a replica or an agent starts from what a power cut left"),
    ("panic", "no task panics"),
    ("spin", "no task turns in a circle"),
    ("quiet", "when the faults are over, everything converges"),
];

/// How long everything may take to converge once the faults are over.
const QUIET_LIMIT: Duration = Duration::from_secs(60);
/// How long clients work on when the faults are over.
const CALM: Duration = Duration::from_secs(4);

/// What is run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    /// How long faults happen.
    pub(crate) length: Duration,
    pub(crate) replicas: u64,
    pub(crate) clients: u64,
    /// Writes a second, instead of what clients do.
    pub(crate) writes: Option<u64>,
    /// Machines with agents; 0: the replicas alone.
    pub(crate) agents: u64,
    pub(crate) plan: Vec<Planned>,
    /// Whether to print what happens.
    pub(crate) is_told: bool,
    /// A defect of the product, in a build that can have some.
    pub(crate) plant: Option<Defect>,
    /// Whether what clients recorded has an error in it once a replica has ended.
    pub(crate) is_spoiled: bool,
}

impl Options {
    /// What a seed decides.
    #[cfg(test)]
    pub(crate) fn of(seed: u64, length: Duration, allowed: &[Fault]) -> Self {
        Self::with(seed, length, allowed, 0)
    }

    /// What a seed decides, with so many machines.
    pub(crate) fn with(seed: u64, length: Duration, allowed: &[Fault], agents: u64) -> Self {
        let clients = Random::part(seed, "clients").within(2, 5);
        let plan = faults::plan(seed, length, allowed, agents);
        let replicas = if Random::part(seed, "replicas").below(5) == 0 { 5 } else { 3 };
        let (is_told, plant, is_spoiled) = (false, None, false);
        Self {
            seed,
            length,
            replicas,
            clients,
            writes: None,
            agents,
            plan,
            is_told,
            plant,
            is_spoiled,
        }
    }
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) hash: u64,
    /// Events in the hash.
    pub(crate) events: u64,
    /// Virtual time, quiet phase and all.
    pub(crate) time: Duration,
    pub(crate) breaches: Vec<Breach>,
    pub(crate) operations: usize,
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
    pub(crate) terms: u64,
    pub(crate) applied: u64,
    pub(crate) compared: u64,
    /// What histories knew of earlier states.
    pub(crate) recalled: past::Recalled,
    /// Where replicas died, by the place.
    pub(crate) died_at: BTreeMap<&'static str, u64>,
    /// Why replicas stopped by themselves.
    pub(crate) stops: Vec<String>,
}

/// Runs one simulation on this thread.
pub(crate) fn run(options: &Options) -> Ran {
    #[cfg(feature = "planted")]
    palisade_state::planted::choose(options.plant);
    let nodes = Nodes::new(options.seed, options.is_told);
    let entered = Entered::new(nodes.clone());
    let mut runtime = NodesRt::with_seed(options.seed);
    let ran = runtime.block_on(simulate(options.clone(), nodes));
    drop(runtime);
    drop(entered);
    ran
}

async fn simulate(options: Options, nodes: Arc<Nodes>) -> Ran {
    let world = World::new(options.seed, nodes.clone(), options.replicas);
    nodes.spawn(0, world.clone().keep().boxed());
    let records: Arc<Mutex<Vec<Record>>> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let clients = if options.writes.is_some() { 1 } else { options.clients };
    let working = Arc::new(AtomicU64::new(clients));
    let keys = Random::part(options.seed, "keys").within(2, 8);
    let mut random = Random::part(options.seed, "pauses");
    for number in 1..=clients {
        let client = Client {
            world: world.clone(),
            number,
            keys,
            pause_ms: random.within(10, 120),
            random: Random::part(options.seed, &format!("client-{number}")),
            records: records.clone(),
            stop: stop.clone(),
            working: working.clone(),
        };
        match options.writes {
            Some(a_second) => nodes.spawn(0, client.write_steadily(a_second).boxed()),
            None => nodes.spawn(0, client.run().boxed()),
        }
    }
    if options.agents > 0 {
        settle(&options, &world, &stop, &working);
    }
    nodes.spawn(0, faults::carry_out(world.clone(), options.plan.clone(), options.length).boxed());
    world_sleep(options.length).await;
    let converged = calm(&world, &stop, &working).await;
    if options.is_spoiled && world.nodes.has_ended() {
        lock(&records).push(record::spoiled(now()));
    }
    let end = Ending::of(&world, &records);
    let (recalled, wrong) = world.eyes.past.judge(&world).await;
    wrong.into_iter().for_each(|breach| world.eyes.breach(breach.check, breach.message));
    let ran = report(&world, end, keys, converged);
    let ran = Ran { recalled, ..ran };
    if let Some(fleet) = world.fleet() {
        fleet.tear_down();
    }
    world.tear_down();
    ran
}

/// How things are when everything has converged, or has been waited for long enough.
///
/// This is what is judged, and not what is there later: the judge asks each history for each state, time goes on
/// meanwhile, and with it what comes back by itself, such as a periodic key whose time has come or the next step of an update.
struct Ending {
    /// The state of the replica that has applied most.
    last: Option<View>,
    records: Vec<Record>,
    /// What is not as it must be on machines.
    unrest: Vec<Breach>,
}

impl Ending {
    /// How things are now.
    fn of(world: &World, records: &Mutex<Vec<Record>>) -> Self {
        let last = furthest(world);
        let unrest = last.as_ref().zip(world.fleet()).map(|(last, fleet)| fleet.unsettled(last));
        Self { last, records: lock(records).clone(), unrest: unrest.unwrap_or_default() }
    }
}

/// Gives the world machines, and users who want something of them.
fn settle(options: &Options, world: &Arc<World>, stop: &Arc<AtomicBool>, working: &Arc<AtomicU64>) {
    let fleet = Fleet::found(world, options.seed, options.agents);
    world.has(fleet.clone());
    world.nodes.spawn(0, fleet.clone().keep().boxed());
    let mut random = Random::part(options.seed, "users");
    let users = random.within(1, 3);
    working.fetch_add(users, Ordering::Relaxed);
    for number in 1..=users {
        let user = User {
            world: world.clone(),
            fleet: fleet.clone(),
            number,
            pause_ms: random.within(200, 3_000),
            random: Random::part(options.seed, &format!("user-{number}")),
            stop: stop.clone(),
            working: working.clone(),
        };
        world.nodes.spawn(0, user.run().boxed());
    }
}

/// Ends all faults, lets the clients work in the calm and finish, and waits until all replicas are alike.
async fn calm(world: &Arc<World>, stop: &AtomicBool, working: &AtomicU64) -> bool {
    world.nodes.tell(|| "the faults are over".to_owned());
    let begun = now();
    loop {
        end_faults(world);
        world_sleep(Duration::from_millis(250)).await;
        let passed = now().saturating_sub(begun);
        if passed >= CALM {
            stop.store(true, Ordering::Relaxed);
        }
        let is_over = passed >= CALM && working.load(Ordering::Relaxed) == 0 && is_alike(world);
        if is_over || passed >= QUIET_LIMIT {
            return is_over;
        }
    }
}

fn end_faults(world: &World) {
    world.nodes.state().armed.clear();
    world.net.mend_all();
    for id in world.ids() {
        world.set_clock(id, 0, 0);
        if let Some(disk) = world.disk(id) {
            disk.set_sync((150, 900));
            disk.files().set_capacity(None);
        }
        if let Some(life) = world.life(id) {
            world.nodes.freeze(life, false);
        }
    }
    world.start_all();
    if let Some(fleet) = world.fleet() {
        fleet.end_faults(&world.ids());
    }
}

/// Whether every member runs, nothing is left to do, and all have applied the same.
fn is_alike(world: &World) -> bool {
    let Some(members) = members::members(world) else { return false };
    let members: BTreeSet<u64> = members.into_iter().map(|member| member.id.0).collect();
    if members != world.ids().into_iter().collect() {
        return false;
    }
    let views: Vec<_> = world.ids().into_iter().filter_map(|id| world.view(id)).collect();
    let Some(first) = views.first() else { return false };
    if chores::has_work(first) {
        return false;
    }
    if world.fleet().is_some_and(|fleet| !fleet.unsettled(first).is_empty()) {
        return false;
    }
    let same = views.iter().all(|view| view.applied() == first.applied());
    same && views.len() == world.ids().len() && first.applied().index > 0
}

/// The state of the replica that has applied most.
fn furthest(world: &World) -> Option<View> {
    let views = world.ids().into_iter().filter_map(|id| world.view(id));
    views.max_by_key(|view| view.applied().index)
}

fn report(world: &World, end: Ending, keys: u64, converged: bool) -> Ran {
    let Ending { last, records, unrest } = end;
    unrest.into_iter().for_each(|breach| world.eyes.breach(breach.check, breach.message));
    for id in world.ids() {
        if let Some(view) = world.view(id) {
            world.eyes.compare(id, &view);
        }
    }
    let mut breaches = world.eyes.breaches();
    let breach = |check, message: String| Breach { check, message };
    breaches.extend(world.nodes.panics().into_iter().map(|text| breach("panic", text)));
    if !converged {
        let seen: Vec<String> = world.ids().into_iter().map(|id| state_of(world, id)).collect();
        let limit = QUIET_LIMIT.as_secs();
        let message = format!("{limit} s after the faults replicas differ: {}", seen.join(", "));
        breaches.push(breach("quiet", message));
    }
    if let Some(last) = last {
        breaches.extend(judge::judge(&records, &last, keys, &world.eyes));
    }
    let (hash, events) = world.nodes.hash();
    let (terms, applied, compared) = world.eyes.counts();
    let count = |is: fn(&record::Outcome) -> bool| {
        records.iter().filter(|record| is(&record.outcome)).count()
    };
    let state = world.nodes.state();
    Ran {
        hash,
        events,
        time: now(),
        breaches,
        operations: records.len(),
        acknowledged: count(|outcome| matches!(outcome, record::Outcome::Done(_))),
        unknown: count(|outcome| matches!(outcome, record::Outcome::Unknown)),
        terms,
        applied,
        compared,
        recalled: past::Recalled::default(),
        died_at: state.died_at.clone(),
        stops: world.stops(),
    }
}

fn state_of(world: &World, id: u64) -> String {
    match world.view(id) {
        Some(view) => format!("{id} is at {}", view.applied().index),
        None => format!("{id} does not run"),
    }
}
