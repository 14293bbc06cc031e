//! Certificates of both systems' members and clients.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// A certificate and its key, PEM.
pub(super) struct Issued {
    pub(super) cert_pem: String,
    pub(super) key_pem: String,
}

fn leaf(name: &str, sans: Vec<SanType>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = sans;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params
}

fn issue(params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<Issued> {
    let key = KeyPair::generate().context("cannot make a key")?;
    let cert = params.signed_by(&key, issuer).context("cannot make a certificate")?;
    Ok(Issued { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
}

/// A CA with one certificate for every member and one for the client, all on loopback.
pub(super) struct Family {
    pub(super) ca_pem: String,
    pub(super) member: Issued,
    pub(super) client: Issued,
}

impl Family {
    /// A new one.
    pub(super) fn new() -> Result<Self> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "bench ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).context("cannot make a CA")?;
        let ca_pem = cert.pem();
        let issuer = Issuer::new(params, key);
        let loopback = SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
        Ok(Self {
            ca_pem,
            member: issue(&leaf("member", vec![loopback]), &issuer)?,
            client: issue(&leaf("client", vec![]), &issuer)?,
        })
    }
}

/// A gateway's certificate of a Palisade cluster, from the CA in a replica's directory.
pub(super) fn gateway(ca_pem: &str, ca_key: &Path, lineage: &str) -> Result<Issued> {
    let text = std::fs::read_to_string(ca_key)
        .with_context(|| format!("there is no {}", ca_key.display()))?;
    let key = KeyPair::from_pem(&text).context("the CA's key is no key")?;
    let issuer = Issuer::from_ca_cert_pem(ca_pem, key).context("the CA cannot sign")?;
    let uri = format!("palisade://{lineage}/gateway/bench");
    let uri = rcgen::string::Ia5String::try_from(uri).context("the lineage is no name")?;
    issue(&leaf("bench", vec![SanType::URI(uri)]), &issuer)
}

/// A replica's own certificate, from its directory.
pub(super) fn replica(dir: &Path) -> Result<Issued> {
    let read = |name: &str| {
        let path = dir.join("pki").join(name);
        std::fs::read_to_string(&path).with_context(|| format!("there is no {}", path.display()))
    };
    Ok(Issued { cert_pem: read("replica.pem")?, key_pem: read("replica.key")? })
}

/// What a client shows and whom it trusts.
pub(super) fn client_config(ca_pem: &str, own: &Issued) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate.context("the CA is no PEM")?).context("the CA is no certificate")?;
    }
    let chain = CertificateDer::pem_slice_iter(own.cert_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("the certificate is no PEM")?;
    let key = PrivateKeyDer::from_pem_slice(own.key_pem.as_bytes()).context("the key is no PEM")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("there is no TLS 1.3")?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .context("the certificate and its key do not fit")?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
