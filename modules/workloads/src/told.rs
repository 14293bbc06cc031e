//! What agents have been told: the specs of nodes as they are stored.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::{
    InstanceId, NodeId, Result,
    node_spec::{NODE_SPEC_KIND, NODE_SPECS},
};
use palisade_state::View;

/// The specs of nodes in a view, each read once.
pub(crate) struct Told {
    view: View,
    specs: BTreeMap<NodeId, (u64, BTreeSet<InstanceId>)>,
}

impl Told {
    pub fn new(view: View) -> Self {
        Self { view, specs: BTreeMap::new() }
    }

    fn spec(&mut self, node: &NodeId) -> Result<&(u64, BTreeSet<InstanceId>)> {
        if !self.specs.contains_key(node) {
            let stored = NODE_SPECS.get(&self.view, &node.key())?.map(|row| row.value);
            let spec = stored
                .map(|stored| (stored.generation, stored.spec.instances.into_keys().collect()));
            self.specs.insert(node.clone(), spec.unwrap_or_default());
        }
        Ok(&self.specs[node])
    }

    /// The generation of the node's spec; 0: it has none.
    pub fn generation(&mut self, node: &NodeId) -> Result<u64> {
        Ok(self.spec(node)?.0)
    }

    /// Whether the node's spec holds an instance.
    pub fn holds(&mut self, node: &NodeId, instance: &InstanceId) -> Result<bool> {
        Ok(self.spec(node)?.1.contains(instance))
    }

    /// Whether no merge of the node's spec is due or running, so that the stored one is the newest.
    pub fn is_settled(&self, node: &NodeId) -> bool {
        self.view.work(NODE_SPEC_KIND, node.as_str()).is_none()
    }
}
