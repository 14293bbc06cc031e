//! A command as operators see it.

use palisade_state::View;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{Command, CommandResult, CommandState};
use crate::{
    context::Context,
    error::Result,
    id::{CommandId, NodeId},
    time::rfc3339,
};

/// A command as REST shows it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandRecord {
    /// Its id.
    pub id: CommandId,
    /// The node whose agent carries it out.
    pub node: NodeId,
    /// That node's name.
    pub node_name: String,
    /// Whose it is; empty: the cluster's.
    pub tenant: String,
    /// Its kind.
    pub kind: String,
    /// Of a node and lane one command at a time is with the agent.
    pub lane: String,
    /// The same key on the same node is the same command.
    pub key: String,
    /// What the agent is told.
    pub payload: Value,
    /// The batch that it was put in.
    pub batch: Option<String>,
    /// Where it is in its life.
    pub state: CommandState,
    /// Who sent it; empty: a reconciler.
    pub created_by: String,
    /// When it was made.
    pub created_at: String,
    /// Until when it may be sent.
    pub not_after: String,
    /// How many milliseconds the agent has.
    pub timeout_ms: u64,
    /// Whether it may be sent again when its fate is unknown.
    pub retry_safe: bool,
    /// How often it was sent.
    pub sent: u32,
    /// When it was finished.
    pub finished_at: Option<String>,
    /// What became of it.
    pub result: Option<CommandResult>,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's.
    pub revision: u64,
}

impl CommandRecord {
    /// Shows a command.
    ///
    /// # Errors
    /// Its node's record cannot be read.
    pub fn new(cx: &Context, view: &View, row: &Command, revision: u64) -> Result<Self> {
        let node = cx.ports.nodes.get()?.find(view, row.node.as_str())?;
        Ok(Self {
            id: row.id.clone(),
            node: row.node.clone(),
            node_name: node.map(|node| node.name).unwrap_or_default(),
            tenant: row.tenant.clone(),
            kind: row.kind.clone(),
            lane: row.lane.clone(),
            key: row.key.clone(),
            payload: row.payload.clone(),
            batch: row.batch.clone(),
            state: row.state,
            created_by: row.created_by.clone(),
            created_at: rfc3339(row.created_at_ms),
            not_after: rfc3339(row.created_at_ms.saturating_add(row.not_after_ms)),
            timeout_ms: row.timeout_ms,
            retry_safe: row.retry_safe,
            sent: row.sending.as_ref().map_or(0, |sending| sending.times),
            finished_at: row.finished_at_ms.map(rfc3339),
            result: row.result.clone(),
            revision,
        })
    }
}
