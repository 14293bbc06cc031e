//! The self-check of the books (`C1`).

use std::collections::BTreeMap;

use palisade_contract::{
    Finding, Result, Severity,
    node::{Node, NodePhase},
    ports::Nodes,
};
use palisade_scheduler::placement::cpumem;
use palisade_state::View;

use crate::books::{BOOKS, DEMANDS, DemandState, NodeBooks};

/// Whether the books balance, agree with the demands, and promise no more than nodes offer.
pub(crate) fn books(nodes: &dyn Nodes, view: &View) -> Result<Vec<Finding>> {
    let nodes: BTreeMap<String, Node> = nodes
        .list(view)?
        .into_iter()
        .filter(|node| node.phase != NodePhase::Retired)
        .map(|node| (node.id.key(), node))
        .collect();
    let mut placed: BTreeMap<String, String> = BTreeMap::new();
    for (id, row) in DEMANDS.all(view)? {
        if let DemandState::Placed { node, .. } = row.value.state {
            placed.insert(id, node.key());
        }
    }
    let mut broken: Vec<String> = Vec::new();
    let mut over: Vec<String> = Vec::new();
    let mut entered = 0_usize;
    for (id, row) in BOOKS.all(view)? {
        let name = nodes.get(&id).map_or(id.as_str(), |node| node.name.as_str());
        let agrees =
            |books: &NodeBooks| books.allocations.keys().all(|held| placed.get(held) == Some(&id));
        if !row.value.balance() || !agrees(&row.value) {
            broken.push(name.to_owned());
        }
        entered += row.value.allocations.len();
        if let Some(node) = nodes.get(&id) {
            let offered = cpumem::offered(&node.facts);
            if row.value.used.cpu_milli > offered.cpu_milli
                || row.value.used.memory_bytes > offered.memory_bytes
            {
                over.push(name.to_owned());
            }
        }
    }
    let missing = placed.values().filter(|node| nodes.contains_key(*node)).count();
    let mut findings = Vec::new();
    if !broken.is_empty() || missing > entered {
        findings.push(broken_books(&broken));
    }
    if !over.is_empty() {
        findings.push(Finding {
            check: "capacity.overcommitted".to_owned(),
            severity: Severity::Warning,
            message: format!("nodes offer less than they have given away: {}", over.join(", ")),
            fix: "they offered more before: move workloads away (`palisade node cordon`, then \
                  restart them), or let the agents offer more"
                .to_owned(),
            count: u64::try_from(over.len()).ok(),
        });
    }
    Ok(findings)
}

fn broken_books(broken: &[String]) -> Finding {
    let names = if broken.is_empty() {
        "a placed demand is in no books".to_owned()
    } else {
        broken.join(", ")
    };
    Finding {
        check: "capacity.books".to_owned(),
        severity: Severity::Error,
        message: format!("the books do not equal the sum of the allocations: {names}"),
        fix: "this is a defect of Palisade: keep a snapshot (`palisade cluster backup`) and report it"
            .to_owned(),
        count: u64::try_from(broken.len()).ok(),
    }
}
