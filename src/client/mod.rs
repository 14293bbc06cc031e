//! The REST client: any replica answers, and one that does not is left for another.
//!
//! # Invariants
//! - `CLIENT-1` Every try of one write carries the same `Idempotency-Key`, so that a retry through
//!   a fail-over never does a thing twice.
//! - `CLIENT-2` A token is sent only over TLS to a server whose certificate comes from the
//!   context's CA, and no redirect is followed.

mod address;
mod error;
mod tls;
mod tries;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use reqwest::{Method, StatusCode, header};
use serde_json::Value;

pub use address::{Address, AddressError};
pub use error::{ClientError, Refusal};
pub use tries::{Rounds, Seen, Tries};

use crate::edge;

/// Where the methods live.
pub const BASE: &str = "/api/compute";

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Longer than the 5 s after which a replica without a quorum says so.
const TRY_LIMIT: Duration = Duration::from_secs(8);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
const LIST_PAGES_MAX: usize = 10_000;

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// The replicas, at least one.
    pub addresses: Vec<Address>,
    /// The cluster's CA, PEM.
    pub ca_pem: String,
    /// The API token.
    pub token: Option<String>,
    /// How long one request is tried, over all replicas.
    pub budget: Duration,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Option<Value>,
    key: Option<String>,
    if_match: Option<String>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The body; null when there is none.
    pub body: Value,
    /// The revision that it reflects.
    pub revision: Option<u64>,
    /// The call waits for approval; the body is the record of what holds it.
    pub held: bool,
}

impl Call {
    fn new(method: Method, path: impl Into<String>) -> Self {
        let path = path.into();
        let key = (method != Method::GET).then(edge::idempotency_key);
        Self { method, path, query: vec![], body: None, key, if_match: None }
    }

    /// A read.
    #[must_use]
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// An action.
    #[must_use]
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    /// A declaration.
    #[must_use]
    pub fn put(path: impl Into<String>) -> Self {
        Self::new(Method::PUT, path)
    }

    /// A change of some fields.
    #[must_use]
    pub fn patch(path: impl Into<String>) -> Self {
        Self::new(Method::PATCH, path)
    }

