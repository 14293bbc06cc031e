//! The teardown of deleted tenants: every module is asked to remove what it has of one, until all are done in one pass.
//!
//! # Invariants
//! - `TEN-6` A teardown goes on until nothing is left, whatever ends in between: each module's step is a transaction of its
//!   own, safe to repeat, and the tenant stays `deleting` until the last pass.
//! - `TEN-7` One call removes at most a hundred rows of a kind, and one run makes at most twenty passes.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Context, Error, Module, ReconcileContext, Reconciler, Registry, Result, ShardBy, Sweep,
    module::Run,
    tenants::{Amounts, Charging, SWEEP_MAX},
};
use palisade_state::{Tx, View};
use serde_json::json;

use crate::{
    quota,
    records::{CHARGES, State, TEARDOWNS, TENANTS, TeardownRow, USAGE, charge_key},
};

/// The reconciler; its keys are names of tenants that are being deleted.
pub const SWEEP_KIND: &str = "tenancy.sweep";

/// After so long those are asked again that wait for something.
pub const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Passes of one run at most, as long as each removes something; the rest is another run's.
const PASSES_MAX: usize = 20;

/// Characters of a failure that are kept.
const FAILURE_CHARS_MAX: usize = 300;

/// All modules of the process, once it is put together.
#[derive(Default)]
pub(crate) struct Modules(OnceLock<Vec<Weak<dyn Module>>>);

impl Modules {
    /// Notes them; the first registry counts.
    pub fn bind(&self, registry: &Registry) {
        let modules = registry.modules().iter().map(Arc::downgrade).collect();
        self.0.get_or_init(|| modules);
    }

    /// All of them, in order.
    pub fn all(&self) -> Result<Vec<Arc<dyn Module>>> {
        let modules = self
            .0
            .get()
            .ok_or_else(|| Error::internal("the tenancy module was not told of the registry"))?;
        Ok(modules.iter().filter_map(Weak::upgrade).collect())
    }
}

/// See the module.
pub(crate) struct Teardown {
    pub modules: Arc<Modules>,
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Nothing is left.
    Done,
    /// Something was removed, and something is left.
    Went,
    /// Nothing was removed, and something is left.
    Waits,
}

impl Reconciler for Teardown {
    fn name(&self) -> &'static str {
        SWEEP_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        let all = TENANTS.all(view)?.into_iter();
        let deleting = all.filter(|(_, found)| found.value.state == State::Deleting);
        Ok(deleting.map(|(name, _)| name).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            for _ in 0..PASSES_MAX {
                if cx.cancelled.is_cancelled() {
                    break;
                }
                match self.pass(cx, key).await? {
                    Pass::Done => return Ok(Run::Done),
                    Pass::Went => {}
                    Pass::Waits => return Ok(Run::After(SWEEP_EVERY)),
                }
            }
            Ok(Run::Again)
        })
    }
}

fn is_deleting(view: &View, tenant: &str) -> Result<bool> {
    let row = TENANTS.get(view, &tenant.to_owned())?;
    Ok(row.is_some_and(|row| row.value.state == State::Deleting))
}

impl Teardown {
    async fn pass(&self, cx: &ReconcileContext, tenant: &str) -> Result<Pass> {
        if !is_deleting(&cx.view(), tenant)? {
            return Ok(Pass::Done);
        }
        let begun = cx.committed_rev();
        let mut found = TeardownRow::default();
        for module in self.modules.all()? {
            match ask(cx, &*module, tenant).await {
                Ok(Sweep::Done) => {}
                Ok(Sweep::Again) => found.waiting.push(module.name().to_owned()),
                Err(error) if error.code == Code::Fenced => return Err(error),
                Err(error) => {
                    let name = module.name();
                    tracing::warn!(module = name, tenant, %error, "a module cannot let go of a tenant; it is asked again");
                    let text = error.to_string().chars().take(FAILURE_CHARS_MAX).collect();
                    found.failures.insert(name.to_owned(), text);
                }
            }
        }
        let pass = if cx.committed_rev() > begun { Pass::Went } else { Pass::Waits };
        if found == TeardownRow::default() {
            // What the last one removed may have left something to the first: all must be done when nothing was removed.
            let has_ended = pass == Pass::Waits && end(cx, tenant).await?;
            return Ok(if has_ended { Pass::Done } else { Pass::Went });
        }
        note(cx, tenant, &found).await?;
        Ok(pass)
    }
}

/// Asks one module. Nothing is committed when it has nothing to remove.
async fn ask(cx: &ReconcileContext, module: &dyn Module, tenant: &str) -> Result<Sweep> {
    let mut look = Tx::new(cx.view());
    let left = step(&cx.context, module, &mut look, tenant)?;
    if look.is_empty() {
        return Ok(left);
    }
    let mut left = Sweep::Again;
    cx.commit(|tx| {
        left = step(&cx.context, module, tx, tenant)?;
        Ok(())
    })
    .await?;
    Ok(left)
}

/// One step of a module: one that panics has failed, and the others are asked all the same.
fn step(cx: &Context, module: &dyn Module, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
    catch_unwind(AssertUnwindSafe(|| module.tenant_deleted(cx, tx, tenant)))
        .unwrap_or_else(|_| Err(Error::internal("it panicked")))
}

/// Keeps how far it is, when that is another than before.
async fn note(cx: &ReconcileContext, tenant: &str, found: &TeardownRow) -> Result<()> {
    let key = tenant.to_owned();
    let before = TEARDOWNS.get(&cx.view(), &key)?.map(|row| row.value);
    if before.as_ref() == Some(found) {
        return Ok(());
    }
    cx.commit(|tx| Ok(tx.put(&TEARDOWNS, &key, found)?)).await?;
    Ok(())
}

/// Ends a teardown after a pass in which all were done; whether it did. Charges of what is not there any more go first.
async fn end(cx: &ReconcileContext, tenant: &str) -> Result<bool> {
    let key = tenant.to_owned();
    let mut has_ended = false;
    cx.commit(|tx| {
        has_ended = false;
        let Some(mut row) = tx.get(&TENANTS, &key)? else { return Ok(()) };
        if row.state != State::Deleting {
            return Ok(());
        }
        let prefix = charge_key(tenant, "");
        let charges = CHARGES.with_prefix(tx.view(), prefix.as_bytes())?;
        for (charge, _) in charges.iter().take(SWEEP_MAX) {
            let subject = charge.strip_prefix(&prefix).unwrap_or_default();
            quota::charge(tx, tenant, subject, Amounts::default(), Charging::Settled)?;
        }
        if charges.len() > SWEEP_MAX {
            return Ok(());
        }
        tx.delete(&USAGE, &key)?;
        tx.delete(&TEARDOWNS, &key)?;
        row.state = State::Deleted;
        row.suspended = None;
        row.teardown_done_at_ms = Some(tx.view().clock().wall_ms);
        tx.put(&TENANTS, &key, &row)?;
        tx.publish(
            "tenant.torn-down",
            tenant,
            format!("tenant/{tenant}"),
            &json!({ "tenant": tenant }),
        );
        has_ended = true;
        Ok(())
    })
    .await?;
    Ok(has_ended)
}
