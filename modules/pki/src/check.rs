//! What an operator could mend about certificates.

use palisade_contract::{
    Context, Finding, Result, Severity,
    pki::{Authorities, Phase, ReplicaPki},
    time::rfc3339,
};
use palisade_state::View;

use crate::{
    methods::certificate_rows,
    port::authorities,
    records::{REPLICAS, REVOCATIONS},
    rotation::{blockers, word},
};

/// A replica's certificate is renewed long before this.
const REPLICA_WARNING_MS: u64 = 30 * 24 * 3600 * 1000;
/// A node's certificate is renewed at two thirds of its day at the latest.
const NODE_WARNING_MS: u64 = 4 * 3600 * 1000;
/// A replacement that waits for so long is told.
const SLOW_MS: u64 = 10 * 60 * 1000;
/// So many names are in one message.
const NAMED_MAX: usize = 10;

fn named(ids: &[String]) -> String {
    let more = if ids.len() > NAMED_MAX { " …" } else { "" };
    ids.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ") + more
}

fn warning(check: &str, message: String, fix: &str, count: usize) -> Finding {
    Finding {
        check: check.to_owned(),
        severity: Severity::Warning,
        message,
        fix: fix.to_owned(),
        count: u64::try_from(count).ok(),
    }
}

/// Members whose files are of a CA that issues no more: those without which a replacement was gone on.
fn old_files(cx: &Context, view: &View, of: &Authorities) -> Result<Option<Finding>> {
    let mut old = vec![];
    for member in cx.store.status().members {
        let row = REPLICAS.get(view, &member.id.0)?.map(|found| found.value);
        let is_old = |row: &ReplicaPki| {
            row.leaf.issuer != of.issuing.key_id || !row.trusts.contains(&of.issuing.key)
        };
        if row.as_ref().is_some_and(is_old) {
            old.push(format!("replica/{}", member.id));
        }
    }
    let message = format!("these have certificates of an earlier CA: {}", named(&old));
    let fix = "one that runs mends that within seconds; one that was away while the CA was replaced by force has to join \
               again: `palisade cluster repair DIR --force --yes`, on its machine";
    Ok((!old.is_empty()).then(|| warning("pki.old-files", message, fix, old.len())))
}

/// All findings.
pub(crate) fn findings(cx: &Context, view: &View) -> Result<Vec<Finding>> {
    let now_ms = view.clock().wall_ms;
    let mut found = vec![];
    let mut near = vec![];
    for (ends_ms, record) in certificate_rows(view)? {
        let is_node = record.id.starts_with("node/");
        let margin = if is_node { NODE_WARNING_MS } else { REPLICA_WARNING_MS };
        // A node that is away has ended by then, and is told as lost.
        let is_over = is_node && ends_ms <= now_ms;
        if ends_ms <= now_ms.saturating_add(margin) && !is_over {
            near.push(format!("{} ({})", record.id, record.not_after));
        }
    }
    if !near.is_empty() {
        found.push(warning(
            "pki.expires",
            format!("certificates end soon and were not renewed: {}", named(&near)),
            "look at the logs of those replicas and agents for why; an agent renews by itself while it is connected",
            near.len(),
        ));
    }
    let waiting: Vec<String> = REVOCATIONS
        .all(view)?
        .into_iter()
        .filter(|(_, row)| row.value.waits_for.is_some())
        .map(|(_, row)| row.value.holder)
        .collect();
    if !waiting.is_empty() {
        found.push(warning(
            "pki.revoking",
            format!("keys are refused once these have made others: {}", named(&waiting)),
            "start the replica, or revoke it again with --force, which cuts it off",
            waiting.len(),
        ));
    }
    let Some(row) = authorities(view)? else { return Ok(found) };
    if row.phase == Phase::Idle {
        found.extend(old_files(cx, view, &row)?);
    } else {
        let waits: Vec<String> =
            blockers(cx, view, &row)?.into_iter().map(|blocker| blocker.id).collect();
        if now_ms.saturating_sub(row.phase_ms) > SLOW_MS {
            let (phase, since) = (word(row.phase), rfc3339(row.phase_ms));
            let message = format!(
                "the replacement of the CA is {phase} since {since} and waits for {}",
                named(&waits)
            );
            let fix = "`palisade pki status` says why, and what it costs to go on without them";
            found.push(warning("pki.rotation", message, fix, waits.len()));
        }
    }
    Ok(found)
}
