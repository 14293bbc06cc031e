//! The nodes that `dev` keeps: which agents are to join, join anew, or are not ready and why.

use std::{ffi::OsString, fs, path::Path};

use futures::future::{join_all, try_join_all};
use palisade_agent::Identity;
use serde_json::{Value, json};

use super::{
    AGENTS,
    child::{Recipe, log_tail},
    layout::Layout,
    machine, orphans,
    ports::Block,
    start::{AGENT_GRACE, POLL, ended_early},
};
use crate::{
    cli::token,
    client::{BASE, Call, Client},
    context_file::write_private,
    edge,
    output::{Failure, Outcome, cell, failure::chain, text},
};

const TOKEN_TTL_SECONDS: u64 = 600;
const LOG_LINES: usize = 3;

/// Whether an agent can be run: one that has not joined has nothing to say.
pub(super) fn has_joined(layout: &Layout, id: u64) -> bool {
    layout.agent(id).join("identity.json").exists()
}

/// Whether the cluster has forgotten a node: it says so to the agent, or the record is gone.
fn is_forgotten(identity: &Identity, nodes: &[Value]) -> bool {
    identity.revoked || !nodes.iter().any(|node| text(node, "/id") == Some(&identity.node_id))
}

/// Clears the directories of agents whose nodes were removed, so that they join anew; what they
/// ran belongs to nobody and is stopped first. Answers what was done, as lines for a person.
pub(super) async fn forget_removed(layout: &Layout, client: &Client) -> Outcome<Vec<String>> {
    let mut known = Vec::new();
    for id in 1..=AGENTS {
        // One that is damaged is said by its agent, which cannot run.
        if let Ok(Some(identity)) = Identity::load(&layout.agent(id)) {
            known.push((id, identity));
        }
    }
    if known.is_empty() {
        return Ok(vec![]);
    }
    let nodes = client.list(Call::get(format!("{BASE}/nodes"))).await?;
    let mut lines = Vec::new();
    for (id, identity) in known {
        if !is_forgotten(&identity, &nodes) {
            continue;
        }
        orphans::stop_instances_of(layout, id).await?;
        let dir = layout.agent(id);
        fs::remove_dir_all(&dir)
            .map_err(|error| Failure::caused(format!("cannot clear {}", dir.display()), &error))?;
        lines.push(format!(
            "{} was removed from the cluster; agent-{id} joins it anew",
            identity.node_name
        ));
    }
    Ok(lines)
}

/// Joins the agents that have not. `strict`: one that cannot is an error; otherwise it is a line.
pub(super) async fn join_agents(
    layout: &Layout,
    client: &Client,
    ports: Block,
    strict: bool,
) -> Outcome<Vec<String>> {
    let missing: Vec<u64> = (1..=AGENTS).filter(|id| !has_joined(layout, *id)).collect();
    if missing.is_empty() {
        return Ok(vec![]);
    }
    let pins = token::pins(client).await?;
    let joins = missing.into_iter().map(|id| join_agent(layout, client, ports, &pins, id));
    if strict {
        try_join_all(joins).await?;
        return Ok(vec![]);
    }
    let failures = join_all(joins).await.into_iter().filter_map(Result::err);
    Ok(failures
        .flat_map(|failure| failure.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect())
}

async fn join_agent(
    layout: &Layout,
    client: &Client,
    ports: Block,
    pins: &[String],
    id: u64,
) -> Outcome {
    let input = json!({"pool": "default", "ttlSeconds": TOKEN_TTL_SECONDS, "uses": 1});
    let made = token::create(client, input).await?;
    let token_file = layout.root().join("run").join(format!("agent-{id}.join-token"));
    let _ = fs::remove_file(&token_file);
    write_private(&token_file, made.text.as_bytes())?;
    let name = format!("agent-{id}");
    let recipe = Recipe {
        args: join_args(layout, client, ports, pins, id, &token_file),
        name: name.clone(),
        layout: layout.clone(),
        grace: AGENT_GRACE,
    };
    let status = recipe
        .command()?
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|error| Failure::caused(format!("cannot start {name}"), &error))?;
    // It was used, or will never be.
    let _ = fs::remove_file(&token_file);
    if status.success() {
        return Ok(());
    }
    Err(ended_early(layout, &name, &format!("`palisade agent join` ended with {status}")))
}

