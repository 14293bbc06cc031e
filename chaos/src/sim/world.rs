//! The replicas of a simulated cluster and whoever looks after them: starts, ends, restarts, repairs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use palisade_raft::{
    Disk, Identity, Member, Neighbours, Replica, ReplicaOptions, Wires, disk::MemFiles,
};
use palisade_state::{ReplicaId, Rt, Store, View};
use tokio::sync::oneshot;

use super::{
    agents::Fleet,
    chores,
    clock::NodeClock,
    disk::SimDisk,
    eyes::{self, Eyes},
    members,
    net::Net,
    nodes::{Life, Nodes, lock, now},
    points::End,
    runtime::{NodePort, NodesRt, world_sleep},
    setup::{member, tuning},
    wire,
};
use crate::random::Random;

/// How often the replicas are looked after.
const LOOK: Duration = Duration::from_millis(20);
/// How long a client's connection waits for an answer.
const ASK_LIMIT: Duration = Duration::from_secs(6);

pub(crate) type Handle = Arc<Replica<NodesRt>>;

/// A place for a replica.
struct Place {
    life: Life,
    disk: SimDisk,
    replica: Option<Handle>,
    /// When it is started again.
    start_at: Option<Duration>,
    /// Its clock's pace, and how far its wall time is off.
    ppm: i64,
    wall_off_ms: i64,
    starts: u64,
    /// Which read of the next life has a wrong bit.
    misread: Option<u64>,
    /// A read of an earlier life had one.
    has_misread: bool,
    /// A bit of its files is another for good.
    has_decayed: bool,
    peer_addr: String,
    /// Whom it was told of when it was enrolled; the first members know each other.
    hints: Option<Vec<Member>>,
}

struct State {
    places: BTreeMap<u64, Place>,
    next_life: Life,
    random: Random,
    /// Faults that replicas gave for stopping.
    stops: Vec<String>,
    /// The replica whose disk does not keep what it was given, or gives back something else: one in a run.
    spoilt: Option<u64>,
    /// Who is started again at once.
    soon: BTreeSet<u64>,
}

/// See the module.
pub(crate) struct World {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) net: Arc<Net>,
    pub(crate) eyes: Arc<Eyes>,
    seed: u64,
    /// How many there are at first.
    replicas: u64,
    /// Machines with agents, where there are some.
    fleet: OnceLock<Arc<Fleet>>,
    state: Mutex<State>,
}

impl Place {
    fn new(disk: SimDisk, start_at: Option<Duration>, peer_addr: &str) -> Self {
        Self {
            life: 0,
            disk,
            replica: None,
            start_at,
            ppm: 0,
            wall_off_ms: 0,
            starts: 0,
            misread: None,
            has_misread: false,
            has_decayed: false,
            peer_addr: peer_addr.to_owned(),
            hints: None,
        }
    }
}

impl World {
    pub(crate) fn new(seed: u64, nodes: Arc<Nodes>, replicas: u64) -> Arc<Self> {
        let net = Net::new(nodes.clone(), seed);
        let eyes = Eyes::new(nodes.clone());
        let mut random = Random::part(seed, "world");
        let place = |id: u64, random: &mut Random| {
            let disk = SimDisk::new(MemFiles::new(), Random::part(seed, &format!("disk-{id}")));
            let addr = format!("replica-{id}:1");
            net.name(&addr, id);
            Place::new(disk, Some(Duration::from_micros(random.below(2_000))), &addr)
        };
        let places = (1..=replicas).map(|id| (id, place(id, &mut random))).collect();
        let state = State {
            places,
            next_life: 1,
            random,
            stops: vec![],
            spoilt: None,
            soon: BTreeSet::new(),
        };
        let (fleet, state) = (OnceLock::new(), Mutex::new(state));
        Arc::new(Self { nodes, net, eyes, seed, replicas, fleet, state })
    }

    /// Gives the world machines.
    pub(crate) fn has(&self, fleet: Arc<Fleet>) {
        let _ = self.fleet.set(fleet);
    }

    /// The machines, where there are some.
    pub(crate) fn fleet(&self) -> Option<Arc<Fleet>> {
        self.fleet.get().cloned()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// All places, whether somebody is there or not.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.state().places.keys().copied().collect()
    }

    /// Whether one more may come; more of them cost time and show nothing new.
    pub(crate) fn has_place(&self) -> bool {
        (self.ids().len() as u64) < self.replicas + 2
    }

    /// The first members, as everybody is started with them.
    fn members(&self) -> Vec<Member> {
        (1..=self.replicas).map(|id| member(id, &format!("replica-{id}:1"))).collect()
    }

