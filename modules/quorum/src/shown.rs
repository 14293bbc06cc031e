//! Batches as operators see them.

use palisade_contract::{CommandId, Context, Error, Result, approvals::Scoped, time::rfc3339};
use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::{
    hands::counted,
    records::{BatchRow, State},
};

/// A call that is made when its batch is released.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallRecord {
    /// Which method.
    pub method: String,
    /// Its input; not kept once the batch has ended.
    pub input: Value,
    /// Only at this revision of what it is about.
    pub if_match: Option<u64>,
}

/// That somebody approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedRecord {
    /// Who.
    pub principal: String,
    /// When.
    pub at: String,
    /// The digest of what was approved.
    pub digest: String,
    /// Whether it counts now.
    pub counts: bool,
    /// Why it does not.
    pub why: Option<String>,
}

/// How a batch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndedRecord {
    /// When.
    pub at: String,
    /// By whom; empty: by its time.
    pub by: String,
    /// Why.
    pub why: String,
}

/// What waits for approval, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRecord {
    /// Its id.
    pub id: String,
    /// Whose things it is about; empty: the cluster's.
    pub tenant: String,
    /// Where it is in its life.
    pub state: State,
    /// All that it does, of what to what.
    pub scope: Vec<Scoped>,
    /// How many things that are.
    pub size: u64,
    /// The calls that are made when it is released.
    pub calls: Vec<CallRecord>,
    /// The commands that are sent when it is released.
    pub commands: Vec<CommandId>,
    /// What is approved: of who asks for what and why, SHA-256, hex.
    pub digest: String,
    /// Why, in the words of whoever asked.
    pub reason: String,
    /// Who asked.
    pub created_by: String,
    /// When.
    pub created_at: String,
    /// Until when it waits.
    pub not_after: String,
    /// How many distinct operators must approve; never lowered.
    pub required: u32,
    /// How many of the approvals count now.
    pub approved: u32,
    /// Who approved.
    pub approvals: Vec<ApprovedRecord>,
    /// How it ended.
    pub ended: Option<EndedRecord>,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision is the answer's.
    pub revision: u64,
}

/// The refusal of an id that is no batch's.
pub(crate) fn not_found(id: &str) -> Error {
    Error::not_found("approval", id).hint("`palisade approval ls` shows those that are kept")
}

/// Shows a batch.
pub(crate) fn record(
    cx: &Context,
    view: &View,
    row: &BatchRow,
    revision: u64,
) -> Result<ApprovalRecord> {
    let approvals = approvals(cx, view, row)?;
    let approved = approvals.iter().filter(|one| one.counts).count();
    Ok(ApprovalRecord {
        id: row.id.clone(),
        tenant: row.tenant.clone(),
        state: row.state,
        scope: row.scope.clone(),
        size: row.scope.len() as u64,
        calls: row
            .calls
            .iter()
            .map(|call| CallRecord {
                method: call.method.clone(),
                input: call.input.clone(),
                if_match: call.if_match,
            })
            .collect(),
        commands: row.commands.iter().map(|command| command.id.clone()).collect(),
        digest: row.digest.clone(),
        reason: row.reason.clone(),
        created_by: row.created_by.clone(),
        created_at: rfc3339(row.created_at_ms),
        not_after: rfc3339(row.created_at_ms.saturating_add(row.life_ms)),
        required: row.required,
        approved: u32::try_from(approved).unwrap_or(u32::MAX),
        approvals,
        ended: row.ended.as_ref().map(|ended| EndedRecord {
            at: rfc3339(ended.at_ms),
            by: ended.by.clone(),
            why: ended.why.clone(),
        }),
        revision,
    })
}

/// Of what has ended it is not asked again who counts: only of what was approved then.
fn approvals(cx: &Context, view: &View, row: &BatchRow) -> Result<Vec<ApprovedRecord>> {
    let counted = if row.state == State::Held {
        counted(&**cx.ports.access.get()?, &mut Tx::new(view.clone()), row)?
    } else {
        let other =
            |digest: &str| (digest != row.digest).then(|| "the batch was another then".to_owned());
        row.approvals.iter().map(|one| other(&one.digest)).collect()
    };
    let shown = |(one, why): (&crate::records::Approval, Option<String>)| ApprovedRecord {
        principal: one.principal.clone(),
        at: rfc3339(one.at_ms),
        digest: one.digest.clone(),
        counts: why.is_none(),
        why,
    };
    Ok(row.approvals.iter().zip(counted).map(shown).collect())
}
