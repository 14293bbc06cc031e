//! What of a CA may be known by everybody, and how a new CA is introduced to who trusts the old one.

use palisade_contract::pki::Ca;
use rcgen::{BasicConstraints, IsCa, KeyUsagePurpose};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{
    extensions::ParsedExtension,
    prelude::{FromDer, X509Certificate},
};

use super::{Authority, PkiError, params, spki_sha256};

fn parsed(der: &[u8]) -> Result<X509Certificate<'_>, PkiError> {
    X509Certificate::from_der(der)
        .map(|(_, parsed)| parsed)
        .map_err(|error| PkiError::Certificate(format!("it cannot be parsed: {error}")))
}

fn seconds_ms(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or_default().saturating_mul(1000)
}

/// The key identifier of whoever issued a certificate, hex; empty: it names none.
pub(crate) fn issuer_of(certificate: &X509Certificate<'_>) -> String {
    let found =
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref(),
            _ => None,
        });
    found.map(|id| hex::encode(id.0)).unwrap_or_default()
}

/// What everybody may know of the CA of a certificate.
///
/// # Errors
/// It cannot be parsed.
pub fn ca_of(der: &CertificateDer<'_>) -> Result<Ca, PkiError> {
    let certificate = parsed(der)?;
    let key_id =
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(hex::encode(id.0)),
            _ => None,
        });
    Ok(Ca {
        key: spki_sha256(certificate.public_key().raw),
        key_id: key_id.unwrap_or_default(),
        pem: pem_of(der),
        cross_pem: String::new(),
        not_before_ms: seconds_ms(certificate.validity().not_before.timestamp()),
        not_after_ms: seconds_ms(certificate.validity().not_after.timestamp()),
    })
}

/// A certificate as PEM.
#[must_use]
pub fn pem_of(der: &CertificateDer<'_>) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let text = STANDARD.encode(der);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = more;
    }
    pem + "-----END CERTIFICATE-----\n"
}

/// The certificates in a PEM text; none where there are none.
///
/// # Errors
/// It is malformed.
pub fn certificates_of(pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    read.map_err(|_| PkiError::Pem { what: "a CA".to_owned(), wanted: "certificate" })
}

impl Authority {
    /// What everybody may know of it.
    ///
    /// # Errors
    /// Its certificate cannot be parsed.
    pub fn public(&self) -> Result<Ca, PkiError> {
        ca_of(&self.cert_der)
    }

    /// A certificate of the key of `new`, signed by this CA (PEM): whoever trusts this CA believes the new one then.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn introduce(&self, new: &Self, now_ms: u64) -> Result<String, PkiError> {
        let ends_ms = parsed(&self.cert_der)?.validity().not_after.timestamp();
        let life = std::time::Duration::from_millis(seconds_ms(ends_ms).saturating_sub(now_ms));
        let uri = format!("palisade://{}/ca", self.lineage);
        let mut params = params(&format!("palisade {}", self.lineage), uri, now_ms, life)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.use_authority_key_identifier_extension = true;
        let cert = self.sign(&params, &new.key)?;
        Ok(cert.pem())
    }
}
