//! From `palisade workload apply` to three healthy instances.

use std::time::Duration;

use anyhow::Result;

use super::{Line, Meter, median};
use crate::{
    clock::Clock,
    rig::{self, Rig, words},
};

const INSTANCES: u64 = 3;
const GOAL_MS: f64 = 2000.0;

pub(super) async fn measure(rig: &Rig, rounds: usize) -> Result<Vec<Line>> {
    let meter = Meter::start();
    let mut times = Vec::new();
    for round in 0..rounds {
        times.push(apply(rig, &format!("bench-{round}")).await?);
    }
    let foreign = meter.foreign();
    let measure = format!("apply to {INSTANCES} healthy instances, median of {rounds}");
    Ok(vec![Line::milliseconds(measure, median(&times), Some(GOAL_MS), foreign)])
}

async fn apply(rig: &Rig, name: &str) -> Result<f64> {
    let file = rig.dir.join(format!("{name}.json"));
    let spec = rig::hello(name, rig.binary.path(), INSTANCES);
    std::fs::write(&file, spec.to_string())?;
    let clock = Clock::start();
    // The verb waits until they are healthy.
    let args = words(&[&"workload", &"apply", &"-f", &file]);
    rig.binary.run(&rig.dir.join("contexts.toml"), &args).await?;
    let took = clock.elapsed();
    rig.remove(name, Duration::from_secs(20)).await?;
    Ok(took.as_secs_f64() * 1000.0)
}
