//! Commands to agents: their kinds, what they are, and the ports by which modules send them and the gateway delivers
//! them.

use std::time::Duration;

use palisade_state::{Fence, Tx, View};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    context::{Context, Principal},
    error::Result,
    id::{CommandId, NodeId, SessionId},
    input::{self, Check},
};

mod record;

pub use record::CommandRecord;

/// The reconciler that expires commands and times them out; its keys are node ids.
pub const COMMAND_SWEEPER: &str = "command-sweeper";

/// A kind of command to agents.
#[derive(Clone, Debug)]
pub struct CommandKind {
    /// Its name, unique: `^[a-z][a-z0-9._-]{0,63}$`.
    pub kind: &'static str,
    /// One command at a time for a node and lane: `^[a-z][a-z0-9-]{0,63}$`.
    pub lane: &'static str,
    /// May be sent again when its fate is unknown.
    pub retry_safe: bool,
    /// The agent ends with it.
    pub self_terminating: bool,
    /// How long it may take from when it is first sent; not 0.
    pub timeout: Duration,
    /// Roles of which a principal that sends it must have one; none: whoever may call the method that does.
    pub roles: &'static [&'static str],
    /// JSON Schema of its payload.
    pub payload: fn(&mut SchemaGenerator) -> Schema,
    /// Finds every problem of a payload.
    pub validate: fn(&Value) -> Result<()>,
}

impl CommandKind {
    /// A kind whose payload is a `P`. It is sent once unless [`CommandKind::retry_safe`] says otherwise.
    #[must_use]
    pub fn new<P>(kind: &'static str, lane: &'static str, timeout: Duration) -> Self
    where
        P: DeserializeOwned + JsonSchema + Check + 'static,
    {
        Self {
            kind,
            lane,
            retry_safe: false,
            self_terminating: false,
            timeout,
            roles: &[],
            payload: <SchemaGenerator>::subschema_for::<P>,
            validate: |value| input::decode::<P>(value).map(drop),
        }
    }

    /// May be sent again when its fate is unknown: to carry it out twice does no harm.
    #[must_use]
    pub fn retry_safe(mut self) -> Self {
        self.retry_safe = true;
        self
    }

    /// The agent ends with it: an agent that comes back has carried it out.
    #[must_use]
    pub fn self_terminating(mut self) -> Self {
        self.self_terminating = true;
        self
    }

    /// A principal that sends it must have one of these roles.
    #[must_use]
    pub fn roles(mut self, roles: &'static [&'static str]) -> Self {
        self.roles = roles;
        self
    }
}

/// Where a command is in its life.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// In a batch that is not approved yet.
    Held,
    /// Waits for its turn, or for the node's agent.
    Pending,
    /// Handed to a session of the agent; it has not said yet that it began.
    Sent,
    /// The agent has begun.
    Running,
    /// The agent has done it.
    Succeeded,
    /// The agent could not do it, or does not know whether it did.
    Failed,
    /// The agent did not answer in time; whether it did it is not known.
    TimedOut,
    /// It was not sent in time.
    Expired,
    /// It was taken back before it was sent.
    Cancelled,
}

impl CommandState {
    /// All of them, by how they follow each other.
    pub const ALL: [Self; 9] = [
        Self::Held,
        Self::Pending,
        Self::Sent,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Expired,
        Self::Cancelled,
    ];

    /// With the agent, as far as is known.
    #[must_use]
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Sent | Self::Running)
    }

    /// Never another one again.
    #[must_use]
    pub fn is_finished(self) -> bool {
        !matches!(self, Self::Held | Self::Pending) && !self.is_in_flight()
    }

    /// In a word, as REST shows it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Pending => "pending",
            Self::Sent => "sent",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What became of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandResult {
    /// What went wrong, in a word that programs may depend on; empty: nothing.
    #[serde(default)]
    pub code: String,
    /// The same in a sentence.
    #[serde(default)]
    pub message: String,
    /// What the agent answered; its shape is the kind's.
    #[serde(default)]
    pub data: Value,
}

/// How a command was handed to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sending {
    /// Over which session it was sent last.
    pub session: SessionId,
    /// That session's fence.
    pub fence: Fence,
    /// How often it was sent.
    pub times: u32,
    /// Logical milliseconds from which on it is timed out; of its first sending.
    pub deadline_ms: u64,
}

/// A command as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    /// Its id.
    pub id: CommandId,
    /// The node whose agent carries it out.
    pub node: NodeId,
    /// Whose it is; empty: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// Its kind.
    pub kind: String,
    /// The kind's lane.
    pub lane: String,
    /// Its place in the order of the node's commands.
    pub seq: u64,
    /// The same key on the same node is the same command.
    pub key: String,
    /// What the agent is told.
    #[serde(default)]
    pub payload: Value,
    /// The batch that it was put in.
    #[serde(default)]
    pub batch: Option<String>,
    /// Where it is in its life.
    pub state: CommandState,
    /// Who sent it: a principal, or empty for a reconciler.
    #[serde(default)]
    pub created_by: String,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
    /// For how many milliseconds from then on it may be sent.
    pub not_after_ms: u64,
    /// Logical milliseconds from which on it is not sent any more.
    pub expires_ms: u64,
    /// Of its kind, when it was made.
    pub timeout_ms: u64,
    /// Of its kind, when it was made.
    pub retry_safe: bool,
    /// Of its kind, when it was made.
    pub self_terminating: bool,
    /// How it was handed to the agent last.
    #[serde(default)]
    pub sending: Option<Sending>,
    /// Logical milliseconds at which it was finished.
    #[serde(default)]
    pub finished_ms: Option<u64>,
    /// Wall-clock milliseconds at which it was finished.
    #[serde(default)]
    pub finished_at_ms: Option<u64>,
    /// What became of it.
    #[serde(default)]
    pub result: Option<CommandResult>,
}

