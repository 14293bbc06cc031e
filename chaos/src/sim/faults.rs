//! Faults that a seed decides: what, when, for how long; and their doing.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;

use super::{
    agents, members,
    net::{VOTED, Weather},
    nodes::now,
    points::{Armed, End, POINTS},
    runtime::world_sleep,
    world::World,
};
use crate::random::Random;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Kill,
    Power,
    KillAll,
    PowerAll,
    Point,
    CutOneWay,
    CutBoth,
    Isolate,
    Split,
    Weather,
    Pause,
    SlowDisk,
    SyncError,
    FullDisk,
    Drift,
    WallJump,
    Snapshot,
    Replace,
    Shift,
    Decay,
    Vote,
    AgentKill,
    MachinePower,
    AgentCut,
    AgentPause,
    AgentDisk,
    ProcessEnd,
    Misread,
}

impl Fault {
    pub(crate) const ALL: [Self; 28] = [
        Self::Kill,
        Self::Power,
        Self::KillAll,
        Self::PowerAll,
        Self::Point,
        Self::CutOneWay,
        Self::CutBoth,
        Self::Isolate,
        Self::Split,
        Self::Weather,
        Self::Pause,
        Self::SlowDisk,
        Self::SyncError,
        Self::FullDisk,
        Self::Drift,
        Self::WallJump,
        Self::Snapshot,
        Self::Replace,
        Self::Shift,
        Self::Decay,
        Self::Vote,
        Self::AgentKill,
        Self::MachinePower,
        Self::AgentCut,
        Self::AgentPause,
        Self::AgentDisk,
        Self::ProcessEnd,
        Self::Misread,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Power => "power",
            Self::KillAll => "kill-all",
            Self::PowerAll => "power-all",
            Self::Point => "point",
            Self::CutOneWay => "cut-one-way",
            Self::CutBoth => "cut",
            Self::Isolate => "isolate",
            Self::Split => "split",
            Self::Weather => "weather",
            Self::Pause => "pause",
            Self::SlowDisk => "slow-disk",
            Self::SyncError => "sync-error",
            Self::FullDisk => "full-disk",
            Self::Drift => "drift",
            Self::WallJump => "wall-jump",
            Self::Snapshot => "snapshot",
            Self::Replace => "replace",
            Self::Shift => "shift",
            Self::Decay => "decay",
            Self::Vote => "vote",
            Self::Misread => "misread",
            of_agents => agents::faults::name(of_agents),
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Kill => "a replica's process ends between two steps of a task",
            Self::Power => {
                "a replica's power is cut: what was not synced is lost, whole or in part"
            }
            Self::KillAll => "the processes of all replicas end at once",
            Self::PowerAll => "the power of all replicas is cut at once",
            Self::Point => "a replica ends at a named place of its code",
            Self::CutOneWay => "a link carries nothing in one direction",
            Self::CutBoth => "a link carries nothing",
            Self::Isolate => "a replica, mostly the leader, is cut off",
            Self::Split => "the replicas fall into two parts",
            Self::Weather => "messages are lost, doubled, late, and streams break",
            Self::Pause => "a replica's process stands still",
            Self::SlowDisk => "syncs take tens or hundreds of milliseconds",
            Self::SyncError => "a sync fails, and what it covered is lost",
            Self::FullDisk => "a disk has no room for a while",
            Self::Drift => "a clock runs up to 5 % fast or slow",
            Self::WallJump => "a wall clock jumps by up to an hour",
            Self::Snapshot => "a replica takes a snapshot",
            Self::Replace => "a new replica takes the place of another",
            Self::Shift => "leadership is handed over, or a replica is drained for a while",
            Self::Vote => {
                "a replica loses its power right after it has voted, and whom it voted for is cut off"
            }
            Self::Misread => {
                "a read is answered with a bit that is another, once, mostly while a replica starts"
            }
            Self::Decay => {
                "a bit of a file of a stopped replica is another; one that does not start is replaced"
            }
            of_agents => agents::faults::describe(of_agents),
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// How often it is chosen.
    fn weight(self) -> u64 {
        match self {
            Self::Point => 8,
            Self::Kill | Self::Power | Self::Isolate => 4,
            Self::PowerAll | Self::Vote | Self::CutOneWay | Self::Snapshot | Self::Replace => 3,
            Self::CutBoth | Self::Split | Self::Weather | Self::Pause | Self::KillAll => 2,
            Self::Shift | Self::Decay | Self::Misread => 2,
            Self::SlowDisk | Self::Drift | Self::WallJump | Self::SyncError | Self::FullDisk => 1,
            of_agents => agents::faults::weight(of_agents),
        }
    }
}

/// One fault of a plan. Each has a seed of its own, so that it stays what it is when others are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
    pub(crate) seed: u64,
}

