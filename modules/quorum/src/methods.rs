//! The methods `approvals.*`.

use std::{collections::BTreeSet, sync::Arc};

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Problems, Resource, Result, Verb, Watched,
    method::Records,
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    APPROVE,
    batch::{self, CALLS_MAX, New},
    hands::{self, Hand},
    known::Known,
    life,
    policy::{check_life, check_required, wrong},
    records::{Approval, BATCHES, BatchRow, HeldCall, State},
    release,
    shown::{self, ApprovalRecord, not_found},
};

/// Characters of a reason.
const REASON_MAX: usize = 500;
/// Approvals that a batch keeps, at most: of what it was before, too.
const APPROVALS_MAX: usize = 64;

/// One call of a batch.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallInput {
    /// A destructive method, such as `workloads.remove`.
    pub method: String,
    /// Its input, as the method takes it; the batch's tenant is meant where it names none.
    pub input: serde_json::Map<String, Value>,
    /// Only at this revision of what it is about.
    #[serde(default)]
    pub if_match: Option<u64>,
}

/// Input of `approvals.create`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateApproval {
    /// Whose things it is about; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// What is to be done, in this order, all of it or nothing.
    pub calls: Vec<CallInput>,
    /// Why, for those who approve.
    #[serde(default)]
    pub reason: String,
    /// How long it waits; absent: as the tenant's policy says.
    #[serde(default)]
    pub life_seconds: Option<u64>,
    /// Ask for so many approvals, where the policy asks for fewer.
    #[serde(default)]
    pub required: Option<u32>,
}

impl Check for CreateApproval {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.calls.is_empty() || self.calls.len() > CALLS_MAX {
            problems.add(format!("{at}/calls"), format!("must be 1 to {CALLS_MAX} calls"));
        }
        check_reason(&self.reason, at, problems);
        check_life(self.life_seconds, &format!("{at}/lifeSeconds"), problems);
        check_required(self.required, &format!("{at}/required"), problems);
    }
}

fn check_reason(reason: &str, at: &str, problems: &mut Problems) {
    if reason.chars().count() > REASON_MAX || reason.chars().any(char::is_control) {
        let rule = format!("must have at most {REASON_MAX} characters, and none of control");
        problems.add(format!("{at}/reason"), rule);
    }
}

/// Input of `approvals.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListApprovals {
    /// Only those of this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only those in this state.
    #[serde(default)]
    pub state: Option<State>,
}

impl Check for ListApprovals {}

/// Input of `approvals.get`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneApproval {
    /// Its id.
    pub approval: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for OneApproval {}

/// Input of `approvals.approve`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Approve {
    /// Its id.
    pub approval: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The digest that its record had when it was looked at; not needed with `If-Match`.
    #[serde(default)]
    pub digest: Option<String>,
}

impl Check for Approve {}

/// Input of `approvals.reject` and `approvals.withdraw`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndApproval {
    /// Its id.
    pub approval: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Why, for whoever made it.
    #[serde(default)]
    pub reason: String,
}

impl Check for EndApproval {
    fn check(&self, at: &str, problems: &mut Problems) {
        check_reason(&self.reason, at, problems);
    }
}

/// The methods, in the order of their documentation.
pub(crate) fn methods(known: &Arc<Known>) -> Vec<Method> {
    let on = |value: &Value| {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant("approval", text("approval"), text("tenant"))
    };
    let (read, request) = ("compute:quorum:read", "compute:quorum:request");
    let (creating, approving) = (known.clone(), known.clone());
    vec![
        Method::mutation("approvals", "create", request, {
            move |cx: &MethodContext, tx: &mut Tx, input| create(&creating, cx, tx, input)
        })
        .summary(
            "Asks for several destructive calls at once, which are made all or none, once as many have approved as the \
             tenant asks for.",
        )
        .rest(Verb::Post, "/approvals")
        .on(on),
        Method::listing("approvals", "list", read, list)
            .summary("Lists what waits for approval, and what became of it lately.")
            .rest(Verb::Get, "/approvals")
            .watched(Watched::Records)
            .on(on),
        Method::query("approvals", "get", read, get)
            .summary("Shows what waits for approval, and who has approved.")
            .rest(Verb::Get, "/approvals/{approval}")
            .on(on),
        Method::mutation("approvals", "approve", APPROVE, {
            move |cx: &MethodContext, tx: &mut Tx, input| approve(&approving, cx, tx, input)
        })
        .summary("Approves what somebody else asked for; the last approval that it needs releases it.")
        .rest(Verb::Post, "/approvals/{approval}/approve")
        .on(on),
        Method::mutation("approvals", "reject", APPROVE, reject)
            .summary("Says no to what somebody else asked for: it is never done.")
            .rest(Verb::Post, "/approvals/{approval}/reject")
            .on(on),
        Method::mutation("approvals", "withdraw", request, withdraw)
            .summary("Takes back what the caller has asked for.")
            .rest(Verb::Post, "/approvals/{approval}/withdraw")
            .on(on),
    ]
}

