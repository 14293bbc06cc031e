//! What a command may be: limits and names, checked before it is proposed and again by apply.
//!
//! Apply's answer must be the same on every replica, so nothing here depends on anything but the
//! command; what depends on state is in `txn.rs` and `lease.rs`.
//!
//! # Invariants
//! - `LIMIT-1` No command over a limit, or with a name that its primitive does not take, changes
//!   state, whoever proposed it.

use std::borrow::Cow;

use prost::Message;

use crate::{
    command::{
        self, Command, Enqueue, Finish, Form, Idempotency, Kind, LeaseRelease, RaiseFormat,
        RangeCheck, ReplicaReport, Requeue, Txn, Verdict, WorkerBeat, Write,
    },
    limits::{
        AUDIT_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, KEY_BYTES_MAX, LEASES_MAX, MEMBERS_MAX,
        NAME_BYTES_MAX, RESPONSE_BYTES_MAX, SUBJECT_BYTES_MAX, TXN_BYTES_MAX, TXN_POINTS_MAX,
        TXN_RANGES_MAX, TXN_WRITES_MAX, VALUE_BYTES_MAX, WORK_ERROR_BYTES_MAX, WORK_KEY_BYTES_MAX,
    },
    queue::is_kind,
};

/// Something is over a limit of [`crate::limits`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} has {size} {unit}, the limit is {limit}")]
pub struct TooLarge {
    /// What is too large, with its name.
    pub what: String,
    /// What is counted.
    pub unit: Cow<'static, str>,
    /// How large it is.
    pub size: usize,
    /// What is allowed.
    pub limit: usize,
}

/// Why a command is refused wherever it goes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Over a limit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Against a rule.
    #[error("{0}")]
    Invalid(String),
}

impl From<Malformed> for Verdict {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Invalid(why) => Self::Invalid(why),
            Malformed::TooLarge(TooLarge { what, unit, size, limit }) => {
                Self::TooLarge(command::TooLarge {
                    what,
                    unit: unit.into_owned(),
                    size: size as u64,
                    limit: limit as u64,
                })
            }
        }
    }
}

impl From<command::TooLarge> for TooLarge {
    fn from(verdict: command::TooLarge) -> Self {
        Self {
            what: verdict.what,
            unit: verdict.unit.into(),
            size: usize::try_from(verdict.size).unwrap_or(usize::MAX),
            limit: usize::try_from(verdict.limit).unwrap_or(usize::MAX),
        }
    }
}

type Checked = Result<(), Malformed>;

fn bytes(what: impl FnOnce() -> String, size: usize, limit: usize) -> Checked {
    counted(what, "bytes", size, limit)
}

fn counted(
    what: impl FnOnce() -> String,
    unit: &'static str,
    size: usize,
    limit: usize,
) -> Checked {
    if size <= limit {
        Ok(())
    } else {
        Err(TooLarge { what: what(), unit: unit.into(), size, limit }.into())
    }
}

fn rule(holds: bool, broken: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Malformed::Invalid(broken())) }
}

/// A key as a refusal shows it.
fn shown(key: &[u8]) -> String {
    match key.get(..64) {
        Some(head) if key.len() > 64 => format!("\"{}…\"", head.escape_ascii()),
        _ => format!("\"{}\"", key.escape_ascii()),
    }
}

/// A name of 1 to `limit` bytes.
fn name(what: &str, name: &str, limit: usize) -> Checked {
    rule(!name.is_empty(), || format!("{what} is empty"))?;
    bytes(|| format!("{what} {}", shown(name.as_bytes())), name.len(), limit)
}

/// Whether a command may be proposed and applied.
///
/// # Errors
/// Says what is too large, or which rule is broken.
pub fn command(command: &Command) -> Result<(), Malformed> {
    match &command.kind {
        Some(Kind::Txn(txn)) => {
            bytes(|| "a transaction".to_owned(), command.encoded_len(), TXN_BYTES_MAX)?;
            self::txn(txn)
        }
        Some(Kind::WorkerBeat(item)) => beat(item),
        Some(Kind::LeaseRelease(item)) => release(item),
        Some(Kind::Form(item)) => form(item),
        Some(Kind::Report(item)) => report(item),
        Some(Kind::RaiseFormat(item)) => raise(item),
        Some(Kind::Tick(_) | Kind::Trim(_) | Kind::ForgetReplica(_)) => Ok(()),
        None => {
            Err(Malformed::Invalid("the command is of a kind that this build does not know".into()))
        }
    }
}

