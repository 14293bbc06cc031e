//! Handing commands to an agent, over the session that it has here, and taking in what it says of them.
//!
//! # Invariants
//! - `GATE-6` A command goes down only after it is noted in state as sent over this session; of one that was sent over
//!   another and is not retry-safe, the agent is asked first.
//! - `GATE-7` The end of a command is acknowledged only once it is in state.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_contract::{
    Code, CommandId, CommandResult, Error, Result, SessionId,
    command::{Answer, Command},
};
use palisade_proto::agent::{
    Command as Wire, CommandOutcome, CommandQuery, CommandTaken, CommandUpdate, down::Msg,
};
use palisade_state::{Fence, Tx, View, commit, port::jittered};
use serde_json::Value;

use super::{Core, convert, sessions::SessionHandle};
use crate::problem::chain;

/// The table whose changes concern sessions; the keys of its rows begin with a node's id.
pub(super) const COMMANDS_TABLE: &str = "commands";
/// Answers of one agent that wait to be written; more are asked for again, or said at the next session.
const ANSWERS_MAX: usize = 64;
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The commands of one session.
pub(super) struct Handover {
    /// The agent carries commands out.
    takes: bool,
    fence: Fence,
    /// What the agent has heard of in this session.
    told: BTreeSet<CommandId>,
    /// What the agent has said that it never began.
    unknown: BTreeSet<CommandId>,
    /// What could not be noted as sent, as the last look found things.
    skipped: BTreeSet<CommandId>,
    answers: VecDeque<(CommandId, Answer)>,
    /// Whether there may be something to hand over.
    look: bool,
    writing: Option<BoxFuture<'static, Written>>,
    backoff: Option<Duration>,
}

/// What one write came to.
pub(super) enum Written {
    /// A command was noted as sent; whether it was its turn.
    Sent(CommandId, Result<bool>),
    /// An answer was taken in.
    Answered(CommandId, Answer, Result<()>),
}

/// What is to be done about a command now.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    /// Note it as sent over this session.
    Mark,
    /// Send it.
    Tell,
    /// Ask what became of it.
    Ask,
    /// Nothing.
    Wait,
}

impl Handover {
    pub(super) fn new(takes: bool, fence: Fence) -> Self {
        Self {
            takes,
            fence,
            told: BTreeSet::new(),
            unknown: BTreeSet::new(),
            skipped: BTreeSet::new(),
            answers: VecDeque::new(),
            look: true,
            writing: None,
            backoff: None,
        }
    }

    /// State has changed, or enough time has passed.
    pub(super) fn again(&mut self) {
        self.look = true;
        self.skipped.clear();
    }

    fn act(&self, command: &Command, session: &SessionId) -> Act {
        let id = &command.id;
        if self.skipped.contains(id) {
            return Act::Wait;
        }
        match &command.sending {
            None => Act::Mark,
            Some(_) if self.unknown.contains(id) => Act::Mark,
            Some(_) if self.told.contains(id) => Act::Wait,
            Some(sending) if sending.session == *session => Act::Tell,
            Some(_) if command.retry_safe => Act::Mark,
            Some(_) => Act::Ask,
        }
    }

    /// Begins the next write, and sends what can be sent.
    pub(super) fn go_on(&mut self, core: &Arc<Core>, handle: &Arc<SessionHandle>) {
        if self.writing.is_some() {
            return;
        }
        if let Some((id, answer)) = self.answers.pop_front() {
            self.writing = Some(self.take_in(core, handle, id, answer));
            return;
        }
        if !self.look || !self.takes {
            return;
        }
        let Ok(deliveries) = core.context.ports.deliveries.get() else { return };
        let due = match deliveries.due(&core.context.store.view(), &handle.node) {
            Ok(due) => due,
            Err(error) => {
                tracing::error!(node = %handle.node, error = %chain(&error), "commands cannot be read");
                self.look = false;
                return;
            }
        };
        for command in due {
            match self.act(&command, &handle.id) {
                Act::Wait => {}
                Act::Mark => {
                    self.writing = Some(self.mark(core, handle, command.id));
                    return;
                }
                Act::Tell => {
                    if !handle.try_send(Msg::Command(self.wire(&command))) {
                        return;
                    }
                    tracing::info!(node = %handle.node, command = %command.id, kind = command.kind, "command sent");
                    self.told.insert(command.id);
                }
                Act::Ask => {
                    let (id, fence) = (command.id.to_string(), self.fence());
                    if !handle.try_send(Msg::CommandQuery(CommandQuery { id, fence })) {
                        return;
                    }
                    self.told.insert(command.id);
                }
            }
        }
        self.look = false;
    }

    fn fence(&self) -> Option<palisade_proto::agent::Fence> {
        Some(convert::fence_to_wire(self.fence))
    }

    fn wire(&self, command: &Command) -> Wire {
        Wire {
            id: command.id.to_string(),
            kind: command.kind.clone(),
            lane: command.lane.clone(),
            payload: command.payload.to_string().into_bytes(),
            timeout_ms: command.timeout_ms,
            retry_safe: command.retry_safe,
            self_terminating: command.self_terminating,
            fence: self.fence(),
        }
    }

