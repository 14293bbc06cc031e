//! REST: from HTTP requests to calls of the envelope, and back.
//!
//! # Invariants
//! - `REST-1` Nothing that a client sends can end the process or keep a connection without work
//!   for longer than [`crate::Limits`] says.

mod admit;
mod body;
mod health;
mod request;
mod routes;
mod sse;
mod watching;

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http::{
    HeaderValue, Method as HttpMethod, Request, Response, StatusCode, header, request::Parts,
};
use http_body::Body as HttpBody;
use palisade_contract::{Code, Error, Result, id};
use prometheus_client::registry::Registry as MetricsRegistry;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument as _;

use crate::{
    Limits,
    envelope::{Answer, CallOptions, Envelope, Reply, Route},
    gateway::Sessions,
    json, openapi,
    pki::Peer,
    problem,
    rate::Pass,
    trace::{self, Trace},
    watch::Feeds,
};

use admit::Admitted;
pub(crate) use admit::Origin;
pub(crate) use body::{Body, BoxError, full, holding, stream};
pub use routes::{BASE, http_method};
use routes::{Found, Routes};

/// The REST service of one replica.
pub(crate) struct Rest {
    envelope: Arc<Envelope>,
    routes: Routes,
    limits: Limits,
    openapi: Bytes,
    metrics: MetricsRegistry,
    sessions: Arc<Sessions>,
    in_flight: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    feeds: Arc<Feeds>,
    stopping: crate::stop::Stop,
    /// Whether the tables are up to date.
    open: Arc<AtomicBool>,
}

/// A refusal, with the status where the code alone does not say it.
pub(crate) struct Refusal {
    error: Box<Error>,
    status: Option<StatusCode>,
    allow: Option<String>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error: Box::new(error), status: None, allow: None }
    }
}

fn refusal(status: StatusCode, code: Code, detail: String) -> Refusal {
    Refusal { error: Box::new(Error::new(code, detail)), status: Some(status), allow: None }
}

/// One request on its way.
struct Incoming<'a> {
    parts: &'a Parts,
    peer: Option<&'a Peer>,
    request_id: &'a str,
    /// The method that it is for, once that is known.
    method: OnceLock<String>,
}

impl Rest {
    pub(crate) fn new(
        envelope: Arc<Envelope>,
        limits: Limits,
        metrics: MetricsRegistry,
        sessions: Arc<Sessions>,
        stopping: crate::stop::Stop,
        open: Arc<AtomicBool>,
    ) -> Result<Self> {
        let document = openapi::of_routes(envelope.routes().map(|route| &**route));
        Ok(Self {
            routes: Routes::new(&envelope)?,
            openapi: serde_json::to_vec_pretty(&document).map_err(Error::internal)?.into(),
            in_flight: Arc::new(Semaphore::new(limits.in_flight_max)),
            streams: Arc::new(Semaphore::new(limits.streams_max)),
            feeds: Arc::default(),
            envelope,
            limits,
            metrics,
            sessions,
            stopping,
            open,
        })
    }