/// Whether a transaction may be proposed and applied; its encoded size apart.
///
/// # Errors
/// Says what is too large, or which rule is broken.
pub fn txn(txn: &Txn) -> Result<(), Malformed> {
    let rows = txn.writes.iter().filter(|write| !is_index(&write.table)).count();
    counted(|| "a transaction".to_owned(), "writes", rows, TXN_WRITES_MAX)?;
    let steps = txn.enqueues.len() + txn.finishes.len() + txn.requeues.len();
    counted(|| "a transaction".to_owned(), "wake-ups and ends of runs", steps, TXN_WRITES_MAX)?;
    counted(|| "a transaction".to_owned(), "events", txn.events.len(), TXN_WRITES_MAX)?;
    counted(|| "a transaction".to_owned(), "reads of a row", txn.points.len(), TXN_POINTS_MAX)?;
    counted(|| "a transaction".to_owned(), "reads of a range", txn.ranges.len(), TXN_RANGES_MAX)?;
    bytes(|| "a transaction's response".to_owned(), txn.response.len(), RESPONSE_BYTES_MAX)?;
    txn.writes.iter().try_for_each(write)?;
    for point in &txn.points {
        table(&point.table)?;
        key(&point.table, &point.key)?;
    }
    txn.ranges.iter().try_for_each(range)?;
    txn.enqueues.iter().try_for_each(|Enqueue { kind, key, .. }| work(kind, key))?;
    txn.finishes
        .iter()
        .chain(&txn.work)
        .try_for_each(|Finish { kind, key, .. }| work(kind, key))?;
    txn.requeues.iter().try_for_each(requeue)?;
    for event in &txn.events {
        name("an event's kind", &event.kind, NAME_BYTES_MAX)?;
        bytes(
            || format!("the tenant of a {} event", event.kind),
            event.tenant.len(),
            NAME_BYTES_MAX,
        )?;
        let subject = || format!("the subject of a {} event", event.kind);
        bytes(subject, event.subject.len(), SUBJECT_BYTES_MAX)?;
        bytes(|| format!("the data of a {} event", event.kind), event.data.len(), VALUE_BYTES_MAX)?;
        let is_text = std::str::from_utf8(&event.data).is_ok();
        rule(is_text, || format!("the data of a {} event is not UTF-8", event.kind))?;
    }
    if let Some(draft) = &txn.audit {
        bytes(|| "an audit record".to_owned(), draft.encoded_len(), AUDIT_BYTES_MAX)?;
    }
    if let Some(fence) = &txn.fence {
        name("a fence's lease", &fence.lease, NAME_BYTES_MAX)?;
        name("a fence's worker", &fence.worker, NAME_BYTES_MAX)?;
    }
    txn.idempotency.iter().try_for_each(idempotency)
}

fn is_index(table: &str) -> bool {
    table.contains('#')
}

/// Whether a table may have this name.
///
/// # Errors
/// It is empty or too long.
pub fn table(table: &str) -> Result<(), Malformed> {
    name("a table's name", table, NAME_BYTES_MAX)
}

/// Whether a row of `table` may be looked for under this key.
///
/// # Errors
/// It is too long.
pub fn key(table: &str, key: &[u8]) -> Result<(), Malformed> {
    bytes(|| format!("a key of table {table}, {},", shown(key)), key.len(), KEY_BYTES_MAX)
}

