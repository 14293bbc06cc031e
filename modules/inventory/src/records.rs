//! What is stored of nodes and join tokens, and by what it is found.

use palisade_contract::{
    NodeId, Result,
    id::is_name,
    node::{Node, NodePhase},
};
use palisade_state::{Index, Table, Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::ProductUuid;

/// A stored node: what all modules see of it, and what only the inventory needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    /// What all modules see.
    pub node: Node,
    /// A renewal with an old key was refused.
    #[serde(default)]
    pub clone: Option<CloneMark>,
    /// Logical milliseconds at which it was removed.
    #[serde(default)]
    pub retired_at_ms: Option<u64>,
}

/// A renewal with an old key: two machines hold the node's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CloneMark {
    /// The key that was presented.
    pub key: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
}

/// Who may redeem a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// The machine's SMBIOS product UUID, in either byte order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_uuid: Option<String>,
    /// One of the machine's IP addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// A stored join token. Its secret is not in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenRow {
    /// Its id.
    pub id: String,
    /// SHA-256 of the secret's 32 bytes, hex.
    pub secret_sha256: String,
    /// The pool that its nodes join.
    pub pool: String,
    /// The tenant of its nodes; empty: the cluster.
    #[serde(default)]
    pub tenant: String,
    /// How many nodes it makes at most.
    pub uses: u32,
    /// Who may redeem it.
    #[serde(default)]
    pub expect: Expect,
    /// Who made it.
    #[serde(default)]
    pub created_by: String,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
    /// Its life in milliseconds.
    pub ttl_ms: u64,
    /// Logical milliseconds from which on it is refused.
    pub expires_ms: u64,
    /// Why it is refused, once it was revoked.
    #[serde(default)]
    pub revoked: Option<Revocation>,
    /// The nodes that it made.
    #[serde(default)]
    pub redemptions: Vec<Redemption>,
    /// It was presented with another key after its last use.
    #[serde(default)]
    pub replay: Option<Replay>,
}

/// Why and when a token was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Revocation {
    /// By whom, or why.
    pub by: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
}

/// One use of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Redemption {
    /// The key of the agent that used it.
    pub key: String,
    /// The node that it made.
    pub node: NodeId,
}

/// A used token in other hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replay {
    /// The key that came with it.
    pub key: String,
    /// What the other side called itself.
    pub hostname: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
}

pub(crate) static NODES: Table<String, NodeRow> = Table::new(
    "nodes",
    &[
        Index { name: "name", keys: |row| live(row, |node| vec![node.name.clone()]) },
        Index { name: "pool", keys: |row| live(row, |node| vec![node.pool.clone()]) },
        Index { name: "phase", keys: |row| vec![phase_word(row.node.phase).to_owned()] },
        Index { name: "key", keys: |row| row.node.keys.clone() },
        Index { name: "uuid", keys: |row| live(row, uuid_of) },
        Index { name: "replica", keys: |row| live(row, replica_of) },
    ],
);

/// The kernel's name for the rows of the index `replica`.
pub(crate) const NODES_BY_REPLICA: &str = "nodes#replica";

pub(crate) static JOIN_TOKENS: Table<String, TokenRow> = Table::new("join_tokens", &[]);

fn live(row: &NodeRow, keys: fn(&Node) -> Vec<String>) -> Vec<String> {
    if row.node.phase == NodePhase::Retired { vec![] } else { keys(&row.node) }
}

fn uuid_of(node: &Node) -> Vec<String> {
    ProductUuid::parse(&node.facts.product_uuid)
        .filter(ProductUuid::identifies)
        .map(|uuid| uuid.canonical())
        .into_iter()
        .collect()
}

fn replica_of(node: &Node) -> Vec<String> {
    node.session.iter().map(|session| session.replica.to_string()).collect()
}

/// A phase in a word, as REST shows it.
pub(crate) fn phase_word(phase: NodePhase) -> &'static str {
    match phase {
        NodePhase::Joining => "joining",
        NodePhase::Ready => "ready",
        NodePhase::Unhealthy => "unhealthy",
        NodePhase::Lost => "lost",
        NodePhase::Draining => "draining",
        NodePhase::Retired => "retired",
    }
}

/// A node by id, or by name if it is not retired.
pub(crate) fn find(view: &View, id_or_name: &str) -> Result<Option<Versioned<NodeRow>>> {
    if NodeId::parse(id_or_name).is_some() {
        return Ok(NODES.get(view, &id_or_name.to_owned())?);
    }
    if !is_name(id_or_name) {
        return Ok(None);
    }
    let named = NODES.by_index(view, "name", id_or_name)?;
    Ok(named.into_iter().next().map(|(_, found)| found))
}

/// As [`find`], in a transaction.
pub(crate) fn find_in(tx: &mut Tx, id_or_name: &str) -> Result<Option<Versioned<NodeRow>>> {
    let id = if NodeId::parse(id_or_name).is_some() {
        id_or_name.to_owned()
    } else if !is_name(id_or_name) {
        return Ok(None);
    } else {
        match tx.by_index(&NODES, "name", id_or_name)?.into_iter().next() {
            Some((id, _)) => id,
            None => return Ok(None),
        }
    };
    Ok(tx.get_versioned(&NODES, &id)?)
}

/// A node that is not retired, by id.
pub(crate) fn live_node(tx: &mut Tx, id: &NodeId) -> Result<Option<NodeRow>> {
    Ok(tx.get(&NODES, &id.key())?.filter(|row| row.node.phase != NodePhase::Retired))
}

/// Stores a node if it is not what it was (`INV-3`).
pub(crate) fn store(tx: &mut Tx, before: &NodeRow, after: &NodeRow) -> Result<()> {
    if before != after {
        tx.put(&NODES, &after.node.id.key(), after)?;
    }
    Ok(())
}

pub(crate) use palisade_contract::time::rfc3339;
