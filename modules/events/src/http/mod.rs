//! The real thing behind the port `webhooks`: one HTTPS request over one connection, to an address that was looked at.
//!
//! No redirect is followed, no proxy is asked, and of an answer the beginning alone is read.
#![allow(
    clippy::disallowed_methods,
    reason = "this is the edge: names and sockets are the system's"
)]

mod policy;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt,
    future::{BoxFuture, Either, ready, select},
};
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use palisade_contract::events::{Post, Posted, Webhooks};
use palisade_state::{Rt, Runtime, port::timeout};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

pub use policy::{Range, may_reach};

/// Characters of a URL.
const URL_MAX: usize = 2_048;
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 4_096;
/// How long they are waited for, once there is a status: what it says must not wait for what the receiver tells beside it.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Characters of it that are shown.
const EXCERPT_MAX: usize = 200;
/// Where systems keep the certificates that they trust.
const SYSTEM_CAS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What is wrong with the form of a URL; `None`: nothing.
#[must_use]
pub fn url_problem(text: &str) -> Option<String> {
    let shape = "must be https://HOST[:PORT]/PATH, of at most 2048 visible ASCII characters";
    if text.len() > URL_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some(shape.to_owned());
    }
    let Ok(url) = text.parse::<Uri>() else { return Some(shape.to_owned()) };
    let (Some(authority), Some(scheme)) = (url.authority(), url.scheme_str()) else {
        return Some(shape.to_owned());
    };
    if !matches!(scheme, "https" | "http") || url.host().is_none_or(str::is_empty) {
        return Some(shape.to_owned());
    }
    if authority.as_str().contains('@') {
        let why = "must hold no user and password: what is sent is signed instead, and a secret path does as well";
        return Some(why.to_owned());
    }
    if text.contains('#') {
        return Some("must have no fragment: it is not sent".to_owned());
    }
    None
}

/// What may be reached, and how servers are checked.
#[derive(Clone, Debug, Default)]
pub struct HttpsOptions {
    /// Addresses beside the public ones.
    pub allow: Vec<Range>,
    /// `http://` to loopback addresses, which must be allowed too.
    pub plain_to_loopback: bool,
    /// CA certificates that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
}

/// See the module.
pub struct Https {
    rt: Rt,
    tls: Arc<rustls::ClientConfig>,
    allow: Vec<Range>,
    plain_to_loopback: bool,
}

fn roots(options: &HttpsOptions) -> io::Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    let system = SYSTEM_CAS.iter().map(Path::new).find(|path| path.exists());
    for file in system.into_iter().chain(options.ca_file.as_deref()) {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        let text = fs::read(file).map_err(named)?;
        let found = CertificateDer::pem_slice_iter(&text).filter_map(Result::ok);
        let (added, _) = roots.add_parsable_certificates(found);
        if added == 0 {
            let why = io::Error::new(io::ErrorKind::InvalidData, "it holds no PEM certificate");
            return Err(named(why));
        }
    }
    Ok(roots)
}

impl Https {
    /// Reads which servers are trusted.
    ///
    /// # Errors
    /// A file of certificates cannot be read, or holds none.
    pub fn new(rt: Rt, options: &HttpsOptions) -> io::Result<Self> {
        let roots = roots(options)?;
        if roots.is_empty() {
            tracing::warn!(
                "this system has no CA certificates: no webhook can be sent, unless webhooks.caFile names some"
            );
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let mut tls = tls.with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            rt,
            tls: Arc::new(tls),
            allow: options.allow.clone(),
            plain_to_loopback: options.plain_to_loopback,
        })
    }

    fn may(&self, address: IpAddr, is_plain: bool) -> bool {
        may_reach(address, &self.allow) && (!is_plain || address.is_loopback())
    }

    /// `EVT-4` Those of a name's addresses that may be connected to, each by itself.
    fn allowed(&self, found: Vec<SocketAddr>, is_plain: bool) -> impl Iterator<Item = SocketAddr> {
        found.into_iter().filter(move |address| self.may(address.ip(), is_plain))
    }
}

fn refused(host: &str) -> String {
    format!(
        "{host} has no address that may be reached: private, loopback, link-local and other addresses that are not public are \
         refused unless webhooks.allow in replica.toml names their range"
    )
}

const PLAIN: &str = "http:// is not sent to: https:// is, and http:// to loopback alone where webhooks.plainToLoopback in replica.toml \
                     allows it";

impl Webhooks for Https {
    fn refuses(&self, url: &str) -> Option<String> {
        if let Some(problem) = url_problem(url) {
            return Some(problem);
        }
        let url: Uri = url.parse().ok()?;
        let is_plain = url.scheme_str() == Some("http");
        if is_plain && !self.plain_to_loopback {
            return Some(PLAIN.to_owned());
        }
        let host = host_of(&url);
        let literal: IpAddr = host.parse().ok()?;
        (!self.may(literal, is_plain)).then(|| refused(&host))
    }

