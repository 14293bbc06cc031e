//! Approvals as modules and the envelope see them: batches of destructive work that wait until enough people agree.

use std::time::Duration;

use palisade_state::Tx;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    command::Command,
    context::{Context, MethodContext, Principal},
    error::Result,
    method::{Method, Resource},
};

/// One thing that a batch is to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scoped {
    /// To what, such as `workload/web`; of a command, `node/<id>`.
    pub subject: String,
    /// What: the name of a method such as `workloads.remove`, or a kind of command.
    pub kind: String,
}

/// A batch that is to be, for commands that its maker puts in it.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// Whose things it is about; empty: the cluster's.
    pub tenant: String,
    /// All that it may do.
    pub scope: Vec<Scoped>,
    /// Why, for those who approve.
    pub reason: String,
    /// How long it may wait; absent: as long as the tenant's policy says.
    pub not_after: Option<Duration>,
    /// Who wants it.
    pub created_by: Principal,
}

/// A batch that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its id, for [`crate::CommandRequest::batch`].
    pub batch_id: String,
    /// Whether it waits for approvals; commands in one that does not are sent at once.
    pub held: bool,
    /// How many distinct operators must approve.
    pub required: u32,
    /// How many things are in its scope.
    pub size: u32,
}

/// A call that the envelope would make now.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The method.
    pub method: &'a Method,
    /// Its input, checked.
    pub input: &'a Value,
    /// Whose things it is about, as far as is known; empty: the cluster's.
    pub tenant: &'a str,
}

/// Whose things a transaction has changed that was about this: whoever is bound to none may change a tenant's thing by its
/// id, and not say whose it is, but its events do. Empty: the cluster's.
#[must_use]
pub fn whose(tx: &Tx, about: &Resource) -> String {
    let told = tx.tenant_told();
    if told.is_empty() { about.tenant.clone() } else { told.to_owned() }
}

/// Batches of destructive work that wait for approvals. Each call is part of the caller's transaction.
pub trait Approvals: Send + Sync {
    /// Makes a batch. Where its tenant asks for no approval of it, it is not held.
    ///
    /// # Errors
    /// `INVALID_INPUT` for a scope that is empty, too large or has a thing twice; `INVALID_STATE` when too many wait.
    fn create_batch(&self, cx: &Context, tx: &mut Tx, request: &BatchRequest) -> Result<Batch>;

    /// Puts a command in the batch that it names; whether it is held there.
    ///
    /// # Errors
    /// `NOT_FOUND`; `INVALID_STATE` when the batch has ended, or was released before the command came; `ACCESS_DENIED`
    /// when it is not in the batch's scope.
    fn admit(&self, tx: &mut Tx, command: &Command) -> Result<bool>;

    /// Whether somebody must approve a call before it is made.
    ///
    /// # Errors
    /// A record cannot be read.
    fn asks(&self, cx: &MethodContext, tx: &mut Tx, call: Asked<'_>) -> Result<bool>;

    /// Holds a call until it is approved, and answers the record of what holds it. The same call of the same caller is
    /// held once.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a call that cannot be held; `INVALID_STATE` when too many wait.
    fn hold(&self, cx: &MethodContext, tx: &mut Tx, call: Asked<'_>) -> Result<Value>;
}