    fn hints(&self, id: u64) -> Vec<Member> {
        let told = self.state().places.get(&id).and_then(|place| place.hints.clone());
        told.unwrap_or_else(|| self.members())
    }

    /// Makes a place for a replica that was enrolled, unless there is one; it starts with an empty disk.
    pub(crate) fn add(&self, id: u64, peer_addr: &str) {
        self.net.name(peer_addr, id);
        self.net.name(&peer_addr.replace(":1", ":2"), id);
        let mut state = self.state();
        if state.places.contains_key(&id) {
            return;
        }
        let disk = SimDisk::new(MemFiles::new(), Random::part(self.seed, &format!("disk-{id}")));
        let start_at = Some(now() + Duration::from_millis(state.random.below(2_000)));
        let hints = state.places.iter().map(|(id, place)| member(*id, &place.peer_addr)).collect();
        let place = Place { hints: Some(hints), ..Place::new(disk, start_at, peer_addr) };
        state.places.insert(id, place);
    }

    /// A replica that was removed is not started again.
    pub(crate) fn retire(&self, id: u64) {
        self.nodes.tell(|| format!("replica {id} is gone for good"));
        self.end(id, End::Process, Duration::MAX / 4);
        self.state().places.remove(&id);
    }

    /// The replica at a place, if it runs.
    pub(crate) fn running(&self, id: u64) -> Option<(Life, Handle)> {
        let state = self.state();
        let place = state.places.get(&id)?;
        let replica = place.replica.clone()?;
        let life = place.life;
        drop(state);
        (!self.nodes.is_gone(life)).then_some((life, replica))
    }

    /// The disk at a place.
    pub(crate) fn disk(&self, id: u64) -> Option<SimDisk> {
        self.state().places.get(&id).map(|place| place.disk.clone())
    }

    /// The present life at a place.
    pub(crate) fn life(&self, id: u64) -> Option<Life> {
        self.state().places.get(&id).map(|place| place.life)
    }

    /// Whoever leads, as far as it knows itself.
    pub(crate) fn leader(&self) -> Option<u64> {
        self.ids().into_iter().find(|id| {
            self.running(*id)
                .is_some_and(|(life, replica)| self.nodes.within(life, || replica.is_leader()))
        })
    }

    /// What a replica serves.
    pub(crate) fn view(&self, id: u64) -> Option<View> {
        let (life, replica) = self.running(id)?;
        Some(self.nodes.within(life, || replica.view()))
    }

    /// Sets a clock's pace, now and for later lives, and how far its wall time is off.
    pub(crate) fn set_clock(&self, id: u64, ppm: i64, wall_off_ms: i64) {
        let life = {
            let mut state = self.state();
            let Some(place) = state.places.get_mut(&id) else { return };
            (place.ppm, place.wall_off_ms) = (ppm, wall_off_ms);
            place.life
        };
        if let Some(known) = self.nodes.state().lives.get_mut(&life) {
            known.clock.set_pace(now(), ppm);
            known.clock.wall_off_ms = wall_off_ms;
        }
    }

    /// Ends a replica where it stands; it is started again after `pause`.
    pub(crate) fn end(&self, id: u64, end: End, pause: Duration) {
        let seed = self.state().random.next();
        let Some((life, _)) = self.running(id) else { return };
        self.nodes.tell(|| format!("node {id} ends ({end:?})"));
        if let Some(disk) = self.disk(id) {
            disk.ends(end, seed);
        }
        self.nodes.kill(life);
        self.clear(id, pause);
    }

    /// Takes away what an ended life has left.
    fn clear(&self, id: u64, pause: Duration) {
        let end = self.net.detach(id);
        let (life, replica) = {
            let mut state = self.state();
            let Some(place) = state.places.get_mut(&id) else { return };
            place.start_at = Some(now() + pause);
            (place.life, place.replica.take())
        };
        self.nodes.within(life, || {
            if let Some(fleet) = self.fleet.get() {
                fleet.leave(id);
            }
            drop((end, replica));
        });
        self.nodes.note(&[5, id, u64::from(life)]);
    }

    /// When a replica ends at a named place, it is started again at once.
    pub(crate) fn start_soon(&self, id: u64) {
        self.state().soon.insert(id);
    }

    /// The replica of the run whose disk lies: this one, unless there is another. `None`: it is not there at the moment.
    /// Of a second replica that is lost nothing good could be said.
    pub(crate) fn spoil(&self, id: u64) -> Option<u64> {
        let id = self.state().spoilt.unwrap_or(id);
        self.running(id)?;
        self.state().spoilt = Some(id);
        Some(id)
    }

