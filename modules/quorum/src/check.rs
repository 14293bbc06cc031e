//! What an operator could mend about approvals.

use palisade_contract::{Context, Finding, Result, Severity, ports::Access};
use palisade_state::{Tx, View};

use crate::{
    hands::{Hand, able, reachable},
    policy::PolicyMode,
    records::{BATCHES, BatchRow, POLICIES, PolicyRow, State},
};

/// A batch that waits is told when no more than this part of its time is left.
const LAST_PART: u64 = 10;
/// So many are named in one message.
const NAMED_MAX: usize = 10;

fn finding(check: &str, message: String, fix: &str, count: usize) -> Finding {
    Finding {
        check: check.to_owned(),
        severity: Severity::Warning,
        message,
        fix: fix.to_owned(),
        count: u64::try_from(count).ok(),
    }
}

fn named(all: &[String]) -> String {
    let more = if all.len() > NAMED_MAX { " …" } else { "" };
    let some: Vec<&str> = all.iter().take(NAMED_MAX).map(String::as_str).collect();
    some.join(", ") + more
}

/// All findings.
pub(crate) fn findings(cx: &Context, view: &View) -> Result<Vec<Finding>> {
    let mut found = vec![];
    let held: Vec<BatchRow> = BATCHES
        .all(view)?
        .into_iter()
        .map(|(_, found)| found.value)
        .filter(|row| row.state == State::Held)
        .collect();
    let access = &**cx.ports.access.get()?;
    unreachable(access, view, &held, &mut found)?;
    ending(view, &held, &mut found);
    policies(access, view, &mut found)?;
    Ok(found)
}

fn unreachable(
    access: &dyn Access,
    view: &View,
    held: &[BatchRow],
    found: &mut Vec<Finding>,
) -> Result<()> {
    let (mut tx, mut stuck) = (Tx::new(view.clone()), vec![]);
    for row in held {
        let able = able(access, view, &row.tenant)?;
        let creator = Hand::creator(access, &mut tx, row)?;
        let most = reachable(access, &mut tx, &able, Some(&creator))?;
        if most < row.required as usize {
            stuck.push(format!("{} ({most} of {})", row.id, row.required));
        }
    }
    if !stuck.is_empty() {
        found.push(finding(
            "quorum.unreachable",
            format!(
                "approvals cannot reach the number that they require, for want of distinct operators: {}",
                named(&stuck)
            ),
            "have more people who may approve in that tenant (`palisade binding create --role operator`, made by neither \
             of them), or withdraw or reject them",
            stuck.len(),
        ));
    }
    Ok(())
}

fn ending(view: &View, held: &[BatchRow], found: &mut Vec<Finding>) {
    let now_ms = view.clock().now_ms;
    let is_near =
        |row: &&BatchRow| row.expires_ms.saturating_sub(now_ms) <= row.life_ms / LAST_PART;
    let near: Vec<String> = held.iter().filter(is_near).map(|row| row.id.clone()).collect();
    if !near.is_empty() {
        found.push(finding(
            "quorum.near-expiry",
            format!("approvals are about to expire: {}", named(&near)),
            "look at them and approve or reject: `palisade approval show`",
            near.len(),
        ));
    }
}

/// Policies that nobody's call could satisfy, found before one is held.
fn policies(access: &dyn Access, view: &View, found: &mut Vec<Finding>) -> Result<()> {
    let mut lacking = vec![];
    for (id, row) in POLICIES.all(view)? {
        let policy: PolicyRow = row.value;
        if policy.mode == PolicyMode::Off {
            continue;
        }
        let able = able(access, view, &policy.tenant)?;
        let most = reachable(access, &mut Tx::new(view.clone()), &able, None)?;
        let least = policy.required_of(1) as usize;
        // Whoever asks does not count, and is one of them as a rule.
        if most < least + 1 {
            lacking.push(format!("{id} ({least} beside whoever asks, of {most})"));
        }
    }
    if !lacking.is_empty() {
        found.push(finding(
            "quorum.too-few-approvers",
            format!(
                "what these tenants ask to be approved can hardly be, for want of distinct operators: {}",
                named(&lacking)
            ),
            "have more people who may approve there, or ask for fewer: `palisade approval policy set`",
            lacking.len(),
        ));
    }
    Ok(())
}
