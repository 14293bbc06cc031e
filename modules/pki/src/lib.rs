//! The cluster's certificates: which CA issues, how it is replaced, who has what, and which keys are refused.
//!
//! Keys and certificates are made where their private halves stay, on replicas and nodes; here is what all must agree on.
//!
//! # Invariants
//! - `PKI-3` is in `port.rs`, `PKI-5` and `PKI-6` in `rotation.rs`; `PKI-1`, `PKI-2`, `PKI-4` and `PKI-7` are the server's.

mod check;
mod methods;
mod port;
mod records;
mod rotation;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use futures::future::{BoxFuture, ready};
use palisade_contract::{
    Catalog, Context, Finding, Method, Module, Reconciler, Result, pki::Certificates,
};
use palisade_state::{Declared, Tx, View};

pub use methods::{
    Advance, CaRecord, CertificateRecord, OneKey, RevocationRecord, Revoke, Revoked,
    RotationRecord, StatusRecord,
};
pub use rotation::{Blocker, KIND};

use records::{AUTHORITIES, NODES, REPLICAS, REVOCATIONS};

/// The key (SHA-256 of the SPKI, hex) of the CA that issues; `None`: no replica has said yet which there is.
///
/// # Errors
/// The record cannot be read.
pub fn issuing(view: &View) -> Result<Option<String>> {
    Ok(port::authorities(view)?.map(|found| found.issuing.key))
}

/// All keys that a state refuses: SHA-256 of the SPKI, hex.
///
/// # Errors
/// A record cannot be read.
pub fn refused(view: &View) -> Result<BTreeSet<String>> {
    port::refused(view)
}

/// Forgets what replicas have said of themselves: in a restored cluster others have these ids, and say it anew. `PKI-5`
///
/// # Errors
/// A record cannot be read.
pub fn forget_replicas(tx: &mut Tx) -> Result<()> {
    let view = tx.view().clone();
    for (id, _) in REPLICAS.all(&view)? {
        tx.delete(&REPLICAS, &id)?;
    }
    Ok(())
}

/// The module `pki`.
pub struct PkiModule {
    port: Arc<dyn Certificates>,
}

impl Default for PkiModule {
    fn default() -> Self {
        Self { port: Arc::new(port::Port::default()) }
    }
}

impl Module for PkiModule {
    fn name(&self) -> &'static str {
        "pki"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![AUTHORITIES.declared(), REPLICAS.declared(), NODES.declared(), REVOCATIONS.declared()]
    }

    fn methods(&self) -> Vec<Method> {
        methods::methods()
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(rotation::Rotation)]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![methods::READ, methods::WRITE],
            resource_types: vec!["certificate", "ca"],
        }
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::findings(cx, view)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(ready(match cx.ports.certificates.filled() {
            // Started before; a port of somebody else's is a mistake of the composition.
            Some(filled) if Arc::ptr_eq(filled, &self.port) => Ok(()),
            _ => cx.ports.certificates.fill(self.port.clone()),
        }))
    }
}
