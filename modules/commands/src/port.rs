//! The ports: sending for modules, handing over for the gateway.

use std::time::Duration;

use palisade_contract::{
    Code, Error, Problem, Result,
    command::{
        Answer, COMMAND_SWEEPER, Command, CommandKind, CommandRequest, CommandResult, CommandState,
        Commands, Deliveries, Sending,
    },
    context::Context,
    id::{CommandId, NodeId, SessionId},
    node::NodePhase,
};
use palisade_state::{Fence, Tx, View};
use serde_json::Value;

use crate::{
    OPEN_MAX, Port,
    life::Step,
    rows::{self, BY_KEY, COMMANDS, NODES, OPEN, keyed, place},
};

/// For how long a command may be sent when its sender does not say.
const NOT_AFTER: Duration = Duration::from_hours(24);
const KEY_BYTES_MAX: usize = 256;
const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
const DATA_BYTES_MAX: usize = 16 * 1024;
const TEXT_BYTES_MAX: usize = 1024;

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn size(value: &Value) -> usize {
    value.to_string().len()
}

impl Port {
    fn kind(&self, name: &str) -> Result<&CommandKind> {
        self.bound.get().and_then(|bound| bound.kinds.get(name)).ok_or_else(|| {
            Error::new(
                Code::Unsupported,
                format!("no registered module declares commands of kind {name:?}"),
            )
        })
    }

    fn check(kind: &CommandKind, request: &CommandRequest) -> Result<()> {
        let key = &request.key;
        if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
            return Err(Error::invalid(vec![Problem {
                pointer: "/key".to_owned(),
                message: format!(
                    "a command's key is 1 to {KEY_BYTES_MAX} bytes without control characters"
                ),
            }]));
        }
        if let Some(principal) = &request.principal
            && !kind.roles.is_empty()
            && !principal.roles.iter().any(|role| kind.roles.contains(&role.as_str()))
        {
            return Err(Error::new(
                Code::AccessDenied,
                format!("{} may not send commands of kind {}", principal.name, kind.kind),
            )
            .hint(format!("one of these roles may: {}", kind.roles.join(", "))));
        }
        (kind.validate)(&request.payload).map_err(|mut error| {
            for problem in &mut error.problems {
                problem.pointer = format!("/payload{}", problem.pointer);
            }
            error
        })?;
        if size(&request.payload) > PAYLOAD_BYTES_MAX {
            return Err(Error::new(
                Code::TooLarge,
                format!("the payload of a command is at most {PAYLOAD_BYTES_MAX} bytes"),
            ));
        }
        Ok(())
    }

    fn make(
        cx: &Context,
        tx: &mut Tx,
        kind: &CommandKind,
        request: &CommandRequest,
    ) -> Result<Command> {
        let clock = tx.view().clock();
        let mut node = tx.get(&NODES, &request.node.key())?.unwrap_or_default();
        node.seq += 1;
        tx.put(&NODES, &request.node.key(), &node)?;
        let not_after_ms = millis(request.not_after.unwrap_or(NOT_AFTER));
        let created_by = request.principal.as_ref().map(|by| by.name.clone());
        Ok(Command {
            id: CommandId::mint(&*cx.rt),
            node: request.node.clone(),
            tenant: request.tenant.clone(),
            kind: kind.kind.to_owned(),
            lane: kind.lane.to_owned(),
            seq: node.seq,
            key: request.key.clone(),
            payload: request.payload.clone(),
            batch: request.batch.clone(),
            state: CommandState::Pending,
            created_by: created_by.unwrap_or_default(),
            created_at_ms: clock.wall_ms,
            not_after_ms,
            expires_ms: clock.now_ms.saturating_add(not_after_ms),
            timeout_ms: millis(kind.timeout),
            retry_safe: kind.retry_safe,
            self_terminating: kind.self_terminating,
            sending: None,
            finished_ms: None,
            finished_at_ms: None,
            result: None,
        })
    }
}

fn found(tx: &mut Tx, id: &CommandId) -> Result<Command> {
    rows::find(tx, id)?.ok_or_else(|| not_found(id.as_str()))
}

pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found("command", id).hint("`palisade command ls` shows those that are kept")
}

fn refused(row: &Command, what: &str) -> Error {
    Error::new(
        Code::InvalidState,
        format!("command {} is {} and cannot be {what}", row.id, row.state.word()),
    )
}

impl Commands for Port {
    fn enqueue(&self, cx: &Context, tx: &mut Tx, request: &CommandRequest) -> Result<Command> {
        let kind = self.kind(&request.kind)?;
        Self::check(kind, request)?;
        let keyed = keyed(&request.node, &request.key);
        if let Some((_, there)) = tx.by_index(&COMMANDS, BY_KEY, &keyed)?.pop() {
            return Ok(there);
        }
        let node = cx.ports.nodes.get()?.find(tx.view(), request.node.as_str())?;
        if node.is_none_or(|node| node.phase == NodePhase::Retired) {
            return Err(Error::not_found("node", request.node.as_str()));
        }
        if rows::open(tx, &request.node)?.len() >= OPEN_MAX {
            return Err(Error::new(
                Code::InvalidState,
                format!("{OPEN_MAX} commands of node {} are not finished yet", request.node),
            )
            .hint("look at `palisade command ls --node`, and at whether its agent is connected"));
        }
        let mut command = Self::make(cx, tx, kind, request)?;
        if command.batch.is_some() && cx.ports.approvals.get()?.admit(tx, &command)? {
            command.state = CommandState::Held;
        }
        tx.put(&COMMANDS, &place(&command), &command)?;
        tx.enqueue_after(COMMAND_SWEEPER, command.node.as_str(), command.not_after_ms)?;
        Ok(command)
    }

