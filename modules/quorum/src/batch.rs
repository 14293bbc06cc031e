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
    records::{BATCHES, BatchRow, HELD, HeldCall, Pin, PolicyRow, Seen, State, WISH, of_tenant},
};

/// Things that one batch has at most.
pub const CALLS_MAX: usize = 100;
/// Batches of a tenant that wait at once, at most.
pub const HELD_MAX: usize = 200;
/// Of those, one's who asks, at most: nobody takes the room of all.
pub const HELD_OF_ONE_MAX: usize = 50;

/// What a batch is to be.
pub(crate) struct New<'a> {
    pub tenant: &'a str,
    pub created_by: &'a Principal,
    pub scope: Vec<Scoped>,
    pub calls: Vec<HeldCall>,
    pub seen: Vec<Seen>,
    pub reason: String,
    /// Seconds; absent: as the policy says.
    pub life_seconds: Option<u64>,
    /// So many must approve at least.
    pub least: u32,
    /// And no more than so many: there are no others.
    pub most: Option<u32>,
}

/// A batch that waits for what this caller wants, of the things that are there now, if there is one.
///
/// # Errors
/// `CONFLICT`: it is asked for in another way than that one was.
pub(crate) fn waiting(tx: &mut Tx, new: &New<'_>) -> Result<Option<BatchRow>> {
    let now_ms = tx.view().clock().now_ms;
    let wish = digest::of_wish(&new.created_by.name, new.tenant, &new.calls);
    let is_of_these = |row: &BatchRow| {
        row.expires_ms > now_ms
            // One that waits for more than there are by now is none to wait for.
            && new.most.is_none_or(|most| row.required <= most.max(new.least))
            && row.seen.len() == new.seen.len()
            && row.seen.iter().zip(&new.seen).all(|(then, now)| !then.is_other(now))
    };
    let all = tx.by_index(&BATCHES, WISH, &wish)?.into_iter().map(|(_, row)| row);
    let found = all.rev().find(is_of_these);
    match found.as_ref().and_then(|row| Some((row, differs(row, new)?))) {
        Some((row, what)) => Err(asked_otherwise(row, what)),
        None => Ok(found),
    }
}

/// In what somebody asks otherwise than a batch that waits does; `None`: that one is what he asks for.
fn differs(row: &BatchRow, new: &New<'_>) -> Option<String> {
    if new.least > row.required {
        return Some(format!("requires {}", row.required));
    }
    if new.life_seconds.is_some_and(|life| life * 1000 != row.life_ms) {
        return Some(format!("waits for {} s in all", row.life_ms / 1000));
    }
    let is_reason_lost = !new.reason.is_empty() && new.reason != row.reason;
    is_reason_lost.then(|| format!("has the reason {:?}", row.reason))
}

fn asked_otherwise(row: &BatchRow, what: String) -> Error {
    let id = &row.id;
    let detail = format!("approval {id} waits for the same already, and {what}");
    let error = Error::new(Code::Conflict, detail).hint(format!(
        "leave it at that, or take it back first: `palisade approval withdraw {id}`"
    ));
    // The same request would find the same one.
    Error { retryable: false, ..error }
}

