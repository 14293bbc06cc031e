//! Events and the audit chain, as lists of numbered records: from memory, and from history where they have left it.
//!
//! # Invariants
//! - `TEN-1` Whoever asks for a tenant's records is told of no other's: not what is in them, and not how many there
//!   are, but for the holes that they leave between the sequence numbers.

mod list;

use futures::future::BoxFuture;
use palisade_contract::{
    Check, MethodContext, Nothing, Problems, Result,
    past::{History, Reach},
};
use palisade_state::{View, audit::AuditRecord, cursor::Cursor, outbox::Event};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::list::{Kept, Numbered};

/// Records of a list when no limit is given, and at most.
const RECORDS_DEFAULT: u64 = 100;
const RECORDS_MAX: u64 = 1000;

/// From where a list of records begins.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct From {
    /// Only records of this tenant: sequence numbers are the cluster's, so that theirs have holes.
    #[serde(default)]
    tenant: Option<String>,
    /// The first sequence number; 0: the oldest that is kept; absent: the newest records.
    #[serde(default)]
    from: Option<u64>,
    /// Records at most.
    #[serde(default)]
    limit: Option<u64>,
    /// The `nextCursor` of the part before.
    #[serde(default)]
    cursor: Option<String>,
}

impl Check for From {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.limit.is_some_and(|limit| limit == 0 || limit > RECORDS_MAX) {
            problems.add(format!("{at}/limit"), format!("must be 1 to {RECORDS_MAX}"));
        }
        if let Some(Err(error)) = self.cursor.as_ref().map(|text| text.parse::<Cursor>()) {
            problems.add(format!("{at}/cursor"), error.to_string());
        }
    }
}

/// A part of a list of numbered records.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Records<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
    /// It begins with the newest records that were asked for, and there may be older ones: ask with `from`.
    older: bool,
}

/// An event.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventRecord {
    /// Its place in the order of all events.
    seq: u64,
    /// The revision that published it.
    revision: u64,
    kind: String,
    tenant: String,
    subject: String,
    at: String,
    data: Value,
}

/// One record of the audit chain.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditEntry {
    /// Its place in the chain.
    seq: u64,
    /// The revision that it describes.
    revision: u64,
    at: String,
    actor: String,
    method: String,
    resource: String,
    tenant: String,
    /// `ok` or an error's code.
    outcome: String,
    request_id: String,
    prev_hash: String,
    hash: String,
}

/// Whether the audit chain is whole.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verified {
    ok: bool,
    /// Records that are kept and were checked.
    records: u64,
    first_seq: Option<u64>,
    last_seq: Option<u64>,
    /// The hash of the last record.
    head: String,
    /// The first record that does not fit.
    broken_at: Option<u64>,
}

pub(super) use palisade_contract::time::rfc3339 as time;

pub(super) fn events(
    cx: MethodContext,
    view: View,
    input: From,
) -> BoxFuture<'static, Result<Records<EventRecord>>> {
    Box::pin(list::list(cx, view, input))
}

pub(super) fn audit(
    cx: MethodContext,
    view: View,
    input: From,
) -> BoxFuture<'static, Result<Records<AuditEntry>>> {
    Box::pin(list::list(cx, view, input))
}

impl Numbered for EventRecord {
    type Record = Event;

    fn ends(view: &View) -> (Option<u64>, u64) {
        (view.first_event(), view.last_event())
    }

    fn in_memory(view: &View, from: u64) -> impl DoubleEndedIterator<Item = (u64, &Event)> + Send {
        view.events(from)
    }

    fn reach(reach: Reach) -> Option<(u64, u64)> {
        reach.events
    }

    fn kept(history: &dyn History, from: u64) -> Kept<Event> {
        history.events(from, list::PAGE)
    }

    fn tenant(event: &Event) -> &str {
        &event.tenant
    }

    fn shown(seq: u64, event: Event) -> Self {
        Self {
            seq,
            revision: event.revision,
            kind: event.kind.to_string(),
            tenant: event.tenant.to_string(),
            subject: event.subject.to_string(),
            at: time(event.at_ms),
            data: serde_json::from_slice(&event.data).unwrap_or_default(),
        }
    }
}

impl Numbered for AuditEntry {
    type Record = AuditRecord;

    fn ends(view: &View) -> (Option<u64>, u64) {
        (view.first_audit(), view.last_audit())
    }

    fn in_memory(
        view: &View,
        from: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, &AuditRecord)> + Send {
        view.audit(from).map(|record| (record.seq, record))
    }

    fn reach(reach: Reach) -> Option<(u64, u64)> {
        reach.audit
    }

    fn kept(history: &dyn History, from: u64) -> Kept<AuditRecord> {
        let read = history.audit(from, list::PAGE);
        Box::pin(async move {
            let records = read.await?;
            Ok(records.into_iter().map(|record| (record.seq, record)).collect())
        })
    }

    fn tenant(record: &AuditRecord) -> &str {
        record.body.as_ref().map_or("", |body| &body.tenant)
    }

    fn shown(seq: u64, record: AuditRecord) -> Self {
        let body = record.body.unwrap_or_default();
        Self {
            seq,
            revision: record.revision,
            at: time(record.at_ms),
            actor: body.actor,
            method: body.method,
            resource: body.resource,
            tenant: body.tenant,
            outcome: body.outcome,
            request_id: body.request_id,
            prev_hash: hex::encode(&record.prev_hash),
            hash: hex::encode(&record.hash),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a method's handler")]
pub(super) fn verify(_: &MethodContext, view: &View, _: Nothing) -> Result<Verified> {
    let verified = view.verify_audit();
    let (first, last) = (view.audit(0).next(), view.audit(0).last());
    Ok(Verified {
        ok: verified.is_ok(),
        records: u64::try_from(view.audit(0).count()).unwrap_or(u64::MAX),
        first_seq: first.map(|record| record.seq),
        last_seq: last.map(|record| record.seq),
        head: last.map(|record| hex::encode(&record.hash)).unwrap_or_default(),
        broken_at: verified.err().map(|broken| broken.seq),
    })
}

#[cfg(test)]
mod tests;
