//! What a new life must look at again.

use palisade_contract::{
    Error, Result,
    node_spec::{NODE_SPEC_KIND, NODE_SPECS},
};
use palisade_raft::offline::Reborn;
use palisade_state::Tx;

use crate::edge;

/// Wake-ups of one transaction.
const BATCH: usize = 1000;

/// Wakes the node controllers for each node that has a spec (`SPEC-2`): a node that acted on the old life's fences hears
/// of nothing until its spec has a fence of this one.
pub(super) fn renew_specs(reborn: &mut Reborn) -> Result<()> {
    let nodes: Vec<String> =
        NODE_SPECS.all(&reborn.view())?.into_iter().map(|(node, _)| node).collect();
    for batch in nodes.chunks(BATCH) {
        let mut tx = Tx::new(reborn.view());
        for node in batch {
            tx.enqueue(NODE_SPEC_KIND, node)?;
        }
        reborn.commit(edge::wall_ms(), tx).map_err(Error::internal)?;
    }
    Ok(())
}
