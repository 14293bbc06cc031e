//! Transactions: refusals in a fixed order, then all of the writes.
//!
//! # Invariants
//! - `L2` A transaction under an idempotency key is applied at most once.
//! - `I3` A fenced transaction is applied only under the current fence; see [`crate::lease`].
//! - `TXN-1` A refused transaction changes nothing.

use crate::{
    change::Changes,
    command::{Conflict, IdempotencyMismatch, PointCheck, Superseded, Txn, Verdict, Write},
    key::KeyBytes,
    lease,
    limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX},
    planted::{self, Defect},
    ranges,
    recent::Recent,
    state::{Position, State},
};

/// Applies one transaction at `at`; answers its verdict and the revision that goes with it.
pub(crate) fn apply(
    state: &mut State,
    at: Position,
    txn: Txn,
    changes: &mut Changes,
    recent: &mut Recent,
) -> (u64, Verdict) {
    if txn.view_rev >= at.index {
        let why = format!("a view of revision {} is ahead of entry {}", txn.view_rev, at.index);
        return (at.index, Verdict::Invalid(why));
    }
    if let Some(item) = &txn.idempotency
        && !planted::is(Defect::DoubledWrite)
        && let Some(known) = state.idempotency.get(item)
    {
        return if known.request_hash == item.request_hash {
            (known.revision, Verdict::Replayed(known.response.clone()))
        } else {
            (at.index, Verdict::IdempotencyMismatch(IdempotencyMismatch {}))
        };
    }
    if let Some(held) = &txn.fence
        && !planted::is(Defect::FenceUnchecked)
        && let Err(fenced) = lease::check(state, at.term, held)
    {
        return (at.index, Verdict::Fenced(fenced));
    }
    if let Some(work) = &txn.work
        && !planted::is(Defect::FinishAnyGeneration)
        && !state.queue.holds(work)
    {
        let superseded = Superseded { kind: work.kind.clone(), key: work.key.clone() };
        return (at.index, Verdict::Superseded(superseded));
    }
    let is_changed = |point: &&PointCheck| {
        let is_unchecked = planted::is(Defect::BooksUnchecked) && point.table == "capacity_nodes";
        !is_unchecked && !point_holds(state, point)
    };
    if let Some(changed) = txn.points.iter().find(is_changed)
        && !planted::is(Defect::PointUnchecked)
    {
        return (at.index, conflict(&changed.table, &changed.key));
    }
    let spans = ranges::merged(txn.ranges.iter().map(Into::into));
    if let Some(changed) = ranges::first_changed(state, recent, &spans, txn.view_rev) {
        return (at.index, conflict(changed.table, changed.start));
    }
    let response = txn.response.clone();
    assert_admitted(state, at, &txn);
    write(state, at, txn, changes, recent);
    (at.index, Verdict::Applied(response))
}

/// What must be true of a transaction before its first write, said in other words than the checks
/// that refuse it.
fn assert_admitted(state: &State, at: Position, txn: &Txn) {
    debug_assert!(
        planted::is(Defect::FenceUnchecked)
            || txn.fence.as_ref().is_none_or(|held| lease::is_current(state, at, held)),
        "I3: a fence that is not current"
    );
    debug_assert!(
        planted::is(Defect::FinishAnyGeneration)
            || txn
                .work
                .as_ref()
                .is_none_or(|work| state.queue.get(&work.kind, &work.key).is_some()),
        "Q2: the row of the run is gone"
    );
    debug_assert!(
        planted::is(Defect::DoubledWrite)
            || txn.idempotency.as_ref().is_none_or(|item| state.idempotency.get(item).is_none()),
        "L2: the key is known"
    );
    debug_assert!(
        txn.writes.iter().all(|row| {
            row.key.len() <= KEY_BYTES_MAX
                && row.value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX)
        }),
        "LIMIT-1: over a limit"
    );
}

fn conflict(table: &str, key: &[u8]) -> Verdict {
    Verdict::Conflict(Conflict { table: table.to_owned(), key: key.to_vec() })
}

fn point_holds(state: &State, point: &PointCheck) -> bool {
    match state.row(&point.table, &point.key) {
        None => point.version == 0,
        Some(record) => {
            let stamp = record.stamp();
            stamp.version == point.version && stamp.created_rev == point.created_rev
        }
    }
}

fn write(state: &mut State, at: Position, txn: Txn, changes: &mut Changes, recent: &mut Recent) {
    let (now_ms, wall_ms) = (state.clock.now_ms, state.clock.wall_ms);
    for row in txn.writes {
        if planted::is(Defect::LostWrite) && at.index.is_multiple_of(97) {
            continue;
        }
        write_row(state, at, row, changes, recent);
    }
    for item in &txn.enqueues {
        changes.work.push(state.queue.enqueue(item, now_ms, at.index));
    }
    for item in &txn.finishes {
        changes.work.extend(state.queue.finish(item));
    }
    for item in &txn.requeues {
        changes.work.extend(state.queue.requeue(item, now_ms));
    }
    #[cfg(feature = "planted")]
    let txn = Txn { writes: vec![], events: unordered(txn.events), ..txn };
    for draft in txn.events {
        let seq = state.outbox.publish(draft, at.index, wall_ms);
        let first = changes.events.map_or(seq, |(first, _)| first);
        changes.events = Some((first, seq + 1));
    }
    if let Some(draft) = txn.audit {
        state.audit.append(draft, at.index, wall_ms);
    }
    if let Some(item) = &txn.idempotency {
        state.idempotency.insert(item, now_ms, at.index, txn.response);
    }
}

/// Another order on each replica.
#[cfg(feature = "planted")]
fn unordered(mut events: Vec<crate::command::EventDraft>) -> Vec<crate::command::EventDraft> {
    use std::hash::{BuildHasher, RandomState};
    if planted::is(Defect::UnorderedApply) {
        let hasher = RandomState::new();
        events.sort_by_key(|event| hasher.hash_one(&event.data));
    }
    events
}

fn write_row(
    state: &mut State,
    at: Position,
    row: Write,
    changes: &mut Changes,
    recent: &mut Recent,
) {
    let key = KeyBytes::from_slice(&row.key);
    let name = state.table_name(&row.table);
    let table = state.table_mut(&name);
    match row.value {
        Some(value) => table.put(&key, &value, at.index),
        None => {
            if table.rows.remove(&key).is_none() {
                return;
            }
            state.deletions.record(name.clone(), key.clone(), at.index);
        }
    }
    recent.note(&name, &key, at.index);
    changes.rows.push((name, key));
}
