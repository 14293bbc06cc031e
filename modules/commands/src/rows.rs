//! What is stored of commands, and by what it is found.

use palisade_contract::{CommandId, NodeId, Result, command::Command};
use palisade_state::{Fence, Index, Table, Tx};
use serde::{Deserialize, Serialize};

/// What is kept of a node as long as it has had commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    /// How many commands it was given: the last one's place in their order.
    pub seq: u64,
    /// The highest fence under which one was sent (`CMD-4`).
    #[serde(default)]
    pub fence: Fence,
}

pub(crate) const BY_ID: &str = "id";
pub(crate) const BY_KEY: &str = "key";
pub(crate) const BY_TENANT: &str = "tenant";
pub(crate) const OPEN: &str = "open";
pub(crate) const FINISHED: &str = "finished";

/// The commands by node, lane and place, so that those of a lane are in order.
pub(crate) static COMMANDS: Table<String, Command> = Table::new(
    "commands",
    &[
        Index { name: BY_ID, keys: |row| vec![row.id.key()] },
        Index { name: BY_KEY, keys: |row| vec![keyed(&row.node, &row.key)] },
        Index {
            name: BY_TENANT,
            keys: |row| if row.tenant.is_empty() { vec![] } else { vec![row.tenant.clone()] },
        },
        Index { name: OPEN, keys: |row| of_node(row, !row.state.is_finished()) },
        Index { name: FINISHED, keys: |row| of_node(row, row.state.is_finished()) },
    ],
);

/// By node.
pub(crate) static NODES: Table<String, NodeRow> = Table::new("command_nodes", &[]);

fn of_node(row: &Command, is_in: bool) -> Vec<String> {
    if is_in { vec![row.node.key()] } else { vec![] }
}

/// The key of the index of keys.
pub(crate) fn keyed(node: &NodeId, key: &str) -> String {
    format!("{node}/{key}")
}

/// Where a command is stored.
pub(crate) fn place(row: &Command) -> String {
    format!("{}/{}/{:020}", row.node, row.lane, row.seq)
}

/// A command by its id.
pub(crate) fn find(tx: &mut Tx, id: &CommandId) -> Result<Option<Command>> {
    Ok(tx.by_index(&COMMANDS, BY_ID, id.as_str())?.pop().map(|(_, row)| row))
}

/// The commands of a node that are not finished, by lane and in order.
pub(crate) fn open(tx: &mut Tx, node: &NodeId) -> Result<Vec<Command>> {
    Ok(tx.by_index(&COMMANDS, OPEN, node.as_str())?.into_iter().map(|(_, row)| row).collect())
}