/// A command that is to be.
#[derive(Clone, Debug)]
pub struct CommandRequest {
    /// The node whose agent is to carry it out.
    pub node: NodeId,
    /// Its kind.
    pub kind: String,
    /// What the agent is told.
    pub payload: Value,
    /// The same key on the same node is the same command. `<reconciler>:<key>:…` has that reconciler woken for that
    /// key when the command is finished.
    pub key: String,
    /// Whose it is; empty: the cluster's.
    pub tenant: String,
    /// For how long it may be sent; absent: a day.
    pub not_after: Option<Duration>,
    /// The batch that holds it until enough people approve.
    pub batch: Option<String>,
    /// On whose behalf; absent: a reconciler's own.
    pub principal: Option<Principal>,
}

impl CommandRequest {
    /// A command of the cluster's own, sent by a reconciler.
    #[must_use]
    pub fn new(node: &NodeId, kind: &str, payload: Value, key: impl Into<String>) -> Self {
        Self {
            node: node.clone(),
            kind: kind.to_owned(),
            payload,
            key: key.into(),
            tenant: String::new(),
            not_after: None,
            batch: None,
            principal: None,
        }
    }

    /// Is of a tenant's.
    #[must_use]
    pub fn of_tenant(mut self, tenant: &str) -> Self {
        tenant.clone_into(&mut self.tenant);
        self
    }

    /// Is sent on behalf of a principal.
    #[must_use]
    pub fn by(mut self, principal: &Principal) -> Self {
        self.principal = Some(principal.clone());
        self
    }

    /// May be sent for so long.
    #[must_use]
    pub fn not_after(mut self, life: Duration) -> Self {
        self.not_after = Some(life);
        self
    }
}

/// What the agent says of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It never began, and will not at the word of an earlier session.
    Unknown,
    /// It has begun.
    Running,
    /// It has done it.
    Succeeded(CommandResult),
    /// It could not do it, or does not know whether it did.
    Failed(CommandResult),
}

/// Commands to agents, for modules. Each call is part of the caller's transaction.
pub trait Commands: Send + Sync {
    /// Has a node's agent carry something out, once. The same key on the same node gives the command that there is
    /// already, whatever has become of it, as long as that is kept.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a kind that no module registers, `INVALID_INPUT` for a payload that its schema does not
    /// take, `ACCESS_DENIED` when the principal has none of the kind's roles, `INVALID_STATE` when too many wait.
    fn enqueue(&self, cx: &Context, tx: &mut Tx, request: &CommandRequest) -> Result<Command>;

    /// Takes a command back that was not sent yet.
    ///
    /// # Errors
    /// `NOT_FOUND`; `INVALID_STATE` when it was sent.
    fn cancel(&self, tx: &mut Tx, id: &CommandId, why: &str) -> Result<Command>;

    /// Lets a held command take its turn.
    ///
    /// # Errors
    /// `NOT_FOUND`; `INVALID_STATE` when it is not held.
    fn release(&self, tx: &mut Tx, id: &CommandId) -> Result<Command>;

    /// A command by its node and key.
    ///
    /// # Errors
    /// A record cannot be read.
    fn by_key(&self, view: &View, node: &NodeId, key: &str) -> Result<Option<Command>>;
}

/// Commands to agents, for the gateway, which hands them over.
pub trait Deliveries: Send + Sync {
    /// What concerns a node's session now: what is in flight, and of each other lane the one whose turn it is.
    ///
    /// # Errors
    /// A record cannot be read.
    fn due(&self, view: &View, node: &NodeId) -> Result<Vec<Command>>;

    /// Notes that a session is about to send a command, which it does once that is committed. Nothing, when it is not
    /// its turn any more. `unknown`: the agent has said that it never began.
    ///
    /// # Errors
    /// A record cannot be read.
    fn send(
        &self,
        tx: &mut Tx,
        id: &CommandId,
        session: (&NodeId, &SessionId),
        fence: Fence,
        unknown: bool,
    ) -> Result<Option<Command>>;

    /// Takes in what the agent says of a command. Nothing happens to one that is finished, or is no more, or is of
    /// another node.
    ///
    /// # Errors
    /// A record cannot be read.
    fn answered(
        &self,
        tx: &mut Tx,
        id: &CommandId,
        session: (&NodeId, &SessionId),
        answer: &Answer,
    ) -> Result<()>;
}
