//! The faults of the rig: their names, and how long they last.

use serde::{Deserialize, Serialize};

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
    /// The disk of one replica is cut off, then the process ends.
    PowerCut,
    /// The same for all replicas at once.
    PowerAll,
    /// No room on the disk of one replica.
    FullDisk,
    /// Others write and sync on the disk of one replica.
    SlowDisk,
    /// No write and no sync of one replica ends for some time.
    StallDisk,
    /// A file of one replica is damaged while it is down.
    Damage,
    /// One replica runs with a clock that is wrong, and jumps.
    Clock,
    /// Replicas are cut from each other.
    Partition,
    /// Bytes are lost one way only.
    OneWay,
    /// Packets are dropped in the networks of the replicas.
    Packets,
    /// Bytes take longer.
    Delay,
    /// Bytes come in bursts.
    Stutter,
    /// Connections end.
    Reset,
    /// A connection delivers after its successor.
    Overtake,
    /// A replica joins and another one is removed.
    Change,
    /// A replica is lost with its data, and another one takes its place.
    Replace,
    /// Another replica is made to lead.
    Transfer,
    /// A replica is drained for some time.
    Drain,
    /// All replicas are stopped and started again with the next binary, one after the other.
    Roll,
    /// SIGKILL of one agent, and its start some time later.
    KillAgent,
    /// An agent is cut from all replicas.
    CutAgent,
}

/// Faults that do not overlap each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Those of replicas' processes, disks and clocks.
    Replicas,
    /// Those of the network.
    Network,
    /// Those of the members.
    Members,
    /// Those of agents.
    Agents,
}

/// Whom a fault aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// The leader in half of all cases, or any replica.
    LeaderOrReplica,
    Replica,
    All,
    Agent,
}

struct About {
    fault: Fault,
    name: &'static str,
    describe: &'static str,
    lane: Lane,
    aim: Aim,
    /// Milliseconds from its begin to its end: shortest and longest.
    lasts_ms: (u64, u64),
    /// Milliseconds that the cluster gets afterwards, at least.
    rest_ms: u64,
}

const fn about(
    fault: Fault,
    name: &'static str,
    lane: Lane,
    aim: Aim,
    lasts_ms: (u64, u64),
    rest_ms: u64,
    describe: &'static str,
) -> About {
    About { fault, name, describe, lane, aim, lasts_ms, rest_ms }
}

use Aim::{Agent, All, LeaderOrReplica, Replica};
use Lane::{Agents, Members, Network, Replicas};

