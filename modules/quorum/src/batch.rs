//! Making batches: what is in one, how many must approve it, and whether it waits at all.

use std::collections::BTreeSet;

use palisade_contract::{
    Code, Context, Error, Handler, MethodContext, Principal, Resource, Result,
    approvals::{Scoped, whose},
    id,
    tenants::whose_leave,
};
use palisade_state::Tx;
use serde_json::Value;

use crate::{
    digest, expiry,
    known::Known,
    life,
    policy::{LIFE_SECONDS_MAX, wrong},
    records::{BATCHES, BatchRow, HELD, HeldCall, Pin, PolicyRow, State, WISH, held_key},
};

/// Things that one batch has at most.
pub const CALLS_MAX: usize = 100;
/// Batches of a tenant that wait at once, at most.
pub const HELD_MAX: usize = 200;

/// What a batch is to be.
pub(crate) struct New<'a> {
    pub tenant: &'a str,
    pub created_by: &'a Principal,
    pub scope: Vec<Scoped>,
    pub calls: Vec<HeldCall>,
    pub pins: Vec<Pin>,
    pub reason: String,
    /// Seconds; absent: as the policy says.
    pub life_seconds: Option<u64>,
    /// So many must approve at least.
    pub least: u32,
}

/// A batch that waits for what this caller wants, if there is one.
pub(crate) fn waiting(
    tx: &mut Tx,
    who: &str,
    tenant: &str,
    calls: &[HeldCall],
) -> Result<Option<BatchRow>> {
    let now_ms = tx.view().clock().now_ms;
    let wish = digest::of_wish(who, tenant, calls);
    let found = tx.by_index(&BATCHES, WISH, &wish)?.pop().map(|(_, row)| row);
    Ok(found.filter(|row| row.expires_ms > now_ms))
}

/// Writes a batch. It is held when anybody must approve it, and else it is released already.
pub(crate) fn make(cx: &Context, tx: &mut Tx, new: New<'_>) -> Result<BatchRow> {
    check_scope(&new.scope)?;
    let New { tenant, created_by, scope, calls, pins, reason, life_seconds, least } = new;
    let policy = PolicyRow::of(tx, tenant)?;
    let required = policy.required(&scope).max(least);
    let state = if required == 0 { State::Released } else { State::Held };
    let waiting = || BATCHES.by_index(tx.view(), HELD, &held_key(tenant));
    if state == State::Held && waiting()?.len() >= HELD_MAX {
        return Err(too_many(tenant));
    }
    let clock = tx.view().clock();
    let life_ms = life_seconds.unwrap_or(policy.life_seconds).min(LIFE_SECONDS_MAX) * 1000;
    let wish = if calls.is_empty() {
        String::new()
    } else {
        digest::of_wish(&created_by.name, tenant, &calls)
    };
    let mut row = BatchRow {
        id: id::mint(&*cx.rt, "ap"),
        tenant: tenant.to_owned(),
        state,
        scope,
        calls,
        pins,
        commands: vec![],
        digest: String::new(),
        wish,
        reason,
        created_by: created_by.name.clone(),
        created_at_ms: clock.wall_ms,
        life_ms,
        expires_ms: clock.now_ms.saturating_add(life_ms),
        required,
        approvals: vec![],
        ended: None,
    };
    row.digest = digest::of_batch(&row);
    if row.state == State::Held {
        life::told(tx, &row, "approval.held", &created_by.name, "");
    } else {
        row.ended = Some(life::ended(tx, &created_by.name, "no approval was asked for"));
    }
    tx.put(&BATCHES, &row.id, &row)?;
    expiry::wake(tx, &row)?;
    Ok(row)
}

/// Refuses a scope that is empty, too large, or has a thing twice.
pub(crate) fn check_scope(scope: &[Scoped]) -> Result<()> {
    if scope.is_empty() || scope.len() > CALLS_MAX {
        return Err(wrong("/scope", format!("must have 1 to {CALLS_MAX} things")));
    }
    let each: BTreeSet<&Scoped> = scope.iter().collect();
    if each.len() < scope.len() {
        return Err(wrong("/scope", "must have each thing once"));
    }
    Ok(())
}

