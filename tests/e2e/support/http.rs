//! The tests' own HTTP/1.1 client, one connection for each request: it shares no code with the
//! product's, so that an error in one does not hide in the other.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const READ_LIMIT: Duration = Duration::from_secs(15);
/// Where the methods live.
pub const BASE: &str = "/api/compute";

pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// An answer, whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    #[expect(dead_code, reason = "a failed assertion shows it")]
    pub head: String,
    pub body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let cut = || io::Error::new(ErrorKind::UnexpectedEof, "the answer is not whole");
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(cut)?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut body = &bytes[end + 4..];
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(cut)?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        if let Some(length) = length {
            body = body.get(..length).ok_or_else(cut)?;
        }
        Ok(Self { status, head, body: String::from_utf8_lossy(body).into_owned() })
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// The code of a problem.
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        super::text(&body, "/code").to_owned()
    }

    /// The record, which must be there.
    #[track_caller]
    pub fn done(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:#?}");
        self.json()
    }
}

/// A cluster's API, as one principal.
#[derive(Clone)]
pub struct Api {
    /// `host:port` of each replica.
    pub addrs: Vec<String>,
    pub token: String,
    pub tls: Arc<ClientConfig>,
}

impl Api {
    /// The one that a context file leads to.
    pub fn of_context(path: &Path) -> Self {
        let file: toml::Value = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let context = &file["context"][0];
        let addrs = context["addrs"].as_array().unwrap().iter();
        let addrs = addrs.map(|addr| addr.as_str().unwrap().trim_start_matches("https://").into());
        Self {
            addrs: addrs.collect(),
            token: context["token"].as_str().unwrap().into(),
            tls: tls(context["ca_pem"].as_str().unwrap(), None),
        }
    }

    pub fn connect(&self, replica: usize) -> io::Result<Tls> {
        connect(&self.addrs[replica], &self.tls)
    }

    /// One request to one replica, once.
    pub fn send(
        &self,
        replica: usize,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n",
            self.addrs[replica], self.token
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            ));
        }
        head.push_str("\r\n");
        let mut stream = self.connect(replica)?;
        // Who refuses early closes early; what it said is read all the same.
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body))
            .and_then(|()| stream.flush());
        let answer = Answer::parse(&read_all(&mut stream)?);
        if answer.is_err() {
            sent?;
        }
        answer
    }

    /// A read by whoever its certificate says.
    pub fn get_by_certificate(&self, replica: usize, path: &str) -> io::Result<Answer> {
        self.by_certificate(replica, "GET", path, "")
    }

    /// A request of whoever its certificate says.
    pub fn by_certificate(
        &self,
        replica: usize,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<Answer> {
        let host = &self.addrs[replica];
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        if !body.is_empty() {
            let length = body.len();
            head.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {length}\r\n"
            ));
        }
        let mut stream = self.connect(replica)?;
        stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
        stream.flush()?;
        Answer::parse(&read_all(&mut stream)?)
    }

    pub fn get(&self, replica: usize, path: &str) -> io::Result<Answer> {
        self.send(replica, "GET", path, &[], b"")
    }

    pub fn post(&self, replica: usize, path: &str, key: &str, body: &Value) -> io::Result<Answer> {
        let body = body.to_string();
        self.send(replica, "POST", path, &[("Idempotency-Key", key)], body.as_bytes())
    }

    /// All records of a list, page by page.
    #[track_caller]
    pub fn list(&self, replica: usize, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut url = format!("{BASE}{path}?limit=500");
            if !cursor.is_empty() {
                url.push_str(&format!("&cursor={cursor}"));
            }
            let page = self.get(replica, &url).unwrap().done();
            items.extend_from_slice(super::list(&page, "/items"));
            cursor = super::text(&page, "/nextCursor").to_owned();
            if cursor.is_empty() {
                return items;
            }
        }
    }

    pub fn is_ready(&self, replica: usize) -> bool {
        self.get(replica, "/readyz").is_ok_and(|answer| answer.status == 200)
    }
}

/// A client's configuration; `identity` holds a certificate chain and its key, in PEM.
pub fn tls(ca_pem: &str, identity: Option<(&str, &str)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
            let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

/// Connects and shakes hands.
pub fn connect(addr: &str, tls: &Arc<ClientConfig>) -> io::Result<Tls> {
    let addr: SocketAddr = addr.parse().map_err(io::Error::other)?;
    let mut tcp = TcpStream::connect_timeout(&addr, CONNECT_LIMIT)?;
    tcp.set_read_timeout(Some(READ_LIMIT))?;
    tcp.set_write_timeout(Some(READ_LIMIT))?;
    tcp.set_nodelay(true)?;
    let name = ServerName::from(addr.ip());
    let mut connection = ClientConnection::new(tls.clone(), name).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut tcp)?;
    }
    Ok(StreamOwned::new(connection, tcp))
}

/// Reads until the other side closes, also without a farewell.
pub fn read_all(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if bytes.is_empty() => Err(error),
        _ => Ok(bytes),
    }
}

/// A GET without TLS, as an instance answers it.
pub fn plain_get(addr: &str, path: &str) -> io::Result<Answer> {
    let addr: SocketAddr = addr.parse().map_err(io::Error::other)?;
    let mut tcp = TcpStream::connect_timeout(&addr, CONNECT_LIMIT)?;
    tcp.set_read_timeout(Some(READ_LIMIT))?;
    tcp.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    Answer::parse(&read_all(&mut tcp)?)
}
