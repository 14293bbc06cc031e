//! The audit module: signed checkpoints of the chain, its export, and verification without a network.

mod checkpoint;
mod export;
pub mod key;
pub mod line;
pub mod note;
mod sinks;
pub mod statement;
#[cfg(test)]
mod tests;
pub mod verify;

use std::sync::Arc;

use palisade_contract::{
    Catalog, Context, Finding, Method, MethodContext, Module, Nothing, Reconciler, Resource,
    Result, Severity, Verb, time::rfc3339,
};
use palisade_state::{Declared, View};
use schemars::JsonSchema;
use serde::Serialize;

pub use checkpoint::KIND;
use checkpoint::{CHECKPOINTS, Checkpoints, contradicted, formation};
pub use sinks::AuditSinks;

const CHAIN_READ: &str = "compute:audit-chain:read";

/// The module.
#[derive(Debug, Default)]
pub struct AuditModule;

/// The key with which this cluster signs.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Key {
    /// As `palisade audit verify --key` takes it: `<name>+<id>+<base64>`.
    key: String,
    /// Its name.
    name: String,
    /// The Ed25519 public key, hex.
    public_key: String,
}

/// A checkpoint.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Shown {
    /// The last record.
    id: String,
    /// The last record.
    size: u64,
    /// Its hash.
    head: String,
    at: String,
    /// The signed note; absent: not signed yet.
    note: Option<String>,
}

fn key(cx: &MethodContext, view: &View, _: Nothing) -> Result<Key> {
    let seal = cx.context.ports.seal.get()?;
    let name = statement::key_name(&formation(view)?.lineage);
    let key = note::Verifier::new(name.clone(), seal.public()).to_string();
    Ok(Key { key, name, public_key: hex::encode(seal.public()) })
}

fn checkpoints(_: &MethodContext, view: &View, _: Nothing) -> Result<Vec<Shown>> {
    let shown = |(size, row): (u64, palisade_state::Versioned<checkpoint::CheckpointRow>)| Shown {
        id: size.to_string(),
        size,
        head: row.value.head,
        at: rfc3339(row.value.at_ms),
        note: row.value.note,
    };
    Ok(CHECKPOINTS.all(view)?.into_iter().map(shown).collect())
}

impl Module for AuditModule {
    fn name(&self) -> &'static str {
        "audit"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![CHECKPOINTS.declared()]
    }

    fn methods(&self) -> Vec<Method> {
        let whole = |_: &serde_json::Value| Resource::cluster("audit", "");
        vec![
            Method::stream("audit", "export", CHAIN_READ, export::export)
                .summary(
                    "The audit chain as lines of JSON, behind a signed statement of what they are.",
                )
                .rest(Verb::Get, "/audit/export")
                .media("application/x-ndjson")
                .audited()
                .on(whole),
            Method::query("audit", "key", CHAIN_READ, key)
                .summary(
                    "The public key with which the cluster signs what it says of its audit chain.",
                )
                .rest(Verb::Get, "/audit/key")
                .on(whole),
            Method::query("audit", "checkpoints", CHAIN_READ, checkpoints)
                .summary("The signed checkpoints of the audit chain, oldest first.")
                .rest(Verb::Get, "/audit/checkpoints")
                .list()
                .on(whole),
        ]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(Checkpoints)]
    }

    fn catalog(&self) -> Catalog {
        Catalog { actions: vec![CHAIN_READ], resource_types: vec![] }
    }

    fn self_check(&self, _: &Context, view: &View) -> Result<Vec<Finding>> {
        let finding = |size: u64| {
            Finding {
            check: "audit.checkpoint".to_owned(),
            severity: Severity::Error,
            message: format!("the checkpoint of audit record {size} has another hash than the record"),
            fix: "keep this replica's directory; compare an export of it with one of another: docs/audit.md".to_owned(),
            count: None,
        }
        };
        Ok(contradicted(view)?.map(finding).into_iter().collect())
    }
}