    /// A removal.
    #[must_use]
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Adds a query parameter.
    #[must_use]
    pub fn query(mut self, name: &str, value: impl ToString) -> Self {
        self.query.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a query parameter if there is a value.
    #[must_use]
    pub fn query_some(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Sets the body.
    #[must_use]
    pub fn json(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    /// Asks what would be done.
    #[must_use]
    pub fn dry_run(self, dry: bool) -> Self {
        if dry { self.query("dryRun", "true") } else { self }
    }

    /// Reads what the asked replica has, without asking the others.
    #[must_use]
    pub fn local(self) -> Self {
        self.query("consistency", "local")
    }

    /// Sets the key under which the write is applied once.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    fn url(&self, address: &Address) -> String {
        let mut url = format!("{address}{}", self.path);
        for (position, (name, value)) in self.query.iter().enumerate() {
            url.push(if position == 0 { '?' } else { '&' });
            url.push_str(&format!("{}={}", segment(name), segment(value)));
        }
        url
    }

    /// Goes on only if the record has this revision.
    #[must_use]
    pub fn if_match(mut self, revision: u64) -> Self {
        self.if_match = Some(format!("\"{revision}\""));
        self
    }
}

/// A path segment of a name that came from a person.
#[must_use]
pub fn segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    match out.as_str() {
        // A dot segment is taken away by whoever normalises the URL, also in its encoded form, and
        // an empty one is another path: what is sent instead is the name of nothing.
        "" => "%20".to_owned(),
        "." | ".." => out.replace('.', "%252E"),
        _ => out,
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    addresses: Vec<Address>,
    token: Option<String>,
    budget: Duration,
    /// The replica that answered last.
    preferred: AtomicUsize,
}

enum Tried {
    /// It answered, and the answer stands.
    Done(reqwest::Response),
    /// Another replica, or a later moment, may answer.
    Again { error: ClientError, after: Option<Duration> },
}

impl Client {
    /// A client. Nothing is sent yet.
    ///
    /// # Errors
    /// There is no address, or the CA is no certificate.
    pub fn new(options: Options) -> Result<Self, ClientError> {
        if options.addresses.is_empty() {
            return Err(ClientError::NoAddress);
        }
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(&options.ca_pem)?)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .tcp_nodelay(true)
            .user_agent(concat!("palisade/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(ClientError::Build)?;
        let first = edge::random_below(options.addresses.len() as u64);
        Ok(Self {
            http,
            preferred: AtomicUsize::new(usize::try_from(first).unwrap_or(0)),
            addresses: options.addresses,
            token: options.token,
            budget: options.budget,
        })
    }

    /// The replicas that are asked.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Begins with the replica at `host:port` from now on; answers whether it is one of ours.
    pub fn prefer(&self, host_port: &str) -> bool {
        let at = self.addresses.iter().position(|address| address.host_port() == host_port);
        if let Some(at) = at {
            self.preferred.store(at, Ordering::Relaxed);
        }
        at.is_some()
    }

    /// How long one request is tried.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// Asks, trying replicas until one answers or the budget is spent.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call(&self, call: Call) -> Result<Answer, ClientError> {
        let deadline = edge::now() + self.budget;
        let response = self.respond(&call, deadline).await?;
        let left = deadline.saturating_duration_since(edge::now()).max(TRY_LIMIT);
        let read = edge::within(left, answer(response)).await;
        read.unwrap_or(Err(ClientError::Slow { budget: self.budget }))
    }

    /// Asks one replica once, whether it is one of ours or not.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call_at(
        &self,
        address: &Address,
        call: &Call,
        limit: Duration,
    ) -> Result<Answer, ClientError> {
        let silent = || ClientError::Silent { address: address.to_string(), limit };
        let asked = async {
            match self.try_once(call, address, limit).await? {
                Tried::Done(response) => answer(response).await,
                Tried::Again { error, .. } => Err(error),
            }
        };
        edge::within(limit, asked).await.unwrap_or_else(|| Err(silent()))
    }

    /// What one replica has at a path, with its status, as text; asked as the caller.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn text_at(
        &self,
        address: &Address,
        path: &str,
        limit: Duration,
    ) -> Result<(u16, String), ClientError> {
        let silent = || ClientError::Silent { address: address.to_string(), limit };
        let asked = async {
            let mut request = self.http.get(format!("{address}{path}"));
            if let Some(token) = &self.token {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.map_err(|error| error::sending(address, error))?;
            let status = response.status().as_u16();
            Ok((status, response.text().await.map_err(ClientError::Broken)?))
        };
        edge::within(limit, asked).await.unwrap_or_else(|| Err(silent()))
    }

    /// All records of a list, page by page.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list(&self, call: Call) -> Result<Vec<Value>, ClientError> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..LIST_PAGES_MAX {
            let page = self.call(call.clone().query_some("cursor", cursor.as_deref())).await?;
            let Value::Object(mut page) = page.body else { return Err(ClientError::NotAList) };
            let Some(Value::Array(more)) = page.remove("items") else {
                return Err(ClientError::NotAList);
            };
            items.extend(more);
            match page.remove("nextCursor") {
                Some(Value::String(next)) if !next.is_empty() => cursor = Some(next),
                _ => return Ok(items),
            }
        }
        Ok(items)
    }

    /// An answer whose body is read as it comes; only its head is under the budget.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stream(&self, call: Call) -> Result<reqwest::Response, ClientError> {
        self.respond(&call, edge::now() + self.budget).await
    }

    /// Asks one replica, once. Answers the status and the body as text.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask(&self, address: &Address, path: &str) -> Result<(u16, String), ClientError> {
        let request = self.http.get(format!("{address}{path}")).timeout(CONNECT_LIMIT);
        let response = request.send().await.map_err(|error| error::sending(address, error))?;
        let status = response.status().as_u16();
        let body = response.text().await.map_err(ClientError::Broken)?;
        Ok((status, body))
    }

    async fn respond(
        &self,
        call: &Call,
        deadline: edge::Moment,
    ) -> Result<reqwest::Response, ClientError> {
        let mut tries = Tries::new(self.addresses.len(), self.preferred.load(Ordering::Relaxed));
        let mut rounds = Rounds::default();
        // What a replica said is worth more than that another said nothing.
        let mut said = None;
        loop {
            let left = deadline.saturating_duration_since(edge::now());
            let at = tries.address();
            let (error, after) =
                match self.try_once(call, &self.addresses[at], left.min(TRY_LIMIT)).await? {
                    Tried::Done(response) => {
                        self.preferred.store(at, Ordering::Relaxed);
                        return Ok(response);
                    }
                    Tried::Again { error, after } => (error, after),
                };
            tracing::debug!(address = %self.addresses[at], %error, "trying another replica");
            rounds.saw(error.seen());
            let round = tries.rounds();
            let pause = tries.failed(after, edge::random_below(1000));
            let in_vain = tries.rounds() > round && rounds.over();
            let hopeless = tries.rounds() > 0 && error.is_hopeless();
            let is_over = in_vain || hopeless || edge::now() + pause >= deadline;
            let error = match error {
                refused @ ClientError::Refused(_) => {
                    said = Some(refused);
                    None
                }
                other => Some(other),
            };
            if is_over && let Some(error) = said.take().or(error) {
                return Err(error.after(self.budget, self.addresses.len()));
            }
            edge::sleep(pause).await;
        }
    }

    async fn try_once(
        &self,
        call: &Call,
        address: &Address,
        limit: Duration,
    ) -> Result<Tried, ClientError> {
        let mut request = self.http.request(call.method.clone(), call.url(address));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(key) = &call.key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(revision) = &call.if_match {
            request = request.header(header::IF_MATCH, revision);
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let response = match edge::within(limit, request.send()).await {
            None => {
                let error = ClientError::Silent { address: address.to_string(), limit };
                return Ok(Tried::Again { error, after: None });
            }
            Some(Err(error)) => {
                let error = error::sending(address, error);
                return Ok(Tried::Again { error, after: None });
            }
            Some(Ok(response)) => response,
        };
        let status = response.status();
        if status.is_success() {
            return Ok(Tried::Done(response));
        }
        let after = retry_after(&response);
        let refusal = refusal(response).await;
        let again =
            matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
                || matches!(refusal.code.as_str(), "NO_QUORUM" | "UNAVAILABLE");
        let error = ClientError::Refused(Box::new(refusal));
        if again { Ok(Tried::Again { error, after }) } else { Err(error) }
    }
}

async fn answer(response: reqwest::Response) -> Result<Answer, ClientError> {
    let revision = revision(&response);
    let held = response.status() == StatusCode::ACCEPTED;
    let bytes = response.bytes().await.map_err(ClientError::Broken)?;
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).map_err(ClientError::NotJson)?
    };
    Ok(Answer { body, revision, held })
}

fn revision(response: &reqwest::Response) -> Option<u64> {
    response.headers().get("Palisade-Revision")?.to_str().ok()?.parse().ok()
}

fn retry_after(response: &reqwest::Response) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

async fn refusal(response: reqwest::Response) -> Refusal {
    let status = response.status().as_u16();
    let request_id = response
        .headers()
        .get("X-Request-Id")
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let body = edge::within(TRY_LIMIT, response.bytes()).await.and_then(Result::ok);
    Refusal::parse(status, request_id, body.as_deref().unwrap_or_default())
}

/// One round trip on a plain connection for tests of the verbs: a stub speaks HTTP without TLS.
#[cfg(test)]
pub(crate) mod stub;

#[cfg(test)]
mod tests;
