//! The node controllers: merge what modules contribute into each node's NodeSpec.
//!
//! # Invariants
//! - `SPEC-1` The generation rises if and only if the merged spec's hash changes.
//! - `SPEC-2` What is stored has a fence of this life of the cluster: after a restore or a recovery each spec gets one,
//!   or a node that acted on a later spec of the old life would never hear of the restored one.
//! - `I4` (its half) A spec is stored under the lease of its node's shard, with that lease's fence,
//!   so that fences of a node's specs never fall.

use std::sync::{Arc, OnceLock, Weak};

use futures::future::BoxFuture;
use palisade_contract::{
    Error, Module, ReconcileContext, Reconciler, Registry, Result, ShardBy,
    module::Run,
    node::{Node, NodePhase},
    node_spec::{NODE_SPEC_KIND, NODE_SPECS, NodeSpecPart, NodeSpecRecord},
};
use palisade_state::{Declared, View};

/// The built-in module `node-controllers`. It asks every registered module, so it is told of the
/// registry once that is made.
#[derive(Default)]
pub struct NodeControllers {
    reconciler: Arc<Merge>,
}

#[derive(Default)]
struct Merge {
    modules: OnceLock<Vec<Weak<dyn Module>>>,
}

impl NodeControllers {
    /// Says which modules to ask. A second call changes nothing.
    pub fn bind(&self, registry: &Registry) {
        let modules = registry.modules().iter().map(Arc::downgrade).collect();
        self.reconciler.modules.get_or_init(|| modules);
    }
}

impl Module for NodeControllers {
    fn name(&self) -> &'static str {
        "node-controllers"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![NODE_SPECS.declared()]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![self.reconciler.clone()]
    }
}

impl Merge {
    fn merged(&self, cx: &ReconcileContext, view: &View, node: &Node) -> Result<NodeSpecPart> {
        let modules = self
            .modules
            .get()
            .ok_or_else(|| Error::internal("the node controllers were not told of the registry"))?;
        let modules = modules.iter().filter_map(Weak::upgrade);
        let parts: Result<Vec<_>> =
            modules.map(|module| module.node_spec(&cx.context, view, node)).collect();
        Ok(NodeSpecPart::merged(parts?))
    }
}

impl Reconciler for Merge {
    fn name(&self) -> &'static str {
        NODE_SPEC_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Node
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        Ok(NODE_SPECS.all(view)?.into_iter().map(|(id, _)| id).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let nodes = cx.context.ports.nodes.get()?.clone();
            let id = key.to_owned();
            cx.finish(|tx| {
                let stored = tx.get(&NODE_SPECS, &id)?;
                let view = tx.view().clone();
                let node = nodes.find(&view, key)?.filter(|node| node.phase != NodePhase::Retired);
                let Some(node) = node else {
                    if stored.is_some() {
                        tx.delete(&NODE_SPECS, &id)?;
                    }
                    return Ok(());
                };
                let spec = self.merged(cx, &view, &node)?;
                let hash = spec.hash()?;
                let is_same = |stored: &NodeSpecRecord| stored.hash == hash;
                // SPEC-2
                let is_ours = |stored: &NodeSpecRecord| stored.fence.epoch == cx.fence().epoch;
                if stored.as_ref().is_some_and(|stored| is_same(stored) && is_ours(stored)) {
                    return Ok(());
                }
                let rise = u64::from(!stored.as_ref().is_some_and(is_same));
                let generation = stored.map_or(0, |stored| stored.generation) + rise;
                let record = NodeSpecRecord { generation, hash, fence: cx.fence(), spec };
                Ok(tx.put(&NODE_SPECS, &id, &record)?)
            })
            .await?;
            Ok(Run::Done)
        })
    }
}
