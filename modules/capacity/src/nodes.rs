//! The reconciler that looks at nodes that changed.

use futures::future::BoxFuture;
use palisade_contract::{
    ReconcileContext, Reconciler, Result, ShardBy, module::Run, node::NodePhase,
};
use palisade_state::View;

use crate::{
    NODES_KIND, PLACER_KIND,
    books::{BOOKS, DEMANDS, PENDING},
};

/// Wakes the placer when a node changed and somebody waits; closes the books of a node that is gone.
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
        Ok(BOOKS.all(view)?.into_iter().map(|(id, _)| id).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let nodes = cx.context.ports.nodes.get()?.clone();
            let id = key.to_owned();
            cx.finish(|tx| {
                let view = tx.view().clone();
                let found = nodes.find(&view, key)?;
                let Some(node) = found.filter(|node| node.phase != NodePhase::Retired) else {
                    if tx.get(&BOOKS, &id)?.is_some() {
                        tx.delete(&BOOKS, &id)?;
                    }
                    return Ok(());
                };
                // A demand made after this view wakes the placer itself, which sees the node then.
                if !DEMANDS.by_index(&view, PENDING, &node.pool)?.is_empty() {
                    tx.enqueue(PLACER_KIND, &node.pool)?;
                }
                Ok(())
            })
            .await?;
            Ok(Run::Done)
        })
    }
}
