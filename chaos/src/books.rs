//! What the cluster says of itself at the end: its tables, its books, its events and its audit
//! chain, read through its API for the checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSeen {
    /// Its place in the order of all events.
    pub seq: u64,
    /// The revision that published it.
    pub revision: u64,
}

/// A record of the audit chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditSeen {
    /// Its place in the chain.
    pub seq: u64,
    /// The revision that it describes.
    pub revision: u64,
    /// The hash of the one before it.
    pub prev_hash: String,
    /// Its own.
    pub hash: String,
}

/// What a node holds of one resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BookSeen {
    /// Which node.
    pub node: String,
    /// Which resource.
    pub resource: String,
    /// How much is used.
    pub used: f64,
    /// How much there is; none: it is not said.
    pub capacity: Option<f64>,
}

/// How many instances a node is said to hold, and how many name it as theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacesSeen {
    /// Which node.
    pub node: String,
    /// By its books.
    pub allocations: u64,
    /// By the instances.
    pub instances: u64,
}

impl PlacesSeen {
    /// Whether both say the same.
    #[must_use]
    pub fn agree(&self) -> bool {
        self.allocations == self.instances
    }
}

/// One replica's copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Each list that it serves.
    pub lists: BTreeMap<String, Listed>,
}

/// A list that a replica serves from its own copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Of when it is: the index up to which the replica has applied; of a long list, the revision.
    pub at: u64,
    /// A hash of its records.
    pub hash: String,
}

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Books {
    /// Events that are kept, in the order in which they were given out.
    pub events: Vec<EventSeen>,
    /// Records of the audit chain, likewise.
    pub audit: Vec<AuditSeen>,
    /// What the cluster says of its chain.
    pub audit_verifies: Option<bool>,
    /// What nodes hold.
    pub held: Vec<BookSeen>,
    /// Instances by node.
    pub places: Vec<PlacesSeen>,
    /// Each replica's own copy, all read while nothing was written.
    pub copies: BTreeMap<u64, Copy>,
}

/// Numbers below a JSON value, by their path.
pub(crate) fn numbers(value: &Value, path: &str, into: &mut BTreeMap<String, f64>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                numbers(value, &path, into);
            }
        }
        other => {
            if let Some(number) = other.as_f64().or_else(|| other.as_str()?.parse().ok()) {
                into.insert(path.to_owned(), number);
            }
        }
    }
}

/// What a node's record says that it holds.
pub(crate) fn held(node: &Value) -> Vec<BookSeen> {
    let name = node.get("name").and_then(Value::as_str).unwrap_or_default();
    let (mut used, mut capacity) = (BTreeMap::new(), BTreeMap::new());
    numbers(node.get("used").unwrap_or(&Value::Null), "", &mut used);
    numbers(node.get("capacity").unwrap_or(&Value::Null), "", &mut capacity);
    let book = |(resource, used): (String, f64)| BookSeen {
        node: name.to_owned(),
        capacity: capacity.get(&resource).copied(),
        resource,
        used,
    };
    used.into_iter().map(book).collect()
}

/// Records by the list that has them.
pub(crate) type Records = BTreeMap<&'static str, Vec<Value>>;

/// How many instances each node's books have, and how many name it.
pub(crate) fn places(records: &Records) -> Vec<PlacesSeen> {
    let list = |name| records.get(name).map_or(&[][..], Vec::as_slice);
    let text = |value: &Value, name: &str| value.get(name)?.as_str().map(str::to_owned);
    let place = |node: &Value| {
        let id = text(node, "id");
        let is_here = |instance: &&Value| id.is_some() && text(instance, "node") == id;
        PlacesSeen {
            node: text(node, "name").unwrap_or_default(),
            allocations: node.get("allocations").and_then(Value::as_u64).unwrap_or(0),
            instances: list("instances").iter().filter(is_here).count() as u64,
        }
    };
    list("nodes").iter().map(place).collect()
}

pub(crate) fn event(record: &Value) -> Option<EventSeen> {
    Some(EventSeen {
        seq: record.get("seq")?.as_u64()?,
        revision: record.get("revision")?.as_u64()?,
    })
}

pub(crate) fn audit(record: &Value) -> Option<AuditSeen> {
    let text = |name: &str| record.get(name)?.as_str().map(str::to_owned);
    Some(AuditSeen {
        seq: record.get("seq")?.as_u64()?,
        revision: record.get("revision")?.as_u64()?,
        prev_hash: text("prevHash")?,
        hash: text("hash")?,
    })
}

/// A hash of records, whatever their order in the answer: 128 bits of FNV-1a.
pub(crate) fn hash(records: &[Value]) -> String {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    for byte in Value::from(records.to_vec()).to_string().bytes() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{} records, {hash:032x}", records.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn used_and_capacity_meet_by_their_path() {
        let node = json!({"name": "n", "used": {"cpumem": {"cpu": 1.5}},
            "capacity": {"cpumem": {"cpu": 2.0, "memory": 7}}});
        let book = BookSeen {
            node: "n".into(),
            resource: "cpumem.cpu".into(),
            used: 1.5,
            capacity: Some(2.0),
        };
        assert_eq!(held(&node), [book]);
    }

    #[test]
    fn instances_are_counted_at_the_node_that_they_name() {
        let nodes = vec![json!({"id": "n1", "name": "a", "allocations": 2})];
        let instances = vec![json!({"node": "n1"}), json!({"node": null}), json!({"node": "n2"})];
        let records = [("nodes", nodes), ("instances", instances)].into();
        let seen = PlacesSeen { node: "a".into(), allocations: 2, instances: 1 };
        assert_eq!(places(&records), [seen]);
    }

    #[test]
    fn records_that_differ_have_other_hashes() {
        assert_eq!(hash(&[json!({"a": 1})]), hash(&[json!({"a": 1})]));
        assert_ne!(hash(&[json!({"a": 1})]), hash(&[json!({"a": 2})]));
    }
}
