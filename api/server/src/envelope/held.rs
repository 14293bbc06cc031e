//! Destructive calls that wait for approval.
//!
//! # Invariants
//! - `QUO-6` A destructive call is not made where whoever's things it changes asks for approvals: all that it would have
//!   written is undone, and what is written and answered is that it is held.

use palisade_contract::{
    Error, MethodContext, MethodKind, Resource, Result,
    approvals::{Asked, whose},
};
use palisade_state::Tx;
use serde_json::{Value, json};

use super::Route;

/// The one field of a kept answer that says that the call was held. No method answers it.
const HELD: &str = "$held";

/// How a call ends that was tried.
enum Ended {
    Refused(Error),
    /// It waits for the approval of those whose things it is about.
    Held(String),
}

/// Makes a call, or holds it. What would be refused is refused, and a dry run says what would be done once it is approved.
pub(super) fn make_or_hold(
    cx: &MethodContext,
    tx: &mut Tx,
    (route, input, about): (&Route, &Value, &Resource),
    run: &(dyn Fn(&MethodContext, &mut Tx, Value) -> Result<Value> + Send + Sync),
) -> Result<Value> {
    let method = &route.method;
    let may_wait = method.kind == MethodKind::Destructive && !cx.dry_run;
    let Some(approvals) = cx.context.ports.approvals.filled().filter(|_| may_wait) else {
        return run(cx, tx, input.clone());
    };
    let tried = tx.attempt(|tx| {
        let made = run(cx, tx, input.clone()).map_err(Ended::Refused)?;
        if tx.is_empty() {
            return Ok(made);
        }
        let tenant = whose(tx, about);
        let asked = Asked { method, input, tenant: &tenant };
        match approvals.asks(cx, tx, asked) {
            Ok(false) => Ok(made),
            Ok(true) => Err(Ended::Held(tenant)),
            Err(error) => Err(Ended::Refused(error)),
        }
    });
    match tried {
        Ok(made) => Ok(made),
        Err(Ended::Refused(error)) => Err(error),
        Err(Ended::Held(tenant)) => {
            let asked = Asked { method, input, tenant: &tenant };
            Ok(json!({ HELD: approvals.hold(cx, tx, asked)? }))
        }
    }
}

/// Whether this is what is kept of a call that was held.
pub(super) fn is_held(kept: &Value) -> bool {
    kept.as_object().is_some_and(|fields| fields.len() == 1 && fields.contains_key(HELD))
}

/// What is answered of what was kept, and whether the call was held.
pub(super) fn answer(mut kept: Value) -> (Value, bool) {
    if is_held(&kept)
        && let Some(held) = kept.get_mut(HELD)
    {
        return (held.take(), true);
    }
    (kept, false)
}