/// The calls of an input, each tried under the caller's rights, and all of them one after the other.
fn calls(
    known: &Known,
    cx: &MethodContext,
    tx: &Tx,
    input: &CreateApproval,
) -> Result<(Vec<HeldCall>, Vec<batch::Tried>)> {
    let (mut calls, mut tried, mut about) = (vec![], vec![], BTreeSet::new());
    let mut stage = Tx::new(tx.view().clone());
    for (position, call) in input.calls.iter().enumerate() {
        let at = |mut error: Error| {
            for problem in &mut error.problems {
                problem.pointer = format!("/calls/{position}/input{}", problem.pointer);
            }
            error.detail = format!("call {} ({}): {}", position + 1, call.method, error.detail);
            error
        };
        let given = Value::Object(call.input.clone());
        let given = batch::within(known, &call.method, given, &input.tenant).map_err(at)?;
        let one = HeldCall { method: call.method.clone(), input: given, if_match: call.if_match };
        if !about.insert(batch::about(known, &one).map_err(at)?) {
            return Err(wrong(&format!("/calls/{position}"), "must have each thing once"));
        }
        tried.push(batch::rehearse(known, cx, &mut stage, &input.tenant, &one).map_err(at)?);
        calls.push(one);
    }
    stage.build()?;
    Ok((calls, tried))
}

fn create(
    known: &Known,
    cx: &MethodContext,
    tx: &mut Tx,
    input: CreateApproval,
) -> Result<ApprovalRecord> {
    cx.context.ports.tenant_open(tx, &input.tenant)?;
    let (calls, tried) = calls(known, cx, tx, &input)?;
    let who = &cx.principal;
    let (scope, seen): (Vec<_>, Vec<_>) =
        tried.into_iter().map(|tried| (tried.about, tried.seen)).unzip();
    let new = New {
        tenant: &input.tenant,
        created_by: who,
        scope,
        calls,
        seen,
        reason: input.reason,
        life_seconds: input.life_seconds,
        least: input.required.unwrap_or(0),
        most: None,
    };
    if let Some(there) = batch::waiting(tx, &new)? {
        life::audited(tx, &there);
        return shown_now(cx, tx, &there);
    }
    let calls = new.calls.clone();
    let row = batch::make(&cx.context, tx, new)?;
    life::audited(tx, &row);
    if row.state == State::Released {
        for call in &calls {
            batch::run(known, cx, tx, who, call)?;
        }
    }
    shown::record(&cx.context, tx.view(), &row, 0)
}

