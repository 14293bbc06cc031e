//! What a change of a workload will do, told beforehand.

use std::collections::BTreeSet;

use palisade_contract::{Context, InstanceId, Result, node::Wanted, ports::Misfit};
use palisade_state::View;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    reconcile::{copies, demand, free_numbers, target},
    records::{InstanceRow, WorkloadRow},
    rollout,
};

/// What a change does to instances, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Stay as they are.
    pub stay: Vec<String>,
    /// Are restarted where they are.
    pub restart: Vec<String>,
    /// Stop where they are and keep their places.
    pub halt: Vec<String>,
    /// Start where they are.
    pub resume: Vec<String>,
    /// Are made, and where.
    pub start: Vec<Start>,
    /// Leave as new ones take their places.
    pub replace: Vec<String>,
    /// Leave.
    pub stop: Vec<String>,
    /// Why other nodes take none of those that are made.
    pub misfits: Vec<Misfit>,
}

/// An instance that will be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// The name that it will have.
    pub instance: String,
    /// The node that it would get now; absent: it would wait, or comes later in the update.
    pub node: Option<String>,
}

fn names<'a>(rows: impl Iterator<Item = &'a InstanceRow>) -> Vec<String> {
    rows.map(|row| row.name.clone()).collect()
}

/// What `after` will do to the instances that `before` has.
///
/// # Errors
/// A record cannot be read.
pub fn of(
    cx: &Context,
    view: &View,
    before: Option<&WorkloadRow>,
    after: &WorkloadRow,
    rows: &[InstanceRow],
) -> Result<Plan> {
    let live: Vec<&InstanceRow> = rows.iter().filter(|row| row.is_live()).collect();
    if after.removing {
        return Ok(Plan { stop: names(live.into_iter()), ..Plan::default() });
    }
    let goal = target(after);
    let step = rollout::next(&goal, &copies(rows));
    let leaves: BTreeSet<&str> = step.remove.iter().map(String::as_str).collect();
    let is_old = |row: &&&InstanceRow| row.version < goal.template_version;
    let old: Vec<&InstanceRow> = live.iter().filter(is_old).copied().collect();
    let current: Vec<&InstanceRow> = live.iter().filter(|row| !is_old(row)).copied().collect();
    let missing = goal.count.saturating_sub(current.len());
    let (mut stay, mut stop) = (Vec::new(), Vec::new());
    for row in &current {
        let list = if leaves.contains(row.id.as_str()) { &mut stop } else { &mut stay };
        list.push(*row);
    }
    let surplus = old.len().saturating_sub(missing);
    stop.extend(old.iter().rev().take(surplus));
    let replace = &old[..old.len() - surplus];

    let mut plan = Plan { replace: names(replace.iter().copied()), ..Plan::default() };
    plan.stop = names(stop.into_iter());
    let was_up = before.is_none_or(WorkloadRow::is_up);
    let restarted = |row: &&InstanceRow| goal.up && row.restarts < goal.restarts;
    let (restart, stay): (Vec<&InstanceRow>, Vec<&InstanceRow>) =
        stay.into_iter().partition(restarted);
    plan.restart = names(restart.into_iter());
    let stay = names(stay.into_iter());
    match (was_up, after.spec.wanted == Wanted::Up) {
        (true, false) => plan.halt = stay,
        (false, true) => plan.resume = stay,
        _ => plan.stay = stay,
    }
    if missing > 0 {
        start(cx, view, after, rows, (missing, step.create), &mut plan)?;
    }
    Ok(plan)
}

/// Names the instances that will be made, and the nodes of those that are made at once.
fn start(
    cx: &Context,
    view: &View,
    after: &WorkloadRow,
    rows: &[InstanceRow],
    (missing, at_once): (usize, usize),
    plan: &mut Plan,
) -> Result<()> {
    let asked = demand(after, InstanceId::mint(&*cx.rt));
    let count = u32::try_from(at_once).unwrap_or(u32::MAX);
    let (nodes, misfits) = cx.ports.capacity.get()?.dry_run(cx, view, &asked, count)?;
    let taken: BTreeSet<u64> = rows.iter().map(|row| row.number).collect();
    let mut nodes = nodes.into_iter();
    plan.start = free_numbers(&taken)
        .take(missing)
        .map(|number| Start {
            instance: format!("{}-{number}", after.spec.name),
            node: nodes.next(),
        })
        .collect();
    plan.misfits = misfits;
    Ok(())
}