    fn cancel(&self, tx: &mut Tx, id: &CommandId, why: &str) -> Result<Command> {
        let before = found(tx, id)?;
        let result = CommandResult {
            code: "CANCELLED".to_owned(),
            message: why.to_owned(),
            data: Value::Null,
        };
        let cancelled = self.finish(tx, &before, Step::Cancel, result)?;
        cancelled.ok_or_else(|| {
            refused(&before, "cancelled").hint("only what was not sent yet is taken back")
        })
    }

    fn release(&self, tx: &mut Tx, id: &CommandId) -> Result<Command> {
        let before = found(tx, id)?;
        let released = Self::step(tx, &before, Step::Release, |_| {})?;
        released.ok_or_else(|| refused(&before, "released"))
    }

    fn by_key(&self, view: &View, node: &NodeId, key: &str) -> Result<Option<Command>> {
        let mut rows = COMMANDS.by_index(view, BY_KEY, &keyed(node, key))?;
        Ok(rows.pop().map(|(_, found)| found.value))
    }
}

/// Whose turn it is among the open commands of a node, which are by lane and in order: those in flight, and of each
/// other lane the first that is pending and not too old.
fn due(open: Vec<Command>, now_ms: u64) -> Vec<Command> {
    let in_flight = open.iter().filter(|row| row.state.is_in_flight());
    let mut taken: Vec<String> = in_flight.map(|row| row.lane.clone()).collect();
    let mut due = vec![];
    for row in open {
        let is_next = row.state == CommandState::Pending
            && row.expires_ms > now_ms
            && !taken.contains(&row.lane);
        if is_next {
            taken.push(row.lane.clone());
        }
        if is_next || row.state.is_in_flight() {
            due.push(row);
        }
    }
    due
}

impl Deliveries for Port {
    fn due(&self, view: &View, node: &NodeId) -> Result<Vec<Command>> {
        let open = COMMANDS.by_index(view, OPEN, node.as_str())?;
        let open = open.into_iter().map(|(_, found)| found.value).collect();
        Ok(due(open, view.clock().now_ms))
    }

    fn send(
        &self,
        tx: &mut Tx,
        id: &CommandId,
        (node, session): (&NodeId, &SessionId),
        fence: Fence,
        unknown: bool,
    ) -> Result<Option<Command>> {
        let now_ms = tx.view().clock().now_ms;
        let open = rows::open(tx, node)?;
        let Some(before) = due(open, now_ms).into_iter().find(|row| row.id == *id) else {
            return Ok(None);
        };
        let mut kept = tx.get(&NODES, &node.key())?.unwrap_or_default();
        if fence < kept.fence {
            // CMD-4: another session has sent since this one was opened.
            return Ok(None);
        }
        let Some(last) = &before.sending else {
            let deadline_ms = now_ms.saturating_add(before.timeout_ms);
            let sending = Sending { session: session.clone(), fence, times: 1, deadline_ms };
            tx.enqueue_after(COMMAND_SWEEPER, node.as_str(), before.timeout_ms)?;
            return self.sends(tx, &before, Step::Send, sending, &mut kept);
        };
        if last.deadline_ms <= now_ms {
            return Ok(None);
        }
        let is_here = last.session == *session;
        if is_here && !unknown {
            // Noted before; the answer to that was lost.
            return Ok(Some(before));
        }
        // CMD-5
        if !unknown && !before.retry_safe {
            return Ok(None);
        }
        let sending = Sending { session: session.clone(), fence, times: last.times + 1, ..*last };
        self.sends(tx, &before, Step::Resend, sending, &mut kept)
    }

    fn answered(
        &self,
        tx: &mut Tx,
        id: &CommandId,
        (node, session): (&NodeId, &SessionId),
        answer: &Answer,
    ) -> Result<()> {
        let Some(before) = rows::find(tx, id)?.filter(|row| row.node == *node) else {
            return Ok(());
        };
        match answer {
            Answer::Unknown => {}
            Answer::Running => {
                Self::step(tx, &before, Step::Begin, |row| {
                    if let Some(sending) = &mut row.sending {
                        session.clone_into(&mut sending.session);
                    }
                })?;
            }
            Answer::Succeeded(result) => {
                self.finish(tx, &before, Step::Succeed, bounded(result))?;
            }
            Answer::Failed(result) => {
                self.finish(tx, &before, Step::Fail, bounded(result))?;
            }
        }
        Ok(())
    }
}

impl Port {
    fn sends(
        &self,
        tx: &mut Tx,
        before: &Command,
        step: Step,
        sending: Sending,
        kept: &mut rows::NodeRow,
    ) -> Result<Option<Command>> {
        debug_assert!(sending.fence >= kept.fence, "CMD-4: {sending:?} after {kept:?}");
        if sending.fence != kept.fence {
            kept.fence = sending.fence;
            tx.put(&NODES, &before.node.key(), kept)?;
        }
        Self::step(tx, before, step, |row| row.sending = Some(sending))
    }
}

/// What an agent answered, in bounds: it is stored.
fn bounded(result: &CommandResult) -> CommandResult {
    let cut = |text: &str| text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned();
    let mut result = CommandResult {
        code: cut(&result.code),
        message: cut(&result.message),
        data: result.data.clone(),
    };
    let bytes = size(&result.data);
    if bytes > DATA_BYTES_MAX {
        result.data = Value::Null;
        let more = format!("the answer of {bytes} bytes is not kept, {DATA_BYTES_MAX} are");
        result.message = [result.message, more]
            .into_iter()
            .filter(|s| !s.is_empty())
            .collect::<Vec<_>>()
            .join("; ");
    }
    result
}
