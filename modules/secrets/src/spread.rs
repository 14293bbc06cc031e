//! A new version of a secret on its way to the nodes whose specs name it.

use std::sync::Arc;

use futures::future::BoxFuture;
use palisade_contract::{
    NodeId, ReconcileContext, Reconciler, Result, Run, SecretRef, ShardBy, node_spec,
};
use palisade_state::Tx;

use crate::Modules;

/// The kind of the work; its keys are `<tenant>/<name>`.
pub(crate) const SPREAD_KIND: &str = "secrets.spread";
/// Nodes that one transaction wakes at most.
const NODES_MAX: usize = 500;

/// Has the specs of the nodes that use a secret merged anew, however many they are.
pub(crate) struct Spread(pub Arc<Modules>);

impl Reconciler for Spread {
    fn name(&self) -> &'static str {
        SPREAD_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let Some((tenant, name)) = key.split_once('/') else { return Ok(Run::Done) };
            let secret = SecretRef { secret: name.to_owned() };
            let users = self.0.users(&mut Tx::new(cx.view()), tenant, &secret)?;
            let nodes: Vec<NodeId> = users.nodes.into_iter().collect();
            for some in nodes.chunks(NODES_MAX) {
                if cx.cancelled.is_cancelled() {
                    return Ok(Run::Again);
                }
                let wake = |tx: &mut Tx| some.iter().try_for_each(|n| node_spec::invalidate(tx, n));
                cx.commit(wake).await?;
            }
            Ok(Run::Done)
        })
    }
}
