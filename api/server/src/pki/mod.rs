//! The cluster's certificates: its CA, what it issues, and who a certificate names.
//!
//! # Invariants
//! - `PKI-1` Whoever a certificate is for is in one URI name, `palisade://<lineage>/…`; nothing of
//!   a signing request but its public key gets into a certificate.
//! - `PKI-2` A key is certified only for who proved to hold it (the request's self-signature).
//! - `PKI-4` is in `live.rs`, `PKI-7` in `tls.rs`.

mod ca;
mod identity;
mod live;
mod tls;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use palisade_contract::NodeId;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

pub use ca::{ca_of, certificates_of, pem_of};
pub use identity::{Peer, PeerRole, lineage_of_ca, not_after_ms, peer_of};
pub use live::{Live, Material};
pub use tls::{ClientAuth, Identity, client_config, load_certificates, server_config};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long before its issue a certificate is valid, for clocks that are behind.
const SKEW: Duration = Duration::from_secs(5 * 60);
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long a replica's certificate is valid.
pub const REPLICA_LIFE: Duration = Duration::from_secs(5 * 365 * 24 * 3600);
/// How long a node's certificate is valid.
pub const NODE_LIFE: Duration = DAY;

const _: () = assert!(SKEW.as_secs() == 5 * MINUTE.as_secs());

