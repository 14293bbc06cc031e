//! The rig's own client: it shares no code with the product's, so that an error in one does not
//! hide in the other.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use reqwest::Method;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::Deserialize;
use serde_json::Value;

use crate::clock;

/// Where the methods live.
pub(crate) const BASE: &str = "/api/compute";

/// How a cluster is reached.
#[derive(Clone)]
pub(crate) struct Access {
    /// `https://host:port` of each replica.
    pub(crate) addresses: Vec<String>,
    pub(crate) ca_pem: String,
    pub(crate) token: String,
}

/// One request; every try of it is the same.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: Method,
    path: String,
    key: Option<String>,
    body: Option<Value>,
    /// The revision that the record must have.
    at: Option<u64>,
}

impl Request {
    /// A read.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), key: None, body: None, at: None }
    }

    /// An action under an idempotency key.
    pub(crate) fn post(path: impl Into<String>, key: impl Into<String>, body: Value) -> Self {
        let key = Some(key.into());
        Self { method: Method::POST, path: path.into(), key, body: Some(body), at: None }
    }

    /// A change of a record under an idempotency key.
    pub(crate) fn patch(path: impl Into<String>, key: impl Into<String>, body: Value) -> Self {
        Self { method: Method::PATCH, ..Self::post(path, key, body) }
    }

    /// A declaration under an idempotency key.
    pub(crate) fn put(path: impl Into<String>, key: impl Into<String>, body: Value) -> Self {
        Self { method: Method::PUT, ..Self::post(path, key, body) }
    }

    /// A removal under an idempotency key.
    pub(crate) fn delete(path: impl Into<String>, key: impl Into<String>) -> Self {
        let key = Some(key.into());
        Self { method: Method::DELETE, path: path.into(), key, body: None, at: None }
    }

    /// The same, only if the record is at this revision.
    pub(crate) fn at(self, revision: u64) -> Self {
        Self { at: Some(revision), ..self }
    }
}

/// An answer that stands.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) revision: Option<u64>,
    pub(crate) body: Value,
}

/// What one try came to.
#[derive(Clone, Debug)]
pub(crate) enum Tried {
    Done(Answer),
    /// A replica refused.
    Refused {
        status: u16,
        code: String,
        detail: String,
        retryable: bool,
    },
    /// There is no answer.
    Nothing {
        reason: String,
        /// It may have been received.
        sent: bool,
    },
}

impl Tried {
    /// In a few words, for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Done(_) => "done".into(),
            Self::Refused { status, code, detail, .. } => format!("{status} {code}: {detail}"),
            Self::Nothing { reason, .. } => reason.clone(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    code: String,
    detail: String,
    retryable: bool,
}

/// One client with its own connections.
#[derive(Clone)]
pub(crate) struct Http {
    client: reqwest::Client,
    access: Arc<Access>,
}

impl Http {
    pub(crate) fn new(access: Arc<Access>) -> Result<Self> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(&access.ca_pem)?)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true)
            .build()
            .context("cannot make an HTTP client")?;
        Ok(Self { client, access })
    }

    /// How the cluster is reached.
    pub(crate) fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    /// How many replicas there are.
    pub(crate) fn replicas(&self) -> usize {
        self.access.addresses.len()
    }

    /// Asks one replica once.
    pub(crate) async fn once(&self, replica: usize, request: &Request, limit: Duration) -> Tried {
        let Some(address) = self.access.addresses.get(replica % self.replicas().max(1)) else {
            return Tried::Nothing { reason: "there is no replica".into(), sent: false };
        };
        match clock::within(limit, self.send(address, request)).await {
            Some(tried) => tried,
            None => Tried::Nothing {
                reason: format!("no answer within {} ms", limit.as_millis()),
                sent: true,
            },
        }
    }

    /// Opens a stream of server-sent events; its head was waited for.
    pub(crate) async fn watch(&self, replica: usize, path: &str) -> Result<reqwest::Response> {
        let address = self.access.addresses.get(replica).context("there is no such replica")?;
        let request = self.client.get(format!("{address}{path}"));
        let answer = request.bearer_auth(&self.access.token).send().await;
        Ok(answer.and_then(reqwest::Response::error_for_status)?)
    }

    async fn send(&self, address: &str, request: &Request) -> Tried {
        let url = format!("{address}{}", request.path);
        let mut builder =
            self.client.request(request.method.clone(), url).bearer_auth(&self.access.token);
        if let Some(key) = &request.key {
            builder = builder.header("Idempotency-Key", key);
        }
        if let Some(revision) = request.at {
            builder = builder.header("If-Match", format!("\"{revision}\""));
        }
        if let Some(body) = &request.body {
            builder = builder.json(body);
        }
        let response = match builder.send().await {
            Ok(response) => response,
            Err(error) => {
                return Tried::Nothing { reason: chain(&error), sent: !error.is_connect() };
            }
        };
        let status = response.status();
        let revision = response
            .headers()
            .get("Palisade-Revision")
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = match response.bytes().await {
            Ok(bytes) => bytes,
            Err(error) => return Tried::Nothing { reason: chain(&error), sent: true },
        };
        if !status.is_success() {
            let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
            return Tried::Refused {
                status: status.as_u16(),
                code: problem.code,
                detail: problem.detail,
                retryable: problem.retryable,
            };
        }
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Tried::Done(Answer { revision, body })
    }

    /// Asks until a replica answers, at most for `budget`.
    pub(crate) async fn ask(&self, request: &Request, budget: Duration) -> Result<Answer> {
        let clock = clock::Clock::start();
        let mut replica = 0;
        loop {
            let tried = self.once(replica, request, Duration::from_secs(6)).await;
            replica += 1;
            match tried {
                Tried::Done(answer) => return Ok(answer),
                Tried::Refused { status: 400..=428, retryable: false, .. } => {
                    return Err(anyhow!(
                        "{} {}: {}",
                        request.method,
                        request.path,
                        tried.describe()
                    ));
                }
                _ if clock.elapsed() >= budget => {
                    return Err(anyhow!(
                        "{} {}: {}",
                        request.method,
                        request.path,
                        tried.describe()
                    ));
                }
                _ => clock::sleep_ms(50).await,
            }
        }
    }

    /// All records of a list.
    pub(crate) async fn list(&self, path: &str, budget: Duration) -> Result<Vec<Value>> {
        self.list_by(path, 5000, budget).await
    }

    /// The same, in parts of so many.
    pub(crate) async fn list_by(
        &self,
        path: &str,
        limit: u32,
        budget: Duration,
    ) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        for _ in 0..1000 {
            let separator = if path.contains('?') { '&' } else { '?' };
            let page = format!("{path}{separator}limit={limit}{cursor}");
            let answer = self.ask(&Request::get(page), budget).await?;
            let Some(Value::Array(more)) = answer.body.get("items") else {
                return Err(anyhow!("{path} answered no list"));
            };
            items.extend(more.iter().cloned());
            match answer.body.get("nextCursor").and_then(Value::as_str) {
                Some(next) if !next.is_empty() => cursor = format!("&cursor={next}"),
                _ => return Ok(items),
            }
        }
        Err(anyhow!("{path} has no end"))
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

fn tls(ca_pem: &str) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate.context("the CA is no PEM")?).context("the CA is no certificate")?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("there is no TLS 1.3")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