/// Whether these are the ends of a range of `table`; without an end, it goes to the table's.
///
/// # Errors
/// An end is too long, or the start is behind the end.
pub fn ends(table: &str, start: &[u8], end: Option<&[u8]>) -> Result<(), Malformed> {
    key(table, start)?;
    let Some(end) = end else { return Ok(()) };
    key(table, end)?;
    rule(start <= end, || {
        let (start, end) = (shown(start), shown(end));
        format!("a range of table {table} starts at {start}, behind its end {end}")
    })
}

fn range(range: &RangeCheck) -> Checked {
    table(&range.table)?;
    ends(&range.table, &range.start, range.end.as_deref())
}

/// Whether a row of `table` may have this key.
pub(crate) fn row_key(table: &str, row: &[u8]) -> Checked {
    rule(!row.is_empty(), || format!("a key of table {table} is empty"))?;
    key(table, row)
}

/// Whether a row may have a value of this size.
pub(crate) fn value(table: &str, row: &[u8], size: usize) -> Checked {
    bytes(|| format!("a record of table {table}, key {},", shown(row)), size, VALUE_BYTES_MAX)
}

fn write(write: &Write) -> Checked {
    table(&write.table)?;
    row_key(&write.table, &write.key)?;
    if is_index(&write.table) {
        // An index key is text, a zero byte, and the primary key.
        let text = write.key.split(|byte| *byte == 0).next().unwrap_or_default();
        let holds = text.len() < write.key.len() && std::str::from_utf8(text).is_ok();
        let shown = || shown(&write.key);
        rule(holds, || format!("{} is not a key of index {}", shown(), write.table))?;
    }
    value(&write.table, &write.key, write.value.as_ref().map_or(0, Vec::len))
}

/// Whether the work queue takes this kind and key.
///
/// # Errors
/// Says which rule is broken.
pub fn work(kind: &str, key: &str) -> Result<(), Malformed> {
    rule(is_kind(kind), || {
        let shown = shown(kind.as_bytes());
        format!(
            "{shown} is not a kind of work: a letter, then letters, digits, . _ -, 64 at most; all lower case"
        )
    })?;
    rule(!key.is_empty(), || format!("a key of {kind} work is empty"))?;
    let what = || format!("a key of {kind} work, {},", shown(key.as_bytes()));
    bytes(what, key.len(), WORK_KEY_BYTES_MAX)
}

fn requeue(requeue: &Requeue) -> Checked {
    work(&requeue.kind, &requeue.key)?;
    let what = || format!("the error of {} work", requeue.kind);
    bytes(what, requeue.error.len(), WORK_ERROR_BYTES_MAX)
}

fn idempotency(item: &Idempotency) -> Checked {
    name("an idempotency key's scope", &item.scope, KEY_BYTES_MAX)?;
    name("an idempotency key", &item.key, IDEMPOTENCY_KEY_BYTES_MAX)?;
    bytes(|| "the hash of a request".to_owned(), item.request_hash.len(), 64)
}

fn beat(beat: &WorkerBeat) -> Checked {
    name("a worker's name", &beat.worker, NAME_BYTES_MAX)?;
    counted(|| "a worker".to_owned(), "singletons", beat.singletons.len(), LEASES_MAX)?;
    beat.singletons.iter().try_for_each(|lease| name("a singleton's name", lease, NAME_BYTES_MAX))
}

fn release(release: &LeaseRelease) -> Checked {
    name("a worker's name", &release.worker, NAME_BYTES_MAX)?;
    counted(|| "a release".to_owned(), "leases", release.leases.len(), LEASES_MAX)
}

fn form(form: &Form) -> Checked {
    name("the cluster's id", &form.cluster, NAME_BYTES_MAX)?;
    name("the cluster's lineage", &form.lineage, NAME_BYTES_MAX)
}

fn report(report: &ReplicaReport) -> Checked {
    rule(report.replica != 0, || "a report names no replica".to_owned())?;
    rule(report.format_max != 0, || "a report names no format".to_owned())?;
    bytes(|| "a replica's version".to_owned(), report.version.len(), NAME_BYTES_MAX)
}

fn raise(raise: &RaiseFormat) -> Checked {
    counted(|| "a raise of the format".to_owned(), "members", raise.members.len(), MEMBERS_MAX)
}
