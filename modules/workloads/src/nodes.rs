//! The reconciler that looks at nodes that changed: instances on a lost one are replaced once.

use std::collections::BTreeSet;

use futures::future::BoxFuture;
use palisade_contract::{
    Context, ReconcileContext, Reconciler, Result, ShardBy,
    module::Run,
    node::{InstancePhase, NodePhase},
    node_spec,
};
use palisade_state::{Tx, View};

use crate::{
    NODES_KIND, RECONCILE_KIND,
    records::{BY_NODE, INSTANCES, Life, Why},
    report,
    told::Told,
};

/// Instances that one transaction changes at most.
const BATCH_MAX: usize = 200;

/// Replaces instances of lost nodes; its keys are node ids. Inventory wakes it.
#[derive(Debug, Default)]
pub struct NodeWatch;

impl Reconciler for NodeWatch {
    fn name(&self) -> &'static str {
        NODES_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Node
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        let rows = INSTANCES.all(view)?;
        let nodes: BTreeSet<String> = rows
            .into_iter()
            .filter_map(|(_, row)| row.value.node().map(palisade_contract::NodeId::key))
            .collect();
        Ok(nodes.into_iter().collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            cx.finish(|tx| look(&cx.context, tx, key)).await?;
            Ok(Run::Done)
        })
    }
}

fn look(cx: &Context, tx: &mut Tx, key: &str) -> Result<()> {
    let view = tx.view().clone();
    let node = cx.ports.nodes.get()?.find(&view, key)?;
    let is_lost = match node.map(|node| node.phase) {
        None | Some(NodePhase::Retired) => false,
        Some(NodePhase::Lost) => true,
        Some(_) => return Ok(()),
    };
    let mut told = Told::new(view.clone());
    for (position, (id, row)) in INSTANCES.by_index(&view, BY_NODE, key)?.into_iter().enumerate() {
        if position >= BATCH_MAX && !is_lost {
            // The row that this run finishes is at a newer generation then, and stays.
            tx.enqueue(NODES_KIND, key)?;
            break;
        }
        let mut row = row.value;
        let was_live = row.is_live();
        tx.enqueue(RECONCILE_KIND, row.workload.as_str())?;
        if is_lost {
            let Some(node) = row.node().cloned().filter(|_| was_live) else { continue };
            let told = told.holds(&node, &row.id)?;
            row.life = Life::Leaving { why: Why::Replaced, told };
            row.seen.phase = InstancePhase::Lost;
            node_spec::invalidate(tx, &node)?;
            tx.put(&INSTANCES, &id, &row)?;
        } else {
            cx.ports.capacity.get()?.release(tx, &row.id)?;
            tx.delete(&INSTANCES, &id)?;
        }
        if was_live {
            report::publish(tx, "instance.lost", &row);
        }
    }
    Ok(())
}
