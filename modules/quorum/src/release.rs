//! The release of a batch: all checks again, and then all of it or nothing.

use palisade_contract::{Code, Error, MethodContext, Result, tenants::whose_leave};
use palisade_state::Tx;

use crate::{
    batch,
    hands::{counted, resource},
    known::Known,
    life,
    records::{BATCHES, BatchRow, Seen, State},
};

/// Releases a batch when as many have approved it as it requires; else it goes on waiting. `QUO-1`, `QUO-2`
///
/// # Errors
/// What is no matter of the batch, such as a record that cannot be read: nothing is written then.
pub(crate) fn if_approved(
    known: &Known,
    cx: &MethodContext,
    tx: &mut Tx,
    row: &mut BatchRow,
) -> Result<()> {
    let access = cx.context.ports.access.get()?.clone();
    let counts = counted(&*access, tx, row)?.iter().filter(|why| why.is_none()).count();
    if counts < row.required as usize {
        return Ok(tx.put(&BATCHES, &row.id, row)?);
    }
    let by = cx.principal.name.clone();
    match tx.attempt(|tx| carry_out(known, cx, tx, row)) {
        Ok(()) => {
            life::told(tx, row, "approval.released", &by, "");
            life::close(tx, row, State::Released, &by, "")
        }
        Err(why) if is_final(&why) => {
            let why = format!("{}: {}", why.code, why.detail);
            life::end(&cx.context, tx, row, State::Failed, &by, &why)
        }
        Err(error) => Err(error),
    }
}

/// Whether the same release would be refused again: what is a matter of this moment or of this process ends no batch.
fn is_final(why: &Error) -> bool {
    !matches!(
        why.code,
        Code::Internal
            | Code::InvalidConfig
            | Code::Conflict
            | Code::Unavailable
            | Code::NoQuorum
            | Code::NoSpace
            | Code::RateLimited
    )
}

fn carry_out(known: &Known, cx: &MethodContext, tx: &mut Tx, row: &BatchRow) -> Result<()> {
    let ports = &cx.context.ports;
    let access = ports.access.get()?;
    let creator = access.standing(tx, &row.created_by)?;
    if row.calls.is_empty() {
        // The methods that put the commands in it were called by right at that time; that its maker still acts in the
        // tenant is looked at here.
        let about = resource(row);
        access.authorize(tx.view(), &creator, "compute:quorum:request", &about)?;
        let leave = whose_leave(&**access, tx.view(), &creator, "compute:quorum:request", &about);
        ports.tenant_writable(tx, &leave)?;
    }
    for (position, call) in row.calls.iter().enumerate() {
        let made = batch::run(known, cx, tx, &creator, call)?;
        same_thing(row.seen.get(position), &made.seen(tx), &made.about.subject)?;
    }
    for command in &row.commands {
        ports.commands.get()?.release(tx, &command.id)?;
    }
    Ok(())
}

/// Refuses what was removed and made again under the same name since it was approved.
fn same_thing(then: Option<&Seen>, now: &Seen, subject: &str) -> Result<()> {
    if then.is_some_and(|then| !then.is_other(now)) {
        return Ok(());
    }
    let detail = format!("{subject} was removed and made again since it was asked for");
    Err(Error::new(Code::PreconditionFailed, detail))
}
