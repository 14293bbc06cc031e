//! Who a certificate names.

use palisade_contract::{NodeId, pki::Leaf, time::rfc3339};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

use super::{PkiError, spki_sha256};

/// What the holder of a certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// The CA itself.
    Ca,
    /// A control-plane member.
    Replica(u64),
    /// A machine with an agent.
    Node(NodeId),
    /// An operator.
    User(String),
}

/// The holder of a certificate. The chain must have been verified before this is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `palisade://<lineage>/…`.
    pub uri: String,
    /// The lineage it belongs to.
    pub lineage: String,
    /// What it is.
    pub role: PeerRole,
    /// SHA-256 of its SPKI, hex.
    pub key: String,
    /// The key identifier of the CA that issued the certificate, hex.
    pub issuer: String,
    /// The beginning of the certificate's validity, Unix milliseconds.
    pub not_before_ms: u64,
    /// The end of the certificate's validity, Unix milliseconds.
    pub not_after_ms: u64,
    /// Why it was out of its time when the connection was made, in words for its holder; `None`: it was not.
    pub out_of_time: Option<String>,
}

impl Peer {
    /// What of its certificate is noted.
    #[must_use]
    pub fn leaf(&self) -> Leaf {
        Leaf { key: self.key.clone(), issuer: self.issuer.clone(), not_after_ms: self.not_after_ms }
    }

    /// Looks whether the certificate is valid at a moment, which [`Peer::out_of_time`] then says. `PKI-7`
    #[must_use]
    pub(crate) fn at(mut self, now_ms: u64) -> Self {
        let (from, to) = (self.not_before_ms, self.not_after_ms);
        let word = match now_ms {
            now if now < from => Some(format!("is valid only from {} on", rfc3339(from))),
            // The last second is one of it.
            now if now >= to.saturating_add(1000) => Some(format!("ended at {}", rfc3339(to))),
            _ => None,
        };
        self.out_of_time = word.map(|word| {
            format!(
                "the client certificate of {} {word}, and here it is {}",
                self.uri,
                rfc3339(now_ms)
            )
        });
        self
    }
}

fn certificate(der: &[u8]) -> Result<X509Certificate<'_>, PkiError> {
    X509Certificate::from_der(der)
        .map(|(_, parsed)| parsed)
        .map_err(|error| PkiError::Certificate(format!("it cannot be parsed: {error}")))
}

/// The holder that a DER certificate names.
///
/// # Errors
/// It cannot be parsed, or has not exactly one `palisade://` name that is well formed.
pub fn peer_of(der: &[u8]) -> Result<Peer, PkiError> {
    let parsed = certificate(der)?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| PkiError::Certificate(format!("its names cannot be read: {error}")))?
        .ok_or_else(|| PkiError::Certificate("it has no names".to_owned()))?;
    let uris: Vec<&str> = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) if uri.starts_with("palisade://") => Some(*uri),
            _ => None,
        })
        .collect();
    let [uri] = uris.as_slice() else {
        return Err(PkiError::Certificate(format!(
            "it has {} palisade:// names and should have one",
            uris.len()
        )));
    };
    let (lineage, role) = parse_uri(uri)
        .ok_or_else(|| PkiError::Certificate(format!("its name {uri:?} is malformed")))?;
    let key = spki_sha256(parsed.public_key().raw);
    let issuer = super::ca::issuer_of(&parsed);
    let ms = |seconds: i64| u64::try_from(seconds).unwrap_or_default().saturating_mul(1000);
    let not_before_ms = ms(parsed.validity().not_before.timestamp());
    let not_after_ms = ms(parsed.validity().not_after.timestamp());
    Ok(Peer {
        uri: (*uri).to_owned(),
        lineage: lineage.to_owned(),
        role,
        key,
        issuer,
        not_before_ms,
        not_after_ms,
        out_of_time: None,
    })
}

fn parse_uri(uri: &str) -> Option<(&str, PeerRole)> {
    let (lineage, rest) = uri.strip_prefix("palisade://")?.split_once('/')?;
    if lineage.is_empty() {
        return None;
    }
    let role = match rest.split_once('/') {
        None if rest == "ca" => PeerRole::Ca,
        Some(("replica", id)) => PeerRole::Replica(id.parse().ok()?),
        Some(("node", id)) => PeerRole::Node(NodeId::parse(id)?),
        Some(("user", name)) if palisade_contract::id::is_name(name) => {
            PeerRole::User(name.to_owned())
        }
        _ => return None,
    };
    Some((lineage, role))
}

/// The lineage of a CA certificate.
///
/// # Errors
/// It is not a CA certificate of ours.
pub fn lineage_of_ca(der: &[u8]) -> Result<String, PkiError> {
    let peer = peer_of(der)?;
    match peer.role {
        PeerRole::Ca => Ok(peer.lineage),
        _ => Err(PkiError::Certificate(format!("{} is not the name of a CA", peer.uri))),
    }
}

/// The end of a certificate's validity, Unix milliseconds.
///
/// # Errors
/// It cannot be parsed.
pub fn not_after_ms(der: &[u8]) -> Result<u64, PkiError> {
    let seconds = certificate(der)?.validity().not_after.timestamp();
    Ok(u64::try_from(seconds).unwrap_or_default().saturating_mul(1000))
}