fn join_args(
    layout: &Layout,
    client: &Client,
    ports: Block,
    pins: &[String],
    id: u64,
    token_file: &Path,
) -> Vec<OsString> {
    let (first, last) = ports.instances(id);
    let share = machine::share(AGENTS);
    let mut args: Vec<OsString> = vec!["agent".into(), "join".into()];
    let mut push = |flag: &str, value: OsString| {
        args.push(flag.into());
        args.push(value);
    };
    for address in client.addresses() {
        push("--server", address.host_port().into());
    }
    for pin in pins {
        push("--pin", pin.into());
    }
    push("--token-file", token_file.into());
    push("--data-dir", layout.agent(id).into());
    push("--name", format!("node-{id}").into());
    push("--label", format!("dev/agent={id}").into());
    push("--address", "127.0.0.1".into());
    push("--ports", format!("{first}-{last}").into());
    push("--offer-cpu", format!("{}.{:03}", share.cpu_milli / 1000, share.cpu_milli % 1000).into());
    push("--offer-memory", share.memory_bytes.to_string().into());
    args
}

/// Until the nodes of all agents that have joined are ready.
pub(super) async fn nodes_ready(layout: &Layout, client: &Client) -> Outcome {
    loop {
        if not_ready(layout, client).await?.is_empty() {
            return Ok(());
        }
        edge::sleep(POLL).await;
    }
}

/// Which of our nodes are not ready: the agent's number, and the node's state in words.
async fn not_ready(layout: &Layout, client: &Client) -> Outcome<Vec<(u64, String)>> {
    let nodes = client.list(Call::get(format!("{BASE}/nodes"))).await?;
    let mut missing = Vec::new();
    for id in (1..=AGENTS).filter(|id| has_joined(layout, *id)) {
        let why = match Identity::load(&layout.agent(id)) {
            Ok(Some(identity)) => why_not_ready(&identity, &nodes),
            Ok(None) => None,
            Err(error) => Some(format!("agent-{id} cannot run: {}", chain(&error))),
        };
        missing.extend(why.map(|why| (id, why)));
    }
    Ok(missing)
}

fn why_not_ready(identity: &Identity, nodes: &[Value]) -> Option<String> {
    let name = &identity.node_name;
    let Some(node) = nodes.iter().find(|node| text(node, "/id") == Some(&identity.node_id)) else {
        return Some(format!("{name} was removed from the cluster"));
    };
    if text(node, "/status/phase") == Some("ready") {
        return None;
    }
    let message = text(node, "/status/message").map(|text| format!(": {text}")).unwrap_or_default();
    Some(format!("{name} is not ready, but {}{message}", cell(node, "/status/phase")))
}

/// Says of each node that is not ready why, with the end of its agent's log.
pub(super) async fn late(layout: &Layout, client: &Client) -> Vec<String> {
    let missing = match not_ready(layout, client).await {
        Ok(missing) => missing,
        Err(failure) => return vec![format!("the nodes cannot be seen: {}", failure.detail)],
    };
    let mut lines = Vec::new();
    for (id, why) in missing {
        let name = format!("agent-{id}");
        lines.push(format!("{why}; its log is {}", layout.log(&name).display()));
        let tail = log_tail(layout, &name);
        let end = tail.len().saturating_sub(LOG_LINES);
        lines.extend(tail[end..].iter().map(|line| format!("  | {line}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(revoked: bool) -> Identity {
        serde_json::from_value(json!({"nodeId": "nd_1", "nodeName": "node-1", "lineage": "ln_1",
            "servers": [], "revoked": revoked, "keyPem": "", "chain": [], "ca": []}))
        .unwrap()
    }

    #[test]
    fn a_node_is_forgotten_when_its_record_is_gone_or_its_agent_was_told() {
        let here = [json!({"id": "nd_1"})];
        assert!(!is_forgotten(&identity(false), &here));
        assert!(is_forgotten(&identity(true), &here));
        assert!(is_forgotten(&identity(false), &[json!({"id": "nd_2"})]));
    }

    #[test]
    fn why_a_node_is_not_ready_is_said() {
        let node =
            |phase: &str| [json!({"id": "nd_1", "status": {"phase": phase, "message": "m"}})];
        assert_eq!(why_not_ready(&identity(false), &node("ready")), None);
        let why = why_not_ready(&identity(false), &node("lost")).unwrap();
        assert_eq!(why, "node-1 is not ready, but lost: m");
        let why = why_not_ready(&identity(false), &[]).unwrap();
        assert_eq!(why, "node-1 was removed from the cluster");
    }
}
