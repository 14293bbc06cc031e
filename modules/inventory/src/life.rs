//! The life of a node: sessions, loss, cordon, removal, and who is woken by each.

use std::time::Duration;

use palisade_contract::{
    Code, Error, NodeId, Result, SessionId,
    node::{HostFacts, Node, NodePhase, NodeSession},
    node_spec,
};
use palisade_state::{
    Tx,
    planted::{self, Defect},
};
use serde_json::{Value, json};

use crate::records::{NODES, NodeRow, live_node, phase_word, store};

/// The reconciler that declares nodes lost.
pub(crate) const NODES_KIND: &str = "inventory.nodes";
/// The capacity module's reconciler of nodes.
const CAPACITY_KIND: &str = "capacity.nodes";
/// The workloads module's reconciler of nodes.
const WORKLOADS_KIND: &str = "workloads.nodes";

/// Logical milliseconds for which removed nodes are remembered.
const RETIRED_KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// Removed nodes that one removal forgets at most.
const FORGET_MAX: usize = 100;

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn publish(tx: &mut Tx, kind: &str, node: &Node) {
    publish_with(tx, kind, node, data_of(node));
}

fn data_of(node: &Node) -> Value {
    json!({
        "node": node.id, "name": node.name, "pool": node.pool, "phase": phase_word(node.phase),
    })
}

fn publish_with(tx: &mut Tx, kind: &str, node: &Node, data: Value) {
    tx.publish(kind, &node.tenant, format!("node/{}", node.id), &data);
}

fn wake_capacity(tx: &mut Tx, node: &Node) -> Result<()> {
    if planted::is(Defect::NodeUnwoken) {
        return Ok(());
    }
    Ok(tx.enqueue(CAPACITY_KIND, node.id.as_str())?)
}

fn wake_workloads(tx: &mut Tx, node: &Node) -> Result<()> {
    Ok(tx.enqueue(WORKLOADS_KIND, node.id.as_str())?)
}

fn gone(id: &NodeId) -> Error {
    Error::new(Code::Unauthenticated, format!("node {id} was removed"))
        .hint("let the machine join again with a new token from `palisade token create`")
}

/// See [`palisade_contract::ports::Nodes::session_opened`].
pub(crate) fn session_opened(
    tx: &mut Tx,
    id: &NodeId,
    session: &NodeSession,
    facts: &HostFacts,
    agent_version: &str,
) -> Result<()> {
    let before = live_node(tx, id)?.ok_or_else(|| gone(id))?;
    let mut after = before.clone();
    after.node.session = Some(session.clone());
    after.node.disconnected_at_ms = None;
    after.node.phase = NodePhase::Ready;
    agent_version.clone_into(&mut after.node.agent_version);
    facts.clone_into(&mut after.node.facts);
    facts.labels.clone_into(&mut after.node.labels);
    store(tx, &before, &after)?;
    wake_for_facts(tx, &before.node, &after.node)?;
    if before.node.phase != NodePhase::Ready {
        wake_capacity(tx, &after.node)?;
        wake_workloads(tx, &after.node)?;
        publish(tx, "node.ready", &after.node);
    }
    Ok(())
}

/// See [`palisade_contract::ports::Nodes::session_closed`].
pub(crate) fn session_closed(
    tx: &mut Tx,
    id: &NodeId,
    session: &SessionId,
    lost_grace: Duration,
) -> Result<()> {
    let Some(before) = live_node(tx, id)? else { return Ok(()) };
    if before.node.session.as_ref().is_none_or(|held| held.id != *session) {
        return Ok(());
    }
    disconnect(tx, &before, lost_grace)
}

/// See [`palisade_contract::ports::Nodes::holds_session`].
pub(crate) fn holds_session(tx: &mut Tx, id: &NodeId, session: &SessionId) -> Result<bool> {
    let held = live_node(tx, id)?.and_then(|row| row.node.session);
    Ok(held.is_some_and(|held| held.id == *session))
}

