//! Making and changing subscriptions.

use std::sync::Arc;

use palisade_contract::{Code, Error, MethodContext, Problem, Resource, Result, id::mint};
use palisade_state::{Tx, View};
use serde_json::json;

use super::{
    CreateSubscription, OneSubscription, RotateSubscription, SubscriptionRecord,
    UpdateSubscription, not_found, shown::record,
};
use crate::{
    Sinks,
    deliver::SUBSCRIBERS,
    plan::{Room, WAITING_BYTES_MAX, WAITING_MAX},
    records::{
        DeliveryRow, KeptEvent, PROGRESS, ProgressRow, QUEUE, SUBSCRIPTIONS, SubscriptionRow,
        key_of, waiting,
    },
    secrets::{Named, retain, sign_with, signs_already},
};

/// Subscriptions of one tenant, or of the cluster itself.
const SUBSCRIPTIONS_MAX: usize = 64;

/// A subscription that a method changes.
struct Changed {
    row: SubscriptionRow,
    progress: ProgressRow,
}

impl Changed {
    fn read(cx: &MethodContext, tx: &mut Tx, tenant: &str, name: &str) -> Result<Self> {
        let key = key_of(tenant, name);
        let found = tx.get_versioned(&SUBSCRIPTIONS, &key)?.ok_or_else(|| not_found(name))?;
        cx.check_if_match(found.stamp.modified_rev)?;
        let progress = tx.get(&PROGRESS, &key)?.unwrap_or_default();
        Ok(Self { row: found.value, progress })
    }

    fn write(self, tx: &mut Tx) -> Result<SubscriptionRecord> {
        let (key, view) = (self.row.key(), tx.view().clone());
        tx.put(&SUBSCRIPTIONS, &key, &self.row)?;
        tx.put(&PROGRESS, &key, &self.progress)?;
        tx.enqueue(SUBSCRIBERS, &key)?;
        Ok(record(&view, &self.row, &self.progress, 0))
    }

    /// What waits is tried at once, as if the receiver had just been well.
    fn try_at_once(&mut self, view: &View) {
        let now = view.clock().now_ms;
        self.progress.success_at = Some(now);
        // Another value than before, whatever the time: a run in flight sees by it that this happened.
        self.progress.recovered_at = self.progress.recovered_at.max(now) + 1;
        self.progress.hold_until = 0;
        (self.progress.probes, self.progress.probe_at) = (0, 0);
    }
}

fn told(cx: &MethodContext, tx: &mut Tx, kind: &str, row: &SubscriptionRow) {
    let data =
        json!({ "subscription": row.name, "to": row.destination(), "by": cx.principal.name });
    tx.publish(kind, &row.tenant, format!("subscription/{}", row.name), &data);
}

/// Whoever has events sent somewhere must be allowed to read them.
fn may_read_events(cx: &MethodContext, view: &View, tenant: &str) -> Result<()> {
    let Some(access) = cx.context.ports.access.filled() else { return Ok(()) };
    let events = Resource::of_tenant("event", "", tenant);
    access.authorize(view, &cx.principal, "compute:events:read", &events)
}

/// Where nothing would ever be sent is said at once.
fn may_be_sent(cx: &MethodContext, url: &str) -> Result<()> {
    let refuses = cx.context.ports.webhooks.filled().and_then(|port| port.refuses(url));
    refuses.map_or(Ok(()), |message| {
        Err(Error::invalid(vec![Problem { pointer: "/url".to_owned(), message }]))
    })
}

fn too_many(tenant: &str) -> Error {
    let whose =
        if tenant.is_empty() { "the cluster".to_owned() } else { format!("tenant {tenant}") };
    let detail = format!("{whose} has {SUBSCRIPTIONS_MAX} subscriptions, and may have no more");
    Error::new(Code::QuotaExceeded, detail).hint(
        "remove one, or let one receiver have the events of several: a filter has up to 32 types",
    )
}

