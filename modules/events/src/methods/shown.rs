//! What the methods answer.

use palisade_contract::time::rfc3339;
use palisade_state::{Versioned, View};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::records::{
    DeliveryRow, LETTERS, LetterRow, ProgressRow, QUEUE, Reason, SubscriptionRow, count,
};

/// Where a subscription stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "SubscriptionState")]
pub enum State {
    /// What happens is sent.
    Active,
    /// Something was not delivered, and is tried again.
    Failing,
    /// What waits cannot be sent: it cannot be signed, or there is no such sink. It goes on by itself once that is mended.
    Blocked,
    /// Somebody wants nothing sent for now.
    Paused,
    /// Its receiver wants no more.
    Disabled,
}

/// One of the secrets that sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SubscriptionSigning")]
pub struct Signing {
    /// Its name among the tenant's secrets.
    pub secret: String,
    /// It is kept for this subscription alone.
    pub own: bool,
    /// It was replaced, and signs no more by itself once the receiver has had time.
    pub retiring: bool,
}

/// A subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionRecord {
    /// `<tenant>/<name>`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whose it is; empty: the cluster's.
    pub tenant: String,
    /// For people.
    pub description: String,
    /// Where its events are sent; empty: to a sink.
    pub url: String,
    /// The sink; empty: to a URL.
    pub sink: String,
    /// Types of events; none: all.
    pub types: Vec<String>,
    /// Subjects; none: all.
    pub subjects: Vec<String>,
    /// Of the cluster's subscription: only events of this tenant.
    pub of_tenant: Option<String>,
    /// What it is signed with, the newest first.
    pub signing: Vec<Signing>,
    /// Where it stands.
    pub state: State,
    /// Why it is disabled or blocked, or what went wrong last; empty: nothing.
    pub reason: String,
    /// Since when it is failing.
    pub failing_since: Option<String>,
    /// Events that wait.
    pub waiting: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Dead letters that left by their age or number.
    pub dead_letters_lost: u64,
    /// Events that were delivered.
    pub delivered: u64,
    /// When the last one was.
    pub delivered_at: Option<String>,
    /// Attempts that failed.
    pub failed: u64,
    /// Of the cluster's subscription: events that it has not looked at yet.
    pub behind: Option<u64>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: String,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision is the answer's.
    pub revision: u64,
}

pub(super) fn record(
    view: &View,
    row: &SubscriptionRow,
    progress: &ProgressRow,
    revision: u64,
) -> SubscriptionRecord {
    let signing = row.signing.iter().map(|signing| Signing {
        secret: signing.secret.clone(),
        own: signing.own,
        retiring: signing.until_ms.is_some(),
    });
    let state = if progress.disabled.is_some() {
        State::Disabled
    } else if row.paused {
        State::Paused
    } else if progress.blocked.is_some() {
        State::Blocked
    } else if progress.failing_since_ms.is_some() {
        State::Failing
    } else {
        State::Active
    };
    let stopped = progress.disabled.as_ref().or(progress.blocked.as_ref());
    let stopped = stopped.map(|stopped| stopped.reason.clone());
    let behind = view.last_event().saturating_sub(progress.cursor);
    SubscriptionRecord {
        id: row.key(),
        name: row.name.clone(),
        tenant: row.tenant.clone(),
        description: row.description.clone(),
        url: row.url.clone(),
        sink: row.sink.clone(),
        types: row.types.clone(),
        subjects: row.subjects.clone(),
        of_tenant: row.of_tenant.clone(),
        signing: signing.collect(),
        state,
        reason: stopped.unwrap_or_else(|| progress.last_error.clone()),
        failing_since: progress.failing_since_ms.map(rfc3339),
        waiting: count(view, QUEUE.name(), &row.rows()),
        dead_letters: count(view, LETTERS.name(), &row.rows()),
        dead_letters_lost: progress.letters_lost,
        delivered: progress.delivered,
        delivered_at: (progress.delivered_at_ms > 0).then(|| rfc3339(progress.delivered_at_ms)),
        failed: progress.failed,
        // TEN-1: of others' events, their number is not told.
        behind: row.tenant.is_empty().then_some(behind),
        created_by: row.created_by.clone(),
        created_at: rfc3339(row.created_at_ms),
        revision,
    }
}

/// An event that waits for a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EventDelivery")]
pub struct DeliveryRecord {
    /// `<tenant>/<id of the subscription>/<number>`.
    pub id: String,
    /// `webhook-id`, and the id of the event.
    pub event: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its subject.
    pub subject: String,
    /// When it happened.
    pub at: String,
    /// Attempts that failed; 0: it was not tried yet, or waits behind an earlier one of its subject.
    pub attempts: u32,
    /// What went wrong in the last one.
    pub error: String,
    /// Milliseconds until it is tried again, by the cluster's clock; absent: as soon as it is its turn.
    pub retry_in_ms: Option<u64>,
    /// Since when it waits.
    pub waiting_since: String,
}

pub(super) fn delivery(view: &View, row: &DeliveryRow) -> DeliveryRecord {
    let left = row.due.saturating_sub(view.clock().now_ms);
    DeliveryRecord {
        id: row.key(),
        event: row.event.id.clone(),
        kind: row.event.kind.clone(),
        subject: row.event.subject.clone(),
        at: rfc3339(row.event.at_ms),
        attempts: row.attempts,
        error: row.error.clone(),
        retry_in_ms: (row.attempts > 0 && left > 0).then_some(left),
        waiting_since: rfc3339(row.since_ms),
    }
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeadLetter")]
pub struct LetterRecord {
    /// `<tenant>/<id of the subscription>/<number>`; the part behind the last slash names it too.
    pub id: String,
    /// Why it is one.
    pub reason: Reason,
    /// The id of the event; empty for a gap.
    pub event: String,
    /// Its type; empty for a gap.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its subject; for a gap the numbers of the events that are not known any more.
    pub subject: String,
    /// When it happened.
    pub at: Option<String>,
    /// Attempts that failed.
    pub attempts: u32,
    /// What went wrong in the last one.
    pub error: String,
    /// What it said.
    pub data: Option<Value>,
    /// When it was given up.
    pub dead_at: String,
}

pub(super) fn letter(found: &Versioned<LetterRow>) -> LetterRecord {
    let row = &found.value;
    let gap = row.gap.map(|(from, to)| format!("{from} to {to}")).unwrap_or_default();
    let delivery = row.delivery.as_ref();
    let event = delivery.map(|delivery| &delivery.event);
    let text = |field: Option<&String>| field.cloned().unwrap_or_default();
    LetterRecord {
        id: row.key(),
        reason: row.reason,
        event: text(event.map(|event| &event.id)),
        kind: text(event.map(|event| &event.kind)),
        subject: event.map_or(gap, |event| event.subject.clone()),
        at: event.map(|event| rfc3339(event.at_ms)),
        attempts: delivery.map_or(0, |delivery| delivery.attempts),
        error: text(delivery.map(|delivery| &delivery.error)),
        data: event.and_then(|event| event.data.clone()),
        dead_at: rfc3339(row.dead_at_ms),
    }
}

/// What was done with dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeadLettersHandled")]
pub struct Handled {
    /// So many were replayed or dropped.
    pub handled: u64,
    /// So many are left.
    pub left: u64,
}
