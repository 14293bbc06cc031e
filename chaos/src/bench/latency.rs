//! Write latency of one client with one connection: authenticated, idempotent, over TLS.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::{Line, Meter};
use crate::{
    clock::Clock,
    http::{BASE, Http, Request, Tried},
    random::Random,
    report::Latencies,
    rig::Rig,
};

const WARM_UP: usize = 50;
const LIMIT: Duration = Duration::from_secs(10);

pub(super) async fn measure(rig: &Rig, writes: usize) -> Result<Vec<Line>> {
    let leader = rig.leader().await.context("no leader is known")?;
    let follower = (leader + 1) % rig.replicas.len();
    let mut lines = Vec::new();
    for (through, replica) in [("the leader", leader), ("a follower", follower)] {
        let meter = Meter::start();
        let latencies = Latencies::of(one_client(rig, replica, writes).await?);
        let foreign = meter.foreign();
        for (name, ours) in [("p50", latencies.p50), ("p99", latencies.p99)] {
            let measure = format!("write {name} through {through}, 1 client, {writes} writes");
            lines.push(Line::milliseconds(measure, ours, None, foreign));
        }
    }
    Ok(lines)
}

async fn one_client(rig: &Rig, replica: usize, writes: usize) -> Result<Vec<u64>> {
    let http = Http::new(rig.access.clone())?;
    let mut random = Random::part(1, &format!("latency/{replica}"));
    let mut micros = Vec::with_capacity(writes);
    for number in 0..WARM_UP + writes {
        let request = Request::post(
            format!("{BASE}/join-tokens"),
            format!("latency-{replica}-{number}"),
            json!({"secretSha256": random.hex64(), "ttlSeconds": 60}),
        );
        let clock = Clock::start();
        let tried = http.once(replica, &request, LIMIT).await;
        let took = clock.micros();
        if !matches!(tried, Tried::Done(_)) {
            bail!("write {number}: {}", tried.describe());
        }
        if number >= WARM_UP {
            micros.push(took);
        }
    }
    Ok(micros)
}
