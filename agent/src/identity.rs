//! The node's identity: its key, its certificate chain, whom it trusts, and who it is.
//!
//! All of it is one file of mode 0600, replaced atomically, so that a key never stands beside
//! the certificate of another one.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::{
    extensions::ParsedExtension,
    prelude::{FromDer, X509Certificate},
};

use crate::{config::Layout, durable};

/// Why an identity could not be used, made or stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file could not be read or written.
    #[error("cannot use {}: check that it belongs to this user and that the disk has space", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is damaged.
    #[error("{} is damaged; move it away and join again with a new token", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A key or a request could not be made.
    #[error("cannot make a key and its signing request")]
    Key(#[source] rcgen::Error),
    /// What the control plane answered cannot be used.
    #[error("the control plane answered with a certificate that cannot be used: {0}")]
    Answer(String),
}

/// Who this node is.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The id that the control plane gave.
    pub node_id: String,
    /// The node's name.
    pub node_name: String,
    /// The lineage that the certificate names.
    pub lineage: String,
    /// Gateways of replicas, `host:port`.
    pub servers: Vec<String>,
    /// The control plane said that this certificate is no longer accepted.
    #[serde(default)]
    pub revoked: bool,
    key_pem: String,
    chain: Vec<String>,
    ca: Vec<String>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("node_id", &self.node_id)
            .field("node_name", &self.node_name)
            .field("lineage", &self.lineage)
            .field("servers", &self.servers)
            .field("revoked", &self.revoked)
            .finish_non_exhaustive()
    }
}

/// What the control plane gave to a node that joins.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The node's id.
    pub node_id: String,
    /// The node's name.
    pub node_name: String,
    /// The lineage.
    pub lineage: String,
    /// Gateways of replicas.
    pub servers: Vec<String>,
    /// Leaf first.
    pub chain_der: Vec<Vec<u8>>,
    /// Whom to trust.
    pub ca_der: Vec<Vec<u8>>,
}

/// From when to when a certificate is valid, in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second.
    pub not_before_s: i64,
    /// Last second.
    pub not_after_s: i64,
}

/// The key identifiers of a certificate and of its issuer.
fn key_ids(der: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let (mut own, mut issuer) = (vec![], vec![]);
    for extension in parsed.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => own = id.0.to_vec(),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                issuer = id.key_identifier.as_ref().map(|id| id.0.to_vec()).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some((own, issuer))
}

impl Identity {
    /// Puts a grant and the key it was asked with together.
    ///
    /// # Errors
    /// When the certificate is not for this key or there is nothing to trust.
    pub fn new(grant: Grant, key: &KeyPair) -> Result<Self, IdentityError> {
        if grant.node_id.is_empty() {
            return Err(IdentityError::Answer("it names no node".to_owned()));
        }
        let mut identity = Self {
            node_id: grant.node_id,
            node_name: grant.node_name,
            lineage: grant.lineage,
            servers: grant.servers,
            revoked: false,
            key_pem: String::new(),
            chain: Vec::new(),
            ca: Vec::new(),
        };
        identity.replace(&grant.chain_der, &grant.ca_der, key)?;
        Ok(identity)
    }

    /// Takes a new chain for a new key. An empty `ca_der` keeps whom it trusts.
    ///
    /// # Errors
    /// When the certificate is not for this key.
    pub fn replace(
        &mut self,
        chain_der: &[Vec<u8>],
        ca_der: &[Vec<u8>],
        key: &KeyPair,
    ) -> Result<(), IdentityError> {
        let leaf = chain_der
            .first()
            .ok_or_else(|| IdentityError::Answer("its chain is empty".to_owned()))?;
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|error| IdentityError::Answer(format!("it does not parse: {error}")))?;
        if parsed.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(key) {
            return Err(IdentityError::Answer("it is for another key".to_owned()));
        }
        if !ca_der.is_empty() {
            self.ca = ca_der.iter().map(|der| STANDARD.encode(der)).collect();
        }
        if self.ca.is_empty() {
            return Err(IdentityError::Answer("it came with no authority to trust".to_owned()));
        }
        self.chain = chain_der.iter().map(|der| STANDARD.encode(der)).collect();
        self.key_pem = key.serialize_pem();
        Ok(())
    }

    /// Trusts other authorities from now on; says whether that was a change.
    pub fn trust(&mut self, ca_der: &[Vec<u8>]) -> bool {
        let ca: Vec<String> = ca_der.iter().map(|der| STANDARD.encode(der)).collect();
        let changed = !ca.is_empty() && ca != self.ca;
        if changed {
            self.ca = ca;
        }
        changed
    }

    /// Whether its certificate is of the first of the authorities that it trusts, which is the one that issues. One that
    /// names no issuer counts as such.
    pub(crate) fn is_of_the_issuing(&self) -> bool {
        let leaf = self.chain.first().and_then(|leaf| STANDARD.decode(leaf).ok());
        let ca = self.ca.first().and_then(|ca| STANDARD.decode(ca).ok());
        let (Some(leaf), Some(ca)) = (leaf, ca) else { return true };
        let (Some((_, issuer)), Some((own, _))) = (key_ids(&leaf), key_ids(&ca)) else {
            return true;
        };
        issuer.is_empty() || own.is_empty() || issuer == own
    }

    /// The identity in `data_dir`, or `None` before a join.
    ///
    /// # Errors
    /// When it is there and cannot be used.
    pub fn load(data_dir: &Path) -> Result<Option<Self>, IdentityError> {
        let path = Layout::new(data_dir).identity();
        let bytes = durable::read(&path)
            .map_err(|source| IdentityError::Io { path: path.clone(), source })?;
        let Some(bytes) = bytes else { return Ok(None) };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| IdentityError::Damaged { path, source: error.into() })
    }

    /// Stores it, durably, readable by its owner only.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn save(&self, data_dir: &Path) -> Result<(), IdentityError> {
        let path = Layout::new(data_dir).identity();
        let io_error = |source| IdentityError::Io { path: path.clone(), source };
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| io_error(error.into()))?;
        durable::write(&path, &bytes, 0o600).map_err(io_error)
    }

    /// When its certificate is valid.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        let leaf = STANDARD.decode(self.chain.first()?).ok()?;
        let (_, parsed) = X509Certificate::from_der(&leaf).ok()?;
        Some(Validity {
            not_before_s: parsed.validity().not_before.timestamp(),
            not_after_s: parsed.validity().not_after.timestamp(),
        })
    }

    /// Whether its certificate can open a session at `now_s`.
    #[must_use]
    pub fn usable(&self, now_s: i64) -> bool {
        !self.revoked && self.validity().is_some_and(|validity| now_s < validity.not_after_s)
    }

    pub(crate) fn chain_der(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        decode(&self.chain)
    }

    pub(crate) fn ca_der(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        decode(&self.ca)
    }

    pub(crate) fn key_der(&self) -> Result<PrivateKeyDer<'static>, String> {
        let key = KeyPair::from_pem(&self.key_pem).map_err(|error| error.to_string())?;
        Ok(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))
    }
}

