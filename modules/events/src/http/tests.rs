//! Against real sockets on loopback.

use std::sync::Mutex;

use palisade_state::Runtime;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::*;

/// The system's time; with `true`, what is waited for the rest of a body has passed at once.
struct Tokio(bool);

impl Runtime for Tokio {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if self.0 && duration == ANSWER_LIMIT {
            return ready(()).boxed();
        }
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }

    fn random(&self) -> u64 {
        0
    }
}

/// A receiver on loopback that answers every request with the same bytes.
struct Receiver {
    port: u16,
    ca: tempfile::NamedTempFile,
    heads: Arc<Mutex<Vec<String>>>,
    /// Its answer never ends.
    is_endless: bool,
}

const ENDLESS: &str = "and then nothing";

impl Receiver {
    async fn start(answer: &'static str) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let ca = tempfile::NamedTempFile::new().unwrap();
        fs::write(ca.path(), made.cert.pem()).unwrap();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let noted = heads.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut head = vec![0; 4096];
                let read = stream.read(&mut head).await.unwrap_or(0);
                noted.lock().unwrap().push(String::from_utf8_lossy(&head[..read]).into_owned());
                if answer == "never" {
                    std::mem::forget(stream);
                    continue;
                }
                let _ = stream.write_all(answer.as_bytes()).await;
                if answer.ends_with(ENDLESS) {
                    std::mem::forget(stream);
                    continue;
                }
                let _ = stream.shutdown().await;
            }
        });
        Self { port, ca, heads, is_endless: answer.ends_with(ENDLESS) }
    }

    fn sender(&self, allow: &[&str]) -> Https {
        let options = HttpsOptions {
            allow: allow.iter().map(|range| range.parse().unwrap()).collect(),
            plain_to_loopback: false,
            ca_file: Some(self.ca.path().to_owned()),
        };
        Https::new(Arc::new(Tokio(self.is_endless)), &options).unwrap()
    }

    async fn post(&self, allow: &[&str], limit: Duration) -> Result<Posted, String> {
        let headers = vec![("webhook-id", "msg_1".to_owned())];
        let url = format!("https://localhost:{}/hook?a=b", self.port);
        self.sender(allow).post(Post { url, headers, body: b"{}".to_vec(), limit }).await
    }
}

const LOOPBACK: &[&str] = &["127.0.0.0/8", "::1/128"];
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_request_arrives_over_tls_and_its_answer_is_read() {
    let receiver = Receiver::start("HTTP/1.1 204 No Content\r\n\r\n").await;
    let posted = receiver.post(LOOPBACK, LONG).await.unwrap();
    assert_eq!((posted.status, posted.retry_after), (204, None));
    let heads = receiver.heads.lock().unwrap();
    let head = heads[0].to_lowercase();
    assert!(head.starts_with("post /hook?a=b http/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: localhost:{}\r\n", receiver.port)), "{head}");
    assert!(head.contains("webhook-id: msg_1\r\n"), "{head}");
}

#[tokio::test]
async fn a_name_of_an_address_that_is_not_public_is_not_connected_to() {
    let receiver = Receiver::start("HTTP/1.1 204 No Content\r\n\r\n").await;
    let refused = receiver.post(&["10.0.0.0/8"], LONG).await.unwrap_err();
    assert!(refused.contains("webhooks.allow"), "EVT-4: {refused}");
    assert!(receiver.heads.lock().unwrap().is_empty(), "EVT-4");
    let sender = receiver.sender(&[]);
    for literal in [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://[::ffff:10.0.0.1]/",
    ] {
        assert!(sender.refuses(literal).is_some(), "EVT-4: {literal}");
    }
    assert_eq!(sender.refuses("https://1.1.1.1/"), None);
}

#[tokio::test]
async fn of_a_names_addresses_each_is_looked_at() {
    let receiver = Receiver::start("").await;
    let sender = receiver.sender(&["10.0.0.0/8"]);
    let address = |text: &str| format!("{text}:443").parse::<SocketAddr>().unwrap();
    let allowed = |found: &[&str], is_plain| {
        let found = found.iter().map(|text| address(text)).collect();
        sender.allowed(found, is_plain).collect::<Vec<_>>()
    };
    let found = ["1.1.1.1", "127.0.0.1", "10.1.2.3", "[::1]", "[2606:4700::1111]"];
    let wanted = [found[0], found[2], found[4]].map(address);
    assert_eq!(allowed(&found, false), wanted, "EVT-4");
    assert_eq!(allowed(&["127.0.0.1", "1.1.1.1"], false), [address("1.1.1.1")], "EVT-4");
    assert_eq!(allowed(&found, true), [], "EVT-4");
}