/// Why certificates could not be made, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A file cannot be read.
    #[error("cannot read {}: check that it exists and that this user may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Not PEM, or PEM of something else.
    #[error("{what} holds no {wanted} in PEM form")]
    Pem {
        /// A file or a thing.
        what: String,
        /// What was looked for.
        wanted: &'static str,
    },
    /// A certificate and a key that do not belong together.
    #[error(
        "the certificate and the key of {0} do not belong together: restore the pair from one backup"
    )]
    Mismatch(String),
    /// A certificate, key or request could not be made.
    #[error("cannot make the {what}")]
    Make {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// A signing request that is malformed, or not signed with its own key.
    #[error("the certificate signing request is malformed or not signed with its own key")]
    Request(#[source] rcgen::Error),
    /// A certificate that cannot be parsed or names nobody.
    #[error("the certificate cannot be used: {0}")]
    Certificate(String),
    /// rustls refuses it.
    #[error("TLS cannot be set up with this certificate and key")]
    Tls(#[source] rustls::Error),
    /// Clients cannot be verified with this CA.
    #[error("clients cannot be verified with this CA")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// A certificate and its key, both PEM. The certificate is followed by its issuer's.
#[derive(Clone)]
pub struct Issued {
    /// The certificate, then the CA's.
    pub cert_pem: String,
    /// The private key (PKCS #8). Secret.
    pub key_pem: String,
}

/// The cluster's CA.
pub struct Authority {
    lineage: String,
    cert_pem: String,
    cert_der: CertificateDer<'static>,
    key: KeyPair,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("lineage", &self.lineage).finish_non_exhaustive()
    }
}

fn make(what: &'static str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError::Make { what, source }
}

fn new_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(make("key"))
}

fn text_san(text: String) -> Result<rcgen::string::Ia5String, PkiError> {
    rcgen::string::Ia5String::try_from(text).map_err(make("name"))
}

fn params(
    common_name: &str,
    uri: String,
    now_ms: u64,
    life: Duration,
) -> Result<CertificateParams, PkiError> {
    let now = UNIX_EPOCH + Duration::from_millis(now_ms);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = vec![SanType::URI(text_san(uri)?)];
    params.not_before = (now - SKEW).into();
    params.not_after = (now + life).into();
    Ok(params)
}

fn leaf(mut params: CertificateParams, usages: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    params
}

impl Authority {
    /// A new CA for a lineage.
    ///
    /// # Errors
    /// The key or certificate cannot be made.
    pub fn create(lineage: &str, now_ms: u64) -> Result<Self, PkiError> {
        let key = new_key()?;
        let uri = format!("palisade://{lineage}/ca");
        let mut params = params(&format!("palisade {lineage}"), uri, now_ms, CA_LIFE)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).map_err(make("CA certificate"))?;
        Ok(Self {
            lineage: lineage.to_owned(),
            cert_pem: cert.pem(),
            cert_der: cert.der().clone(),
            key,
        })
    }

    /// The CA of these two PEM texts; the lineage is what its certificate names.
    ///
    /// # Errors
    /// One of them is malformed, or they do not belong together.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, PkiError> {
        let missing = |wanted| PkiError::Pem { what: "the cluster CA".to_owned(), wanted };
        let cert_der = CertificateDer::from_pem_slice(cert_pem.as_bytes())
            .map_err(|_| missing("certificate"))?;
        let key = KeyPair::from_pem(key_pem).map_err(|_| missing("private key"))?;
        if spki_of(&cert_der)? != key.subject_public_key_info() {
            return Err(PkiError::Mismatch("the cluster CA".to_owned()));
        }
        let lineage = lineage_of_ca(&cert_der)?;
        Ok(Self { lineage, cert_pem: cert_pem.to_owned(), cert_der, key })
    }

    /// The CA of these two files.
    ///
    /// # Errors
    /// As [`Authority::from_pem`], or a file cannot be read.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, PkiError> {
        Self::from_pem(&read(cert)?, &read(key)?)
    }

    /// The lineage that it is for.
    #[must_use]
    pub fn lineage(&self) -> &str {
        &self.lineage
    }

    /// Its certificate.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// Its certificate.
    #[must_use]
    pub fn cert_der(&self) -> &CertificateDer<'static> {
        &self.cert_der
    }

    /// Its private key (PKCS #8). Secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// The same in DER, as it was read. Secret.
    #[must_use]
    pub fn key_der(&self) -> Vec<u8> {
        self.key.serialize_der()
    }

    /// Its pin, `sha256/<base64>`.
    #[must_use]
    pub fn pin(&self) -> String {
        pin_of_spki(&self.key.subject_public_key_info())
    }

    fn sign(
        &self,
        params: &CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<Certificate, PkiError> {
        let issuer = Issuer::from_ca_cert_der(&self.cert_der, &self.key).map_err(make("issuer"))?;
        params.signed_by(key, &issuer).map_err(make("certificate"))
    }

    fn issue(&self, params: &CertificateParams) -> Result<Issued, PkiError> {
        let key = new_key()?;
        let cert = self.sign(params, &key)?;
        Ok(Issued {
            cert_pem: format!("{}{}", cert.pem(), self.cert_pem),
            key_pem: key.serialize_pem(),
        })
    }

    /// A replica's certificate: for its server and for itself as a client. `addresses` are the
    /// hosts (with or without port) under which it is reached.
    ///
    /// # Errors
    /// A name is not one, or the certificate cannot be made.
    pub fn issue_replica(
        &self,
        id: u64,
        addresses: &[String],
        now_ms: u64,
    ) -> Result<Issued, PkiError> {
        self.issue(&self.replica_params(id, addresses, now_ms)?)
    }

    /// The certificate of a replica that keeps its key to itself, followed by the CA's, for a signing
    /// request in DER.
    ///
    /// # Errors
    /// `PKI-2`: the request does not prove possession; or the certificate cannot be made.
    pub fn issue_joining_replica(
        &self,
        csr_der: &[u8],
        id: u64,
        addresses: &[String],
        now_ms: u64,
    ) -> Result<String, PkiError> {
        let request = parse_request(csr_der)?;
        let params = self.replica_params(id, addresses, now_ms)?;
        let cert = self.sign(&params, &request.public_key)?;
        Ok(format!("{}{}", cert.pem(), self.cert_pem))
    }

    /// A new certificate for a replica's key, followed by the CA's.
    ///
    /// # Errors
    /// The key cannot be read, or the certificate cannot be made.
    pub fn reissue_replica(
        &self,
        key_pem: &str,
        id: u64,
        addresses: &[String],
        now_ms: u64,
    ) -> Result<String, PkiError> {
        let key = KeyPair::from_pem(key_pem).map_err(make("replica's key"))?;
        let cert = self.sign(&self.replica_params(id, addresses, now_ms)?, &key)?;
        Ok(format!("{}{}", cert.pem(), self.cert_pem))
    }

    fn replica_params(
        &self,
        id: u64,
        addresses: &[String],
        now_ms: u64,
    ) -> Result<CertificateParams, PkiError> {
        let uri = format!("palisade://{}/replica/{id}", self.lineage);
        let mut params = params(&format!("replica-{id}"), uri, now_ms, REPLICA_LIFE)?;
        params.subject_alt_names.push(SanType::DnsName(text_san(replica_name(id))?));
        for name in host_names(addresses) {
            params.subject_alt_names.push(match IpAddr::from_str(&name) {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(text_san(name)?),
            });
        }
        let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(leaf(params, &usages))
    }

    /// A node's certificate for the key of a signing request, DER.
    ///
    /// # Errors
    /// `PKI-2`: the request does not prove possession; or the certificate cannot be made.
    pub fn issue_node(
        &self,
        csr_der: &[u8],
        node: &NodeId,
        now_ms: u64,
    ) -> Result<Vec<u8>, PkiError> {
        let request = parse_request(csr_der)?;
        let uri = format!("palisade://{}/node/{node}", self.lineage);
        let params = leaf(
            params(node.as_str(), uri, now_ms, NODE_LIFE)?,
            &[ExtendedKeyUsagePurpose::ClientAuth],
        );
        Ok(self.sign(&params, &request.public_key)?.der().to_vec())
    }

    /// An operator's certificate and key.
    ///
    /// # Errors
    /// The name cannot be in a certificate, or the certificate cannot be made.
    pub fn issue_operator(
        &self,
        name: &str,
        life: Duration,
        now_ms: u64,
    ) -> Result<Issued, PkiError> {
        if !palisade_contract::id::is_name(name) {
            return Err(PkiError::Certificate(format!(
                "{name:?} is no name for an operator: {}",
                palisade_contract::id::NAME_RULE
            )));
        }
        let uri = format!("palisade://{}/user/{name}", self.lineage);
        let params = params(name, uri, now_ms, life)?;
        self.issue(&leaf(params, &[ExtendedKeyUsagePurpose::ClientAuth]))
    }
}

