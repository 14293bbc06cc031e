//! From `palisade workload apply -f examples/hello.yaml` to three healthy instances.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Line, Meter, median};
use crate::{
    clock::Clock,
    rig::{Rig, words},
};

const EXAMPLE: &str = include_str!("../../../examples/hello.yaml");
/// What the example calls itself.
const NAME: &str = "hello";
const INSTANCES: u64 = 3;
const GOAL_MS: f64 = 2000.0;

pub(super) async fn measure(rig: &Rig, rounds: usize) -> Result<Vec<Line>> {
    let file = rig.dir.join("hello.yaml");
    std::fs::write(&file, EXAMPLE).context("cannot write the spec")?;
    let meter = Meter::start();
    let mut times = Vec::new();
    for _ in 0..rounds {
        let clock = Clock::start();
        // The verb waits until they are healthy.
        let args = words(&[&"workload", &"apply", &"-f", &file]);
        rig.binary.run(&rig.dir.join("contexts.toml"), &args).await?;
        times.push(clock.elapsed().as_secs_f64() * 1000.0);
        rig.until_healthy(NAME, INSTANCES, Duration::from_secs(1)).await?;
        rig.remove(NAME, Duration::from_secs(20)).await?;
    }
    let foreign = meter.foreign();
    let measure = format!("apply to {INSTANCES} healthy instances, median of {rounds}");
    Ok(vec![Line::milliseconds(measure, median(&times), Some(GOAL_MS), foreign)])
}
