//! Whose connections end although their certificates were the CA's: the key was revoked, or the CA is trusted no more.
//!
//! # Invariants
//! - `PEER-5` Nothing is read from, or written to, whoever holds a key that this replica knows as revoked, or whose
//!   certificate is of a CA that it trusts no more; also on a connection that was there before.

use std::{collections::BTreeSet, sync::Arc};

use arc_swap::ArcSwap;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::{extensions::ParsedExtension, prelude::FromDer};

use super::io::Tag;

/// What is refused.
#[derive(Default)]
pub(crate) struct Refusals {
    /// SHA-256 of public keys, hex.
    keys: ArcSwap<BTreeSet<String>>,
    /// Key identifiers of the CAs that are trusted.
    issuers: ArcSwap<BTreeSet<Vec<u8>>>,
}

/// What of a certificate decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    key: String,
    issuer: Vec<u8>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn identifiers(der: &[u8]) -> Option<(String, Vec<u8>, Vec<u8>)> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
    let key = hex(&Sha256::digest(certificate.public_key().raw));
    let (mut own, mut issuer) = (vec![], vec![]);
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => own = id.0.to_vec(),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                issuer = id.key_identifier.as_ref().map(|id| id.0.to_vec()).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some((key, own, issuer))
}

impl Holder {
    /// Of a certificate whose chain was verified.
    pub(crate) fn of(leaf: &CertificateDer<'_>) -> Self {
        let (key, _, issuer) = identifiers(leaf).unwrap_or_default();
        Self { key, issuer }
    }
}

impl Refusals {
    /// These keys, and no others, are refused from now on.
    pub(crate) fn set_keys(&self, keys: BTreeSet<String>) {
        self.keys.store(Arc::new(keys));
    }

    /// These CAs, and no others, are trusted from now on.
    pub(crate) fn set_issuers(&self, ca: &[CertificateDer<'_>]) {
        let issuers = ca.iter().filter_map(|ca| Some(identifiers(ca)?.1)).collect();
        self.issuers.store(Arc::new(issuers));
    }

    /// `PEER-5`
    pub(crate) fn refuses(&self, holder: &Holder) -> bool {
        let issuers = self.issuers.load();
        // A certificate that names no issuer was verified when it came.
        let is_foreign =
            !holder.issuer.is_empty() && !issuers.is_empty() && !issuers.contains(&holder.issuer);
        is_foreign || self.keys.load().contains(&holder.key)
    }
}

/// A connection's other end, looked at whenever something moves.
pub(super) struct Watched {
    pub(super) holder: Holder,
    pub(super) refusals: Arc<Refusals>,
}

impl Tag for Watched {
    fn is_refused(&self) -> bool {
        self.refusals.refuses(&self.holder)
    }
}
