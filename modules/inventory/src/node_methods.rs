//! The methods `nodes.*`.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use palisade_contract::{
    Check, Code, Error, Method, MethodContext, NodeId, Resource, Result, Verb, Watched,
    changes::{Changes, Subject},
    method::Records,
    node::{HostFacts, Node, NodePhase},
    ports::NodeCapacity,
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    life,
    records::{self, NODES, NodeRow, rfc3339},
};

/// Input of `nodes.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListNodes {
    /// Only nodes of this pool.
    #[serde(default)]
    pub pool: Option<String>,
    /// Only nodes of this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only nodes in this phase; absent: all but the retired ones.
    #[serde(default)]
    pub phase: Option<NodePhase>,
}

impl Check for ListNodes {}

/// Input of the methods on one node.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneNode {
    /// Its id or name.
    pub node: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for OneNode {}

/// Input of `nodes.remove`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoveNode {
    /// Its id or name.
    pub node: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Also when its agent is there and it holds instances: what runs there is left running and
    /// out of sight.
    #[serde(default)]
    pub force: bool,
}

impl Check for RemoveNode {}

/// A node as REST shows it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// Its id.
    pub id: NodeId,
    /// Its name, unique among nodes that are not retired.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its tenant; empty: the cluster.
    pub tenant: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether new instances may be placed on it.
    pub schedulable: bool,
    /// The version of its agent.
    pub agent_version: String,
    /// When it joined.
    pub joined_at: String,
    /// What the machine is.
    pub facts: HostFacts,
    /// What it could hold, by resource plugin.
    pub capacity: BTreeMap<String, Value>,
    /// What it holds, by resource plugin.
    pub used: BTreeMap<String, Value>,
    /// How many instances have a place on it.
    pub allocations: u64,
    /// How it is.
    pub status: NodeCondition,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's.
    pub revision: u64,
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Where it is in its life.
    pub phase: NodePhase,
    /// The replica that holds its session.
    pub replica: Option<u64>,
    /// The address under which its instances are reached.
    pub address: String,
    /// What to know about the phase; empty: nothing.
    pub message: String,
}

/// The methods, in the order of their documentation.
pub(crate) fn methods() -> Vec<Method> {
    let one = |value: &Value| {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant("node", text("node"), text("tenant"))
    };
    vec![
        Method::listing("nodes", "list", "compute:nodes:read", list)
            .summary("Lists the nodes.")
            .rest(Verb::Get, "/nodes")
            .past()
            .watched(Watched::Records)
            .on(one),
        Method::query("nodes", "get", "compute:nodes:read", get)
            .summary("Shows a node.")
            .rest(Verb::Get, "/nodes/{node}")
            .past()
            .on(one),
        Method::read("nodes", "history", "compute:nodes:read", history)
            .summary(
                "What became of a node: each change, when, what differs, and who asked for it.",
            )
            .rest(Verb::Get, "/nodes/{node}/history")
            .on(one),
        Method::mutation("nodes", "cordon", "compute:nodes:write", |cx, tx, input: OneNode| {
            set_schedulable(cx, tx, &input, false)
        })
        .summary("Keeps new instances off a node; those that it has stay.")
        .rest(Verb::Post, "/nodes/{node}/cordon")
        .on(one),
        Method::mutation("nodes", "uncordon", "compute:nodes:write", |cx, tx, input: OneNode| {
            set_schedulable(cx, tx, &input, true)
        })
        .summary("Lets new instances onto a node again.")
        .rest(Verb::Post, "/nodes/{node}/uncordon")
        .on(one),
        Method::mutation("nodes", "remove", "compute:nodes:remove", remove)
            .summary(
                "Removes a node for good: its certificates are refused from now on. One that is \
                 there and holds instances is removed by force alone.",
            )
            .rest(Verb::Delete, "/nodes/{node}")
            .destructive()
            .on(one),
    ]
}

fn history(cx: MethodContext, _: View, input: OneNode) -> BoxFuture<'static, Result<Changes>> {
    let subject = Subject::<NodeRow> {
        kind: "node",
        id: |row| row.node.id.key(),
        name: |row| row.node.name.clone(),
        tenant: |row| row.node.tenant.clone(),
    };
    Box::pin(async move { subject.changes(&cx, &NODES, &input.node, input.tenant).await })
}

