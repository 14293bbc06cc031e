//! The tables, and how placement sees their rows.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::{
    NodeId, Problems, Result,
    node::{InstanceResources, Node, NodePhase},
    ports::{Demand, Misfit},
};
use palisade_scheduler::placement::{Amount, Ask, Class, Machine, cpumem, strategy::Strategy};
use palisade_state::{Fence, Index, Table};
use serde::{Deserialize, Serialize};

/// A demand and where it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DemandRow {
    /// What is asked for.
    pub demand: Demand,
    /// Its resources, normalised: charged and enforced.
    pub limits: InstanceResources,
    /// Where it stands.
    pub state: DemandState,
}

/// Where a demand stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum DemandState {
    /// Waits for a place.
    #[serde(rename_all = "camelCase")]
    Pending {
        /// Why it still does; empty: nobody has looked yet.
        misfits: Vec<Misfit>,
    },
    /// Has one.
    #[serde(rename_all = "camelCase")]
    Placed {
        /// The node.
        node: NodeId,
        /// Ports by name.
        ports: BTreeMap<String, u16>,
        /// The placer's fence.
        fence: Fence,
    },
}

/// What one node has given away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeBooks {
    /// The sum of its allocations.
    pub used: Amount,
    /// Where the next search for a free port begins.
    pub port_next: u16,
    /// Its allocations by instance.
    pub allocations: BTreeMap<String, Held>,
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// What it was spread over.
    pub group: String,
    /// What it is charged.
    pub amount: Amount,
    /// Ports by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
}

/// The index of pending demands by pool.
pub const PENDING: &str = "pending";
/// The index of placed demands by node.
pub const NODE: &str = "node";

/// Demands by id.
pub const DEMANDS: Table<String, DemandRow> = Table::new(
    "capacity_demands",
    &[
        Index {
            name: PENDING,
            keys: |row: &DemandRow| match &row.state {
                DemandState::Pending { .. } => vec![row.demand.pool.clone()],
                DemandState::Placed { .. } => vec![],
            },
        },
        Index {
            name: NODE,
            keys: |row: &DemandRow| match &row.state {
                DemandState::Placed { node, .. } => vec![node.key()],
                DemandState::Pending { .. } => vec![],
            },
        },
    ],
);

/// Books by node id.
pub const BOOKS: Table<String, NodeBooks> = Table::new("capacity_nodes", &[]);

impl NodeBooks {
    /// The sum of its allocations, computed anew.
    pub fn sum(&self) -> Amount {
        self.allocations.values().fold(Amount::default(), |sum, held| sum.plus(held.amount))
    }

    /// Whether the books balance: the sum is right and no port is given twice (`C1`).
    pub fn balance(&self) -> bool {
        let ports = || self.allocations.values().flat_map(|held| held.ports.values());
        let distinct: BTreeSet<&u16> = ports().collect();
        self.sum() == self.used && distinct.len() == ports().count()
    }

    /// Enters an allocation.
    pub fn enter(&mut self, id: &str, held: Held) {
        self.used = self.used.plus(held.amount);
        self.allocations.insert(id.to_owned(), held);
        debug_assert!(self.balance(), "C1");
    }

    /// Strikes an allocation out; nothing happens when there is none.
    pub fn strike(&mut self, id: &str) {
        if self.allocations.remove(id).is_some() {
            self.used = self.sum();
        }
        debug_assert!(self.balance(), "C1");
    }
}

/// A node as placement sees it.
pub fn machine(node: &Node, books: &NodeBooks) -> Machine {
    let mut groups = BTreeMap::new();
    for held in books.allocations.values() {
        *groups.entry(held.group.clone()).or_default() += 1;
    }
    let phase = match node.phase {
        NodePhase::Joining => "joining",
        NodePhase::Ready => "ready",
        NodePhase::Unhealthy => "unhealthy",
        NodePhase::Lost => "lost",
        NodePhase::Draining => "draining",
        NodePhase::Retired => "retired",
    };
    Machine {
        name: node.name.clone(),
        tenant: node.tenant.clone(),
        labels: node.labels.clone(),
        ready: node.phase == NodePhase::Ready,
        phase: phase.to_owned(),
        schedulable: node.schedulable,
        drivers: node.facts.drivers.clone(),
        offered: cpumem::offered(&node.facts),
        used: books.used,
        port_first: node.facts.port_first,
        port_last: node.facts.port_last,
        port_next: books.port_next,
        ports: books.allocations.values().flat_map(|held| held.ports.values().copied()).collect(),
        groups,
    }
}

/// A demand's resources and strategy, read.
///
/// # Errors
/// `INVALID_INPUT` with every problem.
pub fn read(demand: &Demand) -> Result<(cpumem::Request, Strategy)> {
    let mut problems = Problems::default();
    let request = cpumem::resources(&demand.resources, "/resources", &mut problems);
    let strategy = Strategy::parse(&demand.strategy).unwrap_or_else(|message| {
        problems.add("/strategy", message);
        Strategy::default()
    });
    problems.into_result()?;
    Ok((request, strategy))
}

/// A demand as placement sees it.
pub fn ask(demand: &Demand, limits: &InstanceResources) -> Ask {
    Ask {
        id: demand.id.key(),
        group: demand.group.clone(),
        class: Class {
            tenant: demand.tenant.clone(),
            labels: demand.labels.clone(),
            includes: demand.includes.clone(),
            excludes: demand.excludes.clone(),
            driver: demand.driver.clone(),
            // It was checked when the demand was made; a strategy of a later build falls back.
            strategy: Strategy::parse(&demand.strategy).unwrap_or_default(),
        },
        need: Amount {
            cpu_milli: limits.cpu_request_milli,
            memory_bytes: limits.memory_request_bytes,
        },
        ports: demand.ports.clone(),
    }
}