/// A key and a request for a certificate of it, both PEM. The key is secret.
pub struct Requested {
    /// The private key (PKCS #8). Secret.
    pub key_pem: String,
    /// The request.
    pub csr_pem: String,
}

/// A new key, and a request for a replica's certificate of it.
///
/// # Errors
/// The key or the request cannot be made.
pub fn request_replica() -> Result<Requested, PkiError> {
    let key = new_key()?;
    let csr = CertificateParams::default().serialize_request(&key).map_err(make("request"))?;
    let csr_pem = csr.pem().map_err(make("request"))?;
    Ok(Requested { key_pem: key.serialize_pem(), csr_pem })
}

/// Whether a certificate is good for the hosts of all these addresses. One that cannot be read is good for none.
#[must_use]
pub fn covers(cert_der: &[u8], addresses: &[String]) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(cert_der) else { return false };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return false };
    let has = |host: &str| {
        names.value.general_names.iter().any(|name| match (name, IpAddr::from_str(host)) {
            (GeneralName::DNSName(name), Err(_)) => name.eq_ignore_ascii_case(host),
            (GeneralName::IPAddress(bytes), Ok(IpAddr::V4(ip))) => *bytes == ip.octets(),
            (GeneralName::IPAddress(bytes), Ok(IpAddr::V6(ip))) => *bytes == ip.octets(),
            _ => false,
        })
    };
    host_names(addresses).iter().all(|host| has(host))
}

/// The DNS name that a replica's certificate has whatever its addresses.
#[must_use]
pub fn replica_name(id: u64) -> String {
    format!("replica-{id}.palisade.internal")
}

fn host_names(addresses: &[String]) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    let mut add = |name: &str| {
        if !name.is_empty() && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    };
    for address in addresses {
        let host = host_of(address);
        add(host);
        let loopback = host == "localhost"
            || IpAddr::from_str(host).is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified());
        if loopback {
            ["localhost", "127.0.0.1", "::1"].into_iter().for_each(&mut add);
        }
    }
    names.retain(|name| {
        IpAddr::from_str(name).is_ok_and(|ip| !ip.is_unspecified())
            || IpAddr::from_str(name).is_err()
    });
    names
}

/// The host of `host:port`, `[v6]:port` or a bare host.
pub(crate) fn host_of(address: &str) -> &str {
    if IpAddr::from_str(address).is_ok() {
        return address;
    }
    let host = match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => address,
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

fn parse_request(csr_der: &[u8]) -> Result<CertificateSigningRequestParams, PkiError> {
    CertificateSigningRequestParams::from_der(&csr_der.into()).map_err(PkiError::Request)
}

/// SHA-256 of the SPKI of a signing request whose self-signature holds, hex.
///
/// # Errors
/// `PKI-2`.
pub fn request_key(csr_der: &[u8]) -> Result<String, PkiError> {
    Ok(spki_sha256(&parse_request(csr_der)?.public_key.subject_public_key_info()))
}

/// The DER SubjectPublicKeyInfo of a certificate.
///
/// # Errors
/// The certificate cannot be parsed.
pub fn spki_of(cert_der: &[u8]) -> Result<Vec<u8>, PkiError> {
    let (_, parsed) = X509Certificate::from_der(cert_der)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    Ok(parsed.public_key().raw.to_vec())
}

/// SHA-256 of a DER SubjectPublicKeyInfo, hex.
#[must_use]
pub fn spki_sha256(spki_der: &[u8]) -> String {
    hex::encode(Sha256::digest(spki_der))
}

/// The pin of a DER SubjectPublicKeyInfo, `sha256/<base64>`.
#[must_use]
pub fn pin_of_spki(spki_der: &[u8]) -> String {
    format!("sha256/{}", STANDARD.encode(Sha256::digest(spki_der)))
}

/// The pin of a certificate's key.
///
/// # Errors
/// The certificate cannot be parsed.
pub fn pin_of(cert_der: &[u8]) -> Result<String, PkiError> {
    Ok(pin_of_spki(&spki_of(cert_der)?))
}

pub(crate) fn read(path: &Path) -> Result<String, PkiError> {
    std::fs::read_to_string(path).map_err(|source| PkiError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
