//! The certificates of the moment: what each new connection uses, replaceable while connections are served.
//!
//! # Invariants
//! - `PKI-4` A connection is made by the certificates of the moment: nothing of an earlier connection is resumed, so that
//!   whoever connects proves its key, and that its certificate is valid and of a CA that is trusted now.

use std::{collections::BTreeSet, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::CertificateDer;

use super::{
    Authority, ClientAuth, Identity, PkiError, ca_of, client_config, pem_of, pin_of, server_config,
};

/// What connections are made with.
#[derive(Clone)]
pub struct Material {
    /// The CA that issues.
    pub authority: Arc<Authority>,
    /// CAs that are trusted beside it.
    pub others: Vec<CertificateDer<'static>>,
    /// Certificates that are sent along, for who trusts an earlier CA.
    pub along: Vec<CertificateDer<'static>>,
    /// This replica's own certificate and key.
    pub identity: Identity,
}

impl Material {
    /// Of one CA, as long as none is replaced.
    #[must_use]
    pub fn new(authority: Arc<Authority>, identity: Identity) -> Self {
        Self { authority, others: vec![], along: vec![], identity }
    }

    /// The CAs that are trusted, the issuing one first.
    #[must_use]
    pub fn roots(&self) -> Vec<CertificateDer<'static>> {
        std::iter::once(self.authority.cert_der()).chain(&self.others).cloned().collect()
    }

    /// Its own certificate with all that leads to a CA that somebody may trust.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        // Its own; then the new CA as the one before signed it; then the CAs as they signed themselves. OpenSSL takes the first issuer that
        // fits and looks for no other: whoever trusts the CA before would be led to one that it does not know.
        let (own, issuers) = self.identity.chain.split_at(1.min(self.identity.chain.len()));
        let mut chain = own.to_vec();
        for certificate in self.along.iter().chain(issuers).chain(&self.roots()) {
            if !chain.contains(certificate) {
                chain.push(certificate.clone());
            }
        }
        chain
    }
}

struct Present {
    material: Material,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// Key identifiers of the CAs that are trusted.
    issuers: BTreeSet<String>,
}

impl Present {
    fn of(material: Material) -> Result<Self, PkiError> {
        let roots = material.roots();
        let identity = Identity { chain: material.chain(), key: material.identity.key.clone_key() };
        let server = server_config(&roots, &identity, ClientAuth::Optional)?;
        let client = client_config(&roots, Some(&identity))?;
        let issuers: Result<_, _> = roots.iter().map(|ca| Ok(ca_of(ca)?.key_id)).collect();
        Ok(Self { material, server, client, issuers: issuers? })
    }
}

/// See the module.
pub struct Live(ArcSwap<Present>);

impl Live {
    /// Begins with these.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn new(material: Material) -> Result<Arc<Self>, PkiError> {
        Ok(Arc::new(Self(ArcSwap::from_pointee(Present::of(material)?))))
    }

    /// From now on, new connections use these.
    ///
    /// # Errors
    /// They cannot be used; what was used before stays.
    pub fn replace(&self, material: Material) -> Result<(), PkiError> {
        self.0.store(Arc::new(Present::of(material)?));
        Ok(())
    }

    /// What is used now.
    #[must_use]
    pub fn material(&self) -> Material {
        self.0.load().material.clone()
    }

    /// The CA that issues now.
    #[must_use]
    pub fn authority(&self) -> Arc<Authority> {
        self.0.load().material.authority.clone()
    }

    /// The CAs that are trusted now, the issuing one first.
    #[must_use]
    pub fn roots(&self) -> Vec<CertificateDer<'static>> {
        self.0.load().material.roots()
    }

    /// The same as one text of PEM.
    #[must_use]
    pub fn roots_pem(&self) -> String {
        self.roots().iter().map(pem_of).collect()
    }

    /// Their pins.
    #[must_use]
    pub fn pins(&self) -> Vec<String> {
        self.roots().iter().filter_map(|ca| pin_of(ca).ok()).collect()
    }

    /// What is given with a certificate that is issued: the CA's own, and what introduces it.
    #[must_use]
    pub(crate) fn issuers(&self) -> Vec<CertificateDer<'static>> {
        let present = self.0.load();
        let material = &present.material;
        std::iter::once(material.authority.cert_der()).chain(&material.along).cloned().collect()
    }

    /// Whether a certificate that names this issuer is of a CA that is trusted now. One that names none was looked at
    /// when it came.
    pub(crate) fn trusts(&self, issuer: &str) -> bool {
        issuer.is_empty() || self.0.load().issuers.contains(issuer)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.0.load().server.clone()
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.0.load().client.clone()
    }
}