#[rustfmt::skip]
const TABLE: [About; 24] = [
    about(Fault::Kill, "kill", Replicas, LeaderOrReplica, (100, 2000), 1500,
        "SIGKILL of one replica, half the time of the leader; it is started again"),
    about(Fault::Pause, "pause", Replicas, LeaderOrReplica, (500, 5000), 1000,
        "SIGSTOP of one replica, half the time of the leader; SIGCONT after 0.5 to 5 s"),
    about(Fault::KillAll, "kill-all", Replicas, All, (100, 1500), 2500,
        "SIGKILL of all replicas at once; they are started again"),
    about(Fault::PowerCut, "power-cut", Replicas, LeaderOrReplica, (100, 1500), 1500,
        "the file system of one replica is cut off its disk without a flush; SIGKILL, mounted anew, started again"),
    about(Fault::PowerAll, "power-all", Replicas, All, (100, 1000), 2500,
        "the same for all replicas at once"),
    about(Fault::FullDisk, "full-disk", Replicas, LeaderOrReplica, (1000, 4000), 1000,
        "a file takes the room of one replica's file system: all of it, or all but less than its reserve"),
    about(Fault::SlowDisk, "slow-disk", Replicas, LeaderOrReplica, (1000, 4000), 500,
        "somebody else writes and syncs on one replica's file system without a pause"),
    about(Fault::StallDisk, "stall-disk", Replicas, LeaderOrReplica, (300, 3000), 1000,
        "one replica's file system is frozen: no write and no sync ends until it is thawed"),
    about(Fault::Damage, "damage", Replicas, Replica, (200, 1000), 2500,
        "bit flip, zeroed page or cut file in one replica that is down; one that refuses to start is repaired"),
    about(Fault::Clock, "clock", Replicas, LeaderOrReplica, (1500, 4000), 1500,
        "one replica is started with a wrong wall clock that jumps (libfaketime), and later with the right one"),
    about(Fault::Partition, "partition", Network, LeaderOrReplica, (500, 5000), 500,
        "replicas are cut from each other, in four shapes, agents on either side (proxy: bytes are held)"),
    about(Fault::OneWay, "one-way", Network, LeaderOrReplica, (500, 5000), 500,
        "bytes to a replica, from it, or on one link are held one way (proxy)"),
    about(Fault::Packets, "packets", Network, LeaderOrReplica, (500, 5000), 500,
        "the same shapes, by nftables in the replicas' network namespaces: packets are lost"),
    about(Fault::Delay, "delay", Network, LeaderOrReplica, (1000, 5000), 500,
        "5 to 150 ms and up to as much jitter on the links of one replica, or on all (proxy)"),
    about(Fault::Stutter, "stutter", Network, LeaderOrReplica, (1000, 4000), 500,
        "the links of one replica stop and go every 50 to 400 ms (proxy)"),
    about(Fault::Reset, "reset", Network, LeaderOrReplica, (200, 2000), 500,
        "all connections of one replica end, every 250 ms (proxy)"),
    about(Fault::Overtake, "overtake", Network, LeaderOrReplica, (400, 3000), 500,
        "connections of one replica are lost to whoever made them; what they held comes after their successors' (proxy)"),
    about(Fault::Change, "change", Members, LeaderOrReplica, (12_000, 12_000), 1000,
        "a replica joins; once it votes, another one is removed"),
    about(Fault::Replace, "replace", Members, Replica, (12_000, 12_000), 1000,
        "SIGKILL of one replica, its data is gone; another one joins in its place"),
    about(Fault::Transfer, "transfer", Members, All, (300, 300), 1000,
        "another replica is made to lead"),
    about(Fault::Drain, "drain", Members, LeaderOrReplica, (1000, 4000), 1000,
        "a replica is drained, and undrained later"),
    about(Fault::Roll, "roll", Members, All, (8000, 8000), 1000,
        "one replica after the other is stopped in order and started with the binary of --bin-next"),
    about(Fault::KillAgent, "kill-agent", Agents, Agent, (100, 3000), 1500,
        "SIGKILL of one agent; it is started again"),
    about(Fault::CutAgent, "cut-agent", Agents, Agent, (500, 5000), 1000,
        "an agent is cut from all replicas (proxy)"),
];

impl Fault {
    /// All of them.
    pub const ALL: [Self; 24] = {
        let mut all = [Self::Kill; 24];
        let mut index = 0;
        while index < all.len() {
            all[index] = TABLE[index].fault;
            index += 1;
        }
        all
    };

    fn about(self) -> &'static About {
        TABLE.iter().find(|about| about.fault == self).unwrap_or(&TABLE[0])
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// By its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// What it does.
    #[must_use]
    pub fn describe(self) -> &'static str {
        self.about().describe
    }

    pub(crate) fn lane(self) -> Lane {
        self.about().lane
    }

    pub(crate) fn aim(self) -> Aim {
        self.about().aim
    }

    pub(crate) fn lasts_ms(self) -> (u64, u64) {
        self.about().lasts_ms
    }

    pub(crate) fn rest_ms(self) -> u64 {
        self.about().rest_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_all_differ() {
        let mut names: Vec<&str> = Fault::ALL.into_iter().map(Fault::name).collect();
        for fault in Fault::ALL {
            assert_eq!(Fault::parse(fault.name()), Some(fault));
            let json = serde_json::to_value(fault).unwrap();
            assert_eq!(json, fault.name(), "one name everywhere");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Fault::ALL.len());
        assert_eq!(Fault::parse("flood"), None);
    }
}