    /// `GATE-6`.
    fn mark(
        &self,
        core: &Arc<Core>,
        handle: &Arc<SessionHandle>,
        id: CommandId,
    ) -> BoxFuture<'static, Written> {
        let unknown = self.unknown.contains(&id);
        let (core, handle, fence) = (core.clone(), handle.clone(), self.fence);
        let pause = self.backoff;
        Box::pin(async move {
            wait(&core, pause).await;
            let build = |tx: &mut Tx| -> Result<()> {
                let deliveries = core.context.ports.deliveries.get()?;
                deliveries.send(tx, &id, (&handle.node, &handle.id), fence, unknown).map(drop)
            };
            let ended = write(&core, &handle, build).await;
            Written::Sent(id, ended)
        })
    }

    fn take_in(
        &self,
        core: &Arc<Core>,
        handle: &Arc<SessionHandle>,
        id: CommandId,
        answer: Answer,
    ) -> BoxFuture<'static, Written> {
        let (core, handle, pause) = (core.clone(), handle.clone(), self.backoff);
        Box::pin(async move {
            wait(&core, pause).await;
            let build = |tx: &mut Tx| -> Result<()> {
                let deliveries = core.context.ports.deliveries.get()?;
                deliveries.answered(tx, &id, (&handle.node, &handle.id), &answer)
            };
            let ended = write(&core, &handle, build).await.map(drop);
            Written::Answered(id, answer, ended)
        })
    }

    /// The end of a write, or never.
    pub(super) async fn written(&mut self) -> Written {
        let written = match &mut self.writing {
            Some(writing) => writing.await,
            None => std::future::pending().await,
        };
        self.writing = None;
        written
    }

    /// Goes on after a write.
    pub(super) fn after(&mut self, handle: &SessionHandle, written: Written) {
        let error = match written {
            Written::Sent(id, Ok(wrote)) => {
                self.unknown.remove(&id);
                if !wrote {
                    // Until something changes.
                    self.skipped.insert(id);
                }
                self.look = true;
                self.backoff = None;
                return;
            }
            Written::Answered(id, answer, Ok(())) => {
                self.backoff = None;
                self.answered(handle, id, &answer);
                return;
            }
            Written::Sent(_, Err(error)) => {
                self.look = true;
                error
            }
            Written::Answered(id, answer, Err(error)) => {
                if error.retryable {
                    self.answers.push_front((id, answer));
                }
                error
            }
        };
        let error_chain = chain(&error);
        tracing::warn!(node = %handle.node, error = %error_chain, "what became of a command could not be written");
        let longer = self.backoff.map_or(BACKOFF_FIRST, |pause| pause.saturating_mul(2));
        self.backoff = Some(longer.min(BACKOFF_MAX));
    }

    /// `GATE-7`.
    fn answered(&mut self, handle: &SessionHandle, id: CommandId, answer: &Answer) {
        match answer {
            Answer::Succeeded(_) | Answer::Failed(_) => {
                handle.try_send(Msg::CommandTaken(CommandTaken { id: id.to_string() }));
                self.told.remove(&id);
                self.look = true;
            }
            Answer::Unknown => {
                self.told.remove(&id);
                self.unknown.insert(id);
                self.look = true;
            }
            Answer::Running => {}
        }
    }

    /// The agent says something of a command.
    pub(super) fn received(&mut self, handle: &SessionHandle, update: CommandUpdate) {
        let Some(id) = CommandId::parse(&update.id) else { return };
        let outcome = update.outcome();
        let result = || CommandResult {
            code: update.code.clone(),
            message: update.message.clone(),
            data: serde_json::from_slice(&update.data).unwrap_or(Value::Null),
        };
        let answer = match outcome {
            CommandOutcome::CommandUnknown => Answer::Unknown,
            CommandOutcome::CommandRunning => Answer::Running,
            CommandOutcome::CommandSucceeded => Answer::Succeeded(result()),
            CommandOutcome::CommandFailed => Answer::Failed(result()),
            CommandOutcome::CommandRefused => {
                tracing::warn!(
                    node = %handle.node,
                    command = update.id,
                    fence = %self.fence,
                    highest_fence = %convert::fence_from_wire(update.fence.as_ref()),
                    "an agent refused a command: another session has spoken to it since"
                );
                return;
            }
            CommandOutcome::Unspecified => return,
        };
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((id, answer));
        }
    }
}

async fn wait(core: &Core, pause: Option<Duration>) {
    if let Some(pause) = pause {
        core.context.rt.sleep(jittered(&*core.context.rt, pause)).await;
    }
}

/// Writes what concerns a command, as long as the node has this session; says whether that wrote anything.
async fn write(
    core: &Core,
    session: &SessionHandle,
    build: impl Fn(&mut Tx) -> Result<()> + Send + Sync,
) -> Result<bool> {
    let context = &core.context;
    let nodes = context.ports.nodes.get()?.clone();
    let build = |tx: &mut Tx| -> Result<()> {
        if !nodes.holds_session(tx, &session.node, &session.id)? {
            // Nothing is noted or acknowledged any more; the agent says it again over its next session.
            return Err(Error::new(Code::Unavailable, "the node has another session by now"));
        }
        build(tx)?;
        context.check_tables(tx)
    };
    let view: View = context.store.view();
    let mut trial = Tx::new(view.clone());
    build(&mut trial)?;
    if trial.is_empty() {
        return Ok(false);
    }
    let committed =
        commit::run(&*context.store, &*context.rt, view, build).await.map_err(Error::from)?;
    context.store.at_revision(committed.revision).await?;
    Ok(true)
}

#[cfg(test)]
mod tests;
