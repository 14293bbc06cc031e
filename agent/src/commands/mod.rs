//! Commands of the control plane: each is recorded before it is begun, and carried out once.
//!
//! # Invariants
//! - `ACMD-1` A command's id is on disk before it is begun. One that is there is begun again only if it is retry-safe
//!   and the agent was ended in the middle of it.
//! - `ACMD-2` No word under a fence below the highest one heard, or of an earlier life of the cluster, is acted upon.
//! - `ACMD-3` How a command ended is kept, and said at each session, until the control plane has taken it.
//! - `ACMD-4` Of a lane one command at a time is carried out, in the order in which they came.

use std::{
    collections::{BTreeMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use palisade_proto::agent::{
    Command, CommandOutcome, CommandQuery, CommandTaken, CommandUpdate, Up, up,
};
use palisade_state::planted::{self, Defect};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    driver::Problem,
    fence::Fence,
    port::{Rt, timeout},
};

mod journal;
mod kinds;

pub use journal::{Ended, Entry, FileJournal, Journal, JournalError, JournalStore};
pub use kinds::{Executor, Executors};

const INPUTS_MAX: usize = 64;
/// Ends that are said at once when a session is opened; the others are asked for.
const TOLD_MAX: usize = 16;
const DATA_BYTES_MAX: usize = 16 * 1024;

enum Input {
    Attach(mpsc::Sender<Up>, u64),
    Command(Command),
    Query(CommandQuery),
    Taken(CommandTaken),
    Done(String, String, Ended),
}

/// A way to whoever carries commands out.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::Sender<Input>,
}

impl Handle {
    /// From now on answers go there. `epoch` is that of the highest fence of a NodeSpec.
    pub async fn attach(&self, up: mpsc::Sender<Up>, epoch: u64) {
        let _ = self.inputs.send(Input::Attach(up, epoch)).await;
    }

    /// Carries a command out, unless it was.
    pub async fn command(&self, command: Command) {
        let _ = self.inputs.send(Input::Command(command)).await;
    }

    /// Answers what became of a command.
    pub async fn query(&self, query: CommandQuery) {
        let _ = self.inputs.send(Input::Query(query)).await;
    }

    /// The control plane has the end of a command.
    pub async fn taken(&self, taken: CommandTaken) {
        let _ = self.inputs.send(Input::Taken(taken)).await;
    }
}

/// See the module documentation.
pub struct Commands {
    rt: Rt,
    store: Arc<dyn JournalStore>,
    journal: Journal,
    executors: Executors,
    inputs: mpsc::Receiver<Input>,
    to_self: mpsc::Sender<Input>,
    up: Option<mpsc::Sender<Up>>,
    epoch: u64,
    /// By lane: what is carried out, and behind it what waits.
    lanes: BTreeMap<String, VecDeque<Command>>,
}

impl Commands {
    /// Reads the journal.
    ///
    /// # Errors
    /// The disk refuses.
    pub async fn open(
        rt: &Rt,
        store: Arc<dyn JournalStore>,
        executors: Executors,
    ) -> Result<(Self, Handle), JournalError> {
        let mut journal = store.load().await?;
        journal.restarted();
        let (to_self, inputs) = mpsc::channel(INPUTS_MAX);
        let handle = Handle { inputs: to_self.clone() };
        let (rt, lanes) = (rt.clone(), BTreeMap::new());
        let commands =
            Self { rt, store, journal, executors, inputs, to_self, up: None, epoch: 0, lanes };
        Ok((commands, handle))
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        while let Some(input) = self.inputs.recv().await {
            match input {
                Input::Attach(up, epoch) => self.attach(up, epoch),
                Input::Command(command) => self.command(command).await,
                Input::Query(query) => self.query(&query).await,
                Input::Taken(CommandTaken { id }) => {
                    if self.journal.take(&id) {
                        self.save("taken").await;
                    }
                }
                Input::Done(lane, id, ended) => self.done(&lane, &id, ended).await,
            }
        }
    }

