//! The life of a command: which step leads from which state to which.

use palisade_contract::{
    Result,
    command::{Command, CommandResult, CommandState},
    node_spec::NODE_SPEC_KIND,
};
use palisade_state::{
    Tx,
    planted::{self, Defect},
};
use serde_json::json;

use crate::{
    Port,
    rows::{COMMANDS, OPEN, place},
    sweeper,
};

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Its batch was approved.
    Release,
    /// It is handed to the agent's session.
    Send,
    /// It is handed to a session once more.
    Resend,
    /// The agent has begun.
    Begin,
    /// The agent has done it.
    Succeed,
    /// The agent could not do it.
    Fail,
    /// The agent did not answer in time.
    TimeOut,
    /// It was not sent in time.
    Expire,
    /// It is taken back.
    Cancel,
}

#[cfg(test)]
pub(crate) const STEPS: [Step; 9] = [
    Step::Release,
    Step::Send,
    Step::Resend,
    Step::Begin,
    Step::Succeed,
    Step::Fail,
    Step::TimeOut,
    Step::Expire,
    Step::Cancel,
];

/// Where a step leads; `None`: it is not possible.
pub(crate) fn next(state: CommandState, step: Step) -> Option<CommandState> {
    use CommandState::{
        Cancelled, Expired, Failed, Held, Pending, Running, Sent, Succeeded, TimedOut,
    };
    Some(match (state, step) {
        (Held, Step::Release) => Pending,
        (Pending, Step::Send) | (Sent | Running, Step::Resend) => Sent,
        (Sent | Running, Step::Begin) => Running,
        (Sent | Running, Step::Succeed) => Succeeded,
        (Sent | Running, Step::Fail) => Failed,
        (Sent | Running, Step::TimeOut) => TimedOut,
        (Held | Pending, Step::Expire) => Expired,
        (Held | Pending, Step::Cancel) => Cancelled,
        _ => return None,
    })
}

impl Port {
    /// Takes a step that does not finish a command, with what else changes in it. Nothing when it is not possible.
    pub(crate) fn step(
        tx: &mut Tx,
        before: &Command,
        step: Step,
        change: impl FnOnce(&mut Command),
    ) -> Result<Option<Command>> {
        let Some(state) = next(before.state, step) else { return Ok(None) };
        let mut after = before.clone();
        after.state = state;
        change(&mut after);
        if after != *before {
            tx.put(&COMMANDS, &place(&after), &after)?;
        }
        debug_assert!(one_in_flight(tx, &after), "CMD-1: {after:?}");
        Ok(Some(after))
    }

    /// Takes a step that finishes a command, and wakes whoever waits for that. Nothing when it is not possible.
    pub(crate) fn finish(
        &self,
        tx: &mut Tx,
        before: &Command,
        step: Step,
        result: CommandResult,
    ) -> Result<Option<Command>> {
        let Some(state) = next(before.state, step) else { return Ok(None) };
        debug_assert!(!before.state.is_finished(), "CMD-2: {before:?}");
        debug_assert!(state.is_finished(), "{step:?} does not finish {before:?}");
        let clock = tx.view().clock();
        let after = Command {
            state,
            result: Some(result),
            finished_ms: Some(clock.now_ms),
            finished_at_ms: Some(clock.wall_ms),
            ..before.clone()
        };
        tx.put(&COMMANDS, &place(&after), &after)?;
        self.wake(tx, &after)?;
        let code = after.result.as_ref().map(|result| result.code.clone());
        let data = json!({
            "command": after.id, "node": after.node, "kind": after.kind, "key": after.key,
            "state": after.state, "code": code,
        });
        tx.publish("command.finished", &after.tenant, format!("command/{}", after.id), &data);
        Ok(Some(after))
    }

    /// `CMD-6`.
    fn wake(&self, tx: &mut Tx, command: &Command) -> Result<()> {
        tx.enqueue(NODE_SPEC_KIND, command.node.as_str())?;
        if let Some((reconciler, key)) = self.listener(&command.key)
            && !planted::is(Defect::CommandUnwoken)
        {
            tx.enqueue(reconciler, key)?;
        }
        Ok(tx.enqueue_after(
            palisade_contract::command::COMMAND_SWEEPER,
            command.node.as_str(),
            sweeper::TRIM_PAUSE_MS,
        )?)
    }

    /// The reconciler that a command's key names, and for which of its keys.
    pub(crate) fn listener<'a>(&self, key: &'a str) -> Option<(&'static str, &'a str)> {
        let (name, rest) = key.split_once(':')?;
        let name = self.bound.get()?.reconcilers.get(name)?;
        let key = rest.split(':').next().filter(|key| !key.is_empty())?;
        Some((*name, key))
    }
}

/// `CMD-1`, as the transaction leaves it. Reads past it: an assertion is no part of what it depends on.
fn one_in_flight(tx: &Tx, command: &Command) -> bool {
    let Ok(open) = COMMANDS.by_index(tx.view(), OPEN, command.node.as_str()) else { return true };
    let is_other = |row: &Command| {
        row.lane == command.lane && row.state.is_in_flight() && row.id != command.id
    };
    !command.state.is_in_flight() || !open.iter().any(|(_, found)| is_other(&found.value))
}
