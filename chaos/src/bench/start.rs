//! From `palisade dev --detach` in a new directory to two ready nodes.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Line, Meter, median};
use crate::{
    clock::{self, Clock},
    http::{BASE, Http},
    rig::{self, Binary, Folder, words},
};

const NODES: usize = 2;
const LIMIT: Duration = Duration::from_secs(30);
const GOAL_MS: f64 = 3000.0;

pub(super) async fn measure(binary: &Binary, rounds: usize) -> Result<Vec<Line>> {
    let meter = Meter::start();
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(round(binary).await?);
    }
    let foreign = meter.foreign();
    let measure = format!("dev to {NODES} ready nodes, median of {rounds}");
    Ok(vec![Line::milliseconds(measure, median(&times), Some(GOAL_MS), foreign)])
}

async fn round(binary: &Binary) -> Result<f64> {
    let folder = Folder::new()?;
    let (dir, context_file) = (folder.path().join("dev"), folder.path().join("contexts.toml"));
    let clock = Clock::start();
    let start = words(&[&"dev", &"--detach", &"--dir", &dir]);
    let started = binary.run(&context_file, &start);
    let ready = clock::poll(LIMIT, Duration::from_millis(5), || async {
        nodes_are_ready(&context_file).await.then(|| clock.elapsed())
    });
    let (started, ready) = futures::join!(started, ready);
    let stop = words(&[&"dev", &"stop", &"--dir", &dir]);
    let stopped = binary.run(&context_file, &stop).await;
    rig::end_descendants();
    started?;
    stopped?;
    let ready = ready.with_context(|| format!("no {NODES} ready nodes within {LIMIT:?}"))?;
    Ok(ready.as_secs_f64() * 1000.0)
}

async fn nodes_are_ready(context_file: &std::path::Path) -> bool {
    let Ok(access) = rig::access_of(context_file) else { return false };
    let Ok(http) = Http::new(access.into()) else { return false };
    let nodes = http.list(&format!("{BASE}/nodes"), Duration::from_millis(50)).await;
    let ready =
        |node: &&Value| node.pointer("/status/phase").and_then(Value::as_str) == Some("ready");
    nodes.is_ok_and(|nodes| nodes.iter().filter(ready).count() >= NODES)
}