#[tokio::test]
async fn a_server_that_is_not_trusted_gets_nothing() {
    let (receiver, other) =
        (Receiver::start("HTTP/1.1 204 No Content\r\n\r\n").await, Receiver::start("").await);
    let url = format!("https://localhost:{}/", receiver.port);
    let post = Post { url, headers: vec![], body: vec![], limit: LONG };
    let refused = other.sender(LOOPBACK).post(post).await.unwrap_err();
    assert!(refused.contains("no TLS with localhost"), "{refused}");
    assert!(receiver.heads.lock().unwrap().is_empty());
}

#[tokio::test]
async fn no_redirect_is_followed_and_of_an_answer_the_beginning_is_shown() {
    let moved = Receiver::start(
        "HTTP/1.1 302 Found\r\nlocation: https://localhost/\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    assert_eq!(moved.post(LOOPBACK, LONG).await.unwrap().status, 302);
    assert_eq!(moved.heads.lock().unwrap().len(), 1);
    let busy = Receiver::start(
        "HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 99999\r\n\r\nslow\ndown",
    )
    .await;
    let posted = busy.post(LOOPBACK, LONG).await.unwrap();
    assert_eq!((posted.status, posted.retry_after), (429, Some(Duration::from_secs(7))));
    assert_eq!(posted.excerpt, "slow down");
}

#[tokio::test]
async fn an_answer_that_does_not_come_or_is_none_is_a_failure() {
    let silent = Receiver::start("never").await;
    let refused = silent.post(LOOPBACK, Duration::from_millis(200)).await.unwrap_err();
    assert!(refused.contains("did not answer within"), "{refused}");
    let broken = Receiver::start("SMTP ready\r\n").await;
    let refused = broken.post(LOOPBACK, LONG).await.unwrap_err();
    assert!(refused.contains("the connection broke"), "{refused}");
}

#[tokio::test]
async fn a_status_counts_although_its_body_does_not_end() {
    for answer in [
        "HTTP/1.1 410 Gone\r\ncontent-length: 99999\r\n\r\nand then nothing",
        "HTTP/1.1 429 Slow\r\nretry-after: 7\r\ntransfer-encoding: chunked\r\n\r\n10\r\nand then nothing",
    ] {
        let receiver = Receiver::start(answer).await;
        let posted = receiver.post(LOOPBACK, LONG).await.unwrap();
        assert!(answer.contains(&posted.status.to_string()), "{posted:?}");
        assert_eq!(posted.retry_after.is_some(), posted.status == 429);
    }
}

#[tokio::test]
async fn plain_http_is_for_loopback_alone_and_only_where_it_is_allowed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    });
    let sender = |plain_to_loopback, allow: &[&str]| {
        let allow = allow.iter().map(|range| range.parse().unwrap()).collect();
        Https::new(
            Arc::new(Tokio(false)),
            &HttpsOptions { allow, plain_to_loopback, ca_file: None },
        )
        .unwrap()
    };
    let url = format!("http://localhost:{port}/");
    let post = || Post { url: url.clone(), headers: vec![], body: vec![], limit: LONG };
    assert!(sender(false, LOOPBACK).refuses(&url).is_some());
    assert!(sender(false, LOOPBACK).post(post()).await.is_err());
    assert!(sender(true, &["0.0.0.0/0"]).refuses("http://10.0.0.1/").is_some());
    assert_eq!(sender(true, LOOPBACK).post(post()).await.unwrap().status, 200);
}

#[test]
fn urls_are_looked_at() {
    for good in [
        "https://a.test",
        "https://a.test:8443/x?y=z",
        "https://[2606:4700::1]/",
        "http://localhost:1/",
    ] {
        assert_eq!(url_problem(good), None, "{good}");
    }
    for wrong in [
        "",
        "a.test",
        "/x",
        "ftp://a.test/",
        "https://",
        "https://u:p@a.test/",
        "https://a.test/#x",
        "https://a b/",
    ] {
        assert!(url_problem(wrong).is_some(), "{wrong}");
    }
    assert!(url_problem(&format!("https://a.test/{}", "x".repeat(3000))).is_some());
}
