//! The methods `commands.*`.

use std::time::Duration;

use palisade_contract::{
    Check, CommandId, CommandRequest, CommandState, Error, Method, MethodContext, NodeId, Resource,
    Result, Verb, Watched,
    command::{Command, CommandRecord},
    id,
    method::Records,
    node::NodePhase,
};
use palisade_state::{Tx, Versioned, View, table::Corrupt};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    PING,
    port::not_found,
    rows::{BY_ID, COMMANDS, find},
};

/// Input of `commands.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListCommands {
    /// Only commands of this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only commands to this node, by id or name.
    #[serde(default)]
    pub node: Option<String>,
    /// Only commands of this kind.
    #[serde(default)]
    pub kind: Option<String>,
    /// Only commands in this state.
    #[serde(default)]
    pub state: Option<CommandState>,
}

impl Check for ListCommands {}

/// Input of the methods on one command.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneCommand {
    /// Its id.
    pub command: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for OneCommand {}

/// Input of `nodes.ping`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PingNode {
    /// Its id or name.
    pub node: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for PingNode {}

/// For how long a ping may be sent: whoever asks waits.
const PING_LIFE: Duration = Duration::from_secs(10);

/// The methods, in the order of their documentation.
pub(crate) fn all() -> Vec<Method> {
    let one = |value: &Value| {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant("command", text("command"), text("tenant"))
    };
    let node = |value: &Value| {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant("node", text("node"), text("tenant"))
    };
    vec![
        Method::listing("commands", "list", "compute:commands:read", list)
            .summary("Lists the commands to agents: those that go on, and those that ended lately.")
            .rest(Verb::Get, "/commands")
            .watched(Watched::Records)
            .on(one),
        Method::query("commands", "get", "compute:commands:read", get)
            .summary("Shows a command to an agent.")
            .rest(Verb::Get, "/commands/{command}")
            .on(one),
        Method::mutation("commands", "cancel", "compute:commands:cancel", cancel)
            .summary("Takes a command back that was not sent to the agent yet.")
            .rest(Verb::Post, "/commands/{command}/cancel")
            .on(one),
        Method::mutation("nodes", "ping", "compute:nodes:ping", ping)
            .summary("Has a node's agent answer; the command that is answered says when it has.")
            .rest(Verb::Post, "/nodes/{node}/ping")
            .on(node),
    ]
}

type Rows<'a> = Box<dyn Iterator<Item = Result<Versioned<Command>, Corrupt>> + 'a>;

/// In the order of their ids, which is about that in which they were made.
fn list<'a>(
    cx: &'a MethodContext,
    view: &'a View,
    input: ListCommands,
    after: &str,
) -> Result<Records<'a, CommandRecord>> {
    let rows: Rows<'a> = match &input.node {
        Some(name) => {
            let node = find_node(cx, view, name, input.tenant.as_ref())?;
            Box::new(of_node(view, &node, after)?.into_iter().map(Ok))
        }
        None => Box::new(COMMANDS.in_order_of(view, BY_ID, after).map(|found| Ok(found?.1))),
    };
    let wanted = move |row: &Command| {
        input.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && input.kind.as_ref().is_none_or(|kind| *kind == row.kind)
            && input.state.is_none_or(|state| state == row.state)
    };
    Ok(Box::new(rows.filter_map(move |found| {
        match found {
            Ok(Versioned { value, stamp }) => wanted(&value)
                .then(|| CommandRecord::new(&cx.context, view, &value, stamp.modified_rev)),
            Err(corrupt) => Some(Err(corrupt.into())),
        }
    })))
}

/// A node's commands behind an id. There are only so many of one node.
fn of_node(view: &View, node: &NodeId, after: &str) -> Result<Vec<Versioned<Command>>> {
    // Places begin with the node.
    let rows = COMMANDS.with_prefix(view, format!("{node}/").as_bytes())?;
    let mut rows: Vec<Versioned<Command>> = rows
        .into_iter()
        .map(|(_, found)| found)
        .filter(|found| found.value.id.as_str() > after)
        .collect();
    rows.sort_by(|a, b| a.value.id.cmp(&b.value.id));
    Ok(rows)
}

/// A node by id or name; who is bound to a tenant learns of its own nodes and of those that its commands went to.
fn find_node(
    cx: &MethodContext,
    view: &View,
    name: &str,
    tenant: Option<&String>,
) -> Result<NodeId> {
    let mut found = cx.context.ports.nodes.get()?.find(view, name)?;
    if let (Some(tenant), Some(node)) = (tenant, &found)
        && *tenant != node.tenant
    {
        let sent = COMMANDS.with_prefix(view, format!("{}/", node.id).as_bytes())?;
        found = found.filter(|_| sent.iter().any(|(_, row)| row.value.tenant == *tenant));
    }
    found
        .map(|node| node.id)
        .ok_or_else(|| Error::not_found("node", name).hint("`palisade node ls` shows all nodes"))
}

fn owned(row: Option<Versioned<Command>>, input: &OneCommand) -> Result<Versioned<Command>> {
    row.filter(|row| input.tenant.as_ref().is_none_or(|tenant| *tenant == row.value.tenant))
        .ok_or_else(|| not_found(&input.command))
}

fn get(cx: &MethodContext, view: &View, input: OneCommand) -> Result<CommandRecord> {
    let found = COMMANDS.by_index(view, BY_ID, &input.command)?.pop().map(|(_, row)| row);
    let found = owned(found, &input)?;
    CommandRecord::new(&cx.context, view, &found.value, found.stamp.modified_rev)
}

fn cancel(cx: &MethodContext, tx: &mut Tx, input: OneCommand) -> Result<CommandRecord> {
    let id = CommandId::parse(&input.command).ok_or_else(|| not_found(&input.command))?;
    let row = find(tx, &id)?;
    let place = row.as_ref().map(crate::rows::place).unwrap_or_default();
    let found = owned(tx.get_versioned(&COMMANDS, &place)?, &input)?;
    cx.check_if_match(found.stamp.modified_rev)?;
    let why = format!("{} took it back", cx.principal.name);
    let after = cx.context.ports.commands.get()?.cancel(tx, &id, &why)?;
    CommandRecord::new(&cx.context, tx.view(), &after, 0)
}

fn ping(cx: &MethodContext, tx: &mut Tx, input: PingNode) -> Result<CommandRecord> {
    let ports = &cx.context.ports;
    let node = ports
        .nodes
        .get()?
        .find(tx.view(), &input.node)?
        .filter(|node| node.phase != NodePhase::Retired)
        .filter(|node| input.tenant.as_ref().is_none_or(|tenant| *tenant == node.tenant))
        .ok_or_else(|| {
            Error::not_found("node", &input.node).hint("`palisade node ls` shows all nodes")
        })?;
    let key = format!("nodes.ping:{}", id::mint(&*cx.context.rt, "once"));
    let request = CommandRequest::new(&node.id, PING, json!({}), key)
        .of_tenant(&node.tenant)
        .by(&cx.principal)
        .not_after(PING_LIFE);
    let sent = ports.commands.get()?.enqueue(&cx.context, tx, &request)?;
    CommandRecord::new(&cx.context, tx.view(), &sent, 0)
}
