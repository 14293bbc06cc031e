//! The NodeSpec: the desired state of a node, merged from what each module contributes.
//!
//! # Invariants
//! - `SPEC-1` The generation rises if and only if the merged spec's hash changes.
//! - `I4` (its half) A stored spec's fence never falls: it is written under the lease of the node's
//!   shard only.

use std::collections::BTreeMap;

use palisade_state::{Fence, Table, Tx};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    error::Result,
    id::{InstanceId, NodeId},
    node::InstanceSpec,
};

/// The reconciler that merges specs; its keys are node ids.
pub const NODE_SPEC_KIND: &str = "node-controllers";

/// What one module contributes to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpecPart {
    /// Host configuration, key by key.
    pub host_config: BTreeMap<String, serde_json::Value>,
    /// Telemetry, key by key.
    pub telemetry: BTreeMap<String, serde_json::Value>,
    /// Access, key by key; `sshCaPublicKeys` is a union.
    pub access: BTreeMap<String, serde_json::Value>,
    /// Devices by allocation id.
    pub devices: BTreeMap<String, serde_json::Value>,
    /// Instances by id.
    pub instances: BTreeMap<InstanceId, InstanceSpec>,
    /// The site section, field by field.
    pub site: BTreeMap<String, serde_json::Value>,
    /// The daemon section, whole.
    pub daemon: Option<serde_json::Value>,
}

const SSH_KEYS: &str = "sshCaPublicKeys";
const BOOT: &str = "boot";

impl NodeSpecPart {
    /// Adds a later module's part: key by key the later wins, `access.sshCaPublicKeys` is a union,
    /// `daemon` is taken whole.
    pub fn merge(&mut self, later: Self) {
        let ssh_keys = union(self.access.get(SSH_KEYS), later.access.get(SSH_KEYS));
        self.host_config.extend(later.host_config);
        self.telemetry.extend(later.telemetry);
        self.access.extend(later.access);
        if let Some(keys) = ssh_keys {
            self.access.insert(SSH_KEYS.to_owned(), keys);
        }
        self.devices.extend(later.devices);
        self.instances.extend(later.instances);
        self.site.extend(later.site);
        if later.daemon.is_some() {
            self.daemon = later.daemon;
        }
    }

    /// The parts of all modules in registration order as one. A site without a boot section has an
    /// inactive one.
    pub fn merged(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut merged = Self::default();
        for part in parts {
            merged.merge(part);
        }
        merged
            .site
            .entry(BOOT.to_owned())
            .or_insert_with(|| serde_json::json!({ "active": false }));
        merged
    }

    /// SHA-256 of its canonical JSON (maps are ordered).
    ///
    /// # Errors
    /// A value cannot be encoded.
    pub fn hash(&self) -> Result<String> {
        let bytes = serde_json::to_vec(self).map_err(crate::error::Error::internal)?;
        Ok(hex::encode(Sha256::digest(bytes)))
    }
}

/// The keys of two lists, each once; nothing unless what comes later is a list.
fn union(
    earlier: Option<&serde_json::Value>,
    later: Option<&serde_json::Value>,
) -> Option<serde_json::Value> {
    let list = |value: Option<&serde_json::Value>| value.and_then(|v| v.as_array().cloned());
    let later = list(later)?;
    let mut keys = vec![];
    for key in list(earlier).into_iter().flatten().chain(later) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    Some(keys.into())
}

/// A merged spec as it is stored and sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpecRecord {
    /// 1, 2, 3 …
    pub generation: u64,
    /// The hash of `spec`, hex.
    pub hash: String,
    /// The fence of the node's shard when it was written.
    pub fence: Fence,
    /// The merged spec.
    pub spec: NodeSpecPart,
}

/// The merged specs by node id. Written by the node controllers, read by whoever holds a node's
/// session.
pub const NODE_SPECS: Table<String, NodeSpecRecord> = Table::new("node_specs", &[]);

/// Says that a contribution to the node's spec may have changed; belongs into the transaction that
/// changes it.
///
/// # Errors
/// The queue refuses the key.
pub fn invalidate(tx: &mut Tx, node: &NodeId) -> Result<()> {
    Ok(tx.enqueue(NODE_SPEC_KIND, node.as_str())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts in registration order, and what they are together.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Vector {
        rule: String,
        parts: Vec<NodeSpecPart>,
        merged: serde_json::Value,
    }

    fn vectors() -> Vec<Vector> {
        serde_json::from_str(include_str!("../tests/node_spec.json")).unwrap()
    }

    #[test]
    fn parts_merge_as_the_vectors_say() {
        for Vector { rule, parts, merged } in vectors() {
            // A field that a vector does not name is empty.
            let wanted: NodeSpecPart = serde_json::from_value(merged).unwrap();
            assert_eq!(NodeSpecPart::merged(parts), wanted, "{rule}");
        }
    }

    #[test]
    fn every_section_of_a_spec_is_in_some_vector() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../tests/node_spec.json")).unwrap();
        let known = serde_json::to_value(NodeSpecPart::default()).unwrap();
        let known: Vec<&String> = known.as_object().unwrap().keys().collect();
        let mut left = known.clone();
        for vector in file.as_array().unwrap() {
            let parts = vector["parts"].as_array().unwrap().iter().chain([&vector["merged"]]);
            for section in parts.flat_map(|part| part.as_object().unwrap().keys()) {
                assert!(known.contains(&section), "{section} is no section");
            }
            left.retain(|section| vector["merged"].get(section).is_none());
        }
        assert!(left.is_empty(), "no vector has {left:?}");
    }

    #[test]
    fn merging_again_changes_nothing() {
        for Vector { rule, parts, .. } in vectors() {
            let once = NodeSpecPart::merged(parts);
            assert_eq!(NodeSpecPart::merged([once.clone()]), once, "{rule}");
        }
    }

    #[test]
    fn an_equal_spec_has_an_equal_hash_and_another_one_another() {
        let all = vectors();
        let hash = |parts: &[NodeSpecPart]| NodeSpecPart::merged(parts.to_vec()).hash().unwrap();
        let mut by_hash = BTreeMap::new();
        for Vector { parts, .. } in &all {
            let spec = NodeSpecPart::merged(parts.clone());
            assert_eq!(hash(parts), hash(std::slice::from_ref(&spec)));
            if let Some(other) = by_hash.insert(hash(parts), spec.clone()) {
                assert_eq!(other, spec);
            }
        }
        assert!(by_hash.len() > 5, "they differ");
    }
}