    /// Answers one request.
    pub(crate) async fn handle<B>(&self, request: Request<B>, peer: Option<&Peer>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::fmt::Display,
    {
        let rt = &self.envelope.context().rt;
        let (parts, body) = request.into_parts();
        let request_id =
            request::given_id(&parts.headers).unwrap_or_else(|| id::mint(&**rt, "req"));
        let method = OnceLock::new();
        let incoming = Incoming { parts: &parts, peer, request_id: &request_id, method };
        let begun = rt.now();
        let trace = Trace::of(&parts.headers, &**rt);
        let span = trace.enter(&request_id);
        let work = trace::within(trace, self.dispatch(&incoming, body)).instrument(span);
        let answered = AssertUnwindSafe(work).catch_unwind().await;
        let answered = answered.unwrap_or_else(|_| {
            tracing::error!(request_id, path = parts.uri.path(), "a request handler panicked");
            Err(Error::internal("a request handler panicked").into())
        });
        let mut response = answered.unwrap_or_else(|refused| self.refuse(&incoming, refused));
        if !health::is_asked(parts.uri.path()) {
            let method = incoming.method.get().map_or("unknown", String::as_str);
            let took = rt.now().saturating_sub(begun);
            self.envelope.metrics().took(method, response.status(), took);
        }
        let headers = response.headers_mut();
        if let Ok(value) = HeaderValue::from_str(&request_id) {
            headers.insert(request::REQUEST_ID, value);
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if parts.method == HttpMethod::HEAD {
            *response.body_mut() = full(Bytes::new());
        }
        response
    }

    async fn dispatch<B>(&self, incoming: &Incoming<'_>, body: B) -> Result<Response<Body>, Refusal>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::fmt::Display,
    {
        self.check_head(incoming.parts)?;
        // PKI-7: before anything else is answered.
        if let Some(error) = incoming.peer.and_then(crate::refused::out_of_time) {
            return Err(error.into());
        }
        let path = incoming.parts.uri.path();
        match path {
            "/healthz" => return Ok(health::alive()),
            "/readyz" => return Ok(self.ready().await),
            _ => {}
        }
        if !self.open.load(Ordering::Acquire) {
            let starting = Error::new(
                Code::Unavailable,
                "this replica is starting and has no quorum yet",
            )
            .hint("ask another replica, or try again in a second; `/readyz` says when it is ready");
            return Err(starting.into());
        }
        let permit = self.in_flight.clone().try_acquire_owned().map_err(|_| {
            self.envelope.metrics().refused_busy.inc();
            Error::new(Code::Unavailable, "this replica answers as many requests as it can")
                .hint("try again in a second, or ask another replica")
        })?;
        self.envelope.metrics().in_flight.inc();
        let _counted = Counted(&self.envelope.metrics().in_flight);
        let query = request::query(incoming.parts.uri.query())?;
        match path {
            "/metrics" => return self.metrics(incoming).await,
            "/openapi.json" => return self.openapi(incoming, &query).await,
            _ => {}
        }
        if let Some(rest) = path.strip_prefix("/internal/logs/") {
            return self.relayed_logs(incoming, rest, &query).await;
        }
        let Some(below) = path.strip_prefix(BASE).filter(|rest| rest.starts_with('/')) else {
            let error = Error::new(Code::NotFound, "there is nothing at this path");
            return Err(error.hint(format!("the API is below {BASE}; see /openapi.json")).into());
        };
        self.api(incoming, below, query, body, permit).await
    }

    /// Refuses a head over the limit, for which the HTTP library would have no words.
    fn check_head(&self, parts: &Parts) -> Result<(), Refusal> {
        let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let url = parts.uri.path_and_query().map_or(0, |url| url.as_str().len());
        let (bytes, most) = (url + fields.sum::<usize>(), self.limits.header_bytes_max);
        if bytes <= most {
            return Ok(());
        }
        let detail = format!(
            "the URL and the headers have {bytes} bytes together, {url} of them the URL; the limit is {most}"
        );
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Err(refusal(status, Code::TooLarge, detail))
    }

    async fn api<B>(
        &self,
        incoming: &Incoming<'_>,
        below: &str,
        query: request::Query,
        body: B,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, Refusal>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::fmt::Display,
    {
        let headers = &incoming.parts.headers;
        let admitted = self.admit(incoming, query.consistency).await?;
        let Admitted { who, credential, pass } = admitted;
        let permit = (permit, pass);
        let (route, parameters) = match self.routes.find(&incoming.parts.method, below)? {
            Found::Method(route, parameters) => (route, parameters),
            Found::OtherVerbs(allow) => return self.other_verb(incoming, allow),
        };
        let _ = incoming.method.set(route.id.clone());
        let last_event_id = request::last_event_id(headers, &query)?;
        if query.watch {
            let watched = watching::Asked { route, parameters, credential, who, last_event_id };
            return self.watch(incoming, watched, query, body).await;
        }
        let options = CallOptions {
            request_id: incoming.request_id.to_owned(),
            idempotency_key: request::idempotency_key(headers)?,
            dry_run: query.dry_run,
            if_match: request::if_match(headers)?,
            consistency: query.consistency,
            page: query.page.clone(),
            at: query.at,
        };
        let input = self.input(incoming, &route, parameters, query, body).await?;
        let answer = self.envelope.run(&route, input, who, options).await?;
        self.answer(incoming, &route, answer, permit)
    }

    fn other_verb(
        &self,
        incoming: &Incoming<'_>,
        allow: String,
    ) -> Result<Response<Body>, Refusal> {
        if incoming.parts.method == HttpMethod::OPTIONS {
            let mut response = Response::new(full(Bytes::new()));
            *response.status_mut() = StatusCode::NO_CONTENT;
            insert(&mut response, header::ALLOW, &allow);
            return Ok(response);
        }
        let detail = format!("{} is not for this path", incoming.parts.method);
        let mut refused = refusal(StatusCode::METHOD_NOT_ALLOWED, Code::Unsupported, detail);
        refused.error.hint = Some(format!("allowed here: {allow}"));
        refused.allow = Some(allow);
        Err(refused)
    }

    /// The input: the body's fields, then those of the path and the query.
    async fn input<B>(
        &self,
        incoming: &Incoming<'_>,
        route: &Route,
        parameters: Vec<(String, String)>,
        query: request::Query,
        body: B,
    ) -> Result<Value, Refusal>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::fmt::Display,
    {
        let rt = &*self.envelope.context().rt;
        let limits = &self.limits;
        let bytes = body::read(rt, body, limits.body_bytes_max, limits.body_timeout).await?;
        let mut input = Map::new();
        if !bytes.is_empty() {
            if !request::is_json(&incoming.parts.headers) {
                return Err(refusal(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    Code::Unsupported,
                    "the body must be application/json".to_owned(),
                ));
            }
            match json::parse(&bytes)? {
                Value::Object(fields) => input = fields,
                _ => {
                    return Err(
                        Error::new(Code::InvalidInput, "the body must be a JSON object").into()
                    );
                }
            }
        }
        let own = [
            ("limit", query.page.limit.map(Value::from)),
            ("cursor", query.page.cursor.map(Value::from)),
        ];
        let own = own.into_iter().filter(|(name, _)| route.fields.contains_key(*name));
        for (name, value) in own.filter_map(|(name, value)| Some((name, value?))) {
            request::merge(&mut input, name, value, "query")?;
        }
        let read = |name: &str, text: &str| match route.fields.get(name) {
            Some(kind) => kind.read(text),
            None => Value::String(text.to_owned()),
        };
        for (name, text) in parameters {
            request::merge(&mut input, &name, read(&name, &text), "path")?;
        }
        for (name, text) in query.fields {
            request::refuse_in_url(route.method.secret, &name)?;
            request::merge(&mut input, &name, read(&name, &text), "query")?;
        }
        Ok(Value::Object(input))
    }

    fn answer(
        &self,
        incoming: &Incoming<'_>,
        route: &Route,
        answer: Answer,
        permit: (OwnedSemaphorePermit, Pass),
    ) -> Result<Response<Body>, Refusal> {
        let mut response = match answer.reply {
            Reply::Stream(bytes) => self.streamed(bytes, route.method.media)?,
            Reply::Json(_)
                if answer.etag.is_some_and(|etag| {
                    incoming.parts.method != HttpMethod::PUT
                        && request::has_already(&incoming.parts.headers, etag)
                }) =>
            {
                let mut response = Response::new(full(Bytes::new()));
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                response
            }
            Reply::Json(value) => {
                let id = value.get("id").and_then(serde_json::Value::as_str).unwrap_or_default();
                let place = answer.held.then(|| format!("{BASE}/approvals/{id}"));
                let bytes = serde_json::to_vec(&value).map_err(Error::internal)?;
                let body = holding(full(bytes), permit);
                let mut response = Response::new(body);
                insert(&mut response, header::CONTENT_TYPE, "application/json");
                if let Some(place) = place {
                    *response.status_mut() = StatusCode::ACCEPTED;
                    insert(&mut response, header::LOCATION, &place);
                }
                response
            }
        };
        if let Some(etag) = answer.etag {
            insert(&mut response, header::ETAG, &format!("\"{etag}\""));
        }
        let revision = header::HeaderName::from_static("palisade-revision");
        insert(&mut response, revision, &answer.revision.to_string());
        if answer.replayed {
            let name = header::HeaderName::from_static("idempotency-replayed");
            insert(&mut response, name, "true");
        }
        Ok(response)
    }

    fn streamed(
        &self,
        bytes: palisade_contract::method::ByteStream,
        media: &'static str,
    ) -> Result<Response<Body>, Refusal> {
        let permit = self.streams.clone().try_acquire_owned().map_err(|_| {
            Error::new(Code::Unavailable, "this replica serves as many streams as it can")
                .hint("end another stream, or ask another replica")
        })?;
        let mut response = Response::new(holding(stream(bytes), permit));
        insert(&mut response, header::CONTENT_TYPE, media);
        Ok(response)
    }

    fn refuse(&self, incoming: &Incoming<'_>, refused: Refusal) -> Response<Body> {
        let Refusal { error, status, allow } = refused;
        let status = status.unwrap_or_else(|| problem::status_of(error.code));
        self.envelope.metrics().refused(error.code.as_str());
        let path = incoming.parts.uri.path();
        problem::log(&error, path, incoming.request_id);
        let bytes = problem::document(&error, status, path, incoming.request_id);
        let mut response = Response::new(full(bytes));
        *response.status_mut() = status;
        insert(&mut response, header::CONTENT_TYPE, problem::MEDIA_TYPE);
        if let Some(allow) = allow {
            insert(&mut response, header::ALLOW, &allow);
        }
        if status == StatusCode::UNAUTHORIZED {
            insert(&mut response, header::WWW_AUTHENTICATE, "Bearer realm=\"palisade\"");
        }
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            let wait = error.retry_after.map_or(1, whole_seconds);
            insert(&mut response, header::RETRY_AFTER, &wait.to_string());
        }
        // What is left of the body is not read.
        let unread =
            matches!(error.code, Code::TooLarge | Code::Unauthenticated | Code::Unavailable)
                || status == StatusCode::BAD_REQUEST;
        if unread && incoming.parts.version == http::Version::HTTP_11 {
            insert(&mut response, header::CONNECTION, "close");
        }
        response
    }
}

/// No less than that, and no less than one.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn insert(response: &mut Response<Body>, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Counts one down when the request is answered or given up.
struct Counted<'a>(&'a prometheus_client::metrics::gauge::Gauge);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
