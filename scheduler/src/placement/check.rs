//! Stage 4: whether a plan keeps its promises, computed anew from its input.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    candidates,
    planner::Plan,
    types::{Amount, Ask, Machine},
};

/// A plan that must not be committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It names something that its input does not hold.
    #[error("the plan names {0}, which its input does not hold")]
    Unknown(String),
    /// A node may not take one of its demands.
    #[error("node {node} may not take {id}: {reason}")]
    Misplaced {
        /// The node.
        node: String,
        /// The demand.
        id: String,
        /// Why not.
        reason: String,
    },
    /// A node would have given away more than it offers.
    #[error("node {node} would give away more {what} than it offers")]
    Overcommitted {
        /// The node.
        node: String,
        /// Of what.
        what: &'static str,
    },
    /// A port would be given twice.
    #[error("port {port} of node {node} would be given twice")]
    PortTwice {
        /// The node.
        node: String,
        /// The port.
        port: u16,
    },
}

/// Checks `C1` of a plan.
///
/// # Errors
/// The first promise that it breaks.
pub fn check(machines: &[Machine], asks: &[Ask], plan: &Plan) -> Result<(), Broken> {
    let machines: BTreeMap<&str, &Machine> =
        machines.iter().map(|machine| (machine.name.as_str(), machine)).collect();
    let asks: BTreeMap<&str, &Ask> = asks.iter().map(|ask| (ask.id.as_str(), ask)).collect();
    let mut given: BTreeMap<&str, (Amount, BTreeSet<u16>)> = BTreeMap::new();
    for placement in &plan.placed {
        let node = placement.node.as_str();
        let machine = machines.get(node).ok_or_else(|| Broken::Unknown(node.to_owned()))?;
        let ask =
            asks.get(placement.id.as_str()).ok_or_else(|| Broken::Unknown(placement.id.clone()))?;
        if let Some(reason) = candidates::misfit(machine, &ask.class) {
            return Err(Broken::Misplaced { node: node.to_owned(), id: ask.id.clone(), reason });
        }
        let (amount, ports) = given.entry(node).or_default();
        *amount = amount.plus(ask.need);
        for port in placement.ports.values() {
            if machine.ports.contains(port) || !ports.insert(*port) {
                return Err(Broken::PortTwice { node: node.to_owned(), port: *port });
            }
        }
    }
    for (node, (amount, _)) in given {
        let Some(machine) = machines.get(node) else { continue };
        let over =
            |given: u64, used: u64, offered: u64| given > 0 && given.saturating_add(used) > offered;
        let overcommitted = |what| Broken::Overcommitted { node: node.to_owned(), what };
        if over(amount.cpu_milli, machine.used.cpu_milli, machine.offered.cpu_milli) {
            return Err(overcommitted("cpu"));
        }
        if over(amount.memory_bytes, machine.used.memory_bytes, machine.offered.memory_bytes) {
            return Err(overcommitted("memory"));
        }
    }
    Ok(())
}