fn decode(list: &[String]) -> Result<Vec<CertificateDer<'static>>, String> {
    list.iter()
        .map(|text| {
            STANDARD.decode(text).map(CertificateDer::from).map_err(|error| error.to_string())
        })
        .collect()
}

/// A new P-256 key.
pub(crate) fn new_key() -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::Key)
}

/// The DER of a signing request whose self-signature proves the possession of `key`.
pub(crate) fn signing_request(key: &KeyPair, name: &str) -> Result<Vec<u8>, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let request = params.serialize_request(key).map_err(IdentityError::Key)?;
    Ok(request.der().to_vec())
}

/// The key kept in `path` for `purpose`, or a new one that is stored there first, so that a lost
/// answer can be asked for again with the same key.
pub(crate) fn pending_key(path: &Path, purpose: &str) -> Result<KeyPair, IdentityError> {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Pending {
        purpose: String,
        key_pem: String,
    }
    let io_error = |source| IdentityError::Io { path: path.to_owned(), source };
    let damaged = |source: Box<dyn std::error::Error + Send + Sync>| IdentityError::Damaged {
        path: path.to_owned(),
        source,
    };
    if let Some(bytes) = durable::read(path).map_err(io_error)? {
        let pending: Pending =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.into()))?;
        if pending.purpose == purpose {
            return KeyPair::from_pem(&pending.key_pem).map_err(|error| damaged(error.into()));
        }
    }
    let key = new_key()?;
    let pending = Pending { purpose: purpose.to_owned(), key_pem: key.serialize_pem() };
    let bytes = serde_json::to_vec(&pending).map_err(|error| io_error(error.into()))?;
    durable::write(path, &bytes, 0o600).map_err(io_error)?;
    Ok(key)
}

/// Where the identity and the key of a renewal are kept.
pub trait IdentityStore: Send + Sync + 'static {
    /// Keeps it durably.
    ///
    /// # Errors
    /// When the disk refuses.
    fn save(&self, identity: &Identity) -> Result<(), IdentityError>;

    /// The key for a renewal, kept before it is used: the same one as long as `purpose` is the same.
    ///
    /// # Errors
    /// When the disk refuses.
    fn renewal_key(&self, purpose: &str) -> Result<KeyPair, IdentityError>;

    /// The renewal is over; its key is part of the identity now.
    fn renewed(&self);
}

/// Files in the agent's data directory.
#[derive(Clone, Debug)]
pub struct FileIdentities {
    data_dir: PathBuf,
}

impl FileIdentities {
    /// Kept in `data_dir`.
    #[must_use]
    pub fn new(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned() }
    }
}

impl IdentityStore for FileIdentities {
    fn save(&self, identity: &Identity) -> Result<(), IdentityError> {
        identity.save(&self.data_dir)
    }

    fn renewal_key(&self, purpose: &str) -> Result<KeyPair, IdentityError> {
        pending_key(&Layout::new(&self.data_dir).renew_key(), purpose)
    }

    fn renewed(&self) {
        let _ = durable::remove(&Layout::new(&self.data_dir).renew_key());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_key_is_the_same_until_its_purpose_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = pending_key(&path, "one").unwrap().serialize_der();
        assert_eq!(pending_key(&path, "one").unwrap().serialize_der(), first);
        assert_ne!(pending_key(&path, "two").unwrap().serialize_der(), first);
    }

    #[test]
    fn a_certificate_for_another_key_is_refused() {
        let (mine, other) = (new_key().unwrap(), new_key().unwrap());
        let leaf = CertificateParams::default().self_signed(&other).unwrap();
        let grant = Grant {
            node_id: "n".into(),
            node_name: "n".into(),
            lineage: "l".into(),
            servers: vec![],
            chain_der: vec![leaf.der().to_vec()],
            ca_der: vec![leaf.der().to_vec()],
        };
        assert!(Identity::new(grant.clone(), &mine).is_err());
        assert!(Identity::new(grant, &other).is_ok());
    }
}
