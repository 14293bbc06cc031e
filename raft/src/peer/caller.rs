//! Who a certificate names, and who says to be that.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, prelude::FromDer};

/// Whoever calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// `palisade://<lineage>/replica/<id>`.
    Replica(u64),
    /// `palisade://<lineage>/gateway/<name>`.
    Gateway(Arc<str>),
}

impl Caller {
    /// What the metadata `palisade-from` must say.
    pub(crate) fn is_named(&self, from: &str) -> bool {
        match self {
            Self::Replica(id) => from == id.to_string(),
            Self::Gateway(name) => from.strip_prefix("gateway/") == Some(name),
        }
    }

    /// The caller that a verified certificate of this lineage names.
    pub(crate) fn of(lineage: &str, leaf: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(leaf)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        let names = certificate
            .subject_alternative_name()
            .map_err(|error| format!("its names cannot be read: {error}"))?
            .ok_or("it has no names")?;
        let uri = names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(uri) if uri.starts_with("palisade://") => Some(*uri),
            _ => None,
        });
        Self::parse(lineage, uri.ok_or("it names no palisade identity")?)
    }

    fn parse(lineage: &str, uri: &str) -> Result<Self, String> {
        let rest = uri.trim_start_matches("palisade://");
        let parts: Vec<_> = rest.split('/').collect();
        let [of, kind @ ("replica" | "gateway"), name] = parts.as_slice() else {
            return Err(format!("its name {uri} is neither a replica's nor a gateway's"));
        };
        if *of != lineage {
            return Err(format!("its lineage is {of}, and this is {lineage}"));
        }
        if *kind == "replica" {
            let id = name.parse().map_err(|_| format!("its name {uri} has no replica number"))?;
            return Ok(Self::Replica(id));
        }
        if !is_name(name) {
            return Err(format!("its name {uri} has no name of a gateway"));
        }
        Ok(Self::Gateway(Arc::from(*name)))
    }
}

/// Whether a gateway may have this name: `^[a-z0-9][a-z0-9._-]{0,63}$`.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=64).contains(&name.len())
        && name.bytes().next().is_some_and(is_plain)
        && name.bytes().all(|byte| is_plain(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Replica(id) => write!(f, "replica {id}"),
            Self::Gateway(name) => write!(f, "gateway {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_and_gateways_have_names_and_nobody_else() {
        let parse = |uri| Caller::parse("l1", uri);
        assert_eq!(parse("palisade://l1/replica/7"), Ok(Caller::Replica(7)));
        assert_eq!(parse("palisade://l1/gateway/edge-1"), Ok(Caller::Gateway("edge-1".into())));
        for uri in [
            "palisade://l2/gateway/edge-1",
            "palisade://l1/gateway/",
            "palisade://l1/gateway/Edge",
            "palisade://l1/gateway/-",
            "palisade://l1/gateway/a/b",
            "palisade://l1/replica/seven",
            "palisade://l1/node/7",
            "palisade://l1/operator/ada",
        ] {
            assert!(parse(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn a_caller_is_named_exactly() {
        let gateway = Caller::Gateway("edge-1".into());
        assert!(gateway.is_named("gateway/edge-1"));
        assert!(!gateway.is_named("edge-1") && !gateway.is_named("gateway/edge-2"));
        assert!(Caller::Replica(2).is_named("2"));
        assert!(!Caller::Replica(2).is_named("gateway/2"));
    }
}
