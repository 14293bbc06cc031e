//! What is stored of batches and of policies.

use std::collections::BTreeSet;

use palisade_contract::{CommandId, approvals::Scoped};
use palisade_state::{Index, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::policy::{PolicyMode, Threshold};

/// Where a batch is in its life.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits for approvals.
    Held,
    /// It was approved, and what it held was done; or nobody had to approve it.
    Released,
    /// Somebody who may approve said no.
    Rejected,
    /// Too few approved in time.
    Expired,
    /// Whoever made it took it back.
    Withdrawn,
    /// It was approved, and could not be done any more; nothing of it was.
    Failed,
}

impl State {
    /// In a word, as REST shows it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Released => "released",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
            Self::Failed => "failed",
        }
    }
}

/// A call that is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeldCall {
    /// `group.name`.
    pub method: String,
    /// Its input.
    pub input: Value,
    /// The revision that `If-Match` named.
    #[serde(default)]
    pub if_match: Option<u64>,
}

/// A command that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeldCommand {
    /// Its id.
    pub id: CommandId,
    /// `node/<id>`.
    pub subject: String,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: String,
    /// SHA-256 of its payload, hex.
    pub payload_sha256: String,
}

/// A row that a held call changes, as it was when the call was held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pin {
    /// Its table.
    pub table: String,
    /// Its key, hex.
    pub key: String,
    /// The revision at which it was made.
    pub created_rev: u64,
}

/// What a held call changes, as it was when the call was held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Seen {
    /// The row whose key is the id that the call answers: the thing itself.
    #[serde(default)]
    pub subject: Option<Pin>,
    /// All rows.
    pub pins: Vec<Pin>,
}

impl Seen {
    /// Whether a call that changes what is seen now would change something else than this: a thing that was made since
    /// under the name or the id of the one that was meant. `QUO-2`
    pub fn is_other(&self, now: &Self) -> bool {
        let is_same_row = |one: &Pin, other: &Pin| one.table == other.table && one.key == other.key;
        let made_again = |pin: &Pin| {
            now.pins.iter().any(|now| is_same_row(pin, now) && pin.created_rev != now.created_rev)
        };
        if self.pins.iter().any(made_again) {
            return true;
        }
        if self.subject.is_some() {
            return self.subject != now.subject;
        }
        // Nothing says which of the rows is the thing: of each table one must be there still.
        let is_left =
            |table: &str| self.pins.iter().any(|pin| pin.table == table && now.pins.contains(pin));
        !self.pins.iter().all(|pin| is_left(&pin.table))
    }
}

/// That somebody approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Approval {
    /// Who.
    pub principal: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
    /// The digest of what was approved.
    pub digest: String,
    /// Who had made him, or a credential of his, then.
    #[serde(default)]
    pub makers: BTreeSet<String>,
}

/// How a batch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    /// Wall-clock milliseconds.
    pub at_ms: u64,
    /// Logical milliseconds.
    pub at_logical_ms: u64,
    /// By whom; empty: by its time.
    pub by: String,
    /// Why, in a sentence.
    #[serde(default)]
    pub why: String,
}

/// A batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchRow {
    /// Its id.
    pub id: String,
    /// Whose things it is about; empty: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// Where it is in its life.
    pub state: State,
    /// All that it may do.
    pub scope: Vec<Scoped>,
    /// The calls that it makes when it is released.
    #[serde(default)]
    pub calls: Vec<HeldCall>,
    /// What each of those calls changed when it was tried.
    #[serde(default)]
    pub seen: Vec<Seen>,
    /// The commands that were put in it.
    #[serde(default)]
    pub commands: Vec<HeldCommand>,
    /// Of all that, SHA-256, hex: what is approved.
    pub digest: String,
    /// Of who wants what, SHA-256, hex: the same call is held once.
    #[serde(default)]
    pub wish: String,
    /// Why, in its maker's words.
    #[serde(default)]
    pub reason: String,
    /// Who made it.
    pub created_by: String,
    /// Who had made that one, or a credential of his, then.
    #[serde(default)]
    pub makers: BTreeSet<String>,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
    /// For how many milliseconds it waits.
    pub life_ms: u64,
    /// Logical milliseconds from which on it is expired.
    pub expires_ms: u64,
    /// How many must approve (`QUO-4`).
    pub required: u32,
    /// Who approved.
    #[serde(default)]
    pub approvals: Vec<Approval>,
    /// Once it has ended.
    #[serde(default)]
    pub ended: Option<Ended>,
}

/// What a tenant asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyRow {
    /// Whose; empty: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// Whether anything is held.
    pub mode: PolicyMode,
    /// From which size on how many must approve, in order.
    pub thresholds: Vec<Threshold>,
    /// Which methods and kinds of commands; none: all that are destructive.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// How long what is held waits.
    pub life_seconds: u64,
    /// Who set it.
    pub set_by: String,
    /// Wall-clock milliseconds.
    pub set_at_ms: u64,
}

/// The index of what is held, by whose it is.
pub(crate) const HELD: &str = "held";
/// The index of what has ended, by whose it is.
pub(crate) const ENDED: &str = "ended";
/// The index of what is held, by who wants what.
pub(crate) const WISH: &str = "wish";

/// Batches by id.
pub(crate) static BATCHES: Table<String, BatchRow> = Table::new(
    "approvals",
    &[
        Index { name: HELD, keys: |row| if_held(row, of_tenant(&row.tenant)) },
        Index { name: ENDED, keys: |row| if_ended(row, of_tenant(&row.tenant)) },
        Index { name: WISH, keys: |row| if_held(row, row.wish.clone()) },
    ],
);

/// Policies by tenant; the cluster's by [`policy_key`].
pub(crate) static POLICIES: Table<String, PolicyRow> = Table::new("approval_policies", &[]);

fn if_held(row: &BatchRow, key: String) -> Vec<String> {
    if row.state == State::Held && !key.is_empty() { vec![key] } else { vec![] }
}

fn if_ended(row: &BatchRow, key: String) -> Vec<String> {
    if row.state == State::Held { vec![] } else { vec![key] }
}

/// The key in the indexes of what is held and of what has ended of a tenant.
pub(crate) fn of_tenant(tenant: &str) -> String {
    format!("t/{tenant}")
}

/// The key of a tenant's policy. No tenant is called `_`.
pub(crate) fn policy_key(tenant: &str) -> String {
    if tenant.is_empty() { crate::policy::CLUSTER.to_owned() } else { tenant.to_owned() }
}
