//! Approval of destructive work by several operators: batches that wait, who approves them, and their release.
//!
//! # Invariants
//! - `QUO-1` What is held is not done before as many distinct operators as its batch requires have approved exactly what it
//!   is, by its digest, each of whom may approve at that moment. The hand that made a batch never counts; whose hand
//!   somebody was when he asked or approved he stays.
//! - `QUO-2` A release is one transaction: all that the batch holds, under the rights that its maker has at that moment, or
//!   nothing of it and the end of the batch as `failed`. Each thing is the one that was approved, and not another that was
//!   made since under its name.
//! - `QUO-3` An end of a batch is one, and takes back what is held with it.
//! - `QUO-4` What a held batch requires is what the policy said when it was made; no later policy lowers it.
//! - `QUO-5` A command that is put in a batch is in its scope, and whoever approved before it came has not approved it.
//! - `QUO-6` A destructive call that is made past a batch is held by the envelope (`api/server/src/envelope/held.rs`) where
//!   the policy asks for it; so is a policy that asks for less, when a tenant's own admin sets it, and the cluster's own, whoever does, as
//!   long as there is anybody who could approve it.

mod batch;
mod check;
mod digest;
mod expiry;
mod hands;
mod known;
mod life;
mod methods;
mod policy;
mod port;
mod records;
mod release;
mod shown;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use futures::future::{BoxFuture, ready};
use palisade_contract::{
    Catalog, Context, Finding, Method, Module, Reconciler, Registry, Result, Sweep,
    approvals::Approvals, tenants::sweep,
};
use palisade_state::{Declared, Tx, View};

pub use batch::{CALLS_MAX, HELD_MAX, HELD_OF_ONE_MAX};
pub use expiry::EXPIRY_KIND;
pub use life::ENDED_MAX;
pub use methods::{Approve, CallInput, CreateApproval, EndApproval, ListApprovals, OneApproval};
pub use policy::{ListPolicies, OnePolicy, PolicyMode, PolicyRecord, SetPolicy, Threshold};
pub use records::State;
pub use shown::{ApprovalRecord, ApprovedRecord, CallRecord, EndedRecord};

use known::Known;
use records::{BATCHES, POLICIES};

/// The action of whoever approves.
pub const APPROVE: &str = "compute:quorum:approve";

/// The module `quorum`. It makes calls of other modules' methods, so it is told of the registry once that is made.
pub struct QuorumModule {
    known: Arc<Known>,
    port: Arc<dyn Approvals>,
}

impl Default for QuorumModule {
    fn default() -> Self {
        let known = Arc::new(Known::default());
        Self { port: Arc::new(port::Port { known: known.clone() }), known }
    }
}

impl QuorumModule {
    /// Says which methods and kinds of commands there are. A second call changes nothing.
    pub fn bind(&self, registry: &Registry) {
        self.known.bind(registry);
    }
}

impl Module for QuorumModule {
    fn name(&self) -> &'static str {
        "quorum"
    }

    fn requires(&self) -> &[&'static str] {
        &["iam", "commands"]
    }

    fn tables(&self) -> Vec<Declared> {
        vec![BATCHES.declared(), POLICIES.declared()]
    }

    fn methods(&self) -> Vec<Method> {
        let mut methods = methods::methods(&self.known);
        methods.extend(policy::methods(&self.known));
        methods
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(expiry::Expiry)]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![
                "compute:quorum:read",
                "compute:quorum:request",
                APPROVE,
                "compute:quorum-policy:read",
                "compute:quorum-policy:write",
            ],
            resource_types: vec!["approval", "approval-policy"],
        }
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::findings(cx, view)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(ready(match cx.ports.approvals.filled() {
            // Started before; a port of somebody else's is a mistake of the composition.
            Some(filled) if Arc::ptr_eq(filled, &self.port) => Ok(()),
            _ => cx.ports.approvals.fill(self.port.clone()),
        }))
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        let batches = BATCHES.all(view)?.into_iter().map(|(_, row)| row.value.tenant);
        let policies = POLICIES.all(view)?.into_iter().map(|(_, row)| row.value.tenant);
        Ok(batches.chain(policies).filter(|tenant| !tenant.is_empty()).collect())
    }

    fn tenant_deleted(&self, _cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        let batches = sweep(tx, &BATCHES, |row| row.tenant == tenant)?;
        Ok(batches.and(sweep(tx, &POLICIES, |row| row.tenant == tenant)?))
    }
}