    fn attach(&mut self, up: mpsc::Sender<Up>, epoch: u64) {
        self.up = Some(up);
        self.epoch = self.epoch.max(epoch);
        let untaken = |entry: &Entry| entry.ended.is_some() && !entry.taken;
        let entries = self.journal.entries.iter().filter(|(_, entry)| untaken(entry));
        let mut ids: Vec<(u64, String)> = entries.map(|(id, e)| (e.seq, id.clone())).collect();
        ids.sort();
        for (_, id) in ids.into_iter().take(TOLD_MAX) {
            self.tell(&id);
        }
    }

    /// `ACMD-2`.
    fn admits(&mut self, id: &str, fence: Fence) -> bool {
        if fence >= self.journal.fence && fence.epoch >= self.epoch {
            return true;
        }
        let highest = self.journal.fence;
        tracing::warn!(command = id, %fence, %highest, epoch = self.epoch, "a word from the past was refused");
        let why = format!(
            "its fence {fence} is below {highest} or of a life of the cluster before epoch {}",
            self.epoch
        );
        self.say(
            id,
            CommandOutcome::CommandRefused,
            Some(Problem::new("FENCED", why)),
            &Value::Null,
        );
        false
    }

    async fn command(&mut self, command: Command) {
        let fence = Fence::of(command.fence.as_ref());
        if !self.admits(&command.id, fence) {
            return;
        }
        if self.waits_or_runs(&command.id) {
            return self.say(&command.id, CommandOutcome::CommandRunning, None, &Value::Null);
        }
        let has_ended = |entry: &Entry| entry.ended.is_some();
        if self.journal.entries.get(&command.id).is_some_and(has_ended)
            && !planted::is(Defect::CommandBegunAgain)
        {
            return self.tell(&command.id);
        }
        let name = command.lane.clone();
        let lane = self.lanes.entry(name.clone()).or_default();
        lane.push_back(command);
        if lane.len() == 1 {
            self.advance(&name).await;
        }
    }

    /// Begins the first of a lane; what cannot be begun is passed over.
    async fn advance(&mut self, lane: &str) {
        while let Some(next) = self.lanes.get(lane).and_then(VecDeque::front).cloned() {
            if self.begin(next).await {
                return;
            }
            self.leave(lane);
        }
        self.lanes.remove(lane);
    }

    fn leave(&mut self, lane: &str) {
        if let Some(waiting) = self.lanes.get_mut(lane) {
            waiting.pop_front();
        }
    }

    fn waits_or_runs(&self, id: &str) -> bool {
        self.lanes.values().flatten().any(|command| command.id == id)
    }

    /// Records it, then lets it be done. Something that cannot be recorded is not begun.
    async fn begin(&mut self, command: Command) -> bool {
        let Command { id, kind, lane, payload, timeout_ms, retry_safe, self_terminating, fence } =
            command;
        let before = self.journal.clone();
        self.journal.begin(&id, &kind, retry_safe, self_terminating);
        self.journal.fence = self.journal.fence.max(Fence::of(fence.as_ref()));
        if !planted::is(Defect::CommandNotRecorded) && !self.save(&id).await {
            self.journal = before;
            let why = "the node's disk would not record it, so it was not begun";
            let problem = Problem::new("NOT_RECORDED", why);
            self.say(&id, CommandOutcome::CommandFailed, Some(problem), &Value::Null);
            return false;
        }
        self.rt.crash_point("agent_command_recorded").await;
        self.say(&id, CommandOutcome::CommandRunning, None, &Value::Null);
        let work = self.work(&kind, &payload);
        let (rt, inputs) = (self.rt.clone(), self.to_self.clone());
        let limit = Duration::from_millis(timeout_ms.max(1));
        let task = async move {
            let result = match work {
                Ok((executor, payload)) => {
                    // What panics must not keep its lane for ever.
                    let work = async move { executor.run(payload).await };
                    let work = AssertUnwindSafe(work).catch_unwind();
                    match timeout(rt.as_ref(), limit, Box::pin(work)).await {
                        Some(Ok(result)) => result,
                        Some(Err(_)) => Err(Problem::new("PANICKED", "a defect of the agent's")),
                        None => {
                            let why = format!("it was given up after {timeout_ms} ms");
                            Err(Problem::new("TIMED_OUT", why))
                        }
                    }
                }
                Err(problem) => Err(problem),
            };
            let ended = match result {
                Ok(data) => Ended { problem: None, data: bounded(data) },
                Err(problem) => Ended { problem: Some(problem), data: Value::Null },
            };
            let _ = inputs.send(Input::Done(lane, id, ended)).await;
        };
        self.rt.spawn("command", Box::pin(task));
        true
    }

