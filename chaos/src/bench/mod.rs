//! Figures. A benchmark measures and never asserts.

pub(crate) mod api;
mod apply;
pub(crate) mod etcd;
mod failover;
mod latency;
mod start;

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    proc::Cpu,
    rig::{self, Binary, Folder, Rig},
};

/// The exit status when something could not be measured.
const INCOMPLETE: u8 = 3;

/// What to measure with.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) json: bool,
    pub(crate) quick: bool,
    pub(crate) bin: Option<PathBuf>,
}

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    pub(crate) bench: &'static str,
    pub(crate) measure: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    /// There is nobody to compare with.
    pub(crate) peer: Option<f64>,
    pub(crate) peer_name: Option<String>,
    pub(crate) ratio: Option<f64>,
    pub(crate) goal: Option<f64>,
    pub(crate) better: Better,
    /// Whether the goal is reached; null without one.
    pub(crate) ok: Option<bool>,
    /// The share of the machine's CPU time that others had meanwhile, from 0 to 1.
    pub(crate) foreign_cpu: f64,
}

impl Line {
    /// A figure of `smoke`, in milliseconds; less is better.
    fn milliseconds(
        measure: impl Into<String>,
        ours: f64,
        goal: Option<f64>,
        foreign: f64,
    ) -> Self {
        Self {
            bench: "smoke",
            measure: measure.into(),
            unit: "ms",
            ours: round(ours),
            peer: None,
            peer_name: None,
            ratio: None,
            goal,
            better: Better::Lower,
            ok: goal.map(|goal| ours <= goal),
            foreign_cpu: (foreign * 10_000.0).round() / 10_000.0,
        }
    }
}

fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// Measures the CPU of others from its making on.
pub(crate) struct Meter(Option<Cpu>);

impl Meter {
    pub(crate) fn start() -> Self {
        Self(Cpu::now())
    }

    /// The share of others since then.
    pub(crate) fn foreign(&self) -> f64 {
        match (&self.0, Cpu::now()) {
            (Some(before), Some(now)) => now.foreign_since(before),
            _ => 0.0,
        }
    }
}

/// The middle one; between the two middle ones of an even number.
pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (half, odd) = (sorted.len() / 2, sorted.len() % 2 == 1);
    match (sorted.get(half), half.checked_sub(1).and_then(|below| sorted.get(below))) {
        (Some(above), Some(below)) if !odd => f64::midpoint(*below, *above),
        (Some(middle), _) => *middle,
        _ => 0.0,
    }
}

/// Measures what an operator meets first. Answers the exit status.
pub(crate) async fn smoke(options: &Options) -> Result<u8> {
    let binary = Binary::find(options.bin.as_deref())?;
    let product = binary.version().await?;
    rig::adopt_orphans()?;
    eprintln!("{product}, {}", binary.path().display());
    let mut failed = false;
    let mut show = |name: &str, measured: Result<Vec<Line>>| match measured {
        Ok(lines) => lines.iter().for_each(|line| print(line, options.json)),
        Err(error) => {
            failed = true;
            eprintln!("{name} could not be measured: {error:#}");
        }
    };
    show("start", start::measure(&binary, if options.quick { 1 } else { 5 }).await);
    rig::end_descendants();
    let folder = Folder::new()?;
    match cluster(&binary, &folder).await {
        Err(error) => show("everything else", Err(error)),
        Ok(rig) => {
            show("apply", apply::measure(&rig, if options.quick { 1 } else { 5 }).await);
            show("latency", latency::measure(&rig, if options.quick { 200 } else { 1000 }).await);
            show("fail-over", failover::measure(&rig, if options.quick { 3 } else { 10 }).await);
        }
    }
    Ok(if failed { INCOMPLETE } else { 0 })
}

async fn cluster(binary: &Binary, folder: &Folder) -> Result<Rig> {
    let options = rig::Options { replicas: 3, agents: 2 };
    let mut rig = Rig::start(binary, folder.path(), &options).await.context("no cluster")?;
    rig.join_agents(options.agents).await?;
    Ok(rig)
}

fn print(line: &Line, json: bool) {
    if json {
        if let Ok(text) = serde_json::to_string(line) {
            println!("{text}");
        }
        return;
    }
    let goal = match (line.goal, line.ok) {
        (Some(goal), Some(true)) => format!("goal {goal} {} reached", line.unit),
        (Some(goal), _) => format!("goal {goal} {} MISSED", line.unit),
        _ => String::new(),
    };
    println!(
        "{:<52} {:>10.2} {}  others' CPU {:>4.1} %  {goal}",
        line.measure,
        line.ours,
        line.unit,
        line.foreign_cpu * 100.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_exactly_the_agreed_fields() {
        let line = Line::milliseconds("write p50", 1.23456, Some(2.0), 0.012_345);
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"bench":"smoke","measure":"write p50","unit":"ms","ours":1.235,"peer":null,"peerName":null,"ratio":null,"goal":2.0,"better":"lower","ok":true,"foreignCpu":0.0123}"#
        );
    }

    #[test]
    fn a_line_without_a_goal_is_neither_good_nor_bad() {
        assert_eq!(Line::milliseconds("x", 1.0, None, 0.0).ok, None);
        assert_eq!(Line::milliseconds("x", 3.0, Some(2.0), 0.0).ok, Some(false));
    }

    #[test]
    fn the_median_is_the_middle() {
        assert!((median(&[9.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 9.0]) - 3.0).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
    }
}
