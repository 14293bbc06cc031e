//! TLS 1.3 configurations over the cluster's certificates.
//!
//! # Invariants
//! - `PKI-7` Whoever shows a certificate before or after its time gets nothing but a refusal that says so.

use std::{path::Path, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Issued, PkiError, read};

/// What a server asks of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate is asked for.
    None,
    /// One that is presented must be the CA's; none is fine. One that is out of its time comes as far as to be told so.
    Optional,
    /// One of the CA's must be presented.
    Required,
}

/// A certificate chain and its key.
#[derive(Debug)]
pub struct Identity {
    /// The certificate, then its issuers.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl Identity {
    /// Reads both from PEM; `what` names them in errors.
    ///
    /// # Errors
    /// One is missing or malformed.
    pub fn from_pem(what: &str, cert_pem: &str, key_pem: &str) -> Result<Self, PkiError> {
        let missing = |wanted| PkiError::Pem { what: what.to_owned(), wanted };
        let chain = certificates(what, cert_pem)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|_| missing("private key"))?;
        Ok(Self { chain, key })
    }

    /// Reads both from files.
    ///
    /// # Errors
    /// A file cannot be read, or is malformed.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, PkiError> {
        let chain = load_certificates(cert)?;
        let key_pem = read(key)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|_| PkiError::Pem {
            what: key.display().to_string(),
            wanted: "private key",
        })?;
        Ok(Self { chain, key })
    }
}

impl TryFrom<&Issued> for Identity {
    type Error = PkiError;

    fn try_from(issued: &Issued) -> Result<Self, PkiError> {
        Self::from_pem("an issued certificate", &issued.cert_pem, &issued.key_pem)
    }
}

fn certificates(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let missing = || PkiError::Pem { what: what.to_owned(), wanted: "certificate" };
    let found = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| missing())?;
    if found.is_empty() { Err(missing()) } else { Ok(found) }
}

/// All certificates of a PEM file.
///
/// # Errors
/// The file cannot be read or holds none.
pub fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    certificates(&path.display().to_string(), &read(path)?)
}

/// Lets a certificate in that is out of its own time and would be good within it: whoever shows it is told that in words
/// (`PKI-7`), where TLS has one alert for whatever is wrong with a time.
#[derive(Debug)]
struct Timeless(Arc<dyn ClientCertVerifier>);

/// The moment of a certificate's own time that is next to `now`; `None`: it is within it, or cannot be read.
fn nearest(leaf: &CertificateDer<'_>, now: UnixTime) -> Option<UnixTime> {
    let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
    let seconds = |at: i64| u64::try_from(at).ok();
    let from = seconds(parsed.validity().not_before.timestamp())?;
    let to = seconds(parsed.validity().not_after.timestamp())?;
    let nearest = now.as_secs().clamp(from, to.max(from));
    (nearest != now.as_secs()).then(|| UnixTime::since_unix_epoch(Duration::from_secs(nearest)))
}

impl ClientCertVerifier for Timeless {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let at = nearest(leaf, now).unwrap_or(now);
        self.0.verify_client_cert(leaf, issuers, at)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(ca: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, PkiError> {
    let mut roots = RootCertStore::empty();
    for certificate in ca {
        roots.add(certificate.clone()).map_err(PkiError::Tls)?;
    }
    Ok(Arc::new(roots))
}

fn protocols() -> Vec<Vec<u8>> {
    vec![b"h2".to_vec(), b"http/1.1".to_vec()]
}

/// A server over `identity`, whose clients' certificates are the CA's. The CA's certificate is
/// sent along, because joining agents pin its key.
///
/// # Errors
/// The certificate and key do not fit, or the CA cannot be used.
pub fn server_config(
    ca: &[CertificateDer<'static>],
    identity: &Identity,
    client_auth: ClientAuth,
) -> Result<Arc<ServerConfig>, PkiError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(PkiError::Tls)?;
    let builder = match client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Optional | ClientAuth::Required => {
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots(ca)?, provider());
            if client_auth == ClientAuth::Optional {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier.build().map_err(PkiError::Verifier)?;
            match client_auth {
                ClientAuth::Optional => {
                    builder.with_client_cert_verifier(Arc::new(Timeless(verifier)))
                }
                _ => builder.with_client_cert_verifier(verifier),
            }
        }
    };
    let mut chain = identity.chain.clone();
    for certificate in ca {
        if !chain.contains(certificate) {
            chain.push(certificate.clone());
        }
    }
    let mut config =
        builder.with_single_cert(chain, identity.key.clone_key()).map_err(PkiError::Tls)?;
    config.alpn_protocols = protocols();
    // PKI-4
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A client that trusts the CA and, with an identity, presents it.
///
/// # Errors
/// The certificate and key do not fit, or the CA cannot be used.
pub fn client_config(
    ca: &[CertificateDer<'static>],
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, PkiError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(PkiError::Tls)?
        .with_root_certificates(roots(ca)?);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder
            .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(PkiError::Tls)?,
    };
    config.alpn_protocols = protocols();
    Ok(Arc::new(config))
}