/// The plan of a run: what is done to replicas and, in a lane of its own, to machines where there are some.
pub(crate) fn plan(seed: u64, length: Duration, allowed: &[Fault], agents: u64) -> Vec<Planned> {
    let (machines, replicas): (Vec<Fault>, Vec<Fault>) =
        allowed.iter().partition(|fault| agents::faults::ALL.contains(fault));
    let mut planned = lane(Random::part(seed, "plan"), length, &replicas);
    if agents > 0 {
        planned.extend(lane(Random::part(seed, "plan-agents"), length, &machines));
        planned.sort_by_key(|planned| planned.at);
    }
    planned
}

fn lane(mut random: Random, length: Duration, allowed: &[Fault]) -> Vec<Planned> {
    let total: u64 = allowed.iter().map(|fault| fault.weight()).sum();
    let mut at = Duration::from_millis(random.within(1_500, 4_000));
    let mut planned = vec![];
    while at < length && total > 0 {
        let mut drawn = random.below(total);
        let chosen = allowed.iter().find(|fault| {
            let is_it = drawn < fault.weight();
            drawn = drawn.saturating_sub(fault.weight());
            is_it
        });
        if let Some(fault) = chosen {
            planned.push(Planned { at, fault: *fault, seed: random.next() });
        }
        at += Duration::from_millis(random.within(50, 4_000));
    }
    planned
}

/// Carries a plan out.
pub(crate) async fn carry_out(world: Arc<World>, plan: Vec<Planned>, length: Duration) {
    for planned in plan.into_iter().filter(|planned| planned.at < length) {
        world_sleep(planned.at.saturating_sub(now())).await;
        world.nodes.note(&[7, planned.seed]);
        let doing = strike(world.clone(), planned.fault, Random::part(planned.seed, "fault"));
        world.nodes.clone().spawn(0, doing.boxed());
    }
}

struct Strike {
    world: Arc<World>,
    random: Random,
}

async fn strike(world: Arc<World>, fault: Fault, random: Random) {
    let mut strike = Strike { world, random };
    match fault {
        Fault::Kill => strike.end_one(End::Process),
        Fault::Power => strike.end_one(End::Power),
        Fault::KillAll => strike.end_all(End::Process),
        Fault::PowerAll => strike.end_all(End::Power),
        Fault::Point => strike.aim().await,
        Fault::CutOneWay | Fault::CutBoth | Fault::Isolate | Fault::Split => {
            strike.cut(fault).await;
        }
        Fault::Weather => strike.weather().await,
        Fault::Pause => strike.pause().await,
        Fault::SlowDisk | Fault::SyncError | Fault::FullDisk => strike.disk(fault).await,
        Fault::Drift | Fault::WallJump => strike.clock(fault),
        Fault::Snapshot => strike.snapshot().await,
        Fault::Replace => members::replace(strike.world, strike.random).await,
        Fault::Decay => strike.decay(),
        Fault::Vote => strike.vote().await,
        Fault::Misread => strike.misread(),
        Fault::Shift => members::shift(strike.world, strike.random).await,
        of_agents => agents::faults::strike(strike.world, of_agents, strike.random).await,
    }
}

impl Strike {
    fn tell(&self, line: String) {
        self.world.nodes.tell(|| line);
    }

    fn any(&mut self) -> u64 {
        let ids = self.world.ids();
        ids.get(self.random.index(ids.len())).copied().unwrap_or(1)
    }

