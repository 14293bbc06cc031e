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

    /// SHA-256 of its canonical JSON (maps are ordered).
    ///
    /// # Errors
    /// A value cannot be encoded.
    pub fn hash(&self) -> Result<String> {
        let bytes = serde_json::to_vec(self).map_err(crate::error::Error::internal)?;
        Ok(hex::encode(Sha256::digest(bytes)))
    }
}

fn union(
    earlier: Option<&serde_json::Value>,
    later: Option<&serde_json::Value>,
) -> Option<serde_json::Value> {
    let (Some(serde_json::Value::Array(earlier)), Some(serde_json::Value::Array(later))) =
        (earlier, later)
    else {
        return None;
    };
    let mut keys = earlier.clone();
    keys.extend(later.iter().filter(|key| !earlier.contains(key)).cloned());
    Some(serde_json::Value::Array(keys))
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
    use serde_json::json;

    fn part(host: &[(&str, i32)], keys: &[&str], daemon: Option<&str>) -> NodeSpecPart {
        NodeSpecPart {
            host_config: host.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect(),
            access: BTreeMap::from([(SSH_KEYS.to_owned(), json!(keys))]),
            daemon: daemon.map(|d| json!(d)),
            ..NodeSpecPart::default()
        }
    }

    #[test]
    fn later_keys_win_and_ssh_keys_are_a_union() {
        let mut merged = part(&[("a", 1), ("b", 1)], &["k1", "k2"], Some("one"));
        merged.merge(part(&[("b", 2), ("c", 2)], &["k2", "k3"], None));
        assert_eq!(
            merged.host_config,
            part(&[("a", 1), ("b", 2), ("c", 2)], &[], None).host_config
        );
        assert_eq!(merged.access[SSH_KEYS], json!(["k1", "k2", "k3"]));
        assert_eq!(merged.daemon, Some(json!("one")));
        merged.merge(part(&[], &[], Some("two")));
        assert_eq!(merged.daemon, Some(json!("two")));
    }

    #[test]
    fn the_site_merges_field_by_field() {
        let site = |key: &str, value| NodeSpecPart {
            site: BTreeMap::from([(key.to_owned(), value)]),
            ..NodeSpecPart::default()
        };
        let mut merged = site("boot", json!({"active": true}));
        merged.merge(site("cacheImages", json!(["x"])));
        assert_eq!(merged.site.len(), 2);
    }

    #[test]
    fn an_equal_spec_has_an_equal_hash() {
        let one = part(&[("a", 1), ("b", 1)], &["k"], None);
        let other = part(&[("b", 1), ("a", 1)], &["k"], None);
        assert_eq!(one.hash().unwrap(), other.hash().unwrap());
    }
}
