//! Who is let in: cluster, epoch and name of the caller, before anything of the call is read.
//!
//! # Invariants
//! - `PEER-2` No request is read before the caller's certificate, cluster, epoch and name were checked.
//! - `PEER-3` A gateway is served by the Store service alone.

use std::sync::Arc;

use tonic::{Request, Status};

use super::{
    Door,
    boots::{Kept, Seat},
    caller::Caller,
    client::{BOOT, CLUSTER, COPY, EPOCH, FROM},
};
use crate::{
    Identity,
    metrics::{Metrics, Refused, RefusedLabel},
};

/// Whoever is at the other end of a connection.
#[derive(Clone)]
pub(super) struct Arrival {
    pub(super) caller: Caller,
    pub(super) seat: Arc<Seat>,
}

/// Checks the metadata of each call to one service.
#[derive(Clone)]
pub(super) struct Gate {
    identity: Arc<Identity>,
    epoch: Arc<str>,
    metrics: Arc<Metrics>,
    door: Arc<dyn Door>,
    /// Whether gateways may pass.
    gateways: bool,
}

impl Gate {
    /// The gate of the Peer service.
    pub(super) fn of_peers(
        identity: Arc<Identity>,
        metrics: Arc<Metrics>,
        door: Arc<dyn Door>,
    ) -> Self {
        let epoch = identity.epoch.to_string().into();
        Self { identity, epoch, metrics, door, gateways: false }
    }

    /// The gate of the Store service.
    pub(super) fn of_store(self) -> Self {
        Self { gateways: true, ..self }
    }

    fn refuse(&self, why: Refused, message: String) -> Status {
        self.metrics.peers_refused.get_or_create(&RefusedLabel { why }).inc();
        tracing::warn!(reason = message, "a caller was refused");
        Status::permission_denied(message)
    }

    /// Whether a call with these headers, on a connection of this caller, may go on.
    pub(super) fn check(
        &self,
        headers: &http::HeaderMap,
        arrival: Option<&Arrival>,
    ) -> Result<(), Status> {
        let caller = arrival.map(|arrival| &arrival.caller);
        let text = |key: &str| headers.get(key).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let Identity { cluster, replica, .. } = self.identity.as_ref();
        let (theirs, their_epoch, from) = (text(CLUSTER), text(EPOCH), text(FROM));
        if theirs != cluster {
            let message = format!(
                "replica {replica} is of cluster {cluster}, and the caller is of cluster {theirs:?}: \
                 it must not use this cluster's addresses"
            );
            return Err(self.refuse(Refused::Cluster, message));
        }
        if their_epoch != self.epoch.as_ref() {
            let epoch = &self.epoch;
            let message = format!(
                "cluster {cluster} is in epoch {epoch}, and the caller is in epoch {their_epoch:?}: the older one \
                 of the two was recovered or restored and must stay away"
            );
            return Err(self.refuse(Refused::Epoch, message));
        }
        match caller {
            Some(caller) if caller.is_named(from) => {
                self.admit(caller)?;
                self.check_boot(text(BOOT), arrival)
            }
            _ => {
                let named = caller.map_or_else(|| "nobody".to_owned(), Caller::to_string);
                let message = format!(
                    "the caller says that it is {from:?}, and its certificate names {named}"
                );
                Err(self.refuse(Refused::Replica, message))
            }
        }
    }

    /// Whether no other process runs under the caller's id.
    fn check_boot(&self, boot: &str, arrival: Option<&Arrival>) -> Result<(), Status> {
        let Some(Arrival { caller: Caller::Replica(id), seat }) = arrival else { return Ok(()) };
        // A release that does not say it is let in.
        let Ok(boot) = boot.parse() else { return Ok(()) };
        match seat.check(*id, boot) {
            Ok(()) => Ok(()),
            Err(Kept::Waiting(why)) => {
                tracing::info!(reason = why, "a caller waits");
                Err(Status::unavailable(why))
            }
            Err(Kept::Out(why)) => {
                let mut status = self.refuse(Refused::Copy, why);
                let metadata = status.metadata_mut();
                metadata.insert(COPY, tonic::metadata::AsciiMetadataValue::from_static("1"));
                Err(status)
            }
        }
    }

    fn admit(&self, caller: &Caller) -> Result<(), Status> {
        match caller {
            Caller::Gateway(name) if !self.gateways => {
                let message = format!("gateway {name} may use the Store service, and no other");
                Err(self.refuse(Refused::Service, message))
            }
            Caller::Gateway(_) => Ok(()),
            Caller::Replica(id) => self.door.admit(*id).map_err(|turned| {
                // A removed replica asks again and again.
                let label = RefusedLabel { why: Refused::Member };
                self.metrics.peers_refused.get_or_create(&label).inc();
                tracing::debug!(reason = %turned, "a replica that is no member was refused");
                turned.into()
            }),
        }
    }
}

impl tonic::service::Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let arrival = request.extensions().get::<Arrival>();
        self.check(request.metadata().as_ref(), arrival)?;
        Ok(request)
    }
}
