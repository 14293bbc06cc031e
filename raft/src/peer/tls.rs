//! Mutual TLS 1.3 on the peer port: who may connect, and as whom.
//!
//! # Invariants
//! - `PEER-1` A connection is served only to the holder of a certificate of the cluster's own CA that names a replica or
//!   a gateway of this lineage (`palisade://<lineage>/replica/<id>`, `…/gateway/<name>`). Agents and operators have
//!   other names.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{Error as PemError, PemObject},
};

use super::{caller::Caller, refused::Refusals};

/// A replica's TLS material, in DER.
#[derive(Debug)]
pub struct PeerTls {
    /// The certificates of the cluster CA; more than one while it is being replaced.
    pub ca_der: Vec<CertificateDer<'static>>,
    /// This replica's certificate, and what leads from it to the CA.
    pub chain_der: Vec<CertificateDer<'static>>,
    /// This replica's key.
    pub key_der: PrivateKeyDer<'static>,
}

impl Clone for PeerTls {
    fn clone(&self) -> Self {
        Self {
            ca_der: self.ca_der.clone(),
            chain_der: self.chain_der.clone(),
            key_der: self.key_der.clone_key(),
        }
    }
}

impl PeerTls {
    /// From PEM: the CA's certificates, this replica's chain, and its key.
    ///
    /// # Errors
    /// One of them is not PEM, or is empty.
    pub fn from_pem(ca: &[u8], chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let certificates = |what, pem| {
            let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
                .collect::<Result<_, _>>()
                .map_err(|source| TlsError::Pem { what, source })?;
            if found.is_empty() {
                return Err(TlsError::Pem { what, source: PemError::NoItemsFound });
            }
            Ok(found)
        };
        Ok(Self {
            ca_der: certificates("the cluster CA", ca)?,
            chain_der: certificates("this replica's certificate", chain)?,
            key_der: PrivateKeyDer::from_pem_slice(key)
                .map_err(|source| TlsError::Pem { what: "this replica's key", source })?,
        })
    }
}

/// Why TLS material cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// It is not PEM.
    #[error("{what} is not PEM of the right kind")]
    Pem {
        /// What it should be.
        what: &'static str,
        /// In what way.
        #[source]
        source: PemError,
    },
    /// A CA certificate is not one.
    #[error("the cluster CA's certificate cannot be used")]
    Ca(#[source] rustls::Error),
    /// The certificate and the key do not fit, or one is unreadable.
    #[error("this replica's certificate or key cannot be used")]
    Own(#[source] rustls::Error),
    /// No verifier of peers can be made.
    #[error("peers' certificates cannot be verified with this CA")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    /// This replica's own certificate names somebody else.
    #[error("this replica's certificate is not for it: {0}")]
    NotMine(String),
}

struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// The TLS configurations, replaceable while connections are served.
pub(crate) struct TlsState {
    lineage: String,
    configs: ArcSwap<Configs>,
    refusals: Arc<Refusals>,
}

impl TlsState {
    pub(crate) fn new(lineage: &str, replica: u64, tls: PeerTls) -> Result<Self, TlsError> {
        let refusals = Arc::<Refusals>::default();
        refusals.set_issuers(&tls.ca_der);
        let configs = ArcSwap::from_pointee(configs(lineage, replica, tls)?);
        Ok(Self { lineage: lineage.to_owned(), configs, refusals })
    }

    /// As somebody whom the certificate does not make a replica.
    #[cfg(test)]
    pub(crate) fn unchecked(lineage: &str, tls: PeerTls) -> Self {
        let configs = ArcSwap::from_pointee(build(tls).unwrap());
        Self { lineage: lineage.to_owned(), configs, refusals: Arc::default() }
    }

    /// From now on, new connections use `tls`.
    pub(crate) fn replace(&self, replica: u64, tls: PeerTls) -> Result<(), TlsError> {
        let ca_der = tls.ca_der.clone();
        self.configs.store(Arc::new(configs(&self.lineage, replica, tls)?));
        // After that, so that whoever connects anew meanwhile is not turned away for nothing.
        self.refusals.set_issuers(&ca_der);
        Ok(())
    }

    /// Whom connections end for.
    pub(crate) fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.configs.load().server.clone()
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.configs.load().client.clone()
    }

    /// Whom a verified certificate names.
    pub(crate) fn caller_of(&self, leaf: &CertificateDer<'_>) -> Result<Caller, String> {
        Caller::of(&self.lineage, leaf)
    }
}

fn configs(lineage: &str, replica: u64, tls: PeerTls) -> Result<Configs, TlsError> {
    let leaf = tls.chain_der.first().ok_or_else(|| TlsError::NotMine("it is missing".into()))?;
    match Caller::of(lineage, leaf) {
        Ok(Caller::Replica(named)) if named == replica => build(tls),
        Ok(named) => Err(TlsError::NotMine(format!("it names {named}"))),
        Err(why) => Err(TlsError::NotMine(why)),
    }
}

/// What somebody who is no replica connects with.
pub(crate) fn client_config(tls: PeerTls) -> Result<Arc<ClientConfig>, TlsError> {
    Ok(build(tls)?.client)
}

fn build(tls: PeerTls) -> Result<Configs, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for ca in &tls.ca_der {
        roots.add(ca.clone()).map_err(TlsError::Ca)?;
    }
    let roots = Arc::new(roots);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(TlsError::Verifier)?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Own)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(tls.chain_der.clone(), tls.key_der.clone_key())
        .map_err(TlsError::Own)?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    // Nothing is resumed: whoever connects proves its key, and that its certificate is of a CA that is trusted now.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Own)?
        .with_root_certificates(roots)
        .with_client_auth_cert(tls.chain_der, tls.key_der)
        .map_err(TlsError::Own)?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Configs { server: Arc::new(server), client: Arc::new(client) })
}

/// The name by which a replica's server is known to its peers.
pub(crate) fn server_name(replica: u64) -> String {
    format!("replica-{replica}.palisade.internal")
}