fn too_many(tenant: &str) -> Error {
    let whose =
        if tenant.is_empty() { "the cluster".to_owned() } else { format!("tenant {tenant}") };
    Error::new(Code::InvalidState, format!("{HELD_MAX} batches of {whose} wait for approval"))
        .hint("approve, reject or withdraw some first: `palisade approval ls --state held`")
}

/// A call that was tried: what it is about, and which rows it changes.
pub(crate) struct Tried {
    pub about: Scoped,
    pub pins: Vec<Pin>,
}

/// Tries a call under somebody's rights, without leaving anything of it: what it would refuse is refused now, and not
/// after people have approved it.
pub(crate) fn rehearse(
    known: &Known,
    cx: &MethodContext,
    tx: &Tx,
    tenant: &str,
    call: &HeldCall,
) -> Result<Tried> {
    let mut stage = Tx::new(tx.view().clone());
    let (about, on) = run(known, cx, &mut stage, &cx.principal, call)?;
    if stage.is_empty() {
        return Err(Error::new(
            Code::InvalidState,
            format!("{} of {} changes nothing", call.method, about.subject),
        )
        .hint("it is done already: leave it out"));
    }
    let told = whose(&stage, &on);
    if told != tenant {
        let owner = |tenant: &str| match tenant {
            "" => "the cluster's".to_owned(),
            tenant => format!("of tenant {tenant}"),
        };
        return Err(Error::new(
            Code::InvalidInput,
            format!("{} is {}, and the batch {}", about.subject, owner(&told), owner(tenant)),
        )
        .hint("one batch is about things of one tenant: make another for the rest"));
    }
    let pins = pins(&stage);
    stage.build()?;
    Ok(Tried { about, pins })
}

/// The rows that are changed and were there before.
pub(crate) fn pins(tx: &Tx) -> Vec<Pin> {
    let pin = |(table, key, created_rev): (&str, &[u8], u64)| Pin {
        table: table.to_owned(),
        key: hex::encode(key),
        created_rev,
    };
    tx.changed_rows().map(pin).collect()
}

/// Makes a call in a transaction, under somebody's rights as they are in its view.
pub(crate) fn run(
    known: &Known,
    cx: &MethodContext,
    tx: &mut Tx,
    who: &Principal,
    call: &HeldCall,
) -> Result<(Scoped, Resource)> {
    let method = known.method(&call.method)?;
    (method.validate)(&call.input)?;
    let resource = (method.resource)(&call.input);
    let ports = &cx.context.ports;
    let access = &**ports.access.get()?;
    access.authorize(tx.view(), who, &method.action, &resource)?;
    let leave = whose_leave(access, tx.view(), who, &method.action, &resource);
    ports.tenant_writable(tx, &leave)?;
    let Handler::Mutation(handler) = &method.handler else {
        return Err(Error::new(Code::Unsupported, format!("{} is no transaction", call.method)));
    };
    let own = MethodContext {
        principal: who.clone(),
        dry_run: false,
        if_match: call.if_match,
        ..cx.clone()
    };
    handler(&own, tx, call.input.clone())?;
    Ok((Scoped { subject: resource.to_string(), kind: call.method.clone() }, resource))
}

/// The input of a call of a batch: whose thing it is goes without saying.
pub(crate) fn within(known: &Known, method: &str, mut input: Value, tenant: &str) -> Result<Value> {
    let takes = palisade_contract::fields::names(known.method(method)?).contains("tenant");
    if takes
        && !tenant.is_empty()
        && let Value::Object(fields) = &mut input
    {
        let named = fields.entry("tenant").or_insert(Value::Null);
        if named.is_null() {
            *named = tenant.into();
        }
    }
    Ok(input)
}
