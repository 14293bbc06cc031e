//! Migrations: each commits with its row in the ledger, or not at all, and never runs again.
//!
//! # Invariants
//! - `MIG-1` A migration is applied at most once, whatever number of replicas starts at once: its
//!   transaction reads the ledger row that it writes.
//! - `MIG-2` A migration writes tables of its own module only.

use palisade_contract::{Code, Context, Error, Module, Registry, Result};
use palisade_state::{Table, Tx, View};
use serde::{Deserialize, Serialize};

/// One applied migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerRow {
    /// Wall-clock milliseconds.
    pub applied_at_ms: u64,
}

/// The append-only ledger, by migration name.
pub const LEDGER: Table<String, LedgerRow> = Table::new("migrations", &[]);

/// Brings all modules' tables up to date, in registration order.
///
/// # Errors
/// The first migration that failed, by name; those before it stay applied, it leaves nothing.
pub async fn run(context: &Context, registry: &Registry) -> Result<()> {
    for module in registry.modules() {
        for migration in module.migrations() {
            let name = migration.name.to_owned();
            let committed = context
                .commit(|tx| {
                    if tx.get(&LEDGER, &name)?.is_some() {
                        return Ok(());
                    }
                    (migration.run)(tx)?;
                    wrote_its_own(&**module, tx)?;
                    let applied_at_ms = tx.view().clock().wall_ms;
                    Ok(tx.put(&LEDGER, &name, &LedgerRow { applied_at_ms })?)
                })
                .await;
            committed.map_err(|error| Error {
                detail: format!("migration {name}: {}", error.detail),
                ..error
            })?;
        }
    }
    Ok(())
}

/// `MIG-2`
fn wrote_its_own(module: &dyn Module, tx: &Tx) -> Result<()> {
    let own = module.tables();
    let is_own = |table: &str| own.iter().any(|own| own.name() == table);
    match tx.written_tables().find(|table| !is_own(table)) {
        None => Ok(()),
        Some(table) => {
            let detail =
                format!("it writes table {table}, which is none of module {}", module.name());
            Err(Error::new(Code::InvalidConfig, detail))
        }
    }
}

/// Whether every migration is applied in this view.
///
/// # Errors
/// A ledger row cannot be read.
pub fn is_current(view: &View, registry: &Registry) -> Result<bool> {
    let mut names =
        registry.modules().iter().flat_map(|module| module.migrations()).map(|m| m.name);
    if view.formation().is_none() {
        return Ok(false);
    }
    names.try_fold(true, |all, name| Ok(all && LEDGER.get(view, &name.to_owned())?.is_some()))
}
