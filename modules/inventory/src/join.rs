//! Joining: a token becomes a node, in one transaction.
//!
//! # Invariants
//! - `INV-1` A token makes at most as many nodes as it has uses. The transaction reads the token and
//!   writes it, so of two that redeem the last use at once the kernel applies one; the other is
//!   built again and finds the token used.

use palisade_contract::{
    Code, Context, Error, NodeId, Problems, Result,
    id::{NAME_RULE, is_name},
    node::{HostFacts, Node, NodePhase},
    node_spec,
    ports::JoinRequest,
};
use palisade_state::Tx;
use serde_json::json;

use crate::{
    identity::{ProductUuid, name_from_hostname},
    records::{JOIN_TOKENS, NODES, NodeRow, Redemption, Replay, Revocation, TokenRow},
    token::{self, Presented, Standing},
};

/// See [`palisade_contract::ports::Nodes::join`].
pub(crate) fn join(cx: &Context, tx: &mut Tx, request: &JoinRequest) -> Result<Node> {
    check(request)?;
    let presented = Presented::parse(&request.token)?;
    let row = tx.get(&JOIN_TOKENS, &presented.id)?;
    let row = presented.verify(row)?;
    match token::standing(&row, &request.key, tx.view().clock().now_ms) {
        Standing::Fresh => redeem(cx, tx, row, request),
        Standing::Redeemed(node) => again(tx, &node, &request.key),
        refused => Err(refuse(&row, &refused)),
    }
}

fn check(request: &JoinRequest) -> Result<()> {
    let mut problems = Problems::default();
    if !token::is_sha256_hex(&request.key) {
        problems.add("/key", "must be a SHA-256 in lower-case hexadecimal");
    }
    if !request.name.is_empty() && !is_name(&request.name) {
        problems.add("/name", format!("must have {NAME_RULE}"));
    }
    problems.into_result()
}

/// What the holder of the right secret is told.
fn refuse(row: &TokenRow, standing: &Standing) -> Error {
    let why = match (standing, &row.revoked) {
        (Standing::Revoked, Some(revoked)) => format!("was revoked ({})", revoked.by),
        (Standing::Expired, _) => {
            format!("expired: it was valid for {} s", row.ttl_ms / 1000)
        }
        _ => "was used by another agent; if that was not you, somebody else has this token"
            .to_owned(),
    };
    Error::new(Code::Unauthenticated, format!("join token {} {why}", row.id))
        .hint(format!("make a new one with `palisade token create --pool {}`", row.pool))
}

/// The answer was lost and the same agent asks again.
fn again(tx: &mut Tx, id: &NodeId, key: &str) -> Result<Node> {
    let row = tx.get(&NODES, &id.key())?;
    let node = row.map(|row| row.node).filter(|node| node.phase != NodePhase::Retired);
    let Some(node) = node else {
        return Err(Error::new(
            Code::InvalidState,
            format!("this join token made node {id}, which was removed since"),
        )
        .hint("make a new one with `palisade token create`"));
    };
    if node.keys.iter().any(|known| known == key) {
        return Ok(node);
    }
    Err(Error::new(
        Code::InvalidState,
        format!("node {} has renewed its key since it joined; it joins no more", node.name),
    )
    .hint("start its agent with `palisade agent run`"))
}

fn redeem(cx: &Context, tx: &mut Tx, mut token: TokenRow, request: &JoinRequest) -> Result<Node> {
    check_expected(tx, &token, &request.facts)?;
    cx.ports.tenant_open(tx, &token.tenant)?;
    if let Some((_, taken)) = tx.by_index(&NODES, "key", &request.key)?.into_iter().next() {
        return Err(Error::new(
            Code::Conflict,
            format!("this agent has joined already, as node {}", taken.node.name),
        )
        .hint("start it with `palisade agent run`; to join anew, give it an empty directory"));
    }
    let id = NodeId::mint(&*cx.rt);
    let name = choose_name(tx, &id, request)?;
    let node = Node {
        id: id.clone(),
        name,
        pool: token.pool.clone(),
        tenant: token.tenant.clone(),
        labels: request.facts.labels.clone(),
        phase: NodePhase::Joining,
        schedulable: true,
        session: None,
        disconnected_at_ms: None,
        facts: request.facts.clone(),
        keys: vec![request.key.clone()],
        joined_at_ms: tx.view().clock().wall_ms,
        agent_version: request.agent_version.clone(),
    };
    token.redemptions.push(Redemption { key: request.key.clone(), node: id.clone() });
    debug_assert!(token.redemptions.len() <= token.uses as usize, "INV-1");
    tx.put(&JOIN_TOKENS, &token.id, &token)?;
    tx.put(&NODES, &id.key(), &NodeRow { node: node.clone(), clone: None, retired_at_ms: None })?;
    node_spec::invalidate(tx, &id)?;
    let data = json!({"node": id, "name": node.name, "pool": node.pool, "token": token.id});
    tx.publish("node.joined", &node.tenant, format!("node/{id}"), &data);
    Ok(node)
}

