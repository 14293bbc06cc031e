//! The sweeper: commands whose time is over, and finished ones that are forgotten.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use palisade_contract::{
    NodeId, ReconcileContext, Reconciler, Result, ShardBy,
    command::{COMMAND_SWEEPER, Command, CommandResult, CommandState},
    module::Run,
    node::NodePhase,
    ports::Nodes,
};
use palisade_state::{Tx, View};
use serde_json::Value;

use crate::{
    KEPT_MAX, Port,
    life::Step,
    rows::{self, COMMANDS, FINISHED, NODES, place},
};

/// Commands that one run changes or forgets at most.
const CHANGES_MAX: usize = 100;
/// Logical milliseconds between the end of a command and a look at what is kept.
pub(crate) const TRIM_PAUSE_MS: u64 = 60_000;

/// Expires commands that were not sent in time, times out those that were not answered in time, and forgets finished
/// ones. Keys are node ids.
pub(crate) struct Sweeper {
    pub(crate) port: Arc<Port>,
    /// For how many logical milliseconds a finished command is kept.
    pub(crate) kept_ms: u64,
}

/// What one look at a node came to.
#[derive(Default)]
struct Swept {
    changes: usize,
    /// Logical milliseconds at which there is something to do next.
    next_ms: Option<u64>,
}

impl Swept {
    fn comes_back(&mut self, at_ms: u64) {
        self.next_ms = Some(self.next_ms.map_or(at_ms, |next| next.min(at_ms)));
    }
}

impl Reconciler for Sweeper {
    fn name(&self) -> &'static str {
        COMMAND_SWEEPER
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Node
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        Ok(NODES.all(view)?.into_iter().map(|(node, _)| node).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let Some(node) = NodeId::parse(key) else { return Ok(Run::Done) };
            let nodes = cx.context.ports.nodes.get()?.clone();
            let mut look = Tx::new(cx.view());
            let mut swept = self.sweep(&mut look, &*nodes, &node)?;
            if !look.is_empty() {
                cx.commit(|tx| {
                    swept = self.sweep(tx, &*nodes, &node)?;
                    Ok(())
                })
                .await?;
            }
            if swept.changes >= CHANGES_MAX {
                return Ok(Run::Again);
            }
            let now_ms = cx.view().clock().now_ms;
            let left = |at_ms: u64| Duration::from_millis(at_ms.saturating_sub(now_ms).max(1));
            Ok(swept.next_ms.map_or(Run::Done, |at_ms| Run::After(left(at_ms))))
        })
    }
}

impl Sweeper {
    fn sweep(&self, tx: &mut Tx, nodes: &dyn Nodes, node: &NodeId) -> Result<Swept> {
        let mut swept = Swept::default();
        let found = nodes.find(tx.view(), node.as_str())?;
        let is_gone = found.is_none_or(|node| node.phase == NodePhase::Retired);
        for command in rows::open(tx, node)? {
            if swept.changes >= CHANGES_MAX {
                return Ok(swept);
            }
            self.look_at(tx, &command, is_gone, &mut swept)?;
        }
        self.trim(tx, node, &mut swept)?;
        if is_gone && swept.next_ms.is_none() && tx.get(&NODES, &node.key())?.is_some() {
            if swept.changes == 0 {
                tx.delete(&NODES, &node.key())?;
            } else {
                // What was kept of it goes last.
                swept.comes_back(tx.view().clock().now_ms);
            }
        }
        Ok(swept)
    }

    fn look_at(&self, tx: &mut Tx, row: &Command, is_gone: bool, swept: &mut Swept) -> Result<()> {
        let now_ms = tx.view().clock().now_ms;
        let waits = matches!(row.state, CommandState::Held | CommandState::Pending);
        let due_ms = row.sending.as_ref().map_or(row.expires_ms, |sending| sending.deadline_ms);
        let (step, result) = if waits && is_gone {
            let message = "the node was removed before it was sent".to_owned();
            (Step::Cancel, because("NODE_REMOVED", message))
        } else if due_ms > now_ms {
            swept.comes_back(due_ms);
            return Ok(());
        } else if waits {
            (Step::Expire, because("EXPIRED", expired(row)))
        } else {
            let seconds = row.timeout_ms.div_ceil(1000);
            let message = format!(
                "the agent did not answer within {seconds} s: whether it was done is not known"
            );
            (Step::TimeOut, because("TIMED_OUT", message))
        };
        if self.port.finish(tx, row, step, result)?.is_some() {
            swept.changes += 1;
        }
        Ok(())
    }

    /// Forgets finished commands: the oldest of more than are kept, and those that are older than any is kept.
    fn trim(&self, tx: &mut Tx, node: &NodeId, swept: &mut Swept) -> Result<()> {
        let now_ms = tx.view().clock().now_ms;
        let mut finished: Vec<Command> = COMMANDS
            .by_index(tx.view(), FINISHED, node.as_str())?
            .into_iter()
            .map(|(_, found)| found.value)
            .collect();
        finished.sort_by_key(|row| (row.finished_ms, row.seq));
        let mut surplus = finished.len().saturating_sub(KEPT_MAX);
        for row in finished {
            let until_ms = row.finished_ms.unwrap_or_default().saturating_add(self.kept_ms);
            if surplus == 0 && until_ms > now_ms {
                swept.comes_back(until_ms);
                break;
            }
            if swept.changes >= CHANGES_MAX {
                break;
            }
            surplus = surplus.saturating_sub(1);
            tx.delete(&COMMANDS, &place(&row))?;
            swept.changes += 1;
        }
        Ok(())
    }
}

fn because(code: &str, message: String) -> CommandResult {
    CommandResult { code: code.to_owned(), message, data: Value::Null }
}

fn expired(row: &Command) -> String {
    let seconds = row.not_after_ms.div_ceil(1000);
    if row.state == CommandState::Held {
        format!("it was not approved within {seconds} s")
    } else {
        let lane = &row.lane;
        format!(
            "it was not sent within {seconds} s: the node's agent was away, or others of lane {lane} came before it"
        )
    }
}
