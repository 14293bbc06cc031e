//! What an operator could mend about tenants.

use std::collections::BTreeSet;

use palisade_contract::{Finding, Result, Severity};
use palisade_state::View;

use crate::{
    quota,
    records::{State, TEARDOWNS, TENANTS, TenantRow, USAGE},
    sweep::Modules,
};

/// Logical milliseconds after which a teardown that waits is told.
const SLOW_MS: u64 = 10 * 60 * 1000;

/// So many names are in one message.
const NAMED_MAX: usize = 10;

fn finding(check: &str, severity: Severity, message: String, fix: &str, count: usize) -> Finding {
    Finding {
        check: check.to_owned(),
        severity,
        message,
        fix: fix.to_owned(),
        count: u64::try_from(count).ok(),
    }
}

fn named<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let all: Vec<&str> = names.into_iter().map(String::as_str).collect();
    let more = if all.len() > NAMED_MAX { " …" } else { "" };
    all.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ") + more
}

/// All findings.
pub(crate) fn findings(view: &View, modules: &Modules) -> Result<Vec<Finding>> {
    let all: Vec<TenantRow> =
        TENANTS.all(view)?.into_iter().map(|(_, found)| found.value).collect();
    let mut found = vec![];
    for row in all.iter().filter(|row| row.state == State::Deleting) {
        teardown(view, row, &mut found)?;
    }
    sums(view, &mut found)?;
    strangers(view, modules, &all, &mut found)?;
    Ok(found)
}

fn teardown(view: &View, row: &TenantRow, found: &mut Vec<Finding>) -> Result<()> {
    let name = &row.name;
    let left = TEARDOWNS.get(view, name)?.map(|left| left.value).unwrap_or_default();
    if !left.failures.is_empty() {
        let why: Vec<String> =
            left.failures.iter().map(|(module, why)| format!("{module}: {why}")).collect();
        found.push(finding(
            "tenancy.teardown-failed",
            Severity::Error,
            format!("tenant {name} cannot be torn down: {}", why.join("; ")),
            "the replicas' logs have the cause; once it is mended the teardown goes on by itself, within a minute",
            why.len(),
        ));
    }
    let since_ms = row.deleted.as_ref().map_or(u64::MAX, |deleted| deleted.at_logical_ms);
    let for_ms = view.clock().now_ms.saturating_sub(since_ms);
    if !left.waiting.is_empty() && for_ms > SLOW_MS {
        found.push(finding(
            "tenancy.teardown-slow",
            Severity::Warning,
            format!(
                "tenant {name} has been torn down for {} minutes, and something is left: {}",
                for_ms / 60_000,
                named(&left.waiting)
            ),
            "instances go when their nodes' agents let go of them: start the agents of nodes that are away, or remove \
             such a node (`palisade node ls`, `palisade node rm --force`)",
            left.waiting.len(),
        ));
    }
    Ok(())
}

/// `TEN-4`
fn sums(view: &View, found: &mut Vec<Finding>) -> Result<()> {
    let mut wrong = vec![];
    for (tenant, row) in USAGE.all(view)? {
        if quota::sum(view, &tenant)? != row.value.used {
            wrong.push(tenant);
        }
    }
    if !wrong.is_empty() {
        found.push(finding(
            "tenancy.usage",
            Severity::Error,
            format!("what tenants take is not the sum of their charges: {}", named(&wrong)),
            "this is a defect of Palisade: keep a snapshot (`palisade cluster backup`) and report it",
            wrong.len(),
        ));
    }
    Ok(())
}

/// Names of tenants in records that are no tenants': an earlier version did not ask for tenants.
fn strangers(
    view: &View,
    modules: &Modules,
    all: &[TenantRow],
    found: &mut Vec<Finding>,
) -> Result<()> {
    let mut used = BTreeSet::new();
    for module in modules.all()? {
        used.extend(module.tenants_in_use(view)?);
    }
    let of = |name: &String| all.iter().find(|row| row.name == *name).map(|row| row.state);
    let unknown: Vec<&String> = used.iter().filter(|name| of(name).is_none()).collect();
    if !unknown.is_empty() {
        found.push(finding(
            "tenancy.unknown",
            Severity::Warning,
            format!("there are things of tenants that do not exist: {}", named(unknown.iter().copied())),
            "a replica of an earlier version made them: once all run this one, make those tenants (`palisade tenant \
             create`), so that their people can change things",
            unknown.len(),
        ));
    }
    let dead: Vec<&String> = used.iter().filter(|name| of(name) == Some(State::Deleted)).collect();
    if !dead.is_empty() {
        found.push(finding(
            "tenancy.left-over",
            Severity::Warning,
            format!(
                "there are things of tenants that were torn down: {}",
                named(dead.iter().copied())
            ),
            "a replica of an earlier version made them: remove them one by one",
            dead.len(),
        ));
    }
    Ok(())
}
