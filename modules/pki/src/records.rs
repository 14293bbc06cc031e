//! What is stored: the authorities, what replicas and nodes have, and which keys are refused.

use palisade_contract::pki::{Authorities, Leaf, ReplicaPki};
use palisade_state::Table;
use serde::{Deserialize, Serialize};

/// The one key of [`AUTHORITIES`].
pub(crate) const CLUSTER: &str = "cluster";

/// A key that is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RevocationRow {
    /// Whose it was: `node/<id>`, `replica/<id>`, or empty.
    pub holder: String,
    /// Why, in the words of who revoked it.
    pub reason: String,
    /// Who.
    pub by: String,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// The replica that has to make itself a new key before this one is refused.
    pub waits_for: Option<u64>,
}

/// Which CA there is.
pub(crate) const AUTHORITIES: Table<String, Authorities> = Table::new("pki_authorities", &[]);
/// What replicas have, by id.
pub(crate) const REPLICAS: Table<u64, ReplicaPki> = Table::new("pki_replicas", &[]);
/// What nodes have shown last, by id.
pub(crate) const NODES: Table<String, Leaf> = Table::new("pki_nodes", &[]);
/// Refused keys: SHA-256 of the SPKI, hex.
pub(crate) const REVOCATIONS: Table<String, RevocationRow> = Table::new("pki_revocations", &[]);
