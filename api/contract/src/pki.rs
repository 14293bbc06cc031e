//! Certificates as modules, the server and a replica's keeper see them: which authorities there are, who has what, and
//! which keys are refused.

use std::collections::BTreeSet;

use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{error::Result, id::NodeId};

/// A cluster CA, without its private key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ca {
    /// SHA-256 of its public key (SPKI), hex.
    pub key: String,
    /// Its key identifier, which certificates that it issues name, hex.
    pub key_id: String,
    /// Its certificate.
    pub pem: String,
    /// A certificate of its key that the CA before it has signed, so that who trusts that one believes this one; empty:
    /// there is none.
    pub cross_pem: String,
    /// Unix milliseconds.
    pub not_before_ms: u64,
    /// Unix milliseconds.
    pub not_after_ms: u64,
}

/// How far a replacement of the cluster CA is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// None is on its way.
    #[default]
    Idle,
    /// A new CA is to be made.
    Adding,
    /// Replicas get the new CA's key and trust both; the old one issues.
    Trusting,
    /// The new one issues; both are trusted.
    Issuing,
    /// The new one alone is to be trusted.
    Dropping,
}

/// The cluster's authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Authorities {
    /// The lineage that they are of.
    pub lineage: String,
    /// Counts replacements.
    pub rotation: u64,
    /// How far the replacement is.
    pub phase: Phase,
    /// Who issues.
    pub issuing: Ca,
    /// Who is trusted beside it.
    pub other: Option<Ca>,
    /// Who issued before, once it is trusted no more: its certificate is still sent along.
    pub former: Option<Ca>,
    /// Who began the replacement.
    pub by: String,
    /// When it began, Unix milliseconds.
    pub begun_ms: u64,
    /// When its phase began, Unix milliseconds.
    pub phase_ms: u64,
}

impl Authorities {
    /// Keys of those that are trusted, the issuing one first.
    #[must_use]
    pub fn trusted(&self) -> Vec<String> {
        let other = self.other.iter().filter(|_| self.phase != Phase::Dropping);
        std::iter::once(&self.issuing).chain(other).map(|ca| ca.key.clone()).collect()
    }
}

/// A certificate that somebody shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Leaf {
    /// SHA-256 of its public key (SPKI), hex.
    pub key: String,
    /// The key identifier of the CA that issued it, hex.
    pub issuer: String,
    /// Unix milliseconds.
    pub not_after_ms: u64,
}

/// What a replica says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaPki {
    /// Its certificate.
    pub leaf: Leaf,
    /// Keys of the CAs that it trusts.
    pub trusts: Vec<String>,
    /// Keys of the CAs whose private keys it holds.
    pub holds: Vec<String>,
}

/// What the cluster knows of certificates. Filled by the module `pki`.
pub trait Certificates: Send + Sync {
    /// Whether nobody with this key is let in.
    ///
    /// # Errors
    /// A record cannot be read.
    fn is_revoked(&self, view: &View, key: &str) -> Result<bool>;

    /// As [`Certificates::is_revoked`], read through the transaction: what is written because a key is let in is not
    /// applied once it is revoked.
    ///
    /// # Errors
    /// A record cannot be read.
    fn is_revoked_in(&self, tx: &mut Tx, key: &str) -> Result<bool>;

    /// All keys that are refused.
    ///
    /// # Errors
    /// A record cannot be read.
    fn refused(&self, view: &View) -> Result<BTreeSet<String>>;

    /// These keys too are refused here, whatever a view says, until others are presumed: what a replica's log ends with is
    /// not in its view before it has a quorum.
    fn presume(&self, keys: BTreeSet<String>);

    /// Whether this replica must make itself a new key, because this one is to be revoked.
    ///
    /// # Errors
    /// A record cannot be read.
    fn must_rekey(&self, view: &View, replica: u64, key: &str) -> Result<bool>;

    /// Notes what a node has shown.
    ///
    /// # Errors
    /// A record cannot be read.
    fn node_seen(&self, tx: &mut Tx, node: &NodeId, leaf: &Leaf) -> Result<()>;

    /// The authorities; none: no replica has said which there is.
    ///
    /// # Errors
    /// A record cannot be read.
    fn authorities(&self, view: &View) -> Result<Option<Authorities>>;

    /// What a replica has said last.
    ///
    /// # Errors
    /// A record cannot be read.
    fn reported(&self, view: &View, replica: u64) -> Result<Option<ReplicaPki>>;

    /// Notes what a replica says of itself, and the CA that it issues by where none is known yet.
    ///
    /// # Errors
    /// A record cannot be read.
    fn report(&self, tx: &mut Tx, replica: u64, issuing: &Ca, report: &ReplicaPki) -> Result<()>;

    /// Offers a new CA, whose private key this replica holds, for a replacement. The first one is taken.
    ///
    /// # Errors
    /// A record cannot be read.
    fn offer(&self, tx: &mut Tx, rotation: u64, ca: &Ca) -> Result<()>;
}
