//! TLS towards the control plane: pinned before the join, mutual afterwards; always 1.3.
//!
//! # Invariants
//! - `AGENT-3` No byte of the token is written before the handshake has proven a pinned key.

use std::{fmt, io, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking::Slot;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{
    config::split_server,
    identity::Identity,
    port::{Runtime, timeout},
};

/// The SHA-256 of a public key (SubjectPublicKeyInfo), written `sha256/<base64>`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pin([u8; 32]);

/// A text is not a pin.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a pin; expected sha256/ and 44 characters of base64, as `palisade token create` prints it"
)]
pub struct PinError(String);

impl Pin {
    /// Parses `sha256/<base64>`.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn parse(text: &str) -> Result<Self, PinError> {
        let error = || PinError(text.to_owned());
        let encoded = text.trim().strip_prefix("sha256/").ok_or_else(error)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| error())?;
        bytes.try_into().map(Self).map_err(|_| error())
    }

    /// The pin of a DER SubjectPublicKeyInfo.
    #[must_use]
    pub fn of_spki(spki_der: &[u8]) -> Self {
        Self(Sha256::digest(spki_der).into())
    }

    fn of_certificate(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        Some(Self::of_spki(parsed.public_key().raw))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256/{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Not `host:port`.
    #[error("`{0}` is not host:port")]
    Address(String),
    /// Nothing answers there.
    #[error("cannot reach {server}")]
    Tcp {
        /// The server.
        server: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It does not answer in time.
    #[error("{server} did not answer within {waited_ms} ms")]
    Timeout {
        /// The server.
        server: String,
        /// How long the agent waited.
        waited_ms: u128,
    },
    /// The server proved no pinned key.
    #[error(
        "{server} has not proven a pinned key ({presented}); the token was not sent: check the address and the --pin values printed by `palisade token create`"
    )]
    Pin {
        /// The server.
        server: String,
        /// What it presented instead.
        presented: String,
    },
    /// The handshake failed.
    #[error("the TLS handshake with {server} failed: {source}")]
    Tls {
        /// The server.
        server: String,
        /// What rustls said.
        #[source]
        source: io::Error,
    },
    /// The identity cannot be used for TLS.
    #[error("the node's identity cannot be used: {0}; join again with a new token")]
    Identity(String),
    /// The HTTP/2 connection could not be set up.
    #[error("the connection to {server} could not be set up")]
    Http2 {
        /// The server.
        server: String,
        /// What tonic said.
        #[source]
        source: tonic::transport::Error,
    },
}

fn base(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, ConnectError> {
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| ConnectError::Identity(error.to_string()))
}

/// For the join: any of the pinned keys, no client certificate.
pub(crate) fn join_config(
    pins: Vec<Pin>,
) -> Result<(Arc<ClientConfig>, Arc<PinVerifier>), ConnectError> {
    let provider = Arc::new(ring::default_provider());
    let verifier =
        Arc::new(PinVerifier { pins, provider: provider.clone(), presented: Slot::default() });
    let mut config = base(provider)?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((Arc::new(config), verifier))
}

/// For sessions: the cluster's authorities, and the node's own certificate.
pub(crate) fn session_config(identity: &Identity) -> Result<Arc<ClientConfig>, ConnectError> {
    let mut roots = RootCertStore::empty();
    for der in identity.ca_der().map_err(ConnectError::Identity)? {
        roots.add(der).map_err(|error| ConnectError::Identity(error.to_string()))?;
    }
    let chain = identity.chain_der().map_err(ConnectError::Identity)?;
    let key = identity.key_der().map_err(ConnectError::Identity)?;
    let mut config = base(Arc::new(ring::default_provider()))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| ConnectError::Identity(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Connects, shakes hands, and only then hands the connection to HTTP/2.
pub(crate) async fn connect(
    rt: &dyn Runtime,
    server: &str,
    config: Arc<ClientConfig>,
    limit: Duration,
) -> Result<Channel, ConnectError> {
    match timeout(rt, limit, handshake(server, config)).await {
        None => {
            Err(ConnectError::Timeout { server: server.to_owned(), waited_ms: limit.as_millis() })
        }
        Some(stream) => channel(server, stream?).await,
    }
}

async fn handshake(
    server: &str,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let (host, port) =
        split_server(server).ok_or_else(|| ConnectError::Address(server.to_owned()))?;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| ConnectError::Address(server.to_owned()))?;
    let tcp = TcpStream::connect((host, port))
        .await
        .map_err(|source| ConnectError::Tcp { server: server.to_owned(), source })?;
    let _ = tcp.set_nodelay(true);
    TlsConnector::from(config)
        .connect(name, tcp)
        .await
        .map_err(|source| ConnectError::Tls { server: server.to_owned(), source })
}

async fn channel(server: &str, stream: TlsStream<TcpStream>) -> Result<Channel, ConnectError> {
    let http2 = |source| ConnectError::Http2 { server: server.to_owned(), source };
    let slot = Arc::new(Slot::holding(stream));
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let stream = slot.take();
        async move {
            stream
                .map(hyper_util::rt::TokioIo::new)
                .ok_or_else(|| io::Error::other("the connection was used up"))
        }
    });
    // The scheme is plain because the bytes are already inside our own TLS stream.
    Endpoint::from_shared(format!("http://{server}"))
        .map_err(http2)?
        .connect_with_connector(connector)
        .await
        .map_err(http2)
}

