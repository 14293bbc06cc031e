//! Events for others: subscriptions with signed webhooks and sinks, in order, at least once, and what could not be delivered.
//!
//! # Invariants
//! - `EVT-1` is in `signature.rs`, `EVT-2` and `EVT-5` in `plan.rs`, `EVT-3` in `settle.rs` and `news.rs`, `EVT-4` in `http/policy.rs`,
//!   `EVT-6` and `EVT-7` in `filter.rs`, `EVT-8` in `deliver.rs`, `EVT-9` in `methods/mod.rs`.

mod check;
mod deliver;
mod dispatch;
mod filter;
pub mod http;
mod methods;
mod news;
mod outcome;
mod plan;
mod records;
mod schedule;
mod secrets;
mod settle;
pub mod signature;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use futures::future::BoxFuture;
use palisade_contract::{
    Catalog, Code, Context, Error, EventSink, Finding, Method, Module, Reconciler, Registry,
    Result, SecretRef, Sweep, secrets::SecretUsers, tenants::sweep, waking::Watching,
};
use palisade_state::{Declared, Tx, View};

use records::{LETTERS, PROGRESS, QUEUE, SUBSCRIPTIONS};

/// The sinks of all modules, once the process is put together, by `<id>@<version>`.
#[derive(Default)]
pub(crate) struct Sinks(OnceLock<BTreeMap<String, Arc<dyn EventSink>>>);

impl Sinks {
    /// # Errors
    /// `UNSUPPORTED`: no module of this process has one of this name.
    pub fn find(&self, name: &str) -> Result<Arc<dyn EventSink>> {
        let known = self.0.get();
        known.and_then(|known| known.get(name)).cloned().ok_or_else(|| {
            let all: Vec<&str> =
                known.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            Error::new(Code::Unsupported, format!("no module has an event sink {name:?}"))
                .hint(format!("this replica has {all}; all replicas must run the same binary"))
        })
    }
}

/// The module `events`. It sends to the sinks of all modules, so it is told of the registry once that is made.
#[derive(Default)]
pub struct EventsModule {
    sinks: Arc<Sinks>,
    watching: Watching,
}

impl EventsModule {
    /// Says which sinks there are. A second call changes nothing.
    pub fn bind(&self, registry: &Registry) {
        let all = registry.modules().iter().flat_map(|module| module.event_sinks());
        let _ = self.sinks.0.set(all.map(|sink| (sink.name(), sink.sink)).collect());
    }
}

impl Module for EventsModule {
    fn name(&self) -> &'static str {
        "events"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![SUBSCRIPTIONS.declared(), PROGRESS.declared(), QUEUE.declared(), LETTERS.declared()]
    }

    fn methods(&self) -> Vec<Method> {
        methods::methods(&self.sinks)
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(dispatch::Dispatch), Arc::new(deliver::Subscribers::new(self.sinks.clone()))]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec!["compute:subscriptions:read", "compute:subscriptions:write"],
            resource_types: vec!["subscription"],
        }
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::findings(cx, view, &self.sinks)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // Where nothing can be sent, nobody is woken but by the clock.
            if cx.ports.webhooks.filled().is_none() {
                return Ok(());
            }
            self.watching.begin(cx, "events for subscriptions", dispatch::Seen::default());
            Ok(())
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        self.watching.end();
        Box::pin(std::future::ready(Ok(())))
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        let all = SUBSCRIPTIONS.all(view)?.into_iter();
        Ok(all.map(|(_, row)| row.value.tenant).filter(|tenant| !tenant.is_empty()).collect())
    }

    fn secret_users(&self, tx: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<SecretUsers> {
        let mut users = SecretUsers::default();
        for (_, row) in tx.scan(&SUBSCRIPTIONS, format!("{tenant}/").as_bytes())? {
            if row.signing.iter().any(|signing| signing.secret == secret.secret) {
                users.by.insert(format!("subscription/{}", row.name));
            }
        }
        Ok(users)
    }

    fn tenant_deleted(&self, _cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        let own = format!("{tenant}/");
        let subscriptions = sweep(tx, &SUBSCRIPTIONS, |row| row.tenant == tenant)?;
        let progress = sweep(tx, &PROGRESS, |row| row.subscription.starts_with(&own))?;
        let waiting = sweep(tx, &QUEUE, |row| row.subscription.starts_with(&own))?;
        let letters = sweep(tx, &LETTERS, |row| row.subscription.starts_with(&own))?;
        Ok(subscriptions.and(progress).and(waiting).and(letters))
    }
}
