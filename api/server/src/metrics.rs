//! Counters of the API, for Prometheus.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// A finished request. `method` is one of the method table or `unknown`; `code` is `OK` or an
/// error's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) method: String,
    pub(crate) code: String,
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
    pub(crate) specs_sent: Counter,
    pub(crate) statuses_committed: Counter,
}

impl Metrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let api = registry.sub_registry_with_prefix("palisade_api");
        api.register("requests", "Requests by method and code", self.requests.clone());
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
        let agents = registry.sub_registry_with_prefix("palisade_gateway");
        agents.register("sessions", "Sessions of agents", self.agent_sessions.clone());
        agents.register("specs_sent", "NodeSpecs sent", self.specs_sent.clone());
        agents.register(
            "statuses_committed",
            "Status reports that changed state",
            self.statuses_committed.clone(),
        );
    }

    pub(crate) fn count(&self, method: &str, code: &str) {
        let labels = RequestLabels { method: method.to_owned(), code: code.to_owned() };
        self.requests.get_or_create(&labels).inc();
    }
}