/// Takes the session away and lets the grace begin.
pub(crate) fn disconnect(tx: &mut Tx, before: &NodeRow, lost_grace: Duration) -> Result<()> {
    let mut after = before.clone();
    after.node.session = None;
    after.node.disconnected_at_ms = Some(tx.view().clock().now_ms);
    after.node.phase = NodePhase::Unhealthy;
    store(tx, before, &after)?;
    tx.enqueue_after(NODES_KIND, after.node.id.as_str(), millis(lost_grace))?;
    publish(tx, "node.unhealthy", &after.node);
    Ok(())
}

/// Declares a node lost whose grace is over; says how many milliseconds are left otherwise.
pub(crate) fn lose(tx: &mut Tx, id: &NodeId, lost_grace: Duration) -> Result<Option<u64>> {
    let Some(before) = live_node(tx, id)? else { return Ok(None) };
    let (NodePhase::Unhealthy, None, Some(since_ms)) =
        (before.node.phase, &before.node.session, before.node.disconnected_at_ms)
    else {
        return Ok(None);
    };
    let due_ms = since_ms.saturating_add(millis(lost_grace));
    let now_ms = tx.view().clock().now_ms;
    if now_ms < due_ms {
        return Ok(Some(due_ms - now_ms));
    }
    let mut after = before.clone();
    after.node.phase = NodePhase::Lost;
    store(tx, &before, &after)?;
    wake_workloads(tx, &after.node)?;
    wake_capacity(tx, &after.node)?;
    publish(tx, "node.lost", &after.node);
    Ok(None)
}

/// See [`palisade_contract::ports::Nodes::facts_changed`].
pub(crate) fn facts_changed(tx: &mut Tx, id: &NodeId, facts: &HostFacts) -> Result<()> {
    let Some(before) = live_node(tx, id)? else { return Ok(()) };
    let mut after = before.clone();
    facts.clone_into(&mut after.node.facts);
    facts.labels.clone_into(&mut after.node.labels);
    store(tx, &before, &after)?;
    wake_for_facts(tx, &before.node, &after.node)
}

fn wake_for_facts(tx: &mut Tx, before: &Node, after: &Node) -> Result<()> {
    if before.facts != after.facts {
        wake_capacity(tx, after)?;
    }
    if before.facts.address != after.facts.address {
        wake_workloads(tx, after)?;
    }
    Ok(())
}

/// Says whether new instances may be placed on a node.
pub(crate) fn set_schedulable(tx: &mut Tx, before: &NodeRow, schedulable: bool) -> Result<NodeRow> {
    let mut after = before.clone();
    after.node.schedulable = schedulable;
    if *before != after {
        store(tx, before, &after)?;
        wake_capacity(tx, &after.node)?;
        publish(tx, if schedulable { "node.uncordoned" } else { "node.cordoned" }, &after.node);
    }
    Ok(after)
}

/// Removes a node: its name and keys are free, its certificates refused from now on. `instances`
/// that it still holds are left to themselves.
pub(crate) fn retire(
    tx: &mut Tx,
    before: &NodeRow,
    forced: bool,
    instances: u64,
) -> Result<NodeRow> {
    let mut after = before.clone();
    after.node.phase = NodePhase::Retired;
    after.node.schedulable = false;
    after.node.session = None;
    after.node.keys.clear();
    after.clone = None;
    after.retired_at_ms = Some(tx.view().clock().now_ms);
    store(tx, before, &after)?;
    wake_workloads(tx, &after.node)?;
    wake_capacity(tx, &after.node)?;
    node_spec::invalidate(tx, &after.node.id)?;
    let mut data = data_of(&after.node);
    data["forced"] = forced.into();
    data["instances"] = instances.into();
    publish_with(tx, "node.removed", &after.node, data);
    forget_old(tx)?;
    Ok(after)
}

fn forget_old(tx: &mut Tx) -> Result<()> {
    let now_ms = tx.view().clock().now_ms;
    let old: Vec<String> = NODES
        .by_index(tx.view(), "phase", phase_word(NodePhase::Retired))?
        .into_iter()
        .filter(|(_, found)| {
            found.value.retired_at_ms.is_some_and(|at| at.saturating_add(RETIRED_KEPT_MS) <= now_ms)
        })
        .map(|(id, _)| id)
        .take(FORGET_MAX)
        .collect();
    for id in old {
        tx.delete(&NODES, &id)?;
    }
    Ok(())
}
