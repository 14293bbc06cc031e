use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    sync::{Mutex, PoisonError},
};

use palisade_raft::backup::{BackupKey, BackupReader};
use palisade_state::{Store as _, command::FORMAT, memory::MemoryStore};

use super::*;

const SECRET: &str = "sEcReT/of+the/bucket";
const PAGE: usize = 2;

/// What goes wrong at the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// The connection ends in the middle of a body.
    Cut,
    /// It says that all is well and has kept half.
    Half,
}

/// A small S3 server, which shares no code with the client.
struct Server {
    addr: SocketAddr,
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    trouble: Mutex<Trouble>,
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

fn decoded(text: &str) -> String {
    let (mut out, mut bytes) = (vec![], text.bytes());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).unwrap()
}

fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(
            |byte| {
                if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
            },
        )
        .collect()
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

impl Request {
    fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        Some(Self { method, path: path.to_owned(), query, headers })
    }

    /// AWS Signature Version 4 of the query, by the book.
    fn is_signed(&self) -> bool {
        let of = |name: &str| self.query.get(name).cloned().unwrap_or_default();
        let query: Vec<String> = self
            .query
            .iter()
            .filter(|(name, _)| *name != "X-Amz-Signature")
            .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
            .collect();
        let signed = of("X-Amz-SignedHeaders");
        let header =
            |name: &str| format!("{name}:{}\n", self.headers.get(name).map_or("", String::as_str));
        let headers: String = signed.split(';').map(header).collect();
        let canonical = format!(
            "{}\n{}\n{}\n{headers}\n{signed}\nUNSIGNED-PAYLOAD",
            self.method,
            self.path,
            query.join("&")
        );
        let credential = of("X-Amz-Credential");
        let Some(scope) = credential.strip_prefix("the-key/") else { return false };
        let digest = hex::encode(Sha256::digest(canonical));
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{digest}", of("X-Amz-Date"));
        let first = format!("AWS4{SECRET}").into_bytes();
        let key = scope.split('/').fold(first, |key, part| hmac(&key, part.as_bytes()).to_vec());
        of("X-Amz-Signature") == hex::encode(hmac(&key, text.as_bytes()))
    }
}

impl Server {
    fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Arc::new(Self {
            addr: listener.local_addr().unwrap(),
            objects: Mutex::default(),
            trouble: Mutex::new(Trouble::Nothing),
        });
        let serving = server.clone();
        edge::thread(move || {
            for connection in listener.incoming().flatten() {
                let server = serving.clone();
                edge::thread(move || server.serve(connection));
            }
        });
        server
    }

    fn serve(&self, mut connection: TcpStream) {
        let mut reader = BufReader::new(connection.try_clone().unwrap());
        while let Some(request) = Request::read(&mut reader) {
            let length = request.headers.get("content-length").map_or("0", String::as_str);
            let mut body = vec![0; length.parse().unwrap()];
            if request.method == "PUT" && *held(&self.trouble) == Trouble::Cut {
                let half = body.len() / 2;
                reader.read_exact(&mut body[..half]).unwrap();
                return;
            }
            if reader.read_exact(&mut body).is_err() {
                return;
            }
            let (status, text) = self.answer(&request, body);
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{text}", text.len());
            if connection.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request, mut body: Vec<u8>) -> (&'static str, String) {
        let error = |code: &str| {
            let quoted = request.query.get("X-Amz-Credential").cloned().unwrap_or_default();
            format!("<Error><Code>{code}</Code><Message>you sent {quoted}</Message></Error>")
        };
        if !request.is_signed() {
            return ("403 Forbidden", error("SignatureDoesNotMatch"));
        }
        let path = decoded(&request.path);
        let Some(key) = path.strip_prefix("/kept") else {
            return ("404 Not Found", error("NoSuchBucket"));
        };
        let key = key.trim_start_matches('/').to_owned();
        let mut objects = held(&self.objects);
        match request.method.as_str() {
            "PUT" => {
                let sum = STANDARD.encode(Sha256::digest(&body));
                if request.headers.get("x-amz-checksum-sha256") != Some(&sum) {
                    return ("400 Bad Request", error("BadDigest"));
                }
                if *held(&self.trouble) == Trouble::Half {
                    body.truncate(body.len() / 2);
                }
                objects.insert(key, body);
                ("200 OK", String::new())
            }
            "DELETE" => {
                objects.remove(&key);
                ("204 No Content", String::new())
            }
            _ => ("200 OK", listing(&objects, &request.query)),
        }
    }
}

