//! What an operator could mend in the inventory.

use std::collections::BTreeMap;

use palisade_contract::{
    Finding, Result, Severity,
    node::{Node, NodePhase},
};
use palisade_state::View;

use crate::{
    identity::ProductUuid,
    records::{JOIN_TOKENS, NODES, NodeRow, TokenRow},
    token,
};

/// Wall-clock milliseconds after which a node that never connected is worth a look.
const JOINING_MS_MAX: u64 = 10 * 60 * 1000;
/// Logical milliseconds before its end at which an unused token is worth a look.
const EXPIRING_MS: u64 = 15 * 60 * 1000;
/// Names that a message lists.
const NAMED_MAX: usize = 10;

/// All findings, worst first within each kind.
pub(crate) fn findings(view: &View) -> Result<Vec<Finding>> {
    let nodes: Vec<NodeRow> = NODES
        .all(view)?
        .into_iter()
        .map(|(_, found)| found.value)
        .filter(|row| row.node.phase != NodePhase::Retired)
        .collect();
    let tokens: Vec<TokenRow> =
        JOIN_TOKENS.all(view)?.into_iter().map(|(_, found)| found.value).collect();
    let mut found = vec![];
    found.extend(lost(&nodes));
    found.extend(clones(&nodes));
    found.extend(replays(&tokens, &nodes));
    found.extend(duplicates(&nodes));
    found.extend(never_connected(&nodes, view));
    found.extend(expiring(&tokens, view));
    Ok(found)
}

fn finding(
    check: &str,
    severity: Severity,
    message: String,
    fix: impl Into<String>,
    count: usize,
) -> Finding {
    let count = u64::try_from(count).ok();
    Finding { check: check.to_owned(), severity, message, fix: fix.into(), count }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.collect();
    let shown = all.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn some(nodes: &[NodeRow], which: impl Fn(&Node) -> bool) -> Option<(String, usize)> {
    let found: Vec<&str> =
        nodes.iter().filter(|row| which(&row.node)).map(|row| row.node.name.as_str()).collect();
    (!found.is_empty()).then(|| (names(found.iter().copied()), found.len()))
}

fn lost(nodes: &[NodeRow]) -> Option<Finding> {
    let (who, count) = some(nodes, |node| node.phase == NodePhase::Lost)?;
    Some(finding(
        "nodes.lost",
        Severity::Error,
        format!("nodes are lost, their agents have been away for too long: {who}"),
        "start their agents again, or remove the nodes for good: `palisade node rm <node>`",
        count,
    ))
}

fn clones(nodes: &[NodeRow]) -> impl Iterator<Item = Finding> {
    nodes.iter().filter_map(|row| {
        let mark = row.clone.as_ref()?;
        let current = row.node.keys.first()?;
        let name = &row.node.name;
        Some(finding(
            "nodes.cloned",
            Severity::Error,
            format!(
                "two machines hold the identity of node {name}: key {current} is current, \
                 key {} tried to renew after it", mark.key
            ),
            format!(
                "find the copy (a cloned or restored disk), empty its agent directory and let it \
                 join with a new token; if you cannot tell which is which: `palisade node rm {name}`"
            ),
            1,
        ))
    })
}

fn replays<'a>(tokens: &'a [TokenRow], nodes: &'a [NodeRow]) -> impl Iterator<Item = Finding> + 'a {
    tokens.iter().filter_map(|token| {
        let replay = token.replay.as_ref()?;
        let made = nodes
            .iter()
            .filter(|row| token.redemptions.iter().any(|used| used.node == row.node.id))
            .map(|row| row.node.name.as_str());
        let made = names(made);
        // Whoever stands by the nodes has looked, or has removed them.
        (!made.is_empty()).then(|| {
            finding(
                "join-tokens.replayed",
                Severity::Error,
                format!(
                    "join token {} was presented again by {:?} after it had made {made}: somebody \
                     else has it",
                    token.id, replay.hostname
                ),
                format!(
                    "make sure that {made} is the machine that you meant, else remove it with \
                     `palisade node rm`; the token is revoked"
                ),
                1,
            )
        })
    })
}

fn duplicates(nodes: &[NodeRow]) -> impl Iterator<Item = Finding> {
    let mut by_uuid: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in nodes {
        let uuid = ProductUuid::parse(&row.node.facts.product_uuid);
        if let Some(uuid) = uuid.filter(ProductUuid::identifies) {
            by_uuid.entry(uuid.canonical()).or_default().push(&row.node.name);
        }
    }
    let shared: Vec<(String, usize)> = by_uuid
        .into_values()
        .filter(|sharing| sharing.len() > 1)
        .map(|sharing| (names(sharing.iter().copied()), sharing.len()))
        .collect();
    shared.into_iter().map(|(who, count)| {
        finding(
            "nodes.duplicate-uuid",
            Severity::Warning,
            format!("nodes report one product UUID: {who}"),
            "expected for several agents on one machine; else a board without a UUID of its own \
             or a cloned virtual machine: give the clone a new UUID",
            count,
        )
    })
}

fn never_connected(nodes: &[NodeRow], view: &View) -> Option<Finding> {
    let now_ms = view.clock().wall_ms;
    let (who, count) = some(nodes, |node| {
        node.phase == NodePhase::Joining
            && now_ms.saturating_sub(node.joined_at_ms) > JOINING_MS_MAX
    })?;
    Some(finding(
        "nodes.never-connected",
        Severity::Warning,
        format!("nodes joined more than 10 min ago and have not connected: {who}"),
        "start `palisade agent run` on them and look at its log, or `palisade node rm <node>`",
        count,
    ))
}

fn expiring(tokens: &[TokenRow], view: &View) -> Option<Finding> {
    let now_ms = view.clock().now_ms;
    let soon: Vec<&str> = tokens
        .iter()
        .filter(|token| token.revoked.is_none() && !token::is_used_up(token))
        .filter(|token| token.expires_ms > now_ms && token.expires_ms - now_ms < EXPIRING_MS)
        .map(|token| token.id.as_str())
        .collect();
    (!soon.is_empty()).then(|| {
        finding(
            "join-tokens.expiring",
            Severity::Info,
            format!(
                "join tokens end within 15 min and are not used up: {}",
                names(soon.iter().copied())
            ),
            "use them, or make new ones with `palisade token create`",
            soon.len(),
        )
    })
}