/// Writes a batch. It is held when anybody must approve it, and else it is released already.
pub(crate) fn make(cx: &Context, tx: &mut Tx, new: New<'_>) -> Result<BatchRow> {
    check_scope(&new.scope)?;
    let New { tenant, created_by, scope, calls, seen, reason, life_seconds, least, most } = new;
    let policy = PolicyRow::of(tx, tenant)?;
    let required = policy.required(&scope).min(most.unwrap_or(u32::MAX)).max(least);
    let state = if required == 0 { State::Released } else { State::Held };
    if state == State::Held {
        check_room(tx, tenant, &created_by.name)?;
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
        seen,
        commands: vec![],
        digest: String::new(),
        wish,
        reason,
        created_by: created_by.name.clone(),
        makers: cx.ports.access.get()?.makers(tx, &created_by.name)?,
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
        tx.put(&BATCHES, &row.id, &row)?;
        expiry::wake(tx, &row)?;
    } else {
        life::close(tx, &mut row, State::Released, &created_by.name, "no approval was asked for")?;
    }
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

/// Refuses what would be one too many of a tenant's, or of one's who asks.
fn check_room(tx: &Tx, tenant: &str, who: &str) -> Result<()> {
    let waiting = BATCHES.by_index(tx.view(), HELD, &of_tenant(tenant))?;
    let own = waiting.iter().filter(|(_, found)| found.value.created_by == who).count();
    let whose =
        if tenant.is_empty() { "the cluster".to_owned() } else { format!("tenant {tenant}") };
    let (most, of) = if own >= HELD_OF_ONE_MAX {
        (HELD_OF_ONE_MAX, format!("{whose} that {who} has asked for"))
    } else if waiting.len() >= HELD_MAX {
        (HELD_MAX, whose)
    } else {
        return Ok(());
    };
    Err(Error::new(Code::InvalidState, format!("{most} batches of {of} wait for approval"))
        .hint("approve, reject or withdraw some first: `palisade approval ls --state held`"))
}

/// A call that was tried: what it is about, and what it changes.
pub(crate) struct Tried {
    pub about: Scoped,
    pub seen: Seen,
}

/// Tries a call under somebody's rights, without leaving anything of it: what it would refuse is refused now, and not
/// after people have approved it.
pub(crate) fn rehearse_alone(
    known: &Known,
    cx: &MethodContext,
    tx: &Tx,
    tenant: &str,
    call: &HeldCall,
) -> Result<Tried> {
    let mut alone = Tx::new(tx.view().clone());
    let made = run(known, cx, &mut alone, &cx.principal, call)?;
    tried(alone, made, tenant)
}

/// The same of one call of several: `stage` has those before it, and has it afterwards. A call that is refused alone may
/// be one that the others make possible.
pub(crate) fn rehearse(
    known: &Known,
    cx: &MethodContext,
    stage: &mut Tx,
    tenant: &str,
    call: &HeldCall,
) -> Result<Tried> {
    let mut alone = Tx::new(stage.view().clone());
    match run(known, cx, &mut alone, &cx.principal, call) {
        Ok(made) => {
            let tried = tried(alone, made, tenant)?;
            run(known, cx, stage, &cx.principal, call)?;
            Ok(tried)
        }
        // Of what is the cluster's it is not known then whether the call is about a tenant's.
        Err(refused) if tenant.is_empty() => Err(refused),
        Err(refused) => {
            let before = pins(stage);
            let Ok(made) = run(known, cx, stage, &cx.principal, call) else { return Err(refused) };
            let mut seen = made.seen(stage);
            seen.pins.retain(|pin| !before.contains(pin));
            if seen.pins.is_empty() {
                return Err(refused);
            }
            check_whose(stage, &made, tenant)?;
            Ok(Tried { about: made.about, seen })
        }
    }
}

fn tried(alone: Tx, made: Made, tenant: &str) -> Result<Tried> {
    if alone.is_empty() {
        return Err(Error::new(
            Code::InvalidState,
            format!("{} of {} changes nothing", made.about.kind, made.about.subject),
        )
        .hint("it is done already: leave it out"));
    }
    check_whose(&alone, &made, tenant)?;
    let seen = made.seen(&alone);
    alone.build()?;
    Ok(Tried { about: made.about, seen })
}

/// Refuses a thing that is not of the tenant whose things a batch is about. Whose it is, its events say, or else the call.
fn check_whose(stage: &Tx, made: &Made, tenant: &str) -> Result<()> {
    let owner = whose(stage, &made.resource);
    if owner == tenant {
        return Ok(());
    }
    let of = |tenant: &str| match tenant {
        "" => "the cluster's".to_owned(),
        tenant => format!("of tenant {tenant}"),
    };
    Err(Error::new(
        Code::InvalidInput,
        format!("{} is {}, and the batch {}", made.about.subject, of(&owner), of(tenant)),
    )
    .hint("one batch is about things of one tenant: make another for the rest"))
}

fn pins(tx: &Tx) -> Vec<Pin> {
    let pin = |(table, key, created_rev): (&str, &[u8], u64)| Pin {
        table: table.to_owned(),
        key: hex::encode(key),
        created_rev,
    };
    tx.changed_rows().map(pin).collect()
}

/// A call that was made in a transaction.
pub(crate) struct Made {
    pub about: Scoped,
    resource: Resource,
    /// The id in its answer, if that has one.
    id: Option<String>,
}

impl Made {
    /// What the transaction changes and was there before; of the call's own thing, which row that is.
    pub fn seen(&self, tx: &Tx) -> Seen {
        let pins = pins(tx);
        let key = self.id.as_ref().map(hex::encode);
        let subject = pins.iter().find(|pin| key.as_ref() == Some(&pin.key)).cloned();
        Seen { subject, pins }
    }
}

/// What a call is about.
pub(crate) fn about(known: &Known, call: &HeldCall) -> Result<Scoped> {
    let resource = (known.method(&call.method)?.resource)(&call.input);
    Ok(Scoped { subject: resource.to_string(), kind: call.method.clone() })
}

/// Makes a call in a transaction, under somebody's rights as they are in its view.
pub(crate) fn run(
    known: &Known,
    cx: &MethodContext,
    tx: &mut Tx,
    who: &Principal,
    call: &HeldCall,
) -> Result<Made> {
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
    let answer = handler(&own, tx, call.input.clone())?;
    let about = Scoped { subject: resource.to_string(), kind: call.method.clone() };
    let id = answer.get("id").and_then(Value::as_str).map(str::to_owned);
    Ok(Made { about, resource, id })
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
