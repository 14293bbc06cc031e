//! The client's side of TLS: the cluster's CA and nothing else is trusted.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, pem::PemObject};

use super::error::ClientError;

/// A configuration that trusts the certificates in `ca_pem` only.
pub(super) fn config(ca_pem: &str) -> Result<rustls::ClientConfig, ClientError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        let certificate = certificate.map_err(|error| ClientError::Ca(error.to_string()))?;
        roots.add(certificate).map_err(|error| ClientError::Ca(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(ClientError::Ca("it holds no PEM certificate".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| ClientError::Ca(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A configuration that trusts nobody, for tests over plain HTTP.
#[cfg(test)]
pub(super) fn test_config() -> rustls::ClientConfig {
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_that_is_none_is_refused() {
        let error = config("hello").unwrap_err();
        assert!(error.to_string().contains("no PEM certificate"), "{error}");
    }
}