    /// Who does a command, and with what.
    fn work(&self, kind: &str, payload: &[u8]) -> Result<(Arc<dyn Executor>, Value), Problem> {
        let executor = self.executors.get(kind).ok_or_else(|| {
            Problem::new("UNSUPPORTED", format!("this agent knows no commands of kind {kind}"))
        })?;
        let payload = match payload {
            [] => Value::Null,
            bytes => serde_json::from_slice(bytes)
                .map_err(|error| Problem::new("INVALID_PAYLOAD", error.to_string()))?,
        };
        Ok((executor, payload))
    }

    async fn done(&mut self, lane: &str, id: &str, ended: Ended) {
        if let Some(entry) = self.journal.entries.get_mut(id) {
            entry.ended = Some(ended);
            self.save(id).await;
            self.tell(id);
        }
        self.leave(lane);
        self.advance(lane).await;
    }

    async fn query(&mut self, query: &CommandQuery) {
        let fence = Fence::of(query.fence.as_ref());
        if !self.admits(&query.id, fence) {
            return;
        }
        if self.waits_or_runs(&query.id) {
            return self.say(&query.id, CommandOutcome::CommandRunning, None, &Value::Null);
        }
        let ended = self.journal.entries.get(&query.id).map(|entry| entry.ended.is_some());
        match ended {
            Some(true) => return self.tell(&query.id),
            None if self.journal.lost => {
                let why =
                    "the node's journal of commands was damaged: whether it was done is not known";
                let problem = Some(Problem::new("JOURNAL_LOST", why));
                return self.say(&query.id, CommandOutcome::CommandFailed, problem, &Value::Null);
            }
            _ => {}
        }
        // What an earlier session may still bring is refused from here on, also after a restart: only then is
        // "it never began" true for good.
        if fence > self.journal.fence {
            let before = std::mem::replace(&mut self.journal.fence, fence);
            if !self.save(&query.id).await {
                self.journal.fence = before;
                return;
            }
        }
        self.say(&query.id, CommandOutcome::CommandUnknown, None, &Value::Null);
    }

    async fn save(&self, command: &str) -> bool {
        match self.store.save(&self.journal).await {
            Ok(()) => true,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(command, %error, cause, "the journal of commands was not stored");
                false
            }
        }
    }

    /// Says how a command ended.
    fn tell(&self, id: &str) {
        let Some(ended) = self.journal.entries.get(id).and_then(|entry| entry.ended.clone()) else {
            return;
        };
        let outcome = match ended.problem {
            None => CommandOutcome::CommandSucceeded,
            Some(_) => CommandOutcome::CommandFailed,
        };
        self.say(id, outcome, ended.problem, &ended.data);
    }

    /// An answer for which there is no room is asked for again.
    fn say(&self, id: &str, outcome: CommandOutcome, problem: Option<Problem>, data: &Value) {
        let Some(up) = &self.up else { return };
        let (code, message) =
            problem.map_or_else(Default::default, |problem| (problem.code, problem.message));
        let data = if data.is_null() { vec![] } else { data.to_string().into_bytes() };
        let update = CommandUpdate {
            id: id.to_owned(),
            outcome: outcome.into(),
            code,
            message,
            data,
            fence: Some(self.journal.fence.to_wire()),
        };
        let _ = up.try_send(Up { msg: Some(up::Msg::CommandUpdate(update)) });
    }
}

/// An answer, in bounds: it is kept.
fn bounded(data: Value) -> Value {
    let bytes = data.to_string().len();
    if bytes <= DATA_BYTES_MAX { data } else { serde_json::json!({ "tooLarge": bytes }) }
}

#[cfg(test)]
mod tests;
