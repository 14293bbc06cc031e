//! The `nodes` port over one table, as small as it can be.

use std::sync::Arc;

use palisade_contract::{
    Code, Context, Error, InstanceId, Module, NodeId, Result, SessionId, StatusHandler,
    node::{HostFacts, Node, NodePhase, NodeSession},
    ports::{JoinRequest, Nodes},
};
use palisade_state::{Declared, Table, Tx, View};
use serde::{Deserialize, Serialize};

pub static NODES: Table<String, Node> = Table::new("nodes", &[]);
pub static PHASES: Table<String, Seen> = Table::new("phases", &[]);

/// What the status handler keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    pub restarts: u32,
}

pub const TOKEN: &str = "palj1.good.secret";

pub struct TestNodes;

fn refused(why: &str) -> Error {
    Error::new(Code::Unauthenticated, why)
}

fn live(tx: &mut Tx, node: &NodeId) -> Result<Node> {
    tx.get(&NODES, &node.key())?.ok_or_else(|| refused("the node is gone"))
}

fn change(tx: &mut Tx, node: &NodeId, change: impl FnOnce(&mut Node)) -> Result<()> {
    let before = live(tx, node)?;
    let mut after = before.clone();
    change(&mut after);
    if before != after {
        tx.put(&NODES, &node.key(), &after)?;
    }
    Ok(())
}

impl Nodes for TestNodes {
    fn find(&self, view: &View, id: &str) -> Result<Option<Node>> {
        Ok(NODES.get(view, &id.to_owned())?.map(|found| found.value))
    }

    fn find_in(&self, tx: &mut Tx, id: &str) -> Result<Option<Node>> {
        Ok(tx.get(&NODES, &id.to_owned())?)
    }

    fn list(&self, view: &View) -> Result<Vec<Node>> {
        Ok(NODES.all(view)?.into_iter().map(|(_, found)| found.value).collect())
    }

    fn join(&self, cx: &Context, tx: &mut Tx, request: &JoinRequest) -> Result<Node> {
        if request.token != TOKEN {
            return Err(refused("the token is wrong"));
        }
        let all = tx.scan(&NODES, b"")?;
        if let Some((_, node)) = all.into_iter().find(|(_, n)| n.keys.contains(&request.key)) {
            return Ok(node);
        }
        let node = Node {
            id: NodeId::mint(&*cx.rt),
            name: request.name.clone(),
            pool: "default".into(),
            tenant: String::new(),
            labels: Default::default(),
            phase: NodePhase::Joining,
            schedulable: true,
            session: None,
            disconnected_at_ms: None,
            facts: request.facts.clone(),
            keys: vec![request.key.clone()],
            joined_at_ms: 0,
            agent_version: request.agent_version.clone(),
        };
        tx.put(&NODES, &node.id.key(), &node)?;
        Ok(node)
    }

    fn note_replay(&self, tx: &mut Tx, request: &JoinRequest) -> Result<()> {
        if request.token.starts_with("palj1.used.") {
            tx.publish("join.token.replayed", "", "token/used".into(), &serde_json::json!({}));
        }
        Ok(())
    }

    fn authenticate(&self, view: &View, node: &NodeId, key: &str) -> Result<Node> {
        let found = self.find(view, node.as_str())?;
        let found = found.filter(|node| node.keys.iter().any(|known| known == key));
        found.ok_or_else(|| refused("the node or its key is not known"))
    }

    fn renew(&self, tx: &mut Tx, node: &NodeId, old_key: &str, new_key: &str) -> Result<()> {
        let before = live(tx, node)?;
        if before.keys.first().is_none_or(|key| key != old_key) {
            return Err(refused("the key was renewed before"));
        }
        change(tx, node, |node| node.keys = vec![new_key.to_owned(), old_key.to_owned()])
    }

    fn session_opened(
        &self,
        tx: &mut Tx,
        node: &NodeId,
        session: &NodeSession,
        facts: &HostFacts,
        _agent_version: &str,
    ) -> Result<()> {
        change(tx, node, |node| {
            node.session = Some(session.clone());
            node.phase = NodePhase::Ready;
            node.facts = facts.clone();
        })
    }

    fn session_closed(&self, tx: &mut Tx, node: &NodeId, session: &SessionId) -> Result<()> {
        if tx.get(&NODES, &node.key())?.is_none() {
            return Ok(());
        }
        change(tx, node, |node| {
            if node.session.as_ref().is_some_and(|held| held.id == *session) {
                node.session = None;
                node.phase = NodePhase::Unhealthy;
            }
        })
    }

    fn holds_session(&self, tx: &mut Tx, node: &NodeId, session: &SessionId) -> Result<bool> {
        let held = tx.get(&NODES, &node.key())?.and_then(|node| node.session);
        Ok(held.is_some_and(|held| held.id == *session))
    }

    fn facts_changed(&self, tx: &mut Tx, node: &NodeId, facts: &HostFacts) -> Result<()> {
        change(tx, node, |node| node.facts = facts.clone())
    }
}

/// Keeps the restarts of each instance that is reported.
pub struct NodesModule;

impl Module for NodesModule {
    fn name(&self) -> &'static str {
        "nodes"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![NODES.declared(), PHASES.declared()]
    }

    fn status_handlers(&self) -> Vec<StatusHandler> {
        vec![StatusHandler {
            name: "phases",
            handle: Arc::new(|_, tx, _, status| {
                for instance in &status.instances {
                    let seen = Seen { restarts: instance.restarts };
                    if tx.get(&PHASES, &instance.id.key())?.as_ref() != Some(&seen) {
                        tx.put(&PHASES, &instance.id.key(), &seen)?;
                    }
                }
                Ok(())
            }),
        }]
    }
}

pub fn instance() -> InstanceId {
    InstanceId::parse("in_01arz3ndektsv4rrffq69g5fav").unwrap()
}
