//! Backups in an S3 bucket: signed, sent, checked, and removed again.
//!
//! # Invariants
//! - `S3-1` No secret and no signed URL gets into an error, a log or the state.
//! - `S3-2` An object counts as a backup only when the server vouches for all of it: it is sent under its SHA-256, which
//!   is signed, and must be listed with its length.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use palisade_raft::backup::{BackupHead, Info, write_backup};
use palisade_state::View;
use reqwest::{Method, Url, header::CONTENT_LENGTH};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rusty_s3::{Bucket, BucketError, Credentials, S3Action, UrlStyle, actions::ListObjectsV2};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::schedule::{END, file_name, is_scheduled};
use crate::{edge, replica_dir::S3Config};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long the server may be silent.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// How long one upload may take.
const UPLOAD_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// How long a signature is good; the clocks may differ.
const SIGNED_FOR: Duration = Duration::from_secs(900);
const CHUNK: usize = 1 << 20;
const WAITING_MAX: usize = 4;
/// So much of a refusal is read.
const REFUSAL_MAX: usize = 64 << 10;
/// Where the system keeps the certificates of public CAs.
const SYSTEM_CAS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Why a backup did not get into its bucket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum S3Error {
    /// The endpoint is no URL, or holds a password; it is not shown.
    #[error("the endpoint in [backup.s3] must be an http or https URL without user and password")]
    Endpoint,
    /// Nobody says who asks.
    #[error(
        "there are no S3 credentials: set credentialsFile in [backup.s3], or AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY in the replica's environment"
    )]
    NoCredentials,
    /// Others may read the credentials.
    #[error("{} has mode {mode:04o}: others can read the secret in it", file.display())]
    Exposed {
        /// The file.
        file: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The credentials cannot be understood. What is there is not shown.
    #[error("{} needs accessKeyId and secretAccessKey, as texts, and at most a sessionToken", file.display())]
    Credentials {
        /// The file.
        file: PathBuf,
    },
    /// No CA is known.
    #[error("no CA certificate is found to check {endpoint} by: set caFile in [backup.s3]")]
    NoCa {
        /// The endpoint.
        endpoint: String,
    },
    /// The client cannot be made.
    #[error("cannot make an HTTP client: {0}")]
    Client(String),
    /// The server was not reached, or the connection broke.
    #[error("cannot {op} in {place}")]
    Send {
        /// What was tried.
        op: &'static str,
        /// Endpoint and bucket.
        place: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// It took too long.
    #[error("cannot {op} in {place}: it took longer than {} s", limit.as_secs())]
    Slow {
        /// What was tried.
        op: &'static str,
        /// Endpoint and bucket.
        place: String,
        /// How long it may take.
        limit: Duration,
    },
    /// The server said no.
    #[error("cannot {op} in {place}: the server answers {status} {code}")]
    Refused {
        /// What was tried.
        op: &'static str,
        /// Endpoint and bucket.
        place: String,
        /// The HTTP status.
        status: u16,
        /// The S3 error code.
        code: String,
    },
    /// The listing cannot be read.
    #[error("the list of objects in {place} cannot be read: {why}")]
    List {
        /// Endpoint and bucket.
        place: String,
        /// Why.
        why: String,
    },
    /// Not all of it is there.
    #[error("{object} was sent with {sent} bytes, and the server lists {found}")]
    NotWhole {
        /// The object.
        object: String,
        /// How long it is.
        sent: u64,
        /// What the server has.
        found: String,
    },
    /// The backup itself.
    #[error(transparent)]
    Backup(#[from] palisade_raft::backup::BackupError),
    /// A file here.
    #[error("cannot {op} {}", file.display())]
    File {
        /// What was tried.
        op: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A thread here.
    #[error("a thread that prepares it panicked")]
    Panicked,
}

type Result<T> = std::result::Result<T, S3Error>;

fn file_error(op: &'static str, file: &Path) -> impl FnOnce(io::Error) -> S3Error {
    move |source| S3Error::File { op, file: file.to_owned(), source }
}

/// The file that `credentialsFile` names.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CredentialsFile {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

fn credentials(config: &S3Config) -> Result<Credentials> {
    let Some(file) = &config.credentials_file else {
        return Credentials::from_env().ok_or(S3Error::NoCredentials);
    };
    let mode = fs::metadata(file).map_err(file_error("read", file))?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(S3Error::Exposed { file: file.clone(), mode });
    }
    let text = fs::read_to_string(file).map_err(file_error("read", file))?;
    // `S3-1`: a parser's complaint quotes the line.
    let parsed: CredentialsFile =
        toml::from_str(&text).map_err(|_| S3Error::Credentials { file: file.clone() })?;
    let CredentialsFile { access_key_id, secret_access_key, session_token } = parsed;
    Ok(match session_token {
        Some(token) => Credentials::new_with_token(access_key_id, secret_access_key, token),
        None => Credentials::new(access_key_id, secret_access_key),
    })
}

fn tls(config: &S3Config) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let system = SYSTEM_CAS.iter().map(PathBuf::from).find(|path| path.exists());
    if let Some(file) = config.ca_file.clone().or(system) {
        let text = fs::read(&file).map_err(file_error("read", &file))?;
        let found = CertificateDer::pem_slice_iter(&text).filter_map(std::result::Result::ok);
        roots.add_parsable_certificates(found);
    }
    if roots.is_empty() && config.endpoint.starts_with("https:") {
        return Err(S3Error::NoCa { endpoint: config.endpoint.clone() });
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut made = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| S3Error::Client(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    made.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(made)
}

/// A bucket, and who asks.
struct Store {
    http: reqwest::Client,
    bucket: Bucket,
    credentials: Credentials,
    prefix: String,
    /// For people.
    place: String,
}

impl Store {
    fn open(config: &S3Config) -> Result<Self> {
        let endpoint: Url = config.endpoint.parse().map_err(|_| S3Error::Endpoint)?;
        if !endpoint.username().is_empty() || endpoint.password().is_some() {
            return Err(S3Error::Endpoint);
        }
        let (name, region) = (config.bucket.clone(), config.region.clone());
        let bucket = Bucket::new(endpoint, UrlStyle::Path, name, region);
        let bucket = bucket.map_err(|_: BucketError| S3Error::Endpoint)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(config)?)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(SILENCE_LIMIT)
            .user_agent(concat!("palisade/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| S3Error::Client(error.without_url().to_string()))?;
        Ok(Self {
            http,
            bucket,
            credentials: credentials(config)?,
            prefix: config.prefix.clone(),
            place: format!("bucket {} at {}", config.bucket, config.endpoint),
        })
    }

    /// Sends a signed request; its answer's body.
    async fn send(
        &self,
        op: &'static str,
        limit: Duration,
        request: reqwest::RequestBuilder,
    ) -> Result<String> {
        let place = || self.place.clone();
        // `S3-1`
        let failed = |error: reqwest::Error| S3Error::Send {
            op,
            place: place(),
            source: error.without_url(),
        };
        let whole = async {
            let response = request.send().await.map_err(failed)?;
            let status = response.status();
            let body = response.text().await;
            if status.is_success() {
                return body.map_err(failed);
            }
            let code = code_of(&body.unwrap_or_default());
            Err(S3Error::Refused { op, place: place(), status: status.as_u16(), code })
        };
        let slow = || S3Error::Slow { op, place: place(), limit };
        edge::within(limit, whole).await.unwrap_or_else(|| Err(slow()))
    }

    fn signed<'a>(&'a self, action: &impl S3Action<'a>) -> Url {
        let now = i64::try_from(edge::wall_ms()).unwrap_or(i64::MAX);
        let now = jiff::Timestamp::from_millisecond(now).unwrap_or_default();
        action.sign_with_time(SIGNED_FOR, &now)
    }

    async fn put(&self, object: &str, file: &Path, sum: [u8; 32], bytes: u64) -> Result<()> {
        const SUM: &str = "x-amz-checksum-sha256";
        let sum = STANDARD.encode(sum);
        let mut action = self.bucket.put_object(Some(&self.credentials), object);
        action.headers_mut().insert(SUM, sum.clone());
        let request = self
            .http
            .request(Method::PUT, self.signed(&action))
            .header(SUM, sum)
            .header(CONTENT_LENGTH, bytes)
            .body(body(file)?);
        self.send("put an object", UPLOAD_LIMIT, request).await.map(drop)
    }

    /// Names and lengths below the prefix that a schedule of this lineage gave, oldest first.
    async fn list(&self, lineage: &str) -> Result<Vec<(String, u64)>> {
        let mut found = vec![];
        let mut next: Option<String> = None;
        loop {
            let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
            action.with_prefix(format!("{}{lineage}-", self.prefix));
            if let Some(token) = next.take() {
                action.with_continuation_token(token);
            }
            let request = self.http.request(Method::GET, self.signed(&action));
            let text = self.send("list objects", SILENCE_LIMIT, request).await?;
            let parsed = ListObjectsV2::parse_response(&text).map_err(|error| S3Error::List {
                place: self.place.clone(),
                why: error.to_string(),
            })?;
            for object in parsed.contents {
                let name = object.key.strip_prefix(&self.prefix).unwrap_or("");
                if is_scheduled(name, lineage, END) {
                    found.push((object.key.clone(), object.size.unwrap_or(0)));
                }
            }
            next = parsed.next_continuation_token;
            if next.is_none() {
                found.sort();
                return Ok(found);
            }
        }
    }

    async fn delete(&self, object: &str) -> Result<()> {
        let action = self.bucket.delete_object(Some(&self.credentials), object);
        let request = self.http.request(Method::DELETE, self.signed(&action));
        self.send("delete an object", SILENCE_LIMIT, request).await.map(drop)
    }
}

/// The code in an S3 error document; nothing else of it is shown, because it may quote what was sent.
fn code_of(body: &str) -> String {
    let body: String = body.chars().take(REFUSAL_MAX).collect();
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map_or("", |(code, _)| code);
    if !code.is_empty() && code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphanumeric()) {
        code.to_owned()
    } else {
        "without an S3 error code".to_owned()
    }
}

/// A file as a body, read on a thread of its own.
fn body(path: &Path) -> Result<reqwest::Body> {
    let mut file = fs::File::open(path).map_err(file_error("read", path))?;
    let (pieces, taken) = mpsc::channel::<io::Result<Vec<u8>>>(WAITING_MAX);
    edge::thread(move || {
        loop {
            let mut piece = Vec::with_capacity(CHUNK);
            let read = file.by_ref().take(CHUNK as u64).read_to_end(&mut piece);
            let piece = match read {
                Ok(0) => return,
                Ok(_) => Ok(piece),
                Err(error) => Err(error),
            };
            let is_last = piece.is_err();
            if pieces.blocking_send(piece).is_err() || is_last {
                return;
            }
        }
    });
    let stream = futures::stream::unfold(taken, |mut taken| async move {
        let piece = taken.recv().await?;
        Some((piece, taken))
    });
    Ok(reqwest::Body::wrap_stream(stream))
}

/// A file that goes when this does.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: what stays is replaced by the next one.
        let _ = fs::remove_file(&self.0);
    }
}

