//! Events that reach a receiver over HTTPS, signed, although it fails at first and replicas die.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use palisade_api::pki::Authority;
use palisade_events::signature::{SigningKey, header};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::Value;

use crate::support::{Replicas, Slot, number, text, until};

/// A request that came.
#[derive(Clone, Debug)]
struct Got {
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
    answered: u16,
}

impl Got {
    fn event(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn subject(&self) -> String {
        text(&self.event(), "/subject").to_owned()
    }

    fn is_signed_with(&self, secret: &str) -> bool {
        let key = SigningKey::parse(secret.as_bytes()).unwrap();
        let at = self.headers["webhook-timestamp"].parse().unwrap();
        let expected = header(&[key], &self.headers["webhook-id"], at, &self.body);
        self.headers["webhook-signature"].split(' ').any(|one| one == expected)
    }
}

/// An HTTPS receiver on loopback with a CA of its own.
struct Receiver {
    port: u16,
    ca_pem: String,
    got: Arc<Mutex<Vec<Got>>>,
    status: Arc<Mutex<u16>>,
}

fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

impl Receiver {
    fn start() -> Self {
        let authority = Authority::create("receivers", wall_ms()).unwrap();
        let issued = authority.issue_replica(1, &["127.0.0.1:1".to_owned()], wall_ms()).unwrap();
        let chain = CertificateDer::pem_slice_iter(issued.cert_pem.as_bytes());
        let chain: Vec<_> = chain.map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key);
        let (tls, listener) = (Arc::new(tls.unwrap()), TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        let (got, status) = (Arc::<Mutex<Vec<Got>>>::default(), Arc::new(Mutex::new(204)));
        let (noted, answers) = (got.clone(), status.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                let mut stream =
                    StreamOwned::new(ServerConnection::new(tls.clone()).unwrap(), stream);
                let status = *answers.lock().unwrap();
                // Whoever only connects, or dies meanwhile, has asked for nothing.
                let Some((headers, body)) = request(&mut stream) else { continue };
                noted.lock().unwrap().push(Got { headers, body, answered: status });
                let _ = write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Self { port, ca_pem: issued.cert_pem, got, status }
    }

    fn answer(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// Waits for an accepted request about a subject.
    fn accepted(&self, subject: &str) -> Got {
        until(&format!("an event about {subject}"), || {
            self.got().into_iter().find(|got| got.answered < 300 && got.subject() == subject)
        })
    }
}

fn request(stream: &mut impl Read) -> Option<(BTreeMap<String, String>, Vec<u8>)> {
    let mut bytes = vec![];
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let lines = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let headers: BTreeMap<String, String> =
            lines.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        let length: usize = headers.get("content-length")?.parse().ok()?;
        let mut body = bytes.split_off(end + 4);
        while body.len() < length {
            let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
            body.extend_from_slice(&buffer[..read]);
        }
        return Some((headers, body));
    }
}

fn settings(cluster: &Replicas, receiver: &Receiver, count: usize) {
    let ca = cluster.home.write("receiver-ca.pem", &receiver.ca_pem);
    for index in 0..count {
        let file = cluster.dir(index).join("replica.toml");
        let text = fs::read_to_string(&file).unwrap();
        let ours = format!("\n[webhooks]\nallow = [\"127.0.0.0/8\"]\ncaFile = {ca:?}\n");
        fs::write(&file, text + &ours).unwrap();
    }
}

fn token(cluster: &Replicas, name: &str) -> String {
    let out = cluster.home.palisade(&["-o", "json", "tenant", "create", name]).ok();
    assert!(out.code == 0);
    format!("tenant/{name}")
}

#[test]
fn events_reach_a_receiver_signed_although_it_fails_and_a_replica_dies() {
    let receiver = Receiver::start();
    let mut cluster = Replicas::prepare(3, Some(Slot::take()));
    settings(&cluster, &receiver, 3);
    cluster.start_all();
    let url = format!("https://127.0.0.1:{}/hook", receiver.port);
    let create = ["subscription", "create", "pager", "--url", &url, "--type", "tenant"];
    // The first key of secrets comes a few seconds after the cluster.
    let secret = until("a subscription", || {
        let made = cluster.home.palisade(&create);
        (made.code == 0).then(|| made.stdout.trim().to_owned())
    });
    assert!(secret.starts_with("whsec_"), "it is shown this once");
    let shown = cluster.home.palisade(&["-o", "json", "subscription", "show", "pager"]).ok().stdout;
    assert!(!shown.contains(&secret), "SEC-1");
    let first = receiver.accepted(&token(&cluster, "acme"));
    assert!(first.is_signed_with(&secret), "EVT-1");
    assert_eq!(first.headers["content-type"], "application/cloudevents+json");
    assert_eq!(text(&first.event(), "/type"), "tenant.created");
    assert_eq!(text(&first.event(), "/id"), first.headers["webhook-id"]);

    receiver.answer(503);
    let subject = token(&cluster, "beta");
    until("a failed attempt", || receiver.got().into_iter().find(|got| got.subject() == subject));
    let waits = until("what waits", || {
        let list = cluster.home.palisade(&["-o", "json", "subscription", "deliveries", "pager"]);
        list.json().as_array()?.first().cloned()
    });
    assert!(number(&waits, "/attempts") >= 1 && text(&waits, "/error").contains("503"), "{waits}");
    receiver.answer(204);
    cluster.kill(cluster.leader(0));
    let again = receiver.accepted(&subject);
    let attempts = receiver.got().into_iter().filter(|got| got.subject() == subject);
    assert!(
        attempts.into_iter().all(|got| got.headers["webhook-id"] == again.headers["webhook-id"]),
        "EVT-1"
    );
    rotated(&cluster, &receiver, &secret);
}

/// Another secret signs, and for a while the one before too.
fn rotated(cluster: &Replicas, receiver: &Receiver, before: &str) {
    let rotate = ["subscription", "rotate", "pager", "--overlap", "1h"];
    let secret = cluster.home.palisade(&rotate).ok().stdout.trim().to_owned();
    let got = receiver.accepted(&token(cluster, "gamma"));
    assert!(got.is_signed_with(&secret) && got.is_signed_with(before), "EVT-1");
    cluster.home.palisade(&["subscription", "rm", "pager"]).ok();
    let left = cluster.home.palisade(&["-o", "json", "secret", "ls"]).json();
    assert_eq!(left.as_array().map(Vec::len), Some(0), "its secrets went with it: {left}");
}

#[test]
fn an_address_that_is_not_public_is_refused_where_the_settings_do_not_name_it() {
    let cluster = Replicas::start(1);
    for url in
        ["https://127.0.0.1:1/", "https://169.254.169.254/latest/meta-data", "http://pager.test/"]
    {
        let create = ["subscription", "create", "pager", "--url", url];
        cluster.home.palisade(&create).ends(2).says(&["/url", "webhooks."]);
    }
}
