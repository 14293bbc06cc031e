//! The capacity module: what nodes have given away, and who waits for a place.
//!
//! # Invariants
//! - `C1` What a node's books say is given away is the sum of its allocations, each of which is a
//!   placed demand; what the placer gives never exceeds what the node offered in the view that the
//!   transaction was checked against.

mod books;
mod check;
mod nodes;
mod placer;
mod port;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use palisade_contract::{Context, Finding, Module, Reconciler, Result, module::Extension};
use palisade_state::{Declared, View, past::Kept};

pub use nodes::NodeWatch;
pub use placer::Placer;

/// The reconciler that places pending demands; its keys are pools.
pub const PLACER_KIND: &str = "capacity.placer";

/// The reconciler that looks at nodes that changed; its keys are node ids. Inventory wakes it.
pub const NODES_KIND: &str = "capacity.nodes";

/// The module.
#[derive(Debug, Default)]
pub struct CapacityModule;

impl Module for CapacityModule {
    fn name(&self) -> &'static str {
        "capacity"
    }

    fn requires(&self) -> &[&'static str] {
        &["inventory"]
    }

    fn tables(&self) -> Vec<Declared> {
        vec![books::DEMANDS.declared(), books::BOOKS.declared()]
    }

    fn kept(&self) -> Vec<Kept> {
        vec![books::DEMANDS.kept(), books::BOOKS.kept()]
    }

    fn extensions(&self) -> Vec<Extension> {
        vec![Extension { kind: "placement", id: "cpumem", version: "1" }]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(Placer), Arc::new(NodeWatch)]
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(ready(fill(cx)))
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::books(&**cx.ports.nodes.get()?, view)
    }
}

fn fill(cx: &Context) -> Result<()> {
    if cx.ports.capacity.get().is_ok() {
        return Ok(());
    }
    let nodes = cx.ports.nodes.get()?.clone();
    cx.ports.capacity.fill(Arc::new(port::Books::new(nodes)))
}