/// Accepts a server that presents a pinned certificate: its leaf is the pinned one, or is signed
/// through the pinned one, and is valid now. Names are not looked at: the pin is the name.
#[derive(Debug)]
pub(crate) struct PinVerifier {
    pins: Vec<Pin>,
    provider: Arc<CryptoProvider>,
    presented: Slot<String>,
}

impl PinVerifier {
    /// The pins of what the last refused server presented.
    pub(crate) fn refused(&self) -> Option<String> {
        self.presented.take()
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let pinned = |der: &CertificateDer<'_>| {
            Pin::of_certificate(der).is_some_and(|pin| self.pins.contains(&pin))
        };
        if pinned(leaf) {
            return valid_now(leaf, now);
        }
        let anchors: Vec<_> = rest.iter().filter(|der| pinned(der)).collect();
        if anchors.is_empty() {
            return Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::ApplicationVerificationFailure,
            ));
        }
        let mut roots = RootCertStore::empty();
        for anchor in anchors {
            valid_now(anchor, now)?;
            roots.add(anchor.clone().into_owned())?;
        }
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(leaf)?,
            &roots,
            rest,
            now,
            self.provider.signature_verification_algorithms.all,
        )
    }
}

impl PinVerifier {
    fn describe(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        error: &rustls::Error,
    ) -> String {
        let shown: Vec<Pin> =
            std::iter::once(leaf).chain(rest).filter_map(Pin::of_certificate).collect();
        if shown.iter().any(|pin| self.pins.contains(pin)) {
            return format!(
                "it shows the pinned certificate, but its own is not valid under it: {error}"
            );
        }
        let shown: Vec<String> = shown.iter().map(Pin::to_string).collect();
        format!("it has {}", shown.join(", "))
    }
}

fn valid_now(der: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let encoding = |_| rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
    let (_, parsed) = X509Certificate::from_der(der).map_err(encoding)?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = parsed.validity();
    if seconds < validity.not_before.timestamp() {
        return Err(rustls::CertificateError::NotValidYet.into());
    }
    if seconds > validity.not_after.timestamp() {
        return Err(rustls::CertificateError::Expired.into());
    }
    Ok(())
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.check(end_entity, intermediates, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(error) => {
                self.presented.put(self.describe(end_entity, intermediates, &error));
                Err(error)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A place for one value that is taken once.
mod parking {
    use std::sync::{Mutex, PoisonError};

    #[derive(Debug)]
    pub(super) struct Slot<T>(Mutex<Option<T>>);

    impl<T> Default for Slot<T> {
        fn default() -> Self {
            Self(Mutex::new(None))
        }
    }

    impl<T> Slot<T> {
        pub(super) fn holding(value: T) -> Self {
            Self(Mutex::new(Some(value)))
        }

        pub(super) fn put(&self, value: T) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }

        pub(super) fn take(&self) -> Option<T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pin_of_a_known_key_is_the_known_one() {
        let spki = hex::decode(
            "302a300506032b6570032100d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        )
        .unwrap();
        let text = "sha256/BuP9j9opu2CrWVV95h7bCuzbIxE0vjDnW0Vfjht5L6k=";
        assert_eq!(Pin::of_spki(&spki).to_string(), text);
        assert_eq!(Pin::parse(text).unwrap(), Pin::of_spki(&spki));
    }

    #[test]
    fn other_texts_are_no_pins() {
        for bad in ["", "sha256/", "sha256:00", "sha256/AAAA", "sha1/AAAA"] {
            assert!(Pin::parse(bad).is_err(), "{bad}");
        }
    }
}