fn list<'a>(
    cx: &'a MethodContext,
    view: &'a View,
    input: ListApprovals,
    after: &str,
) -> Result<Records<'a, ApprovalRecord>> {
    let wanted = move |row: &BatchRow| {
        input.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && input.state.is_none_or(|state| state == row.state)
    };
    Ok(Box::new(BATCHES.behind(view, after).filter_map(move |found| match found {
        Ok((_, Versioned { value, stamp })) => {
            wanted(&value).then(|| shown::record(&cx.context, view, &value, stamp.modified_rev))
        }
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

fn owned(
    found: Option<Versioned<BatchRow>>,
    id: &str,
    tenant: Option<&String>,
) -> Result<Versioned<BatchRow>> {
    found
        .filter(|found| tenant.is_none_or(|tenant| *tenant == found.value.tenant))
        .ok_or_else(|| not_found(id))
}

fn get(cx: &MethodContext, view: &View, input: OneApproval) -> Result<ApprovalRecord> {
    let found = BATCHES.get(view, &input.approval)?;
    let found = owned(found, &input.approval, input.tenant.as_ref())?;
    shown::record(&cx.context, view, &found.value, found.stamp.modified_rev)
}

fn shown_now(cx: &MethodContext, tx: &mut Tx, row: &BatchRow) -> Result<ApprovalRecord> {
    let revision = tx.get_versioned(&BATCHES, &row.id)?.map_or(0, |found| found.stamp.modified_rev);
    shown::record(&cx.context, tx.view(), row, revision)
}

/// `QUO-1`
fn approve(
    known: &Known,
    cx: &MethodContext,
    tx: &mut Tx,
    input: Approve,
) -> Result<ApprovalRecord> {
    let found = tx.get_versioned(&BATCHES, &input.approval)?;
    let found = owned(found, &input.approval, input.tenant.as_ref())?;
    let mut row = found.value;
    saw(cx, &row, found.stamp.modified_rev, input.digest.as_deref())?;
    let who = &cx.principal.name;
    let is_mine = |one: &Approval| one.principal == *who && one.digest == row.digest;
    let again = row.approvals.iter().any(is_mine);
    life::audited(tx, &row);
    if again && row.state == State::Released {
        return shown_now(cx, tx, &row);
    }
    life::must_be_held(tx, &row, "approved")?;
    may_count(cx, tx, &row)?;
    if !again {
        if row.approvals.len() >= APPROVALS_MAX {
            return Err(Error::new(Code::TooLarge, "so many approvals of one batch are not kept"));
        }
        let (at_ms, digest) = (tx.view().clock().wall_ms, row.digest.clone());
        let makers = cx.context.ports.access.get()?.makers(tx, who)?;
        row.approvals.push(Approval { principal: who.clone(), at_ms, digest, makers });
        life::told(tx, &row, "approval.approved", who, "");
    }
    release::if_approved(known, cx, tx, &mut row)?;
    shown::record(&cx.context, tx.view(), &row, 0)
}

/// Nobody approves what he has not seen, or what has changed since.
fn saw(cx: &MethodContext, row: &BatchRow, revision: u64, digest: Option<&str>) -> Result<()> {
    match digest {
        Some(digest) if digest != row.digest => Err(Error::new(
            Code::PreconditionFailed,
            format!("approval {} has the digest {}, not {digest}", row.id, row.digest),
        )
        .hint(format!("look at what it is now: `palisade approval show {}`", row.id))),
        None if cx.if_match.is_none() => {
            let rule = "say what is approved: the digest that the record had, or If-Match with its revision";
            Err(wrong("/digest", rule))
        }
        _ => cx.check_if_match(revision),
    }
}

/// Refuses an approval that could not count, and says who must approve instead.
fn may_count(cx: &MethodContext, tx: &mut Tx, row: &BatchRow) -> Result<()> {
    let access = cx.context.ports.access.get()?.clone();
    let who = &cx.principal.name;
    let refused = |why: String| {
        Error::new(Code::AccessDenied, format!("{who} does not count for approval {}: {why}", row.id))
            .hint("somebody else must approve it: nobody approves twice, or what his own hand has asked for")
    };
    let own = Hand::now(&*access, tx, who)?;
    if let Some(why) = own.same(&Hand::creator(&*access, tx, row)?) {
        let why = if *who == row.created_by { "it asked for it".to_owned() } else { why };
        return Err(refused(why));
    }
    let counted = hands::counted(&*access, tx, row)?;
    for (approval, _) in row.approvals.iter().zip(counted).filter(|(_, why)| why.is_none()) {
        let other = Hand::since(&*access, tx, &approval.principal, &approval.makers)?;
        if approval.principal != *who
            && let Some(why) = own.same(&other)
        {
            return Err(refused(format!("{} has approved it, and {why}", approval.principal)));
        }
    }
    // At the release it is asked again whether it may; somebody who is not known by then would never count.
    access.standing(tx, who).map(drop).map_err(|gone| refused(gone.detail))
}

fn held(tx: &mut Tx, cx: &MethodContext, input: &EndApproval, what: &str) -> Result<BatchRow> {
    let found = tx.get_versioned(&BATCHES, &input.approval)?;
    let found = owned(found, &input.approval, input.tenant.as_ref())?;
    cx.check_if_match(found.stamp.modified_rev)?;
    life::must_be_held(tx, &found.value, what)?;
    life::audited(tx, &found.value);
    Ok(found.value)
}

fn reject(cx: &MethodContext, tx: &mut Tx, input: EndApproval) -> Result<ApprovalRecord> {
    let mut row = held(tx, cx, &input, "rejected")?;
    let who = &cx.principal.name;
    if *who == row.created_by {
        return Err(Error::new(Code::AccessDenied, format!("{who} asked for approval {}", row.id))
            .hint(format!("take it back instead: `palisade approval withdraw {}`", row.id)));
    }
    life::end(&cx.context, tx, &mut row, State::Rejected, who, &input.reason)?;
    shown::record(&cx.context, tx.view(), &row, 0)
}

fn withdraw(cx: &MethodContext, tx: &mut Tx, input: EndApproval) -> Result<ApprovalRecord> {
    let mut row = held(tx, cx, &input, "withdrawn")?;
    let who = &cx.principal.name;
    if *who != row.created_by {
        let detail = format!("{who} did not ask for approval {}: {} did", row.id, row.created_by);
        return Err(Error::new(Code::AccessDenied, detail)
            .hint(format!("say no to it instead: `palisade approval reject {}`", row.id)));
    }
    life::end(&cx.context, tx, &mut row, State::Withdrawn, who, &input.reason)?;
    shown::record(&cx.context, tx.view(), &row, 0)
}