    fn post(&self, post: Post) -> BoxFuture<'static, Result<Posted, String>> {
        let (rt, limit) = (self.rt.clone(), post.limit);
        let sender = Self {
            rt: self.rt.clone(),
            tls: self.tls.clone(),
            allow: self.allow.clone(),
            plain_to_loopback: self.plain_to_loopback,
        };
        Box::pin(async move {
            let sent = timeout(&*rt, limit, sender.send(post)).await;
            let answer = sent.unwrap_or_else(|| {
                Err(format!("the receiver did not answer within {} s", limit.as_secs()))
            })?;
            Ok(answer.posted(&*rt).await)
        })
    }
}

/// The host, without the brackets of IPv6.
fn host_of(url: &Uri) -> String {
    url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned()
}

impl Https {
    async fn send(self, post: Post) -> Result<Answer, String> {
        let url: Uri = post.url.parse().map_err(|_| "its URL is none".to_owned())?;
        let is_plain = match url.scheme_str() {
            Some("https") => false,
            Some("http") if self.plain_to_loopback => true,
            _ => return Err(PLAIN.to_owned()),
        };
        let stream = self.connect(&url, is_plain).await?;
        let request = request(&url, &post)?;
        if is_plain {
            return exchange(stream, request).await;
        }
        let host = host_of(&url);
        let name = ServerName::try_from(host.clone())
            .map_err(|_| format!("{host} is no name that a certificate can be for"))?;
        let connector = TlsConnector::from(self.tls.clone());
        let stream = connector.connect(name, stream).await;
        let stream = stream.map_err(|error| format!("no TLS with {host}: {error}"))?;
        exchange(stream, request).await
    }

    /// `EVT-4` Connects to one of the addresses that the name has now and that may be reached.
    async fn connect(&self, url: &Uri, is_plain: bool) -> Result<TcpStream, String> {
        let (host, port) =
            (host_of(url), url.port_u16().unwrap_or(if is_plain { 80 } else { 443 }));
        let found = tokio::net::lookup_host((host.as_str(), port)).await;
        let found: Vec<SocketAddr> =
            found.map_err(|error| format!("{host} has no address: {error}"))?.collect();
        let mut problem = refused(&host);
        for address in self.allowed(found, is_plain) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => problem = format!("cannot connect to {host} at {address}: {error}"),
            }
        }
        Err(problem)
    }
}

fn request(url: &Uri, post: &Post) -> Result<Request<Full<Bytes>>, String> {
    let target = url.path_and_query().map_or("/", |path| path.as_str());
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::post(target)
        .header(header::HOST, authority)
        .header(header::USER_AGENT, concat!("palisade/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close");
    for (name, value) in &post.headers {
        request = request.header(*name, value);
    }
    let body = Full::new(Bytes::from(post.body.clone()));
    request.body(body).map_err(|error| format!("the request cannot be made: {error}"))
}

/// The head of an answer, and the connection that its body comes over.
struct Answer {
    response: Response<Incoming>,
    connection: BoxFuture<'static, hyper::Result<()>>,
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Answer, String> {
    let failed = |error: hyper::Error| format!("the connection broke: {error}");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let head = pin!(sender.send_request(request));
    match select(head, connection.boxed()).await {
        Either::Left((response, connection)) => {
            Ok(Answer { response: response.map_err(failed)?, connection })
        }
        // It has nothing more to read: what there is of an answer is here.
        Either::Right((_, head)) => {
            let response = head.await.map_err(failed)?;
            Ok(Answer { response, connection: ready(Ok(())).boxed() })
        }
    }
}

impl Answer {
    /// Reads the beginning of the body. One that breaks off, or does not come, says no less than its status.
    async fn posted(self, rt: &dyn Runtime) -> Posted {
        let Self { response, connection } = self;
        let status = response.status();
        let retry_after = response.headers().get(header::RETRY_AFTER);
        let seconds = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let mut excerpt = vec![];
        if status != StatusCode::NO_CONTENT && !status.is_success() {
            let body = pin!(beginning(response.into_body(), &mut excerpt));
            timeout(rt, ANSWER_LIMIT, async {
                // What had come when the connection ended is there to be read.
                if let Either::Right((_, body)) = select(body, connection).await {
                    body.await;
                }
            })
            .await;
        }
        let text = String::from_utf8_lossy(&excerpt);
        let seen = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        Posted {
            status: status.as_u16(),
            retry_after: seconds.map(Duration::from_secs),
            excerpt: seen.take(EXCERPT_MAX).collect::<String>().trim().to_owned(),
        }
    }
}

async fn beginning(mut body: Incoming, read: &mut Vec<u8>) {
    while read.len() < ANSWER_MAX {
        let Some(Ok(frame)) = body.frame().await else { return };
        read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
    }
}
