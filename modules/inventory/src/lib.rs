//! The inventory: machines with agents, how they join, and whether they are there.
//!
//! # Invariants
//! - `INV-1` A join token makes at most as many nodes as it has uses, each for one key.
//! - `INV-2` A name belongs to at most one node that is not retired; so does a key.
//! - `INV-3` What does not change is not written: a node in steady state costs no log entries.

mod certificate;
mod check;
mod identity;
mod join;
mod join_token_methods;
mod life;
mod node_methods;
mod reconcilers;
mod records;
mod teardown;
mod token;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_contract::{
    Catalog, Context, Finding, Method, Module, NodeId, Reconciler, Result, SessionId, Sweep,
    node::{HostFacts, Node, NodeSession},
    ports::{JoinRequest, Nodes},
};
use palisade_state::{Declared, Tx, View, past::Kept};

pub use identity::ProductUuid;
pub use join_token_methods::{CreateToken, ListTokens, RevokeToken, TokenRecord};
pub use node_methods::{ListNodes, NodeCondition, NodeRecord, OneNode, RemoveNode};
pub use records::Expect;

/// How long a node without a session may stay away before it is lost.
pub const LOST_GRACE: Duration = Duration::from_secs(30);

/// The module `inventory`.
pub struct Inventory {
    port: Arc<Port>,
}

/// What fills `ports.nodes`.
struct Port {
    lost_grace: Duration,
    /// For what is noted after a refusal, which itself writes nothing.
    context: OnceLock<Context>,
}

impl Default for Inventory {
    fn default() -> Self {
        Self::new(LOST_GRACE)
    }
}

impl Inventory {
    /// The module; a node is lost when its session was gone for `lost_grace`.
    #[must_use]
    pub fn new(lost_grace: Duration) -> Self {
        Self { port: Arc::new(Port { lost_grace, context: OnceLock::new() }) }
    }

    /// The port that it fills at its start.
    #[must_use]
    pub fn nodes(&self) -> Arc<dyn Nodes> {
        self.port.clone()
    }
}

impl Module for Inventory {
    fn name(&self) -> &'static str {
        "inventory"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![records::NODES.declared(), records::JOIN_TOKENS.declared()]
    }

    fn kept(&self) -> Vec<Kept> {
        vec![records::NODES.kept()]
    }

    fn methods(&self) -> Vec<Method> {
        let mut methods = node_methods::methods();
        methods.extend(join_token_methods::methods());
        methods
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![
            Arc::new(reconcilers::LostNodes { lost_grace: self.port.lost_grace }),
            Arc::new(reconcilers::OrphanedSessions { lost_grace: self.port.lost_grace }),
        ]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![
                "compute:nodes:read",
                "compute:nodes:write",
                "compute:nodes:remove",
                "compute:join-tokens:read",
                "compute:join-tokens:write",
            ],
            resource_types: vec!["node", "join-token"],
        }
    }

    fn self_check(&self, _cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::findings(view)
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        teardown::in_use(view)
    }

    fn tenant_deleted(&self, cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        teardown::removed(cx, tx, tenant)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if self.port.context.set(cx.clone()).is_ok() {
                cx.ports.nodes.fill(self.port.clone())?;
            }
            Ok(())
        })
    }
}

impl Nodes for Port {
    fn find(&self, view: &View, id_or_name: &str) -> Result<Option<Node>> {
        Ok(records::find(view, id_or_name)?.map(|found| found.value.node))
    }

    fn find_in(&self, tx: &mut Tx, id_or_name: &str) -> Result<Option<Node>> {
        Ok(records::find_in(tx, id_or_name)?.map(|found| found.value.node))
    }

    fn list(&self, view: &View) -> Result<Vec<Node>> {
        Ok(records::NODES.all(view)?.into_iter().map(|(_, found)| found.value.node).collect())
    }

    fn join(&self, cx: &Context, tx: &mut Tx, request: &JoinRequest) -> Result<Node> {
        join::join(cx, tx, request)
    }

    fn note_replay(&self, tx: &mut Tx, request: &JoinRequest) -> Result<()> {
        join::note_replay(tx, request)
    }

    fn authenticate(&self, view: &View, node: &NodeId, key: &str) -> Result<Node> {
        certificate::authenticate(view, node, key)
    }

    fn renew(&self, tx: &mut Tx, node: &NodeId, old_key: &str, new_key: &str) -> Result<()> {
        let renewed = certificate::renew(tx, node, old_key, new_key)?;
        match (renewed, self.context.get()) {
            (certificate::Renewal::Bound, _) => Ok(()),
            (certificate::Renewal::Cloned, context) => {
                if let Some(context) = context {
                    certificate::note_clone_later(context, node, old_key);
                }
                Err(certificate::cloned(node))
            }
        }
    }

    fn session_opened(
        &self,
        tx: &mut Tx,
        node: &NodeId,
        session: &NodeSession,
        facts: &HostFacts,
        agent_version: &str,
    ) -> Result<()> {
        life::session_opened(tx, node, session, facts, agent_version)
    }

    fn session_closed(&self, tx: &mut Tx, node: &NodeId, session: &SessionId) -> Result<()> {
        life::session_closed(tx, node, session, self.lost_grace)
    }

    fn holds_session(&self, tx: &mut Tx, node: &NodeId, session: &SessionId) -> Result<bool> {
        life::holds_session(tx, node, session)
    }

    fn facts_changed(&self, tx: &mut Tx, node: &NodeId, facts: &HostFacts) -> Result<()> {
        life::facts_changed(tx, node, facts)
    }
}
