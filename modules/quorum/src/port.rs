//! The port: batches for modules whose methods send commands, and calls that the envelope holds.

use std::sync::Arc;

use palisade_contract::{
    Code, Context, Error, MethodContext, Result,
    approvals::{Approvals, Asked, Batch, BatchRequest, Scoped},
    command::Command,
    tenants::whose_leave,
};
use palisade_state::Tx;
use serde_json::Value;

use crate::{
    batch::{self, CALLS_MAX, New},
    digest,
    hands::{self, Hand},
    known::{Known, can_be_held},
    life,
    policy::{SET, SetPolicy},
    records::{BATCHES, BatchRow, HeldCall, HeldCommand, POLICIES, PolicyRow, State, policy_key},
    shown,
};

/// See the module.
pub(crate) struct Port {
    pub known: Arc<Known>,
}

fn count(scope: &[Scoped]) -> u32 {
    u32::try_from(scope.len()).unwrap_or(u32::MAX)
}

impl Approvals for Port {
    fn create_batch(&self, cx: &Context, tx: &mut Tx, request: &BatchRequest) -> Result<Batch> {
        cx.ports.tenant_open(tx, &request.tenant)?;
        let life = request.not_after.map(|life| life.as_secs().max(1));
        let new = New {
            tenant: &request.tenant,
            created_by: &request.created_by,
            scope: request.scope.clone(),
            calls: vec![],
            seen: vec![],
            reason: request.reason.clone(),
            life_seconds: life,
            least: 0,
            most: None,
        };
        let row = batch::make(cx, tx, new)?;
        Ok(Batch {
            held: row.state == State::Held,
            required: row.required,
            size: count(&row.scope),
            batch_id: row.id,
        })
    }

    fn admit(&self, tx: &mut Tx, command: &Command) -> Result<bool> {
        let id = command.batch.clone().unwrap_or_default();
        let mut row = tx.get(&BATCHES, &id)?.ok_or_else(|| shown::not_found(&id))?;
        let subject = format!("node/{}", command.node);
        let is_in = |one: &Scoped| one.subject == subject && one.kind == command.kind;
        // QUO-5
        if row.tenant != command.tenant || !row.scope.iter().any(is_in) {
            let detail = format!("{} on {subject} is not in the scope of batch {id}", command.kind);
            return Err(Error::new(Code::AccessDenied, detail)
                .hint("make a batch whose scope has all that is put in it"));
        }
        let is_free = row.state == State::Released && row.required == 0;
        if is_free && row.expires_ms > tx.view().clock().now_ms {
            return Ok(false);
        }
        life::must_be_held(tx, &row, "added to")?;
        if row.commands.len() >= CALLS_MAX {
            let detail = format!("batch {id} has {CALLS_MAX} commands, and takes no more");
            return Err(Error::new(Code::TooLarge, detail).hint("make another batch for the rest"));
        }
        row.commands.push(HeldCommand {
            id: command.id.clone(),
            subject,
            kind: command.kind.clone(),
            key: command.key.clone(),
            payload_sha256: digest::of(&command.payload),
        });
        row.digest = digest::of_batch(&row);
        tx.put(&BATCHES, &row.id, &row)?;
        Ok(true)
    }

    fn asks(&self, cx: &MethodContext, tx: &mut Tx, call: Asked<'_>) -> Result<bool> {
        let Some(name) = self.known.name_of(call.method) else { return Ok(false) };
        if name == SET {
            return Ok(lets_himself_off(cx, tx, call)? && may_be_approved(cx, tx, call.tenant)?);
        }
        Ok(can_be_held(call.method).is_ok() && PolicyRow::of(tx, call.tenant)?.covers(name))
    }

    fn hold(&self, cx: &MethodContext, tx: &mut Tx, call: Asked<'_>) -> Result<Value> {
        can_be_held(call.method)?;
        let row = self.held(cx, tx, call)?;
        let record = shown::record(&cx.context, tx.view(), &row, 0)?;
        serde_json::to_value(record).map_err(Error::internal)
    }
}

/// Whether somebody sets a policy that asks for less and holds himself: by a right that he has in the tenant itself, or the
/// cluster's own. Whoever sets a tenant's by a right of the cluster is the way out where nobody can satisfy it.
fn lets_himself_off(cx: &MethodContext, tx: &mut Tx, call: Asked<'_>) -> Result<bool> {
    let access = &**cx.context.ports.access.get()?;
    let about = (call.method.resource)(call.input);
    let leave = whose_leave(access, tx.view(), &cx.principal, &call.method.action, &about);
    if leave.is_empty() && !call.tenant.is_empty() {
        return Ok(false);
    }
    let next = palisade_contract::input::decode::<SetPolicy>(call.input)?;
    // What the transaction would leave is the next one: the one that holds now is in the view, and read through it before.
    let now = POLICIES.get(tx.view(), &policy_key(call.tenant))?;
    let now = now.map_or_else(|| PolicyRow::unset(call.tenant), |found| found.value);
    Ok(now.is_weakened_by(&next.row("", 0)))
}

/// Whether a policy that asks for less has to wait. A tenant's waits for whoever there is. For the cluster's own there is
/// nobody above it: where nobody is left who is distinct from whoever asks, it would wait for ever.
fn may_be_approved(cx: &MethodContext, tx: &mut Tx, tenant: &str) -> Result<bool> {
    Ok(!tenant.is_empty() || others(cx, tx, tenant)? > 0)
}

/// How many distinct operators there are who could approve what this caller asks for.
fn others(cx: &MethodContext, tx: &mut Tx, tenant: &str) -> Result<u32> {
    let access = &**cx.context.ports.access.get()?;
    let own = Hand::now(access, tx, &cx.principal.name)?;
    let able = hands::able(access, tx.view(), tenant)?;
    let others = hands::reachable(access, tx, &able, Some(&own))?;
    Ok(u32::try_from(others).unwrap_or(u32::MAX))
}

impl Port {
    fn held(&self, cx: &MethodContext, tx: &mut Tx, call: Asked<'_>) -> Result<BatchRow> {
        let name = self.known.name_of(call.method).unwrap_or_default();
        let held = HeldCall {
            method: name.to_owned(),
            // Whose it is now is whose it must be at the release.
            input: batch::within(&self.known, name, call.input.clone(), call.tenant)?,
            if_match: cx.if_match,
        };
        let tried = batch::rehearse_alone(&self.known, cx, tx, call.tenant, &held)?;
        // The cluster's own policy is got rid of by as many as there are, if those are fewer than it asks for.
        let is_own = name == SET && call.tenant.is_empty();
        let most = if is_own { Some(others(cx, tx, call.tenant)?) } else { None };
        let new = New {
            tenant: call.tenant,
            created_by: &cx.principal,
            scope: vec![tried.about],
            calls: vec![held],
            seen: vec![tried.seen],
            reason: String::new(),
            life_seconds: None,
            least: 1,
            most,
        };
        if let Some(there) = batch::waiting(tx, &new)? {
            return Ok(there);
        }
        batch::make(&cx.context, tx, new)
    }
}
