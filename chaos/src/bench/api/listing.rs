//! A list of many nodes, part by part.

use anyhow::{Context as _, Result, ensure};
use palisade_contract::{
    NodeId,
    node::{HostFacts, Node, NodePhase},
};
use palisade_state::{Txn, command::Write, key::joined};
use serde_json::{Value, json};

use super::Bench;
use crate::{
    bench::{
        Better,
        etcd::{
            client::{Client, propose},
            load::{Loaded, Plan, Window},
            report::{Goal, Line, Round},
        },
    },
    clock::Clock,
    http::{BASE, Http, Request, Tried},
};

/// Records of one part.
const PART: usize = 500;
/// Rows of one transaction.
const TOGETHER: usize = 100;
const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Line>> {
    make(bench).await.context("there are no nodes to list")?;
    let (plan, nodes) = (bench.plan(1), bench.options.nodes);
    let (mut rates, mut p99s) = (vec![], vec![]);
    for _ in 0..bench.options.rounds {
        let http = Http::new(bench.cluster.access()?)?;
        let listed = async |leader| list(&http, leader, plan, nodes).await;
        let sample = bench.sample("REST: a list, part by part", plan, listed).await?;
        let round = |ours| Round { ours, peer: None, foreign: sample.foreign };
        rates.push(round(sample.rate));
        p99s.push(round(sample.p99()));
    }
    let what = format!("records of a list of {nodes} nodes, in parts of {PART}, 1 client");
    Ok(vec![
        Line::new(what, "1/s", &rates, Goal::None, Better::Higher),
        Line::new("p99 of a part", "ms", &p99s, Goal::None, Better::Lower),
    ])
}

/// Goes through the list again and again.
async fn list(http: &Http, leader: usize, plan: Plan, nodes: usize) -> Result<Loaded> {
    let (window, mut loaded) = (Window::start(&plan), Loaded::default());
    while !window.is_over() {
        let (mut seen, mut cursor) = (0, String::new());
        loop {
            let began = Clock::start();
            let request = Request::get(format!("{BASE}/nodes?limit={PART}{cursor}"));
            let answer = match http.once(leader, &request, LIMIT).await {
                Tried::Done(answer) => answer,
                other => anyhow::bail!("{}", other.describe()),
            };
            let part = answer.body.get("items").and_then(Value::as_array).map_or(0, Vec::len);
            window.note(&began, part as u64, &mut loaded);
            seen += part;
            match answer.body.get("nextCursor").and_then(Value::as_str) {
                Some(next) if !next.is_empty() => cursor = format!("&cursor={next}"),
                _ => break,
            }
        }
        ensure!(seen == nodes, "{seen} of {nodes} nodes are in the list");
    }
    Ok(loaded)
}

/// Writes the rows of nodes that are gone, past their agents.
async fn make(bench: &Bench) -> Result<()> {
    let (leader, _) = bench.cluster.until_settled().await?;
    let Client::Ours(mut store) = bench.cluster.client(leader).await? else {
        anyhow::bail!("etcd has no nodes");
    };
    let all: Vec<usize> = (0..bench.options.nodes).collect();
    for some in all.chunks(TOGETHER) {
        let rows: Result<Vec<[Write; 2]>> = some.iter().map(|number| rows(*number)).collect();
        let txn = Txn { writes: rows?.into_iter().flatten().collect(), ..Txn::default() };
        propose(&mut store, txn.into()).await.map_err(|failure| anyhow::anyhow!("{failure}"))?;
    }
    Ok(())
}

/// The row of a node, and how it is found by its name.
fn rows(number: usize) -> Result<[Write; 2]> {
    let name = format!("node-{number:05}");
    let node = Node {
        id: NodeId::parse(&format!("nd_{number:026}")).context("that is no id")?,
        name: name.clone(),
        pool: "default".into(),
        tenant: String::new(),
        labels: [("rack".to_owned(), format!("r{}", number % 40))].into(),
        phase: NodePhase::Lost,
        schedulable: true,
        session: None,
        disconnected_at_ms: Some(1),
        facts: HostFacts {
            hostname: name.clone(),
            threads: 64,
            memory_bytes: 1 << 38,
            ..HostFacts::default()
        },
        keys: vec![],
        joined_at_ms: 1_790_000_000_000,
        agent_version: env!("CARGO_PKG_VERSION").into(),
    };
    let key = node.id.to_string().into_bytes();
    let value = serde_json::to_vec(&json!({ "node": node }))?;
    let by_name = joined(&[name.as_bytes(), &key]);
    Ok([
        Write { table: "nodes".into(), key, value: Some(value) },
        Write { table: "nodes#name".into(), key: by_name.to_vec(), value: Some(vec![]) },
    ])
}