    /// The leader, mostly.
    fn leader_or_any(&mut self) -> u64 {
        let any = self.any();
        let is_leader = self.random.below(3) > 0;
        if is_leader { self.world.leader().unwrap_or(any) } else { any }
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.random.within(low, high))
    }

    fn end_one(&mut self, end: End) {
        let (id, pause) = (self.leader_or_any(), self.millis(20, 6_000));
        self.world.end(id, end, pause);
    }

    fn end_all(&mut self, end: End) {
        for id in self.world.ids() {
            let pause = self.millis(20, 2_000);
            self.world.end(id, end, pause);
        }
    }

    /// Waits at a named place, of one replica or of all.
    async fn aim(&mut self) {
        let point = POINTS.get(self.random.index(POINTS.len())).copied().unwrap_or("wal.sync");
        let end = if self.random.below(4) == 0 { End::Process } else { End::Power };
        let nodes =
            if self.random.below(3) == 0 { self.world.ids() } else { vec![self.leader_or_any()] };
        self.tell(format!("nodes {nodes:?} are to end at {point} ({end:?})"));
        for node in &nodes {
            let armed = Armed {
                node: *node,
                point,
                after: self.random.below(4),
                end,
                seed: self.random.next(),
            };
            self.world.nodes.state().armed.push(armed);
        }
        // Something must happen there.
        if point.contains("snapshot") {
            self.snapshot().await;
        } else if (point.contains("vote") || point.contains("transfer")) && self.random.coin() {
            let leader = self.world.leader();
            let pause = self.millis(20, 2_000);
            if let Some(leader) = leader {
                self.world.end(leader, End::Process, pause);
            }
        }
        world_sleep(Duration::from_secs(5)).await;
        let mut state = self.world.nodes.state();
        state.armed.retain(|armed| !(armed.point == point && nodes.contains(&armed.node)));
    }

    /// Mostly short; now and then longer than a worker's session.
    fn long_millis(&mut self, low: u64, high: u64) -> Duration {
        if self.random.below(5) == 0 { self.millis(10_000, 14_000) } else { self.millis(low, high) }
    }

    /// The links that are cut, each with its direction.
    fn links(&mut self, fault: Fault) -> Vec<(u64, u64)> {
        let ids = self.world.ids();
        let one = self.leader_or_any();
        let others: Vec<u64> = ids.iter().copied().filter(|id| *id != one).collect();
        let other = others.get(self.random.index(others.len())).copied().unwrap_or(one);
        match fault {
            Fault::CutOneWay => {
                let is_out = self.random.coin();
                let all = self.random.coin();
                let to: Vec<u64> = if all { others } else { vec![other] };
                let way = |to: u64| if is_out { (one, to) } else { (to, one) };
                to.into_iter().map(way).collect()
            }
            Fault::CutBoth => vec![(one, other), (other, one)],
            Fault::Isolate => others.iter().flat_map(|to| [(one, *to), (*to, one)]).collect(),
            _ => {
                let mut parts = ids.clone();
                self.random.shuffle(&mut parts);
                let at = self.random.within(1, (parts.len() as u64).saturating_sub(1).max(1));
                let (left, right) = parts.split_at(usize::try_from(at).unwrap_or(1));
                let pair = |from: &u64| {
                    right
                        .iter()
                        .flat_map(move |to| [(*from, *to), (*to, *from)])
                        .collect::<Vec<_>>()
                };
                left.iter().flat_map(pair).collect()
            }
        }
    }

    async fn cut(&mut self, fault: Fault) {
        let (links, length) = (self.links(fault), self.long_millis(200, 8_000));
        self.tell(format!("cut for {} ms: {links:?}", length.as_millis()));
        for (from, to) in &links {
            self.world.net.cut(*from, *to);
        }
        world_sleep(length).await;
        self.tell(format!("mended: {links:?}"));
        for (from, to) in links {
            self.world.net.mend(from, to);
        }
    }

    async fn weather(&mut self) {
        let weather = Weather {
            lost: self.random.below(100),
            twice: self.random.below(200),
            slow: self.random.below(300),
            broken: self.random.below(30),
        };
        let length = self.millis(1_000, 10_000);
        self.tell(format!("for {} ms: {weather:?}", length.as_millis()));
        self.world.net.set_weather(weather);
        world_sleep(length).await;
        self.world.net.set_weather(Weather::default());
    }

    async fn pause(&mut self) {
        let (id, length) = (self.leader_or_any(), self.long_millis(50, 5_000));
        let Some(life) = self.world.life(id) else { return };
        self.tell(format!("node {id} stands still for {} ms", length.as_millis()));
        self.world.nodes.freeze(life, true);
        world_sleep(length).await;
        self.tell(format!("node {id} goes on"));
        self.world.nodes.freeze(life, false);
    }

    async fn disk(&mut self, fault: Fault) {
        let id = self.leader_or_any();
        let Some(disk) = self.world.disk(id) else { return };
        match fault {
            Fault::SlowDisk => {
                let most = self.random.within(10_000, 900_000);
                let length = self.millis(500, 6_000);
                self.tell(format!("syncs of node {id} take up to {most} us"));
                disk.set_sync((most / 10, most));
                world_sleep(length).await;
                disk.set_sync((150, 900));
            }
            Fault::SyncError => {
                let after = self.random.below(20);
                self.tell(format!("sync {after} from now fails on node {id}"));
                disk.files().fail_sync_in(after);
            }
            _ => {
                let files = disk.files();
                let room = self.random.below(300 << 10);
                let length = self.millis(1_000, 8_000);
                self.tell(format!("the disk of node {id} has {room} bytes left"));
                files.set_capacity(Some(files.used() + room));
                world_sleep(length).await;
                files.set_capacity(None);
                if let Some(now) = self.world.disk(id) {
                    now.files().set_capacity(None);
                }
            }
        }
    }

    fn clock(&mut self, fault: Fault) {
        let id = self.any();
        let ppm = i64::try_from(self.random.below(100_001)).unwrap_or(0) - 50_000;
        let off = i64::try_from(self.random.below(7_200_001)).unwrap_or(0) - 3_600_000;
        let (ppm, off) = if fault == Fault::Drift { (ppm, 0) } else { (0, off) };
        self.tell(format!("the clock of node {id}: pace {ppm} ppm, wall time off by {off} ms"));
        self.world.set_clock(id, ppm, off);
    }

    /// A vote that is not durable by the time its answer leaves makes two leaders of one term here.
    async fn vote(&mut self) {
        let Some(leader) = self.world.leader() else { return };
        let others: Vec<u64> = self.world.ids().into_iter().filter(|id| *id != leader).collect();
        let voter = others.get(self.random.index(others.len())).copied().unwrap_or(leader);
        let Some(life) = self.world.life(voter) else { return };
        self.tell(format!("node {voter} is to lose its power once it has voted"));
        let (end, seed) = (End::Power, self.random.next());
        self.world.nodes.state().armed.push(Armed {
            node: voter,
            point: VOTED,
            after: 0,
            end,
            seed,
        });
        self.world.start_soon(voter);
        let pause = self.millis(20, 200);
        self.world.end(leader, End::Process, pause);
        for _ in 0..1_500 {
            world_sleep(Duration::from_millis(1)).await;
            if self.world.nodes.is_gone(life) {
                break;
            }
        }
        self.world.nodes.state().armed.retain(|armed| armed.point != VOTED);
        if !self.world.nodes.is_gone(life) {
            return;
        }
        let cut: Vec<(u64, u64)> = others
            .iter()
            .filter(|id| **id != voter)
            .flat_map(|from| [(*from, leader), (*from, voter)])
            .collect();
        cut.iter().for_each(|(from, to)| self.world.net.cut(*from, *to));
        let length = self.millis(500, 3_000);
        world_sleep(length).await;
        cut.iter().for_each(|(from, to)| self.world.net.mend(*from, *to));
    }

    fn decay(&mut self) {
        let (id, pause) = (self.any(), self.millis(20, 1_000));
        let dirs = if self.random.coin() { ["log", "snapshots"] } else { ["snapshots", "log"] };
        if let Some(id) = self.world.spoil(id) {
            self.world.end(id, End::Process, pause);
            let _ = dirs.iter().find(|dir| self.world.decay(id, dir, &mut self.random));
        }
    }

    fn misread(&mut self) {
        let (id, pause) = (self.any(), self.millis(20, 1_000));
        let after = self.random.below(12);
        let is_at_start = self.random.below(4) > 0;
        let Some(id) = self.world.spoil(id) else { return };
        self.tell(format!("read {after} from now has a wrong bit on node {id}"));
        if is_at_start {
            self.world.end(id, End::Process, pause);
            self.world.misread_at_start(id, after);
        } else if let Some(disk) = self.world.disk(id) {
            disk.misread_in(after);
        }
    }

    async fn snapshot(&mut self) {
        let id = self.any();
        self.tell(format!("replica {id} is to take a snapshot"));
        let asked =
            self.world.ask(id, |replica| async move { replica.take_snapshot().await }.boxed());
        let _ = asked.await;
    }
}
