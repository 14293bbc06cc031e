//! Commands whose time is over and that nobody ended: what ends them does not run.

use palisade_contract::{Finding, Result, Severity, command::Command};
use palisade_state::View;

use crate::rows::{COMMANDS, OPEN};

/// Logical milliseconds for which a command may be overdue before it is told.
pub(crate) const SLOW_MS: u64 = 60_000;
/// Commands that a finding names.
const NAMED_MAX: usize = 5;

pub(crate) fn findings(view: &View) -> Result<Vec<Finding>> {
    let now_ms = view.clock().now_ms;
    let (mut stuck, mut count): (Vec<String>, u64) = (vec![], 0);
    for found in COMMANDS.in_order_of(view, OPEN, "") {
        let row = found?.1.value;
        if due_ms(&row).saturating_add(SLOW_MS) > now_ms {
            continue;
        }
        count += 1;
        if stuck.len() < NAMED_MAX {
            stuck.push(format!("{} ({} to {})", row.id, row.kind, row.node));
        }
    }
    if count == 0 {
        return Ok(vec![]);
    }
    let more = if count > stuck.len() as u64 { " and others" } else { "" };
    Ok(vec![Finding {
        check: "commands.stuck".to_owned(),
        severity: Severity::Warning,
        message: format!(
            "{count} commands should have ended a minute ago and have not: {}{more}",
            stuck.join(", ")
        ),
        fix: "the reconciler `command-sweeper` does not get to them: the replicas' logs say why; if they have no room, \
              or lag behind, mend that first"
            .to_owned(),
        count: Some(count),
    }])
}

/// When it is over by itself: unsent, or unanswered.
fn due_ms(row: &Command) -> u64 {
    row.sending.as_ref().map_or(row.expires_ms, |sending| sending.deadline_ms)
}