fn sum_of(path: &Path) -> Result<([u8; 32], u64)> {
    let mut file = fs::File::open(path).map_err(file_error("read", path))?;
    let mut hasher = Sha256::new();
    let bytes = io::copy(&mut file, &mut hasher).map_err(file_error("read", path))?;
    Ok((hasher.finalize().into(), bytes))
}

/// Where backups go, for people.
pub(super) fn target(config: &S3Config) -> String {
    format!("s3://{}/{}", config.bucket, config.prefix)
}

/// Writes a backup beside `scratch`, sends it, sees that it is there, and removes those that are too many.
pub(super) async fn write_one(
    config: &S3Config,
    keep: u32,
    scratch: PathBuf,
    head: BackupHead,
    view: View,
) -> Result<(String, Info)> {
    let store = Store::open(config)?;
    let (lineage, created_ms) = (head.lineage.clone(), head.created_ms);
    let scratch = Scratch(scratch);
    let path = scratch.0.clone();
    let work = edge::blocking(move || {
        let info = write_backup(&path, head, &view)?;
        let (sum, bytes) = sum_of(&path)?;
        Ok::<_, S3Error>((info, sum, bytes))
    });
    let (info, sum, bytes) = work.await.ok_or(S3Error::Panicked)??;
    let object = format!("{}{}", store.prefix, file_name(&lineage, created_ms));
    let sent = match store.put(&object, &scratch.0, sum, bytes).await {
        Ok(()) => arrived(&store, &lineage, &object, bytes).await,
        Err(error) => Err(error),
    };
    let all = match sent {
        Ok(all) => all,
        Err(error) => {
            // What may be there of it must not count when there are too many, nor be taken for a backup.
            if let Err(left) = store.delete(&object).await {
                tracing::debug!(error = %left, "what a failed upload may have left was not removed");
            }
            return Err(error);
        }
    };
    let surplus = all.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
    for (old, _) in all.iter().take(surplus).filter(|(old, _)| *old != object) {
        store.delete(old).await?;
    }
    Ok((format!("s3://{}/{object}", config.bucket), info))
}

/// `S3-2`; all backups that are there.
async fn arrived(
    store: &Store,
    lineage: &str,
    object: &str,
    bytes: u64,
) -> Result<Vec<(String, u64)>> {
    let all = store.list(lineage).await?;
    let found = all.iter().find(|(name, _)| name == object).map(|(_, bytes)| *bytes);
    if found == Some(bytes) {
        return Ok(all);
    }
    let found = found.map_or("none of it".to_owned(), |found| format!("{found} bytes"));
    Err(S3Error::NotWhole { object: object.to_owned(), sent: bytes, found })
}

#[cfg(test)]
mod tests;
