//! Events and the audit chain, as lists of numbered records.

use palisade_contract::{Check, MethodContext, Nothing, Problems, Result};
use palisade_state::View;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Records of a list when no limit is given, and at most.
const RECORDS_DEFAULT: u64 = 100;
const RECORDS_MAX: u64 = 1000;

/// From where a list of records begins.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct From {
    /// The first sequence number; absent: the newest records.
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
        if self.cursor.as_ref().is_some_and(|cursor| cursor.parse::<u64>().is_err()) {
            problems.add(format!("{at}/cursor"), "is not one that a list was answered with");
        }
    }
}

impl From {
    /// The first sequence number and how many records.
    fn window(&self, last: u64) -> (u64, usize) {
        let limit = self.limit.unwrap_or(RECORDS_DEFAULT);
        let newest = last.saturating_add(1).saturating_sub(limit).max(1);
        let cursor = self.cursor.as_ref().and_then(|cursor| cursor.parse().ok());
        let from = cursor.or(self.from).unwrap_or(newest);
        (from, usize::try_from(limit).unwrap_or(usize::MAX))
    }
}

/// A part of a list of numbered records.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Records<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

pub(super) fn records<T>(found: impl Iterator<Item = (u64, T)>, limit: usize) -> Records<T> {
    let mut items = vec![];
    for (seq, item) in found {
        if items.len() == limit {
            return Records { items, next_cursor: Some(seq.to_string()) };
        }
        items.push(item);
    }
    Records { items, next_cursor: None }
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

pub(super) fn time(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map(|at| at.to_string()).unwrap_or_default()
}

#[expect(clippy::unnecessary_wraps, reason = "a method's handler")]
pub(super) fn events(_: &MethodContext, view: &View, input: From) -> Result<Records<EventRecord>> {
    let (from, limit) = input.window(view.last_event());
    let found = view.events(from).map(|(seq, event)| {
        let record = EventRecord {
            seq,
            revision: event.revision,
            kind: event.kind.to_string(),
            tenant: event.tenant.to_string(),
            subject: event.subject.to_string(),
            at: time(event.at_ms),
            data: serde_json::from_slice(&event.data).unwrap_or_default(),
        };
        (seq, record)
    });
    Ok(records(found, limit))
}

#[expect(clippy::unnecessary_wraps, reason = "a method's handler")]
pub(super) fn audit(_: &MethodContext, view: &View, input: From) -> Result<Records<AuditEntry>> {
    let last = view.audit(0).last().map_or(0, |record| record.seq);
    let (from, limit) = input.window(last);
    let found = view.audit(from).map(|record| {
        let body = record.body.clone().unwrap_or_default();
        let entry = AuditEntry {
            seq: record.seq,
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
        };
        (record.seq, entry)
    });
    Ok(records(found, limit))
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
