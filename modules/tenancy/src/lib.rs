//! Tenants: who shares the cluster, what each may have, and how one is suspended and torn down.
//!
//! # Invariants
//! - `TEN-9` and `TEN-3` are in `port.rs`, `TEN-4` and `TEN-5` in `quota.rs`, `TEN-6` and `TEN-7` in `sweep.rs`.
//! - `TEN-8` A name is one tenant's for ever: the row of a torn-down tenant stays.

mod check;
mod methods;
mod port;
mod quota;
mod records;
mod shown;
mod sweep;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use futures::future::{BoxFuture, ready};
use palisade_contract::{
    Catalog, Context, Finding, Method, Migration, Module, Reconciler, Registry, Result,
    tenants::Tenants,
};
use palisade_state::{Declared, Tx, View};

pub use methods::{
    CreateTenant, ListTenants, NewQuotas, OneTenant, RemoveTenant, SuspendTenant, UpdateTenant,
};
pub use records::State;
pub use shown::{
    DeletedRecord, QuotaRecord, SuspendedRecord, TenantRecord, UsageRecord, UsedRecord,
};
pub use sweep::{SWEEP_EVERY, SWEEP_KIND};

use records::{CHARGES, TEARDOWNS, TENANTS, TenantRow, USAGE};

/// Tenants that the first start of this version makes at most: one transaction holds them.
const ADOPTED_MAX: usize = 3000;

/// The module `tenancy`. It asks every registered module, so it is told of the registry once that is made.
pub struct Tenancy {
    port: Arc<dyn Tenants>,
    modules: Arc<sweep::Modules>,
}

impl Default for Tenancy {
    fn default() -> Self {
        Self { port: Arc::new(port::Port), modules: Arc::default() }
    }
}

impl Tenancy {
    /// Says which modules to ask. A second call changes nothing.
    pub fn bind(&self, registry: &Registry) {
        self.modules.bind(registry);
    }
}

impl Module for Tenancy {
    fn name(&self) -> &'static str {
        "tenancy"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![TENANTS.declared(), USAGE.declared(), CHARGES.declared(), TEARDOWNS.declared()]
    }

    fn migrations(&self) -> Vec<Migration> {
        let modules = self.modules.clone();
        vec![Migration {
            name: "tenancy/0001_tenants-in-use",
            run: Arc::new(move |tx: &mut Tx| adopt(tx, &modules)),
        }]
    }

    fn methods(&self) -> Vec<Method> {
        methods::methods()
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(sweep::Teardown { modules: self.modules.clone() })]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec!["compute:tenants:read", "compute:tenants:write"],
            resource_types: vec!["tenant"],
        }
    }

    fn self_check(&self, _cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::findings(view, &self.modules)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(ready(match cx.ports.tenants.filled() {
            // Started before; a port of somebody else's is a mistake of the composition.
            Some(filled) if Arc::ptr_eq(filled, &self.port) => Ok(()),
            _ => cx.ports.tenants.fill(self.port.clone()),
        }))
    }
}

/// Makes those tenants that there were before tenants were made: all that records of any module name.
fn adopt(tx: &mut Tx, modules: &sweep::Modules) -> Result<()> {
    let (view, mut used) = (tx.view().clone(), BTreeSet::new());
    for module in modules.all()? {
        used.extend(module.tenants_in_use(&view)?);
    }
    for name in used.iter().filter(|name| !name.is_empty()).take(ADOPTED_MAX) {
        if tx.get(&TENANTS, name)?.is_none() {
            tx.put(&TENANTS, name, &TenantRow::new(name, "migration", view.clock().wall_ms))?;
        }
    }
    Ok(())
}