fn list<'a>(
    cx: &'a MethodContext,
    view: &'a View,
    input: ListNodes,
    after: &str,
) -> Result<Records<'a, NodeRecord>> {
    let wanted = move |node: &Node| {
        input.pool.as_ref().is_none_or(|pool| *pool == node.pool)
            && input.tenant.as_ref().is_none_or(|tenant| *tenant == node.tenant)
            && match input.phase {
                Some(phase) => phase == node.phase,
                None => node.phase != NodePhase::Retired,
            }
    };
    Ok(Box::new(NODES.behind(view, after).filter_map(move |row| match row {
        Ok((_, found)) if wanted(&found.value.node) => {
            Some(record(cx, view, &found.value, found.stamp.modified_rev))
        }
        Ok(_) => None,
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

fn get(cx: &MethodContext, view: &View, input: OneNode) -> Result<NodeRecord> {
    let found = owned(records::find(view, &input.node)?, &input)?;
    record(cx, view, &found.value, found.stamp.modified_rev)
}

fn set_schedulable(
    cx: &MethodContext,
    tx: &mut Tx,
    input: &OneNode,
    schedulable: bool,
) -> Result<NodeRecord> {
    let found = changeable(cx, tx, input)?;
    let after = life::set_schedulable(tx, &found.value, schedulable)?;
    let revision = if after == found.value { found.stamp.modified_rev } else { 0 };
    record(cx, tx.view(), &after, revision)
}

fn remove(cx: &MethodContext, tx: &mut Tx, input: RemoveNode) -> Result<NodeRecord> {
    let RemoveNode { node, tenant, force } = input;
    let found = changeable(cx, tx, &OneNode { node, tenant })?;
    let instances = held(cx, tx.view(), &found.value.node.id)?.allocations;
    let name = &found.value.node.name;
    let is_there = matches!(
        found.value.node.phase,
        NodePhase::Ready | NodePhase::Unhealthy | NodePhase::Draining
    );
    if is_there && instances > 0 && !force {
        let plural = if instances == 1 { "instance" } else { "instances" };
        return Err(Error::new(
            Code::InvalidState,
            format!(
                "node {name} holds {instances} {plural}, which would run on where nobody sees them"
            ),
        )
        .hint(
            "cordon it and scale or remove its workloads first, or remove it with --force: what \
             runs there is left running and out of sight",
        ));
    }
    let after = life::retire(tx, &found.value, force, instances)?;
    record(cx, tx.view(), &after, 0)
}

/// What a node holds; nothing when nobody keeps books.
fn held(cx: &MethodContext, view: &View, node: &NodeId) -> Result<NodeCapacity> {
    match cx.context.ports.capacity.get() {
        Ok(capacity) => capacity.node(view, node),
        Err(_) => Ok(NodeCapacity::default()),
    }
}

fn owned(found: Option<Versioned<NodeRow>>, input: &OneNode) -> Result<Versioned<NodeRow>> {
    found
        .filter(|found| {
            input.tenant.as_ref().is_none_or(|tenant| *tenant == found.value.node.tenant)
        })
        .ok_or_else(|| {
            Error::not_found("node", &input.node).hint("`palisade node ls` shows all nodes")
        })
}

/// A node that is not retired, at the revision that `If-Match` asks for.
fn changeable(cx: &MethodContext, tx: &mut Tx, input: &OneNode) -> Result<Versioned<NodeRow>> {
    let found = records::find_in(tx, &input.node)?
        .filter(|found| found.value.node.phase != NodePhase::Retired);
    let found = owned(found, input)?;
    cx.check_if_match(found.stamp.modified_rev)?;
    Ok(found)
}

fn record(cx: &MethodContext, view: &View, row: &NodeRow, revision: u64) -> Result<NodeRecord> {
    let node = row.node.clone();
    let held = held(cx, view, &node.id)?;
    let message = message(view, row);
    Ok(NodeRecord {
        status: NodeCondition {
            phase: node.phase,
            replica: node.session.as_ref().map(|session| session.replica),
            address: node.facts.address.clone(),
            message,
        },
        id: node.id,
        name: node.name,
        pool: node.pool,
        tenant: node.tenant,
        labels: node.labels,
        schedulable: node.schedulable,
        agent_version: node.agent_version,
        joined_at: rfc3339(node.joined_at_ms),
        facts: node.facts,
        capacity: held.capacity,
        used: held.used,
        allocations: held.allocations,
        revision,
    })
}

fn message(view: &View, row: &NodeRow) -> String {
    if row.clone.is_some() {
        return "another machine presented an old key of this node: see `palisade doctor`"
            .to_owned();
    }
    let away = row
        .node
        .disconnected_at_ms
        .map_or(0, |since_ms| view.clock().now_ms.saturating_sub(since_ms) / 1000);
    match row.node.phase {
        NodePhase::Joining => "has joined; its agent has not connected yet".to_owned(),
        NodePhase::Unhealthy => format!("its agent has been away for {away} s"),
        NodePhase::Lost => format!("its agent has been away for {away} s and is given up"),
        NodePhase::Draining => "its instances are being moved away".to_owned(),
        NodePhase::Retired => "was removed".to_owned(),
        NodePhase::Ready => String::new(),
    }
}
