//! Machines and join tokens of tenants: for the migration that makes tenants, and for the teardown of one.

use std::collections::BTreeSet;

use palisade_contract::{
    Context, Result, Sweep,
    node::NodePhase,
    tenants::{rows_of, sweep},
};
use palisade_state::{Tx, View};

use crate::{
    life,
    records::{JOIN_TOKENS, NODES},
};

/// Removes what there is of a deleted tenant. A node that holds instances waits until its agent has let go of them; then
/// it is removed as an operator would do it, and in a later step forgotten, which others' removed nodes are after a month.
pub(crate) fn removed(cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
    let tokens = sweep(tx, &JOIN_TOKENS, |row| row.tenant == tenant)?;
    let view = tx.view().clone();
    let (nodes, _) = rows_of(&view, &NODES, |row| row.node.tenant == tenant)?;
    for id in &nodes {
        let Some(row) = tx.get(&NODES, id)? else { continue };
        if held(cx, &view, &row.node.id)? > 0 {
            continue;
        }
        if row.node.phase == NodePhase::Retired {
            tx.delete(&NODES, id)?;
        } else {
            life::retire(tx, &row, false, 0)?;
        }
    }
    Ok(if nodes.is_empty() { tokens } else { Sweep::Again })
}

/// How many instances a node holds; none when nobody keeps books.
fn held(cx: &Context, view: &View, node: &palisade_contract::NodeId) -> Result<u64> {
    cx.ports.capacity.filled().map_or(Ok(0), |books| Ok(books.node(view, node)?.allocations))
}

/// The tenants of all nodes and join tokens.
pub(crate) fn in_use(view: &View) -> Result<BTreeSet<String>> {
    let nodes = NODES.all(view)?.into_iter().map(|(_, row)| row.value.node.tenant);
    let tokens = JOIN_TOKENS.all(view)?.into_iter().map(|(_, row)| row.value.tenant);
    Ok(nodes.chain(tokens).filter(|tenant| !tenant.is_empty()).collect())
}
