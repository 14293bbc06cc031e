//! Secrets as modules see them: by reference, and opened only where they are used.
//!
//! # Invariants
//! - `SEC-1` The content of a secret is in no row, log entry, event, audit record, error or trace in the clear: what holds it
//!   in memory has no `Display`, does not show it in `Debug`, and cannot be serialized.

use std::{collections::BTreeSet, fmt};

use futures::future::BoxFuture;
use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    id::{NodeId, is_name},
};

/// Bytes of a secret at most.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// A reference to a secret of the same tenant as what refers to it.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRef {
    /// The secret's name.
    pub secret: String,
}

/// A reference as it was resolved when a node's spec was written: which secret, and which version of it was there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretUse {
    /// The tenant; empty: the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The secret's name.
    pub secret: String,
    /// Its version; 0: there was none.
    #[serde(default)]
    pub version: u64,
    /// The revision at which that version was set, so that a secret that was removed and set again is another.
    #[serde(default)]
    pub revision: u64,
}

/// The content of a secret, in memory.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes. Whoever takes them keeps `SEC-1`.
    #[must_use]
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

/// `SEC-1`
impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes")
    }
}

/// What there is of a secret, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretFacts {
    /// Its version.
    pub version: u64,
    /// The revision at which it was set.
    pub revision: u64,
    /// How many bytes its content has.
    pub bytes: usize,
}

/// Who uses a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretUsers {
    /// Each in a word, such as `workload/web`.
    pub by: BTreeSet<String>,
    /// The nodes whose specs name it.
    pub nodes: BTreeSet<NodeId>,
}

/// Secrets. A port of the process's own code: no method answers what [`Secrets::open`] does.
pub trait Secrets: Send + Sync {
    /// What there is of a secret; `None`: there is none.
    ///
    /// # Errors
    /// A record cannot be read.
    fn facts(&self, view: &View, tenant: &str, secret: &SecretRef) -> Result<Option<SecretFacts>>;

    /// Opens a secret, on a replica that holds its key.
    ///
    /// # Errors
    /// `NOT_FOUND`; `UNAVAILABLE` when this replica lacks the key; `INTERNAL` when it is not what was sealed.
    fn open(&self, view: &View, tenant: &str, secret: &SecretRef) -> Result<SecretBytes>;

    /// What stands for a text in the record of a request: keyed, so that nobody who has the record can try texts.
    ///
    /// # Errors
    /// `UNAVAILABLE` while there is no key.
    fn blind(&self, view: &View, text: &str) -> Result<String>;

    /// Checks within a transaction that there is a secret, as part of what it has read.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    fn require(&self, tx: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<()>;

    /// Keeps a secret for a module, sealed before anything is proposed, under a name that [`is_kept`] says is a module's: it is
    /// shown among the tenant's secrets, sealed anew with them, and not set by anybody else.
    ///
    /// # Errors
    /// The name is not a module's, the tenant has too many, or there is no key.
    fn keep(&self, tx: &mut Tx, secret: &KeptSecret<'_>) -> Result<()>;

    /// Removes what [`Secrets::keep`] keeps. Nothing happens when there is none.
    ///
    /// # Errors
    /// The name is not a module's.
    fn discard(&self, tx: &mut Tx, tenant: &str, name: &str) -> Result<()>;
}

/// A secret that a module keeps.
pub struct KeptSecret<'a> {
    /// Whose it is; empty: the cluster's.
    pub tenant: &'a str,
    /// `<what>.<name>…`, such as `subscription.pager.1`.
    pub name: &'a str,
    /// What it holds.
    pub content: &'a SecretBytes,
    /// Who set it.
    pub by: &'a str,
}

/// Whether a name is one under which modules keep secrets: nobody can set one with a dot in its name.
#[must_use]
pub fn is_kept(name: &str) -> bool {
    let mut parts = name.split('.');
    let first = parts.next().is_some_and(is_name);
    let mut more = 0;
    first && parts.inspect(|_| more += 1).all(is_name) && more > 0
}

/// Something sealed.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Never used twice with one key.
    pub nonce: [u8; 12],
    /// The ciphertext and its tag.
    pub data: Vec<u8>,
}

/// The cluster's keys of secrets, as this replica holds them. They are told apart by their ids, which say nothing of
/// them, and no key leaves what is behind this.
pub trait SecretKeys: Send + Sync {
    /// Whether this replica has a key.
    fn has(&self, id: &str) -> bool;

    /// Makes a key, durably in this replica's directory; its id.
    ///
    /// # Errors
    /// It cannot be kept.
    fn make(&self) -> Result<String>;

    /// Seals.
    ///
    /// # Errors
    /// `UNAVAILABLE`: this replica lacks the key.
    fn seal(&self, id: &str, bound_to: &[u8], plain: &SecretBytes) -> Result<Sealed>;

    /// Opens.
    ///
    /// # Errors
    /// `UNAVAILABLE`: this replica lacks the key. `INTERNAL`: it was not sealed with this key, or for something else.
    fn open(&self, id: &str, bound_to: &[u8], sealed: &Sealed) -> Result<SecretBytes>;

    /// A keyed digest, hex.
    ///
    /// # Errors
    /// `UNAVAILABLE`: this replica lacks the key.
    fn digest(&self, id: &str, text: &[u8]) -> Result<String>;

    /// Removes a key for good. Nothing happens when there is none.
    ///
    /// # Errors
    /// It cannot be removed.
    fn forget(&self, id: &str) -> Result<()>;

    /// Asks the other replicas for these keys; how many it got. What else they hold is not taken.
    fn fetch(&self, wanted: Vec<String>) -> BoxFuture<'static, Result<usize>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secrets_content_is_not_shown_by_accident() {
        let secret = SecretBytes::new(b"canary".to_vec());
        let shown = format!("{secret:?} {:?}", Some(&secret));
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "SEC-1: {shown}");
    }
}