fn listing(objects: &BTreeMap<String, Vec<u8>>, query: &BTreeMap<String, String>) -> String {
    let of = |name: &str| query.get(name).cloned().unwrap_or_default();
    let (prefix, after) = (of("prefix"), of("continuation-token"));
    let rest: Vec<_> = objects
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix) && **key > after)
        .take(PAGE + 1)
        .collect();
    let content = |(key, body): &(&String, &Vec<u8>)| {
        let (key, size) = (encoded(key), body.len());
        format!("<Contents><Key>{key}</Key><Size>{size}</Size></Contents>")
    };
    let page: String = rest.iter().take(PAGE).map(content).collect();
    let more = match rest.len() > PAGE {
        true => format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
            rest[PAGE - 1].0
        ),
        false => "<IsTruncated>false</IsTruncated>".to_owned(),
    };
    let space = "http://s3.amazonaws.com/doc/2006-03-01/";
    format!(
        "<ListBucketResult xmlns=\"{space}\">{page}{more}<EncodingType>url</EncodingType></ListBucketResult>"
    )
}

struct World {
    home: tempfile::TempDir,
    server: Arc<Server>,
    config: S3Config,
}

impl World {
    fn new() -> Self {
        let (home, server) = (tempfile::tempdir().unwrap(), Server::start());
        let file = home.path().join("s3.toml");
        let config = S3Config {
            endpoint: format!("http://{}", server.addr),
            bucket: "kept".into(),
            region: "eu-1".into(),
            prefix: "prod/".into(),
            credentials_file: Some(file),
            ca_file: None,
        };
        let world = Self { home, server, config };
        world.credentials(SECRET, 0o600);
        world
    }