pub(super) fn create(
    sinks: &Arc<Sinks>,
    cx: &MethodContext,
    tx: &mut Tx,
    input: CreateSubscription,
) -> Result<SubscriptionRecord> {
    let view = tx.view().clone();
    cx.context.ports.tenant_open(tx, &input.tenant)?;
    may_read_events(cx, &view, &input.tenant)?;
    let key = key_of(&input.tenant, &input.name);
    if tx.get(&SUBSCRIPTIONS, &key)?.is_some() {
        let detail = format!("there is a subscription {} already", input.name);
        return Err(Error::new(Code::Conflict, detail)
            .hint("change it with `palisade subscription update`, or choose another name"));
    }
    let own = tx.scan(&SUBSCRIPTIONS, format!("{}/", input.tenant).as_bytes())?;
    if own.len() >= SUBSCRIPTIONS_MAX {
        return Err(too_many(&input.tenant));
    }
    if let Some(url) = &input.url {
        may_be_sent(cx, url)?;
    }
    if let Some(sink) = &input.sink {
        sinks.find(sink)?;
    }
    let mut row = SubscriptionRow {
        id: mint(&*cx.context.rt, "sub"),
        name: input.name,
        tenant: input.tenant,
        description: input.description,
        url: input.url.unwrap_or_default(),
        sink: input.sink.unwrap_or_default(),
        types: input.types,
        subjects: input.subjects,
        of_tenant: input.of_tenant,
        signing: vec![],
        next_secret: 0,
        paused: false,
        created_by: cx.principal.name.clone(),
        created_at_ms: view.clock().wall_ms,
    };
    sign(cx, tx, &mut row, (input.secret.as_deref(), input.secret_ref.as_deref()))?;
    // EVT-9
    let progress = ProgressRow {
        id: row.id.clone(),
        subscription: row.rows(),
        cursor: view.last_event(),
        ..ProgressRow::default()
    };
    told(cx, tx, "subscription.created", &row);
    Changed { row, progress }.write(tx)
}

/// What a caller names to sign with: a secret that it made, or one that is there.
type Given<'a> = (Option<&'a str>, Option<&'a str>);

