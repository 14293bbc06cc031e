//! Who is let in: cluster, epoch and name of the caller, before anything of the call is read.
//!
//! # Invariants
//! - `PEER-2` No request is read before the caller's certificate, cluster, epoch and name were checked.
//! - `PEER-3` A gateway is served by the Store service alone.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tonic::{Request, Status, metadata::AsciiMetadataValue};

use super::{
    Door,
    boots::{Kept, Seat},
    caller::Caller,
    client::{BOOT, CLUSTER, COPY, EPOCH, FROM, WAITS},
    refused::Watched,
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
    /// Ends the connection once its holder is refused.
    pub(super) watched: Arc<Watched>,
}

/// Refusals that are remembered.
const SAID_MAX: usize = 256;

/// How often which caller was refused for what: a replica of an earlier life calls several times a second, for ever.
#[derive(Default)]
struct Said(Mutex<BTreeMap<(String, String), u64>>);

impl Said {
    /// Notes a refusal; how many there were, if that is to be logged: the first, the tenth, the hundredth …
    fn again(&self, caller: &str, reason: &str) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= SAID_MAX {
            said.clear();
        }
        let count = said.entry((caller.to_owned(), reason.to_owned())).or_default();
        *count = count.saturating_add(1);
        let is_round = 10_u64.checked_pow(count.ilog10()) == Some(*count);
        is_round.then_some(*count)
    }
}

/// Checks the metadata of each call to one service.
#[derive(Clone)]
pub(super) struct Gate {
    identity: Arc<Identity>,
    epoch: Arc<str>,
    metrics: Arc<Metrics>,
    door: Arc<dyn Door>,
    /// `LINK-2`, for those who call here.
    said: Arc<Said>,
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
        let said = Arc::default();
        Self { identity, epoch, metrics, door, said, gateways: false }
    }

    /// The gate of the Store service.
    pub(super) fn of_store(self) -> Self {
        Self { gateways: true, ..self }
    }

    fn refuse(&self, who: Option<&Caller>, why: Refused, message: String) -> Status {
        self.metrics.peers_refused.get_or_create(&RefusedLabel { why }).inc();
        let caller = who.map_or_else(|| "nobody".to_owned(), Caller::to_string);
        if let Some(times) = self.said.again(&caller, &message) {
            tracing::warn!(caller, reason = message, times, "a caller was refused");
        }
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
            return Err(self.refuse(caller, Refused::Cluster, message));
        }
        if their_epoch != self.epoch.as_ref() {
            let epoch = &self.epoch;
            let message = format!(
                "cluster {cluster} is in epoch {epoch}, and the caller is in epoch {their_epoch:?}: the older one \
                 of the two was recovered or restored and must stay away"
            );
            return Err(self.refuse(caller, Refused::Epoch, message));
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
                Err(self.refuse(caller, Refused::Replica, message))
            }
        }
    }

    /// Whether no other process runs under the caller's id.
    fn check_boot(&self, boot: &str, arrival: Option<&Arrival>) -> Result<(), Status> {
        let Some(Arrival { caller, seat, .. }) = arrival else { return Ok(()) };
        let Caller::Replica(id) = caller else { return Ok(()) };
        // A release that does not say it is let in.
        let Ok(boot) = boot.parse() else { return Ok(()) };
        match seat.check(*id, boot) {
            Ok(()) => Ok(()),
            Err(Kept::Waiting(why)) => {
                if let Some(times) = self.said.again(&caller.to_string(), &why) {
                    tracing::info!(%caller, reason = why, times, "a caller waits");
                }
                let mut status = Status::unavailable(why);
                status.metadata_mut().insert(WAITS, AsciiMetadataValue::from_static("1"));
                Err(status)
            }
            Err(Kept::Out(why)) => {
                let mut status = self.refuse(Some(caller), Refused::Copy, why);
                let metadata = status.metadata_mut();
                metadata.insert(COPY, AsciiMetadataValue::from_static("1"));
                Err(status)
            }
        }
    }

    fn admit(&self, caller: &Caller) -> Result<(), Status> {
        match caller {
            Caller::Gateway(name) if !self.gateways => {
                let message = format!("gateway {name} may use the Store service, and no other");
                Err(self.refuse(Some(caller), Refused::Service, message))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_is_refused_for_ever_is_logged_ever_more_rarely() {
        let said = Said::default();
        let logged = (0..5_000).filter_map(|_| said.again("replica 3", "another cluster"));
        assert_eq!(logged.collect::<Vec<_>>(), [1, 10, 100, 1_000]);
        assert_eq!(said.again("replica 3", "another epoch"), Some(1), "a change is logged");
        for number in 0..2 * SAID_MAX {
            said.again("replica 4", &number.to_string());
        }
        assert!(said.0.lock().unwrap().len() <= SAID_MAX, "it is bounded");
    }
}
