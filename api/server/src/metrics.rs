//! Counters of the API, for Prometheus.

use std::time::Duration;

use http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// A finished request. `method` is one of the method table or `unknown`; `code` is `OK` or an
/// error's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) method: String,
    pub(crate) code: String,
}

/// Which bucket was empty.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limited {
    /// The principal's.
    Principal,
    /// The principal has as many requests in flight as it may.
    InFlight,
    /// That of the principal's denied writes, which have no audit record then.
    Denied,
    /// That of the address that presents wrong credentials.
    Address,
}

impl Limited {
    fn word(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::InFlight => "in-flight",
            Self::Denied => "denied",
            Self::Address => "address",
        }
    }
}

/// A request that was refused because it came too soon. `by` is `principal`, `in-flight`, `denied` or `address`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LimitedLabels {
    by: &'static str,
}

/// A request over REST that was refused, wherever. `code` is an error's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RefusedLabels {
    code: &'static str,
}

/// An answer over REST. `method` is one of the method table or `unknown`; `class` is `2xx`, `3xx`, `4xx` or `5xx`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TookLabels {
    method: String,
    class: &'static str,
}

/// Seconds: from what a local read takes to what a write without a quorum does.
const BUCKETS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

#[derive(Clone, Debug)]
struct Took(Family<TookLabels, Histogram, fn() -> Histogram>);

impl Default for Took {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(BUCKETS)))
    }
}

/// What the API counts.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) in_flight: Gauge,
    pub(crate) agent_sessions: Gauge,
    pub(crate) handshakes_failed: Counter,
    pub(crate) refused_busy: Counter,
    took: Took,
    limited: Family<LimitedLabels, Counter>,
    refused: Family<RefusedLabels, Counter>,
    pub(crate) specs_sent: Counter,
    pub(crate) statuses_committed: Counter,
}

impl Metrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let api = registry.sub_registry_with_prefix("palisade_api");
        api.register("requests", "Requests by method and code", self.requests.clone());
        api.register(
            "request_duration_seconds",
            "From the end of a request's headers over REST to the head of its answer, by method and class of status",
            self.took.0.clone(),
        );
        api.register("connections", "Open connections", self.connections.clone());
        api.register("requests_in_flight", "Requests being served", self.in_flight.clone());
        api.register(
            "handshakes_failed",
            "TLS handshakes that failed",
            self.handshakes_failed.clone(),
        );
        api.register(
            "requests_refused_busy",
            "Requests refused because too many were in flight",
            self.refused_busy.clone(),
        );
        api.register(
            "requests_limited",
            "Requests refused with RATE_LIMITED, by which bucket was empty",
            self.limited.clone(),
        );
        api.register(
            "requests_refused",
            "Requests over REST that were refused, by code, those among them that came no further than the port",
            self.refused.clone(),
        );
        let agents = registry.sub_registry_with_prefix("palisade_gateway");
        agents.register("sessions", "Sessions of agents", self.agent_sessions.clone());
        agents.register("specs_sent", "NodeSpecs sent", self.specs_sent.clone());
        agents.register(
            "statuses_committed",
            "Status reports that changed state",
            self.statuses_committed.clone(),
        );
    }

    pub(crate) fn took(&self, method: &str, status: StatusCode, took: Duration) {
        let class = match status.as_u16() {
            0..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            _ => "5xx",
        };
        let labels = TookLabels { method: method.to_owned(), class };
        self.took.0.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn limited(&self, by: Limited) {
        self.limited.get_or_create(&LimitedLabels { by: by.word() }).inc();
    }

    pub(crate) fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&RefusedLabels { code }).inc();
    }

    pub(crate) fn count(&self, method: &str, code: &str) {
        let labels = RequestLabels { method: method.to_owned(), code: code.to_owned() };
        self.requests.get_or_create(&labels).inc();
    }
}