fn choose_name(tx: &mut Tx, id: &NodeId, request: &JoinRequest) -> Result<String> {
    let name = if request.name.is_empty() {
        let tail: String = id.as_str().chars().skip(id.as_str().len() - 6).collect();
        name_from_hostname(&request.facts.hostname).unwrap_or_else(|| format!("node-{tail}"))
    } else {
        request.name.clone()
    };
    let Some((_, taken)) = tx.by_index(&NODES, "name", &name)?.into_iter().next() else {
        return Ok(name);
    };
    let word = crate::records::phase_word(taken.node.phase);
    Err(Error::new(
        Code::Conflict,
        format!("the node name {name:?} is taken by node {} ({word})", taken.node.id),
    )
    .hint(format!(
        "choose another with `--name`, or remove that node first: `palisade node rm {name}`"
    )))
}

fn check_expected(tx: &mut Tx, token: &TokenRow, facts: &HostFacts) -> Result<()> {
    let refuse = |what: &str, expected: &str, found: &str| {
        let found = if found.is_empty() { "none that it can read" } else { found };
        Err(Error::new(
            Code::Unauthenticated,
            format!(
                "join token {} is for the machine with {what} {expected}; this one has {found}",
                token.id
            ),
        )
        .hint("use the token on the machine that it was made for, or make another"))
    };
    if let Some(expected) = &token.expect.address
        && !has_address(facts, expected)
    {
        return refuse("address", expected, &facts.address);
    }
    let Some(expected) = &token.expect.product_uuid else { return Ok(()) };
    let wanted = ProductUuid::parse(expected);
    let found = ProductUuid::parse(&facts.product_uuid);
    let (Some(wanted), Some(found)) = (wanted, found) else {
        return refuse("product UUID", expected, &facts.product_uuid);
    };
    if !wanted.is(&found) {
        return refuse("product UUID", expected, &facts.product_uuid);
    }
    match tx.by_index(&NODES, "uuid", &found.canonical())?.into_iter().next() {
        None => Ok(()),
        Some((_, taken)) => Err(Error::new(
            Code::Conflict,
            format!("node {} has this machine's product UUID already", taken.node.name),
        )
        .hint(format!(
            "if that is this machine before it was installed anew: `palisade node rm {}`",
            taken.node.name
        ))),
    }
}

fn has_address(facts: &HostFacts, expected: &str) -> bool {
    let plain = |address: &str| {
        let address = address.split('/').next().unwrap_or_default();
        address.parse::<std::net::IpAddr>().ok()
    };
    let Some(expected) = plain(expected) else { return false };
    std::iter::once(&facts.address)
        .chain(facts.interfaces.iter().flat_map(|interface| &interface.addresses))
        .any(|address| plain(address) == Some(expected))
}

/// See [`palisade_contract::ports::Nodes::note_replay`].
pub(crate) fn note_replay(tx: &mut Tx, request: &JoinRequest) -> Result<()> {
    let Ok(presented) = Presented::parse(&request.token) else { return Ok(()) };
    let row = tx.get(&JOIN_TOKENS, &presented.id)?;
    let Ok(mut row) = presented.verify(row) else { return Ok(()) };
    let own = row.redemptions.iter().any(|redemption| redemption.key == request.key);
    if own || !token::is_used_up(&row) || row.replay.is_some() || row.revoked.is_some() {
        return Ok(());
    }
    let at_ms = tx.view().clock().wall_ms;
    let hostname: String = request.facts.hostname.chars().take(253).collect();
    let nodes: Vec<&NodeId> = row.redemptions.iter().map(|redemption| &redemption.node).collect();
    let data = json!({
        "token": row.id, "nodes": nodes, "key": request.key, "hostname": hostname,
    });
    tx.publish("join.token.replayed", &row.tenant, format!("join-token/{}", row.id), &data);
    row.replay = Some(Replay { key: request.key.clone(), hostname, at_ms });
    row.revoked = Some(Revocation { by: "presented again with another key".to_owned(), at_ms });
    Ok(tx.put(&JOIN_TOKENS, &row.id.clone(), &row)?)
}
