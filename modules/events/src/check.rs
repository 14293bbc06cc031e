//! What an operator could mend about subscriptions.

use palisade_contract::{Context, Finding, Result, Severity};
use palisade_state::View;

use crate::{
    Sinks,
    records::{PROGRESS, ProgressRow, SUBSCRIPTIONS, SubscriptionRow, letters},
    secrets::keys,
};

/// Wall-clock milliseconds for which something may fail before it is told.
const FAILING_MS: u64 = 5 * 60 * 1000;

fn finding(check: &str, message: String, fix: String, count: Option<u64>) -> Finding {
    Finding { check: check.to_owned(), severity: Severity::Warning, message, fix, count }
}

pub(crate) fn findings(cx: &Context, view: &View, sinks: &Sinks) -> Result<Vec<Finding>> {
    let mut found = vec![];
    for (key, row) in SUBSCRIPTIONS.all(view)? {
        let row = row.value;
        let progress = PROGRESS.get(view, &key)?.map(|found| found.value).unwrap_or_default();
        found.extend(fares(view, &row, &progress));
        found.extend(dead(view, &row, &progress)?);
        found.extend(unusable(cx, view, &row, &progress, sinks));
    }
    Ok(found)
}

fn called(row: &SubscriptionRow) -> String {
    let whose =
        if row.tenant.is_empty() { String::new() } else { format!(" of tenant {}", row.tenant) };
    format!("subscription {}{whose}", row.name)
}

fn verb(row: &SubscriptionRow, verb: &str) -> String {
    let tenant =
        if row.tenant.is_empty() { String::new() } else { format!(" --tenant {}", row.tenant) };
    format!("`palisade subscription {verb} {}{tenant}`", row.name)
}

fn fares(view: &View, row: &SubscriptionRow, progress: &ProgressRow) -> Option<Finding> {
    if let Some(disabled) = &progress.disabled {
        let message = format!("{} is disabled: {}", called(row), disabled.reason);
        let fix = format!(
            "{} once its receiver wants events again, or {}",
            verb(row, "resume"),
            verb(row, "rm")
        );
        return Some(finding("subscriptions.disabled", message, fix, None));
    }
    let since = progress.failing_since_ms.filter(|_| !row.paused)?;
    let minutes = view.clock().wall_ms.checked_sub(since).filter(|ms| *ms >= FAILING_MS)? / 60_000;
    let message = format!(
        "{} has been failing for {minutes} minutes at {}: {}",
        called(row),
        row.destination(),
        progress.last_error
    );
    let fix = format!(
        "mend the receiver, then {}; {} shows what waits",
        verb(row, "resume"),
        verb(row, "deliveries")
    );
    Some(finding("subscriptions.failing", message, fix, None))
}

fn dead(view: &View, row: &SubscriptionRow, progress: &ProgressRow) -> Result<Vec<Finding>> {
    let letters = letters(view, &row.rows())?;
    let mut found = vec![];
    let gaps = letters.iter().filter_map(|(_, letter)| letter.gap);
    let missed: u64 = gaps.map(|(from, to)| to - from + 1).sum();
    if missed > 0 {
        let message = format!(
            "{missed} events left memory and history before {} came to them: which of them it asked for is not known",
            called(row)
        );
        let fix = format!(
            "look at {}, let the receiver read what it needs anew, and drop the gap",
            verb(row, "dead-letters")
        );
        found.push(finding("subscriptions.gap", message, fix, Some(missed)));
    }
    let exhausted = letters.iter().filter(|(_, letter)| letter.gap.is_none()).count() as u64;
    if exhausted > 0 || progress.letters_lost > 0 {
        let lost = match progress.letters_lost {
            0 => String::new(),
            lost => format!(", and {lost} have left by their age or number"),
        };
        let message = format!("{} has {exhausted} dead letters{lost}", called(row));
        let fix = format!("look at {}, and replay or drop them", verb(row, "dead-letters"));
        found.push(finding("subscriptions.dead-letters", message, fix, Some(exhausted)));
    }
    Ok(found)
}

/// What keeps a subscription from being sent anything and is no matter of its receiver: as the replica that sends has found, or this one.
fn unusable(
    cx: &Context,
    view: &View,
    row: &SubscriptionRow,
    progress: &ProgressRow,
    sinks: &Sinks,
) -> Option<Finding> {
    let is_on = !row.paused && progress.disabled.is_none();
    let blocked = progress.blocked.as_ref().filter(|_| is_on).map(|blocked| blocked.reason.clone());
    if !row.sink.is_empty() {
        let lacking = sinks.find(&row.sink).err().map(|why| why.detail);
        let message = format!("{} is sent nothing: {}", called(row), lacking.or(blocked)?);
        let fix = "run the same binary on all replicas, or remove it".to_owned();
        return Some(finding("subscriptions.sink", message, fix, None));
    }
    cx.ports.secrets.filled()?;
    let why = blocked.or_else(|| keys(cx, view, row).err().map(|why| why.detail))?;
    let message = format!("{} is sent nothing, as it cannot be signed: {why}", called(row));
    let fix = format!(
        "set the secret anew with `palisade secret set`, or {}; what waits is sent by itself then. Of a replica that lacks a key \
         `secrets.key-lacking` says more",
        verb(row, "rotate")
    );
    Some(finding("subscriptions.secret", message, fix, None))
}
