//! Events and the audit chain, as lists of numbered records.
//!
//! # Invariants
//! - `TEN-1` Whoever asks for a tenant's records is told of no other's: not what is in them, and not how many there
//!   are, but for the holes that they leave between the sequence numbers.

use palisade_contract::{Check, Code, Error, MethodContext, Nothing, Problem, Problems, Result};
use palisade_state::{
    View,
    audit::AuditRecord,
    cursor::{Cursor, CursorError},
    outbox::Event,
};
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
    /// Only records of this tenant: sequence numbers are the cluster's, so that theirs have holes.
    #[serde(default)]
    tenant: Option<String>,
    /// The first sequence number; 0: the oldest in memory; absent: the newest records.
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

impl From {
    /// The first sequence number and how many records, of those that a view has from `first` to
    /// `last`.
    fn window(&self, view: &View, first: Option<u64>, last: u64) -> Result<(u64, usize)> {
        let limit = self.limit.unwrap_or(RECORDS_DEFAULT);
        let newest = last.saturating_add(1).saturating_sub(limit).max(1);
        let oldest = first.unwrap_or(last.saturating_add(1));
        let from = match (&self.cursor, self.from) {
            (Some(text), _) => text
                .parse::<Cursor>()
                .and_then(|cursor| cursor.next_among(view, first, last))
                .map_err(|error| self.refused(error))?,
            (None, Some(from)) if (1..oldest).contains(&from) => {
                let message = match &self.tenant {
                    None => format!(
                        "{from} has left memory, and the oldest there is {oldest}: begin there, or at 0 for the oldest"
                    ),
                    Some(_) => format!("{from} has left memory: begin at 0 for the oldest"),
                };
                return Err(invalid("/from", message));
            }
            (None, from) => from.unwrap_or(newest),
        };
        Ok((from, usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    /// The part of a list that is asked for: `after` has the records from a sequence number on.
    fn select<'a, R, I>(
        &self,
        view: &'a View,
        (first, last): (Option<u64>, u64),
        after: impl Fn(u64) -> I,
        tenant_of: fn(&R) -> &str,
    ) -> Result<(impl Iterator<Item = (u64, R)>, usize)>
    where
        R: 'a,
        I: DoubleEndedIterator<Item = (u64, R)>,
    {
        let (mut from, limit) = self.window(view, first, last)?;
        let tenant = self.tenant.clone();
        let is_wanted = move |(_, record): &(u64, R)| {
            tenant.as_ref().is_none_or(|tenant| tenant == tenant_of(record))
        };
        if self.tenant.is_some() && self.cursor.is_none() && self.from.is_none() {
            // The newest are those of the tenant, however many of others came since.
            let newest = after(0).rev().filter(&is_wanted).take(limit).last();
            from = newest.map_or(last.saturating_add(1), |(seq, _)| seq);
        }
        Ok((after(from).filter(is_wanted), limit))
    }

    fn refused(&self, error: CursorError) -> Error {
        let message = match (&self.tenant, &error) {
            (Some(_), CursorError::Ahead { seq, .. }) => {
                format!(
                    "the cursor is at {seq}, which is not yet here: ask a replica that is further on"
                )
            }
            (Some(_), CursorError::Behind { seq, .. }) => {
                format!(
                    "the cursor is at {seq}, and what follows it has left memory: read everything again and begin at 0"
                )
            }
            _ => error.to_string(),
        };
        match error {
            CursorError::Ahead { .. } => Error::new(Code::Unavailable, message),
            _ => invalid("/cursor", message),
        }
    }
}

fn invalid(pointer: &str, message: String) -> Error {
    Error::invalid(vec![Problem { pointer: pointer.to_owned(), message }])
}

/// A part of a list of numbered records.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Records<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

fn records<T>(view: &View, found: impl Iterator<Item = (u64, T)>, limit: usize) -> Records<T> {
    let (mut items, mut last) = (vec![], 0);
    for (seq, item) in found {
        if items.len() == limit {
            return Records { items, next_cursor: Some(Cursor::at(view, last).to_string()) };
        }
        items.push(item);
        last = seq;
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

pub(super) use palisade_contract::time::rfc3339 as time;

pub(super) fn events(_: &MethodContext, view: &View, input: From) -> Result<Records<EventRecord>> {
    told(view, &input)
}

pub(super) fn audit(_: &MethodContext, view: &View, input: From) -> Result<Records<AuditEntry>> {
    noted(view, &input)
}

fn told(view: &View, input: &From) -> Result<Records<EventRecord>> {
    let ends = (view.first_event(), view.last_event());
    let (found, limit) =
        input.select(view, ends, |from| view.events(from), |event: &&Event| &event.tenant)?;
    let found = found.map(|(seq, event)| {
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
    Ok(records(view, found, limit))
}

fn noted(view: &View, input: &From) -> Result<Records<AuditEntry>> {
    let ends = (view.first_audit(), view.last_audit());
    let numbered = |from| view.audit(from).map(|record| (record.seq, record));
    let (found, limit) = input.select(view, ends, numbered, |record: &&AuditRecord| {
        record.body.as_ref().map_or("", |body| &body.tenant)
    })?;
    let found = found.map(|(_, record)| {
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
    Ok(records(view, found, limit))
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
mod tests {
    use serde_json::json;

    use palisade_state::{
        Formation, Machine, Position, State,
        command::{AuditDraft, Entry, EventDraft, FORMAT, Form, Kind, Trim, Txn},
        limits::AUDIT_MAX,
        rebirth,
    };

    use super::*;

    fn apply(machine: &mut Machine, kind: Kind) {
        let at = Position { term: 1, index: machine.applied().index + 1 };
        let commands = vec![kind.into()];
        let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 0, wall_ms: 0, commands };
        assert!(machine.apply(at, entry).unwrap().iter().all(palisade_state::Outcome::is_applied));
    }

    fn audited(records: usize) -> Machine {
        let mut machine = Machine::new(State::default());
        let form = Form { cluster: "cl_1".into(), lineage: "l".into(), epoch: 0 };
        apply(&mut machine, Kind::Form(form));
        for _ in 0..records {
            let audit = Some(AuditDraft::default());
            apply(&mut machine, Kind::Txn(Txn { audit, ..Txn::default() }));
        }
        machine.publish();
        machine
    }

    fn window(machine: &Machine, asked: &str) -> Result<(u64, usize)> {
        let asked: From = serde_json::from_str(asked).unwrap();
        let view = machine.published().view();
        asked.window(&view, view.first_audit(), view.last_audit())
    }

    fn problem(refused: Result<(u64, usize)>) -> (String, String) {
        let problem = refused.unwrap_err().problems.remove(0);
        (problem.pointer, problem.message)
    }

    #[test]
    fn what_has_left_memory_is_refused_with_where_memory_begins() {
        let mut machine = audited(AUDIT_MAX + 4);
        apply(&mut machine, Kind::Trim(Trim { events_below: 0, audit_below: 5 }));
        machine.publish();
        assert_eq!(machine.published().view().first_audit(), Some(5));
        assert_eq!(window(&machine, r#"{"from": 5}"#).unwrap(), (5, 100));
        assert_eq!(window(&machine, r#"{"from": 0}"#).unwrap(), (0, 100), "the oldest there is");
        assert_eq!(window(&machine, r#"{"cursor": "4@cl_1"}"#).unwrap(), (5, 100));
        let (pointer, message) = problem(window(&machine, r#"{"from": 4}"#));
        assert_eq!(pointer, "/from");
        assert!(message.contains("4 has left memory, and the oldest there is 5"), "{message}");
        let (pointer, message) = problem(window(&machine, r#"{"cursor": "3@cl_1"}"#));
        assert_eq!(pointer, "/cursor");
        assert!(message.contains("at 3, and the oldest in memory is 5"), "{message}");
    }

    #[test]
    fn a_cursor_from_before_a_restore_is_refused_and_both_clusters_are_named() {
        let machine = audited(3);
        let cursor = records(&machine.published().view(), (1..4).map(|n| (n, n)), 2).next_cursor;
        assert_eq!(cursor.as_deref(), Some("2@cl_1"));
        assert_eq!(window(&machine, r#"{"cursor": "2@cl_1", "limit": 7}"#).unwrap(), (3, 7));
        let formation = Formation { cluster: "cl_2".into(), lineage: "l".into(), epoch: 1 };
        let restored = Machine::new(rebirth(machine.into_state(), formation));
        let (pointer, message) = problem(window(&restored, r#"{"cursor": "2@cl_1"}"#));
        assert_eq!(pointer, "/cursor");
        assert!(message.contains("of cluster cl_1, this is cl_2"), "{message}");
        let ahead = window(&restored, r#"{"cursor": "9@cl_2"}"#).unwrap_err();
        assert_eq!((ahead.code, ahead.retryable), (Code::Unavailable, true));
    }

    #[test]
    fn nothing_yet_is_no_gap() {
        let machine = audited(0);
        assert_eq!(window(&machine, r#"{"from": 1}"#).unwrap(), (1, 100));
        assert_eq!(window(&machine, "{}").unwrap(), (1, 100));
        assert_eq!(window(&machine, r#"{"cursor": "0@cl_1"}"#).unwrap(), (1, 100));
    }

    /// Records of tenants, in turn from `tenants`.
    fn of_tenants(tenants: &[&str]) -> View {
        let mut machine = audited(0);
        for tenant in tenants {
            let (tenant, actor) = ((*tenant).to_owned(), format!("token/of-{tenant}"));
            let event = EventDraft {
                kind: "pet.fed".into(),
                tenant: tenant.clone(),
                subject: format!("pet/of-{tenant}"),
                data: b"{}".to_vec(),
            };
            let audit = Some(AuditDraft { tenant, actor, ..AuditDraft::default() });
            apply(&mut machine, Kind::Txn(Txn { audit, events: vec![event], ..Txn::default() }));
        }
        machine.publish();
        machine.published().view()
    }

    /// The sequence numbers of a part of a tenant's events and of its audit records, and where they go on.
    fn part(view: &View, asked: &Value) -> Result<(Vec<u64>, Option<String>)> {
        let of = |asked: &Value| serde_json::from_value::<From>(asked.clone()).unwrap();
        let (told, noted) = (told(view, &of(asked))?, noted(view, &of(asked))?);
        let seqs: Vec<u64> = told.items.iter().map(|event| event.seq).collect();
        assert_eq!(seqs, noted.items.iter().map(|record| record.seq).collect::<Vec<_>>());
        assert_eq!(told.next_cursor, noted.next_cursor);
        let wanted = asked["tenant"].as_str().unwrap();
        assert!(told.items.iter().all(|event| event.tenant == wanted), "TEN-1");
        assert!(noted.items.iter().all(|record| record.tenant == wanted), "TEN-1");
        Ok((seqs, told.next_cursor))
    }

    #[test]
    fn a_tenant_has_its_own_newest_records_and_its_parts_lead_to_all_of_them() {
        let others = ["b"; 150];
        let view = of_tenants(&[&["a", "", "b", "a", "a"][..], &others, &["a", ""]].concat());
        let read = |asked: Value| part(&view, &asked).unwrap();
        assert_eq!(read(json!({"tenant": "a"})), (vec![1, 4, 5, 156], None));
        assert_eq!(read(json!({"tenant": "a", "limit": 2})).0, [5, 156], "the newest two");
        assert_eq!(read(json!({"tenant": "a", "from": 2})).0, [4, 5, 156]);
        assert_eq!(read(json!({"tenant": "nobody"})), (vec![], None));
        assert_eq!(read(json!({"tenant": "", "from": 0})).0, [2, 157], "the cluster's own");
        let (mut all, mut cursor) = read(json!({"tenant": "a", "from": 0, "limit": 1}));
        while let Some(at) = cursor {
            let (more, next) = read(json!({"tenant": "a", "limit": 1, "cursor": at}));
            all.extend(more);
            cursor = next;
        }
        assert_eq!(all, [1, 4, 5, 156]);
    }

    #[test]
    fn what_a_tenant_is_refused_does_not_say_how_many_records_others_have() {
        let view = of_tenants(&["a", "b", "b", "b"]);
        let refused = part(&view, &json!({"tenant": "a", "cursor": "77@cl_1"})).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (Code::Unavailable, true));
        assert!(!refused.detail.contains('4'), "TEN-1: {}", refused.detail);
        let mut machine = audited(AUDIT_MAX + 40);
        apply(&mut machine, Kind::Trim(Trim { events_below: 0, audit_below: 39 }));
        machine.publish();
        for asked in [r#"{"tenant": "a", "from": 2}"#, r#"{"tenant": "a", "cursor": "2@cl_1"}"#] {
            let (_, message) = problem(window(&machine, asked));
            assert!(message.contains("left memory") && !message.contains("39"), "{message}");
        }
    }
}
