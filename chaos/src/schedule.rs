//! Which faults happen when: decided by the seed alone, before anything is started.
//!
//! There are two lanes, one for replicas and one for agents. Within a lane one fault is over before
//! the next one begins, so that only `kill-all` takes the quorum away; the lanes overlap.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL of one replica, and its start some time later.
    Kill,
    /// SIGSTOP of one replica, and SIGCONT some time later.
    Pause,
    /// SIGKILL of all replicas at once, and their start some time later.
    KillAll,
    /// SIGKILL of one agent, and its start some time later.
    KillAgent,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Kill, Self::Pause, Self::KillAll, Self::KillAgent];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::KillAll => "kill-all",
            Self::KillAgent => "kill-agent",
        }
    }

    /// By its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// What it does.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Kill => {
                "SIGKILL of one replica, half the time of the leader; it is started again"
            }
            Self::Pause => {
                "SIGSTOP of one replica, half the time of the leader; SIGCONT after 0.5 to 5 s"
            }
            Self::KillAll => "SIGKILL of all replicas at once; they are started again",
            Self::KillAgent => "SIGKILL of one agent; it is started again",
        }
    }

    fn lane(self) -> Lane {
        match self {
            Self::Kill | Self::Pause | Self::KillAll => Lane::Replicas,
            Self::KillAgent => Lane::Agents,
        }
    }

    /// Milliseconds from its begin to its end: shortest and longest.
    fn lasts_ms(self) -> (u64, u64) {
        match self {
            Self::Kill => (100, 2000),
            Self::Pause => (500, 5000),
            Self::KillAll => (100, 1500),
            Self::KillAgent => (100, 3000),
        }
    }

    /// Milliseconds that the cluster gets afterwards, at least: starting again and catching up.
    fn rest_ms(self) -> u64 {
        match self {
            Self::Kill => 1500,
            Self::Pause => 1000,
            Self::KillAll => 3000,
            Self::KillAgent => 1500,
        }
    }
}

/// Faults that do not overlap each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Those of replicas.
    Replicas,
    /// Those of agents.
    Agents,
}

/// Whom a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The replica that leads at that moment.
    Leader,
    /// A replica by its place, from 0.
    Replica(usize),
    /// An agent by its place, from 0.
    Agent(usize),
    /// All replicas.
    AllReplicas,
}

/// One fault to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// When it begins, from the begin of the faults.
    pub at_ms: u64,
    /// Which.
    pub fault: Fault,
    /// Whom it hits.
    pub target: Target,
    /// When it ends, from its begin.
    pub lasts_ms: u64,
}

/// What a schedule is made for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// It decides everything.
    pub seed: u64,
    /// Within this time all faults begin and end.
    pub within_ms: u64,
    /// The faults to choose from.
    pub faults: Vec<Fault>,
    /// How many replicas there are.
    pub replicas: usize,
    /// How many agents there are.
    pub agents: usize,
}

/// The faults of one lane in the order of their begin.
#[must_use]
pub fn plan(wanted: &Wanted, lane: Lane) -> Vec<Planned> {
    let mut faults: Vec<Fault> =
        wanted.faults.iter().copied().filter(|fault| fault.lane() == lane).collect();
    faults.sort_unstable();
    faults.dedup();
    if lane == Lane::Agents && wanted.agents == 0 {
        faults.clear();
    }
    let part = match lane {
        Lane::Replicas => "faults/replicas",
        Lane::Agents => "faults/agents",
    };
    let mut random = Random::part(wanted.seed, part);
    let mut planned = Vec::new();
    let mut at_ms = random.within(500, 2000);
    let mut hat: Vec<Fault> = Vec::new();
    while !faults.is_empty() {
        if hat.is_empty() {
            // All of them before one comes again: a short run leaves none out by chance.
            hat.clone_from(&faults);
            random.shuffle(&mut hat);
        }
        let Some(fault) = hat.pop() else { break };
        let (shortest, longest) = fault.lasts_ms();
        let lasts_ms = random.within(shortest, longest);
        let target = target(fault, wanted, &mut random);
        let pause_ms = fault.rest_ms() + random.below(2500);
        if at_ms + lasts_ms > wanted.within_ms {
            break;
        }
        planned.push(Planned { at_ms, fault, target, lasts_ms });
        at_ms += lasts_ms + pause_ms;
    }
    planned
}

fn target(fault: Fault, wanted: &Wanted, random: &mut Random) -> Target {
    match fault {
        Fault::Kill | Fault::Pause => {
            let replica = Target::Replica(random.index(wanted.replicas));
            if random.coin() { Target::Leader } else { replica }
        }
        Fault::KillAll => Target::AllReplicas,
        Fault::KillAgent => Target::Agent(random.index(wanted.agents)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(seed: u64) -> Wanted {
        Wanted { seed, within_ms: 90_000, faults: Fault::ALL.to_vec(), replicas: 3, agents: 2 }
    }

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        for lane in [Lane::Replicas, Lane::Agents] {
            assert_eq!(plan(&wanted(7), lane), plan(&wanted(7), lane));
            assert_ne!(plan(&wanted(7), lane), plan(&wanted(8), lane));
        }
    }

    #[test]
    fn a_known_seed_gives_known_faults() {
        let first = plan(&wanted(1), Lane::Replicas);
        let names: Vec<&str> = first.iter().take(6).map(|planned| planned.fault.name()).collect();
        let mut each = names[..3].to_vec();
        each.sort_unstable();
        assert_eq!(each, ["kill", "kill-all", "pause"]);
    }

    #[test]
    fn faults_of_one_lane_do_not_overlap_and_end_in_time() {
        for seed in 0..50 {
            let planned = plan(&wanted(seed), Lane::Replicas);
            assert!(planned.len() > 8, "{}", planned.len());
            for pair in planned.windows(2) {
                assert!(pair[0].at_ms + pair[0].lasts_ms < pair[1].at_ms);
            }
            assert!(planned.iter().all(|fault| fault.at_ms + fault.lasts_ms <= 90_000));
        }
    }

    #[test]
    fn about_half_of_the_kills_aim_at_the_leader() {
        let mut kills = (0, 0);
        for seed in 0..100 {
            for planned in plan(&wanted(seed), Lane::Replicas) {
                match (planned.fault, planned.target) {
                    (Fault::Kill, Target::Leader) => kills.0 += 1,
                    (Fault::Kill, _) => kills.1 += 1,
                    _ => {}
                }
            }
        }
        let share = f64::from(kills.0) / f64::from(kills.0 + kills.1);
        assert!((0.4..0.6).contains(&share), "{share}");
    }

    #[test]
    fn only_the_wanted_faults_come() {
        let wanted = Wanted { faults: vec![Fault::Pause], ..wanted(3) };
        assert!(plan(&wanted, Lane::Replicas).iter().all(|planned| planned.fault == Fault::Pause));
        assert_eq!(plan(&wanted, Lane::Agents), []);
    }

    #[test]
    fn names_are_read_back() {
        for fault in Fault::ALL {
            assert_eq!(Fault::parse(fault.name()), Some(fault));
        }
        assert_eq!(Fault::parse("flood"), None);
    }
}
