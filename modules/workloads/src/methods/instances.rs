//! Reading instances.

use futures::future::{BoxFuture, ready};
use palisade_contract::{
    Code, Error, InstanceId, MethodContext, NodeId, Result,
    method::{ByteStream, Records},
};
use palisade_state::{Versioned, View, table::Corrupt};

use super::{ListInstances, Logs, OneInstance};
use crate::{
    lookup,
    records::{BY_NODE, BY_WORKLOAD, INSTANCES, InstanceRow},
    shown::{self, InstanceRecord},
};

type Rows<'a> = Box<dyn Iterator<Item = Result<(String, Versioned<InstanceRow>), Corrupt>> + 'a>;

pub(super) fn list<'a>(
    cx: &'a MethodContext,
    view: &'a View,
    input: ListInstances,
    after: &str,
) -> Result<Records<'a, InstanceRecord>> {
    let ListInstances { workload, node, tenant } = input;
    let node = match &node {
        Some(name) => Some(find_node(cx, view, name, tenant.as_ref())?),
        None => None,
    };
    let rows: Rows<'a> = match (&workload, &node) {
        (Some(name), _) => {
            let workload = lookup::workload(view, name, tenant.as_ref())?.value.id;
            Box::new(INSTANCES.by_index_behind(view, BY_WORKLOAD, workload.as_str(), after))
        }
        (None, Some(node)) => {
            Box::new(INSTANCES.by_index_behind(view, BY_NODE, node.as_str(), after))
        }
        (None, None) => Box::new(INSTANCES.behind(view, after)),
    };
    let wanted = move |row: &InstanceRow| {
        tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && node.as_ref().is_none_or(|node| row.node() == Some(node))
    };
    Ok(Box::new(rows.filter_map(move |row| {
        match row {
            Ok((_, row)) => wanted(&row.value)
                .then(|| shown::instance(&cx.context, view, &row.value, row.stamp.modified_rev)),
            Err(corrupt) => Some(Err(corrupt.into())),
        }
    })))
}

/// A node by id or name; a tenant's instances lead to its own nodes and to those that they are on.
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
        let held = INSTANCES.by_index(view, BY_NODE, node.id.as_str())?;
        found = found.filter(|_| held.iter().any(|(_, row)| row.value.tenant == *tenant));
    }
    found
        .map(|node| node.id)
        .ok_or_else(|| Error::not_found("node", name).hint("`palisade node ls` shows all nodes"))
}

pub(super) fn get(cx: &MethodContext, view: &View, input: OneInstance) -> Result<InstanceRecord> {
    let found = lookup::instance(view, &input.instance, input.tenant.as_ref())?;
    shown::instance(&cx.context, view, &found.value, found.stamp.modified_rev)
}

pub(super) fn logs(
    cx: MethodContext,
    view: View,
    input: Logs,
) -> BoxFuture<'static, Result<ByteStream>> {
    let opened = place_of(&view, &input).and_then(|(node, id)| {
        let agents = cx.context.ports.agents.get()?;
        Ok(agents.logs(view, node, id, input.follow, input.tail))
    });
    match opened {
        Ok(stream) => stream,
        Err(error) => Box::pin(ready(Err(error))),
    }
}

fn place_of(view: &View, input: &Logs) -> Result<(NodeId, InstanceId)> {
    let row = lookup::instance(view, &input.instance, input.tenant.as_ref())?.value;
    match row.node() {
        Some(node) => Ok((node.clone(), row.id)),
        None => Err(Error::new(
            Code::InvalidState,
            format!("{} has no log yet: it waits for a node", row.name),
        )
        .hint(format!("`palisade instance show {}` says why", row.name))),
    }
}