    /// Changes a bit of a file of a replica that does not run; false when there is none.
    pub(crate) fn decay(&self, id: u64, dir: &str, random: &mut Random) -> bool {
        let dir = PathBuf::from("/data").join(dir);
        let Some(what) = self.disk(id).and_then(|disk| disk.decay(&dir, random)) else {
            return false;
        };
        if let Some(place) = self.state().places.get_mut(&id) {
            place.has_decayed = true;
        }
        self.nodes.tell(|| format!("node {id}: {what}"));
        true
    }

    /// The next life at a place reads a wrong bit, once.
    pub(crate) fn misread_at_start(&self, id: u64, after: u64) {
        if let Some(place) = self.state().places.get_mut(&id) {
            place.misread = Some(after);
        }
    }

    /// Looks after all places until the world ends.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            world_sleep(LOOK).await;
            for id in self.ids() {
                self.look_after(id).await;
            }
        }
    }

    async fn look_after(self: &Arc<Self>, id: u64) {
        let (life, running, due) = {
            let state = self.state();
            let Some(place) = state.places.get(&id) else { return };
            let due = place.start_at.is_some_and(|at| at <= now());
            (place.life, place.replica.clone(), due)
        };
        match running {
            Some(replica) if self.nodes.is_gone(life) => {
                self.nodes.kill(life);
                self.nodes.within(life, || drop(replica));
                let pause = self.pause(id);
                self.clear(id, pause);
            }
            Some(replica) => {
                if self.nodes.within(life, || replica.is_barred()) {
                    let why = self.nodes.within(life, || replica.fault()).unwrap_or_default();
                    drop(replica);
                    self.is_barred(id, &why);
                } else if let Some(fault) = self.nodes.within(life, || replica.fault()) {
                    self.nodes.tell(|| format!("replica {id} stopped: {fault}"));
                    self.state().stops.push(format!("replica {id}: {fault}"));
                    self.end(id, End::Process, Duration::from_millis(500));
                }
            }
            None if due => self.start(id).await,
            None => {}
        }
    }

    /// What an operator does when a replica says that it must not serve any more.
    fn is_barred(self: &Arc<Self>, id: u64, why: &str) {
        let was_removed = why.starts_with(&format!("replica {id} was removed"));
        if was_removed {
            self.retire(id);
            return;
        }
        self.nodes.tell(|| format!("replica {id} must not serve: {why}"));
        if !self.has_lied(id) {
            self.eyes.breach("start", format!("a disk that keeps its word: {why}"));
        }
        self.end(id, End::Process, Duration::MAX / 4);
        self.repair(id);
    }

    /// Whether this replica's disk has given it something else than it was given.
    fn has_lied(&self, id: u64) -> bool {
        let state = self.state();
        let place = state.places.get(&id);
        place.is_some_and(|it| it.has_decayed || it.has_misread || it.disk.has_misread())
    }

    fn pause(&self, id: u64) -> Duration {
        let mut state = self.state();
        let most = if state.soon.remove(&id) { 40 } else { 3_000 };
        Duration::from_millis(state.random.within(20, most))
    }

    /// Starts a replica from what its disk holds.
    async fn start(self: &Arc<Self>, id: u64) {
        let Some((life, disk)) = self.begin(id) else { return };
        let port = NodePort { nodes: self.nodes.clone(), life, eyes: self.eyes.clone() };
        let rt: Rt = Arc::new(port);
        let wires = wire::Wires { net: self.net.clone(), node: id, life };
        let options = ReplicaOptions {
            dir: PathBuf::from("/data"),
            disk: Disk::simulated(Arc::new(disk)),
            identity: Identity {
                cluster: "sim".into(),
                lineage: "sim".into(),
                epoch: 0,
                replica: ReplicaId(id),
            },
            wires: Wires::Custom(Arc::new(wires)),
            tuning: tuning(self.seed),
            rt: rt.clone(),
            neighbours: Neighbours { hints: self.hints(id), ..Neighbours::default() },
        };
        let started = Replica::<NodesRt>::start(options).await;
        match started {
            Ok(replica) => self.started(id, life, rt, replica),
            Err(_) if self.nodes.is_gone(life) => {
                self.nodes.kill(life);
                let pause = self.pause(id);
                self.clear(id, pause);
            }
            Err(error) => {
                let text = error.to_string();
                self.nodes.tell(|| format!("replica {id} does not start: {text}"));
                self.nodes.kill(life);
                self.clear(id, Duration::from_secs(5));
                if self.state().places.get(&id).is_some_and(|place| place.has_decayed) {
                    self.repair(id);
                    return;
                }
                // The next start reads what is there, or finds room.
                if self.disk(id).is_some_and(|disk| disk.has_misread() || disk.is_full()) {
                    return;
                }
                self.eyes.breach("start", format!("replica {id} does not start: {text}"));
            }
        }
    }

    /// Has another replica take the place of one that cannot be started any more.
    fn repair(self: &Arc<Self>, id: u64) {
        self.state().places.remove(&id);
        let random = Random::part(self.seed, &format!("repair-{id}"));
        let repairing = members::put_in_place_of(self.clone(), id, random, 60);
        self.nodes.spawn(0, repairing.boxed());
    }

    fn begin(&self, id: u64) -> Option<(Life, SimDisk)> {
        let mut state = self.state();
        let life = state.next_life;
        state.next_life += 1;
        let since = Duration::from_millis(state.random.below(77_000));
        let place = state.places.get_mut(&id)?;
        place.starts += 1;
        let seed = self.seed;
        let part = format!("disk-{id}-{}", place.starts);
        place.has_misread |= place.disk.has_misread();
        place.disk = place.disk.next(Random::part(seed, &part));
        if let Some(after) = place.misread.take() {
            place.disk.misread_in(after);
        }
        place.life = life;
        place.start_at = None;
        let clock = NodeClock::new(now(), since, place.ppm, place.wall_off_ms);
        let disk = place.disk.clone();
        drop(state);
        self.nodes.begin(life, id, clock, Some(disk.clone()));
        Some((life, disk))
    }

    fn started(self: &Arc<Self>, id: u64, life: Life, rt: Rt, replica: Handle) {
        self.nodes.tell(|| format!("replica {id} runs"));
        let api = self.nodes.within(life, || replica.peer_api());
        self.net.attach(id, life, api);
        let (eyes, watched, fleet) = (self.eyes.clone(), replica.clone(), self.fleet());
        let watching = async move {
            let mut watch = watched.watch();
            while let Some(event) = watch.next().await {
                let view = watched.view();
                eyes.changed(id, &view, &event);
                if let Some(fleet) = &fleet {
                    fleet.look(&view);
                }
                if view.applied().index.is_multiple_of(eyes::EVERY) {
                    eyes.compare(id, &view);
                }
            }
        };
        self.nodes.spawn(life, watching.boxed());
        match self.fleet() {
            Some(fleet) => fleet.serve(id, life, rt, replica.clone()),
            None => self.nodes.spawn(life, chores::work(rt, replica.clone()).boxed()),
        }
        let (forming, members) = (replica.clone(), self.members());
        let is_first = id <= self.replicas;
        let forming = async move {
            if is_first && forming.view().formation().is_none() {
                let _ = forming.form(&members).await;
            }
        };
        self.nodes.spawn(life, forming.boxed());
        if let Some(place) = self.state().places.get_mut(&id) {
            place.replica = Some(replica);
        }
    }

    /// Starts everything that is down, soon.
    pub(crate) fn start_all(&self) {
        let soon = now();
        for place in self.state().places.values_mut() {
            place.start_at = place.start_at.map(|at| at.min(soon));
        }
    }

    /// Ends everything, so that nothing of the run is left.
    pub(crate) fn tear_down(&self) {
        for id in self.ids() {
            let Some(life) = self.life(id) else { continue };
            self.nodes.kill(life);
            self.clear(id, Duration::MAX / 4);
        }
    }

    /// Why replicas stopped by themselves.
    pub(crate) fn stops(&self) -> Vec<String> {
        self.state().stops.clone()
    }

    /// Asks a replica something, as a client does over the network: what runs there runs as one of its tasks.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        id: u64,
        ask: impl FnOnce(Handle) -> BoxFuture<'static, T> + Send + 'static,
    ) -> Option<T> {
        self.way().await;
        let (life, replica) = self.running(id)?;
        let (answer, answered) = oneshot::channel();
        let nodes = self.nodes.clone();
        let asked = async move {
            let value = ask(replica).await;
            if !nodes.is_gone(life) {
                let _ = answer.send(value);
            }
        };
        self.nodes.spawn(life, asked.boxed());
        let limit = std::pin::pin!(world_sleep(ASK_LIMIT));
        let value = match futures::future::select(answered, limit).await {
            futures::future::Either::Left((value, _)) => value.ok(),
            futures::future::Either::Right(_) => None,
        };
        self.way().await;
        value
    }

    async fn way(&self) {
        let micros = self.state().random.within(50, 2_000);
        world_sleep(Duration::from_micros(micros)).await;
    }
}
