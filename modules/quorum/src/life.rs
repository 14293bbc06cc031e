//! How a batch ends, and what is told of it.

use palisade_contract::{Code, Context, Error, Result, approvals};
use palisade_state::Tx;
use serde_json::{Value, json};

use crate::records::{BATCHES, BatchRow, ENDED, Ended, State, of_tenant};

/// Batches of a tenant that have ended and are kept, at most.
pub const ENDED_MAX: usize = 500;
/// So many are forgotten with one end.
const FORGET_MAX: usize = 8;

/// An end that is now.
fn ended(tx: &Tx, by: &str, why: &str) -> Ended {
    let clock = tx.view().clock();
    Ended {
        at_ms: clock.wall_ms,
        at_logical_ms: clock.now_ms,
        by: by.to_owned(),
        why: why.to_owned(),
    }
}

/// Writes that a batch has ended. What its calls were is not kept with it: its scope says what it did to what.
pub(crate) fn close(
    tx: &mut Tx,
    row: &mut BatchRow,
    state: State,
    by: &str,
    why: &str,
) -> Result<()> {
    row.state = state;
    row.ended = Some(ended(tx, by, why));
    row.calls.iter_mut().for_each(|call| call.input = Value::Null);
    row.seen.clear();
    tx.put(&BATCHES, &row.id, row)?;
    make_room(tx, row)?;
    crate::expiry::wake(tx, row)
}

/// Forgets the oldest of a tenant's that have ended, when there are more than are kept beside this one.
fn make_room(tx: &mut Tx, newest: &BatchRow) -> Result<()> {
    let mut kept = BATCHES.by_index(tx.view(), ENDED, &of_tenant(&newest.tenant))?;
    let over = (kept.len() + 1).saturating_sub(ENDED_MAX);
    // Nothing changes them after their end.
    kept.sort_by_key(|(_, found)| found.stamp.modified_rev);
    for (id, _) in kept.into_iter().take(over.min(FORGET_MAX)) {
        tx.delete(&BATCHES, &id)?;
    }
    Ok(())
}

/// Has the call's audit record say which batch it is about, who asked for it, and what that does to what.
pub(crate) fn audited(tx: &mut Tx, row: &BatchRow) {
    tx.audited_as(approvals::audited(&row.id, &row.created_by, &row.scope));
}

/// Publishes what became of a batch.
pub(crate) fn told(tx: &mut Tx, row: &BatchRow, kind: &str, by: &str, why: &str) {
    let data = json!({
        "approval": row.id, "tenant": row.tenant, "size": row.scope.len(), "required": row.required,
        "createdBy": row.created_by, "by": by, "why": why, "scope": row.scope,
    });
    tx.publish(kind, &row.tenant, format!("approval/{}", row.id), &data);
}

/// Refuses what is only for a batch that waits. `QUO-3`
pub(crate) fn must_be_held(tx: &Tx, row: &BatchRow, what: &str) -> Result<()> {
    let id = &row.id;
    if row.state != State::Held {
        let why = row.ended.as_ref().map(|ended| ended.why.as_str()).filter(|why| !why.is_empty());
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let detail = format!("approval {id} is {} and cannot be {what}{why}", row.state.word());
        return Err(Error::new(Code::InvalidState, detail)
            .hint("an end is one: ask for the same again, which makes another"));
    }
    if row.expires_ms <= tx.view().clock().now_ms {
        let detail = format!("approval {id} has expired and cannot be {what}");
        return Err(Error::new(Code::InvalidState, detail)
            .hint("ask for the same again, which makes another"));
    }
    Ok(())
}

/// Ends a batch that waits, without having done anything of it: what is held with it is taken back.
pub(crate) fn end(
    cx: &Context,
    tx: &mut Tx,
    row: &mut BatchRow,
    state: State,
    by: &str,
    why: &str,
) -> Result<()> {
    debug_assert!(row.state == State::Held && state != State::Released, "QUO-3: {row:?}");
    let reason = format!("approval {} is {}", row.id, state.word());
    for command in &row.commands {
        match cx.ports.commands.get()?.cancel(tx, &command.id, &reason) {
            Ok(_) => {}
            // It has expired by itself, or went with its node.
            Err(gone) if matches!(gone.code, Code::NotFound | Code::InvalidState) => {}
            Err(error) => return Err(error),
        }
    }
    told(tx, row, &format!("approval.{}", state.word()), by, why);
    close(tx, row, state, by, why)
}