    fn credentials(&self, secret: &str, mode: u32) {
        let text = format!("accessKeyId = \"the-key\"\nsecretAccessKey = \"{secret}\"\n");
        let file = self.config.credentials_file.clone().unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn scratch(&self) -> PathBuf {
        self.home.path().join("scratch.backup")
    }

    async fn write_to(&self, config: &S3Config, created_ms: u64) -> Result<(String, Info)> {
        let done = write_one(config, 2, self.scratch(), head(created_ms), view()).await;
        assert!(!self.scratch().exists(), "nothing is left here");
        done
    }

    async fn write(&self, created_ms: u64) -> Result<(String, Info)> {
        self.write_to(&self.config, created_ms).await
    }

    fn keys(&self) -> Vec<String> {
        held(&self.server.objects).keys().cloned().collect()
    }

    /// What a failure says; nothing of it is secret.
    #[track_caller]
    fn said(failed: Result<(String, Info)>) -> String {
        let text = crate::output::failure::chain(&failed.unwrap_err());
        for secret in [SECRET, "the-key", "X-Amz", "Signature="] {
            assert!(!text.contains(secret), "S3-1: {text}");
        }
        text
    }
}

fn view() -> View {
    MemoryStore::default().view()
}

fn head(created_ms: u64) -> BackupHead {
    let view = view();
    let formation = view.formation().unwrap();
    let lineage = formation.lineage.clone();
    BackupHead {
        cluster: formation.cluster.clone(),
        ca_key: BackupKey::new([7; 32]).seal(&lineage, "key", [1; 12]).unwrap(),
        secret_keys: vec![],
        next_ca: vec![],
        lineage,
        epoch: formation.epoch,
        term: 0,
        index: 0,
        revision: 0,
        created_ms,
        palisade: "0".into(),
        entry_format: FORMAT,
        tables: Default::default(),
        members: vec![],
        ca_pem: "ca".into(),
    }
}

#[tokio::test]
async fn backups_go_up_whole_and_only_the_newest_few_of_this_lineage_are_kept() {
    let world = World::new();
    let lineage = head(0).lineage;
    let others = ["prod/precious", "prod/other-20260101T000000000Z.backup", "elsewhere"];
    for other in others {
        held(&world.server.objects).insert(other.to_owned(), b"x".to_vec());
    }
    for created_ms in [1_700_000_000_000, 1_700_000_001_000, 1_700_000_002_000, 1_700_000_003_000] {
        let (file, info) = world.write(created_ms).await.unwrap();
        assert_eq!(file, format!("s3://kept/prod/{}", file_name(&lineage, created_ms)));
        assert_eq!(info.head.created_ms, created_ms);
    }
    let keys = world.keys();
    let ours: Vec<_> = keys.iter().filter(|key| key.contains(&lineage)).cloned().collect();
    let name = |ms| format!("prod/{}", file_name(&lineage, ms));
    assert_eq!(ours, [name(1_700_000_002_000), name(1_700_000_003_000)], "SCHED-1");
    assert!(others.iter().all(|other| keys.contains(&(*other).to_owned())), "{keys:?}");
    let got = world.home.path().join("got.backup");
    fs::write(&got, &held(&world.server.objects)[&ours[1]]).unwrap();
    assert_eq!(BackupReader::open(&got).unwrap().info().head.lineage, lineage);
}

#[tokio::test]
async fn whatever_goes_wrong_is_said_and_leaves_no_half_backup() {
    let world = World::new();
    let good = world.write(1_700_000_000_000).await.unwrap().0;
    let kept = world.keys();
    assert_eq!(kept.len(), 1, "{good}");

    world.credentials("wrong", 0o600);
    let said = World::said(world.write(1_700_000_001_000).await);
    assert!(said.contains("403 SignatureDoesNotMatch") && said.contains("put an object"), "{said}");
    world.credentials(SECRET, 0o600);

    let no_bucket = S3Config { bucket: "missing".into(), ..world.config.clone() };
    let said = World::said(world.write_to(&no_bucket, 1_700_000_001_000).await);
    assert!(said.contains("404 NoSuchBucket") && said.contains("bucket missing"), "{said}");

    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let nobody = S3Config { endpoint: nobody, ..world.config.clone() };
    let said = World::said(world.write_to(&nobody, 1_700_000_001_000).await);
    assert!(said.to_lowercase().contains("refused"), "{said}");

    for (trouble, word) in
        [(Trouble::Cut, "cannot put an object"), (Trouble::Half, "the server lists")]
    {
        *held(&world.server.trouble) = trouble;
        let said = World::said(world.write(1_700_000_001_000).await);
        assert!(said.contains(word), "{said}");
        assert_eq!(world.keys(), kept, "S3-2: the good one stays, and no other comes");
    }
    *held(&world.server.trouble) = Trouble::Nothing;
    world.write(1_700_000_001_000).await.unwrap();
    assert_eq!(world.keys().len(), 2);
}

#[tokio::test]
async fn credentials_are_not_read_where_others_can_and_never_shown() {
    let world = World::new();
    world.credentials(SECRET, 0o644);
    let said = World::said(world.write(1_700_000_000_000).await);
    assert!(said.contains("mode 0644"), "{said}");
    world.credentials(&format!("{SECRET}\" = \""), 0o600);
    let said = World::said(world.write(1_700_000_000_000).await);
    assert!(said.contains("s3.toml needs accessKeyId"), "{said}");
    world.credentials(SECRET, 0o600);
    for endpoint in ["ftp://x", "no url", &format!("http://me:{}@x", "sEcReT")] {
        let bad = S3Config { endpoint: endpoint.to_owned(), ..world.config.clone() };
        let said = World::said(world.write_to(&bad, 1_700_000_000_000).await);
        assert!(said.contains("the endpoint in [backup.s3]") && !said.contains("sEcReT"), "{said}");
    }
    assert_eq!(world.keys(), Vec::<String>::new());
}