fn named(given: Given<'_>) -> Option<Named<'_>> {
    match given {
        (Some(text), _) => Some(Named::Own(text)),
        (None, Some(name)) => Some(Named::Reference(name)),
        (None, None) => None,
    }
}

fn sign(
    cx: &MethodContext,
    tx: &mut Tx,
    row: &mut SubscriptionRow,
    given: Given<'_>,
) -> Result<()> {
    let by = &cx.principal.name;
    named(given).map_or(Ok(()), |named| sign_with(&cx.context, tx, row, named, by))
}

fn is_newest(
    cx: &MethodContext,
    tx: &mut Tx,
    row: &SubscriptionRow,
    given: Given<'_>,
) -> Result<bool> {
    named(given).map_or(Ok(false), |named| signs_already(&cx.context, tx, row, named))
}

pub(super) fn update(
    cx: &MethodContext,
    tx: &mut Tx,
    input: UpdateSubscription,
) -> Result<SubscriptionRecord> {
    let view = tx.view().clone();
    let mut changed = Changed::read(cx, tx, &input.tenant, &input.subscription)?;
    cx.context.ports.tenant_open(tx, &input.tenant)?;
    may_read_events(cx, &view, &input.tenant)?;
    if let Some(url) = input.url {
        if !changed.row.sink.is_empty() {
            let message = "is not taken by a subscription of a sink: make another one".to_owned();
            return Err(Error::invalid(vec![Problem { pointer: "/url".to_owned(), message }]));
        }
        may_be_sent(cx, &url)?;
        if changed.row.url != url {
            changed.row.url = url;
            changed.try_at_once(&view);
        }
    }
    let row = &mut changed.row;
    row.description = input.description.unwrap_or_else(|| row.description.clone());
    row.types = input.types.unwrap_or_else(|| row.types.clone());
    row.subjects = input.subjects.unwrap_or_else(|| row.subjects.clone());
    told(cx, tx, "subscription.updated", &changed.row);
    changed.write(tx)
}

pub(super) fn remove(
    cx: &MethodContext,
    tx: &mut Tx,
    input: OneSubscription,
) -> Result<SubscriptionRecord> {
    let Changed { mut row, progress } = Changed::read(cx, tx, &input.tenant, &input.subscription)?;
    let (key, view) = (row.key(), tx.view().clone());
    let answer = record(&view, &row, &progress, 0);
    retain(&cx.context, tx, &mut row, |_| false)?;
    // Its other rows are removed in the next minutes; nobody finds them any more.
    tx.delete(&SUBSCRIPTIONS, &key)?;
    tx.delete(&PROGRESS, &key)?;
    told(cx, tx, "subscription.removed", &row);
    Ok(answer)
}

pub(super) fn pause(
    cx: &MethodContext,
    tx: &mut Tx,
    input: OneSubscription,
) -> Result<SubscriptionRecord> {
    let mut changed = Changed::read(cx, tx, &input.tenant, &input.subscription)?;
    if !changed.row.paused {
        changed.row.paused = true;
        told(cx, tx, "subscription.paused", &changed.row);
    }
    changed.write(tx)
}

pub(super) fn resume(
    cx: &MethodContext,
    tx: &mut Tx,
    input: OneSubscription,
) -> Result<SubscriptionRecord> {
    let view = tx.view().clone();
    let mut changed = Changed::read(cx, tx, &input.tenant, &input.subscription)?;
    if changed.row.paused || changed.progress.disabled.is_some() {
        changed.row.paused = false;
        changed.progress.disabled = None;
        told(cx, tx, "subscription.resumed", &changed.row);
    }
    changed.try_at_once(&view);
    changed.write(tx)
}

/// `EVT-5` What a call may have wait beside what does.
///
/// # Errors
/// The queue is full.
pub(super) fn has_room(view: &View, row: &SubscriptionRow) -> Result<Room> {
    let waits = waiting(view, &row.rows())?;
    // A replay may add as many again: see `plan`.
    let room = Room::beside(&waits, (2 * WAITING_MAX, 2 * WAITING_BYTES_MAX));
    if room.rows > 0 && room.bytes > 0 { Ok(room) } else { Err(full(row)) }
}

/// That no more may wait.
pub(super) fn full(row: &SubscriptionRow) -> Error {
    let detail = format!("so much waits for subscription {} that no more is kept", row.name);
    Error::new(Code::InvalidState, detail)
        .hint("`palisade subscription deliveries` says why it waits")
}

pub(super) fn test(
    cx: &MethodContext,
    tx: &mut Tx,
    input: OneSubscription,
) -> Result<SubscriptionRecord> {
    let view = tx.view().clone();
    let changed = Changed::read(cx, tx, &input.tenant, &input.subscription)?;
    let row = &changed.row;
    if row.paused || changed.progress.disabled.is_some() {
        let state = if row.paused { "paused" } else { "disabled" };
        let detail = format!("subscription {} is {state}: nothing is sent", row.name);
        return Err(Error::new(Code::InvalidState, detail)
            .hint(format!("`palisade subscription resume {}`", row.name)));
    }
    has_room(&view, row)?;
    let cluster = view.formation().map_or("", |formation| formation.cluster.as_str());
    let wall_ms = view.clock().wall_ms;
    let event = KeptEvent {
        id: mint(&*cx.context.rt, "test"),
        source: format!("/palisade/{cluster}"),
        kind: "subscription.test".to_owned(),
        tenant: row.tenant.clone(),
        subject: format!("subscription/{}", row.name),
        seq: 0,
        revision: view.revision(),
        at_ms: wall_ms,
        data: Some(json!({ "by": cx.principal.name })),
        left_out_bytes: 0,
        bytes: 0,
    };
    let delivery = DeliveryRow {
        subscription: row.rows(),
        event,
        attempts: 0,
        first_at: 0,
        last_at: 0,
        due: 0,
        error: String::new(),
        since_ms: wall_ms,
    };
    tx.put(&QUEUE, &delivery.key(), &delivery)?;
    tx.enqueue(SUBSCRIBERS, &row.key())?;
    Ok(record(&view, row, &changed.progress, 0))
}

pub(super) fn rotate(
    cx: &MethodContext,
    tx: &mut Tx,
    input: RotateSubscription,
) -> Result<SubscriptionRecord> {
    let view = tx.view().clone();
    let mut changed = Changed::read(cx, tx, &input.tenant, &input.subscription)?;
    cx.context.ports.tenant_open(tx, &input.tenant)?;
    if changed.row.url.is_empty() {
        let detail = format!("subscription {} is of a sink: nothing is signed", input.subscription);
        return Err(Error::new(Code::InvalidState, detail));
    }
    let before = changed.row.signing.clone();
    let until = view.clock().now_ms + input.overlap_seconds * 1000;
    let named = (input.secret.as_deref(), input.secret_ref.as_deref());
    let overlaps = input.overlap_seconds > 0;
    let newest = before.first().map(|signing| signing.secret.clone()).unwrap_or_default();
    if is_newest(cx, tx, &changed.row, named)? {
        // What it replaced goes on as it was to.
        retain(&cx.context, tx, &mut changed.row, |signing| {
            signing.until_ms.is_none() || (overlaps && signing.secret != newest)
        })?;
    } else {
        // Of those that were there the newest alone goes on for a while.
        retain(&cx.context, tx, &mut changed.row, |signing| {
            overlaps && signing.until_ms.is_none()
        })?;
        if let Some(before) = changed.row.signing.first_mut() {
            before.until_ms = Some(until);
        }
        sign(cx, tx, &mut changed.row, named)?;
    }
    if changed.row.signing != before {
        told(cx, tx, "subscription.rotated", &changed.row);
    }
    changed.write(tx)
}
