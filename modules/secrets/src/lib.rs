//! Secrets: values that nobody reads back, sealed under keys that are in no log and no snapshot.
//!
//! # Invariants
//! - `SEC-1` is in `palisade_contract::secrets`, `SEC-2` and `SEC-3` in `keyring.rs`, `SEC-4` in `records.rs`, `SEC-5` and `SEC-6` in
//!   `methods.rs`, `SEC-7` to `SEC-9` in `rotation.rs`.
//! - `SEC-11` is in the gateway, `SEC-12` and `SEC-13` in the agent.

mod check;
mod keeper;
pub mod keyring;
mod methods;
mod port;
mod records;
mod rotation;
mod spread;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use futures::future::BoxFuture;
use palisade_contract::{
    Catalog, Context, Error, Finding, Method, Module, Reconciler, Registry, Result, SecretRef,
    Sweep, secrets::SecretUsers, tenants::sweep,
};
use palisade_state::{Declared, Tx, View};

pub use methods::{ListSecrets, OneSecret, SECRETS_MAX, SecretRecord, SetSecret};
pub use records::KeyState;
pub use rotation::{RotationRecord, SecretKeyRecord, lose_keys, needed_keys};

use records::{HOLDERS, RING, SECRETS};

/// One look of what each replica does by itself once a second: it says which keys it holds, removes dropped ones, and asks for the
/// first key.
///
/// # Errors
/// It could not be noted.
pub async fn look(cx: &Context) -> Result<()> {
    keeper::say(cx, &cx.store.view(), port::keys(cx)?).await
}

/// Fills the port `secrets` of a process that has keys.
///
/// # Errors
/// It has none, or the port is filled already.
pub fn fill(cx: &Context) -> Result<()> {
    cx.ports.secrets.fill(Arc::new(port::Port(port::keys(cx)?.clone())))
}

/// All modules of the process, once it is put together.
#[derive(Default)]
pub(crate) struct Modules(OnceLock<Vec<Arc<dyn Module>>>);

impl Modules {
    fn users(&self, tx: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<SecretUsers> {
        let modules =
            self.0.get().ok_or_else(|| Error::internal("secrets was not told of the modules"))?;
        let mut users = SecretUsers::default();
        for module in modules {
            let mut own = module.secret_users(tx, tenant, secret)?;
            users.by.append(&mut own.by);
            users.nodes.append(&mut own.nodes);
        }
        Ok(users)
    }
}

/// The module `secrets`. It asks every registered module who uses a secret, so it is told of the registry once that is
/// made.
#[derive(Default)]
pub struct SecretsModule {
    modules: Arc<Modules>,
    keeper: Arc<keeper::Keeper>,
}

impl SecretsModule {
    /// Says which modules to ask. A second call changes nothing.
    pub fn bind(&self, registry: &Registry) {
        let _ = self.modules.0.set(registry.modules().to_vec());
    }
}

impl Module for SecretsModule {
    fn name(&self) -> &'static str {
        "secrets"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![SECRETS.declared(), RING.declared(), HOLDERS.declared()]
    }

    fn methods(&self) -> Vec<Method> {
        methods::methods(&self.modules)
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(rotation::Rotation), Arc::new(spread::Spread(self.modules.clone()))]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![
                "compute:secrets:read",
                "compute:secrets:write",
                "compute:secret-keys:read",
                "compute:secret-keys:rotate",
            ],
            resource_types: vec!["secret", "secret-key"],
        }
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::findings(cx, view)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(keys) = cx.ports.secret_keys.filled() else { return Ok(()) };
            if cx.ports.secrets.filled().is_some() {
                return Ok(());
            }
            fill(cx)?;
            let (cx, keys, keeper) = (cx.clone(), keys.clone(), self.keeper.clone());
            let rt = cx.rt.clone();
            let keep = async move { keeper.keep(&cx, &keys).await };
            rt.spawn("keys of secrets", Box::pin(keep));
            Ok(())
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        self.keeper.end();
        Box::pin(std::future::ready(Ok(())))
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        let all = SECRETS.all(view)?.into_iter();
        Ok(all.map(|(_, row)| row.value.tenant).filter(|tenant| !tenant.is_empty()).collect())
    }

    fn tenant_deleted(&self, _cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        sweep(tx, &SECRETS, |row| row.tenant == tenant)
    }
}
