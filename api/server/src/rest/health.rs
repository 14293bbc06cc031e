//! What is beside the methods: liveness, readiness, metrics, the OpenAPI document, and the path on
//! which replicas fetch logs from each other.

use std::{sync::atomic::Ordering, time::Duration};

use http::{Response, StatusCode, header};
use palisade_contract::{Code, Error, InstanceId, NodeId, Resource, Result};
use palisade_state::{StoreError, port::timeout};
use serde_json::json;

use super::{Admitted, Body, Incoming, Refusal, Rest, full, insert, request};
use crate::{envelope::Consistency, module::SYSTEM_READ, pki::PeerRole};

const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a path asks for health alone: who does so often is not measured.
pub(super) fn is_asked(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

pub(super) fn alive() -> Response<Body> {
    let mut response = Response::new(full("ok\n"));
    insert(&mut response, header::CONTENT_TYPE, "text/plain");
    response
}

impl Rest {
    /// Ready: this replica reaches a quorum and has applied what it acknowledged.
    pub(super) async fn ready(&self) -> Response<Body> {
        let context = self.envelope.context();
        let asked = timeout(&*context.rt, READY_TIMEOUT, context.store.linearizable()).await;
        let status = context.store.status();
        let quorum = match asked {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(error),
            None => Err(StoreError::NoQuorum { waited_ms: 1000 }),
        };
        let open = self.open.load(Ordering::Acquire);
        let ready = open && quorum.is_ok() && !self.stopping.is_raised() && status.fault.is_none();
        let body = json!({
            "ready": ready,
            "quorum": quorum.is_ok(),
            "reason": quorum.err().map(|error| error.to_string()).or(status.fault),
            "noSpace": status.no_space.map(|short| short.in_brief()),
            "stopping": self.stopping.is_raised(),
            "leader": status.leader,
            "appliedIndex": status.applied_index,
            "appliedLag": status.committed_index.saturating_sub(status.applied_index),
        });
        let mut response = Response::new(full(body.to_string()));
        if !ready {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        insert(&mut response, header::CONTENT_TYPE, "application/json");
        response
    }

    pub(super) async fn metrics(&self, incoming: &Incoming<'_>) -> Result<Response<Body>, Refusal> {
        let Admitted { who, pass: _pass, .. } = self.admit(incoming, Consistency::Local).await?;
        let resource = Resource::cluster("metrics", "");
        let access = self.envelope.context().ports.access.get()?;
        access.authorize(&who.view, &who.principal, SYSTEM_READ, &resource)?;
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics)
            .map_err(Error::internal)?;
        let mut response = Response::new(full(text));
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        insert(&mut response, header::CONTENT_TYPE, kind);
        Ok(response)
    }

    /// For everybody who has a credential: it tells what the API is, and of nobody's things.
    pub(super) async fn openapi(
        &self,
        incoming: &Incoming<'_>,
        query: &request::Query,
    ) -> Result<Response<Body>, Refusal> {
        self.admit(incoming, query.consistency).await?;
        let mut response = Response::new(full(self.openapi.clone()));
        insert(&mut response, header::CONTENT_TYPE, "application/json");
        Ok(response)
    }

    /// `GET /internal/logs/{node}/{instance}?follow=&tail=`, for replicas of this cluster only.
    pub(super) async fn relayed_logs(
        &self,
        incoming: &Incoming<'_>,
        rest: &str,
        query: &request::Query,
    ) -> Result<Response<Body>, Refusal> {
        let is_replica = incoming.peer.is_some_and(|p| matches!(p.role, PeerRole::Replica(_)));
        if !is_replica {
            return Err(Error::new(Code::AccessDenied, "this path is for replicas only").into());
        }
        let invalid = || Error::new(Code::InvalidInput, "not a node and an instance");
        let (node, instance) = rest.split_once('/').ok_or_else(invalid)?;
        let node = NodeId::parse(node).ok_or_else(invalid)?;
        let instance = InstanceId::parse(instance).ok_or_else(invalid)?;
        let value = |name: &str| query.fields.iter().find(|f| f.0 == name).map(|f| f.1.as_str());
        let follow = value("follow") == Some("true");
        let tail = value("tail").and_then(|text| text.parse().ok()).unwrap_or(0);
        let bytes = self.sessions.open_log(&node, &instance, follow, tail).await?;
        self.streamed(bytes, palisade_contract::method::TEXT)
    }
}
