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

/// Bytes of the scope in an audit record, at most.
const AUDITED_BYTES_MAX: usize = 32 * 1024;

/// What an audit record says of a batch: `approval/<id> by <who asked>: <kind> <subject>, <kind> <subject>`.
#[must_use]
pub fn audited(batch: &str, created_by: &str, scope: &[Scoped]) -> String {
    let mut text = format!("approval/{batch}{BY}{created_by}: ");
    for (position, one) in scope.iter().enumerate() {
        let next = format!("{} {}", one.kind, one.subject);
        if text.len() + next.len() > AUDITED_BYTES_MAX {
            text.push_str(&format!("and {} more", scope.len() - position));
            return text;
        }
        let comma = if position + 1 < scope.len() { ", " } else { "" };
        text.push_str(&next);
        text.push_str(comma);
    }
    text
}

const BY: &str = " by ";

/// The subjects in what an audit record says of a batch; none: it says something else.
pub fn audited_subjects(resource: &str) -> impl Iterator<Item = &str> {
    let scope = resource
        .strip_prefix("approval/")
        .and_then(|rest| rest.split_once(BY))
        .and_then(|(_, rest)| rest.split_once(": "))
        .map_or("", |(_, scope)| scope);
    scope.split(", ").filter_map(|one| one.split_once(' ')).map(|(_, subject)| subject)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped(subject: &str) -> Scoped {
        Scoped { subject: subject.to_owned(), kind: "workloads.remove".to_owned() }
    }

    #[test]
    fn what_an_audit_record_says_of_a_batch_is_read_again() {
        let text = audited("ap_1", "user/ada", &[scoped("workload/web"), scoped("workload/db")]);
        assert_eq!(
            text,
            "approval/ap_1 by user/ada: workloads.remove workload/web, workloads.remove workload/db"
        );
        let subjects: Vec<&str> = audited_subjects(&text).collect();
        assert_eq!(subjects, ["workload/web", "workload/db"]);
        for other in
            ["workload/web", "approval/ap_1", "approval/*", "workload/a by b: c workload/d"]
        {
            assert_eq!(audited_subjects(other).next(), None, "{other}");
        }
        let many: Vec<Scoped> = (0..100).map(|_| scoped(&"x".repeat(1000))).collect();
        let cut = audited("ap_1", "user/ada", &many);
        assert!(cut.len() < AUDITED_BYTES_MAX + 100 && cut.ends_with("more"), "{}", cut.len());
    }
}
