//! The words of placement.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::ports::PortRequest;
use serde::{Deserialize, Serialize};

use super::strategy::Strategy;

/// An amount of what nodes offer. Integers throughout: nothing that decides is a float.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase", default)]
pub struct Amount {
    /// Thousandths of a CPU thread.
    pub cpu_milli: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl Amount {
    /// Both together; stops at the largest number.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// What is left of it; never below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }
}

/// A node as placement sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its name, unique within the input.
    pub name: String,
    /// Whose it is; empty: everybody's.
    pub tenant: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its agent is there.
    pub ready: bool,
    /// What it is instead of ready, in a word.
    pub phase: String,
    /// Whether it takes anything new.
    pub schedulable: bool,
    /// Drivers that work on it.
    pub drivers: Vec<String>,
    /// What it offers in all.
    pub offered: Amount,
    /// What is given away.
    pub used: Amount,
    /// First port that may be given.
    pub port_first: u16,
    /// Last port that may be given.
    pub port_last: u16,
    /// Where the search for a free port begins; a port is not given again soon after it was freed.
    pub port_next: u16,
    /// Ports given away.
    pub ports: BTreeSet<u16>,
    /// How many copies of each group it has.
    pub groups: BTreeMap<String, u64>,
}

/// Allocations that one node takes; its spec, which holds them all, is one record.
pub const ALLOCATIONS_MAX: u64 = 400;

impl Machine {
    /// How many copies of a group it has.
    #[must_use]
    pub fn copies(&self, group: &str) -> u64 {
        self.groups.get(group).copied().unwrap_or(0)
    }

    /// How many copies it has in all.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.groups.values().sum()
    }

    /// Gives a placement to it.
    pub(super) fn take(&mut self, ask: &Ask, ports: &BTreeMap<String, u16>) {
        self.used = self.used.plus(ask.need);
        *self.groups.entry(ask.group.clone()).or_default() += 1;
        for request in &ask.ports {
            if let Some(port) = ports.get(&request.name) {
                self.ports.insert(*port);
                if request.fixed.is_none() {
                    self.port_next = port.checked_add(1).unwrap_or(0);
                }
            }
        }
    }
}

/// One demand as placement sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its id; plans are made in this order.
    pub id: String,
    /// What to spread over.
    pub group: String,
    /// What cannot differ between two asks that fit the same nodes.
    pub class: Class,
    /// What it is charged.
    pub need: Amount,
    /// Ports.
    pub ports: Vec<PortRequest>,
}

/// Everything of an ask that is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Whose it is.
    pub tenant: String,
    /// Labels that the node must have.
    pub labels: BTreeMap<String, String>,
    /// Nodes that may be used; empty: all.
    pub includes: Vec<String>,
    /// Nodes that may not be used.
    pub excludes: Vec<String>,
    /// The driver that the node must have.
    pub driver: String,
    /// How to choose.
    pub strategy: Strategy,
}

/// A demand that has a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The demand's id.
    pub id: String,
    /// The node's name.
    pub node: String,
    /// Ports by name.
    pub ports: BTreeMap<String, u16>,
}
