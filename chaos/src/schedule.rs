//! Which faults happen when: decided by the seed alone, before anything is started.
//!
//! There are four lanes: replicas, network, members, agents. Within a lane one fault is over before
//! the next one begins; the lanes overlap.

use serde::{Deserialize, Serialize};

pub use crate::fault::{Fault, Lane};
use crate::{fault::Aim, random::Random};

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
    /// What decides the rest: which shape, which file, how much.
    #[serde(default)]
    pub pick: u64,
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

/// A pause after a fault is up to this much longer.
const REST_MS_MORE: u64 = 2000;

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
        Lane::Network => "faults/network",
        Lane::Members => "faults/members",
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
        let pick = random.next();
        let pause_ms = fault.rest_ms() + random.below(REST_MS_MORE);
        if at_ms + lasts_ms > wanted.within_ms {
            break;
        }
        planned.push(Planned { at_ms, fault, target, lasts_ms, pick });
        at_ms += lasts_ms + pause_ms;
    }
    planned
}

fn target(fault: Fault, wanted: &Wanted, random: &mut Random) -> Target {
    match fault.aim() {
        Aim::LeaderOrReplica => {
            let replica = Target::Replica(random.index(wanted.replicas));
            if random.coin() { Target::Leader } else { replica }
        }
        Aim::Replica => Target::Replica(random.index(wanted.replicas)),
        Aim::All => Target::AllReplicas,
        Aim::Agent => Target::Agent(random.index(wanted.agents)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: [Lane; 4] = [Lane::Replicas, Lane::Network, Lane::Members, Lane::Agents];

    fn wanted(seed: u64) -> Wanted {
        Wanted { seed, within_ms: 90_000, faults: Fault::ALL.to_vec(), replicas: 3, agents: 2 }
    }

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        for lane in LANES {
            assert_eq!(plan(&wanted(7), lane), plan(&wanted(7), lane));
            assert_ne!(plan(&wanted(7), lane), plan(&wanted(8), lane));
        }
    }

    #[test]
    fn ninety_seconds_are_enough_for_every_fault() {
        for seed in 0..200 {
            let mut seen: Vec<Fault> = LANES
                .into_iter()
                .flat_map(|lane| plan(&wanted(seed), lane))
                .map(|planned| planned.fault)
                .collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, Fault::ALL, "seed {seed}");
        }
    }

    #[test]
    fn faults_of_one_lane_do_not_overlap_and_end_in_time() {
        for seed in 0..50 {
            let planned = plan(&wanted(seed), LANES[usize::try_from(seed).unwrap() % 3]);
            assert!(planned.len() > 4, "{}", planned.len());
            for pair in planned.windows(2) {
                assert!(pair[0].at_ms + pair[0].lasts_ms < pair[1].at_ms);
            }
            assert!(planned.iter().all(|fault| fault.at_ms + fault.lasts_ms <= 90_000));
        }
    }

    #[test]
    fn about_half_of_the_kills_aim_at_the_leader() {
        let mut kills = (0, 0);
        for seed in 0..500 {
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
}
