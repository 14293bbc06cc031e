//! One figure of one side, guarded; and figures of both sides in turns.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::{
    Bench, Pair,
    cluster::{Cluster, Side},
    histogram::Histogram,
    load::{Loaded, Plan},
    report::{FOREIGN_MAX, Line, Round},
    system,
};
use crate::{
    bench::{Meter, median},
    clock::Clock,
};

/// How often a noisy round is measured at most.
const TRIES_MAX: usize = 3;
const IDLE_LIMIT: Duration = Duration::from_secs(8);

/// One figure of one side.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Units a second.
    pub(super) rate: f64,
    pub(super) latency: Histogram,
    pub(super) foreign: f64,
    /// Microseconds of CPU for each unit: all members, and the client.
    server_micros: f64,
    client_micros: f64,
    /// Units for each flush of the disk.
    units_per_flush: Option<f64>,
}

/// Both sides of one round.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) ours: Sample,
    pub(super) etcd: Option<Sample>,
}

impl Point {
    fn foreign(&self) -> f64 {
        self.etcd.iter().map(|sample| sample.foreign).fold(self.ours.foreign, f64::max)
    }

    /// A number of both sides.
    pub(super) fn round(&self, number: impl Fn(&Sample) -> f64) -> Round {
        let peer = self.etcd.as_ref().map(&number);
        Round { ours: number(&self.ours), peer, foreign: self.foreign() }
    }
}

/// What is known of all rounds besides the figure itself.
pub(super) fn detailed(mut line: Line, points: &[Point]) -> Line {
    let middle = |side: Side, number: &dyn Fn(&Sample) -> f64| {
        let of = |point: &Point| match side {
            Side::Ours => Some(number(&point.ours)),
            Side::Etcd => point.etcd.as_ref().map(number),
        };
        let numbers: Vec<f64> = points.iter().filter_map(of).collect();
        (!numbers.is_empty()).then(|| (median(&numbers) * 1000.0).round() / 1000.0)
    };
    type Number = fn(&Sample) -> f64;
    let numbers: [(&str, Number); 8] = [
        ("Calls", |sample| sample.latency.count() as f64),
        ("P50Ms", |sample| sample.latency.quantile_ms(0.5)),
        ("P99Ms", |sample| sample.latency.quantile_ms(0.99)),
        ("P999Ms", |sample| sample.latency.quantile_ms(0.999)),
        ("MaxMs", |sample| sample.latency.max_ms()),
        ("ServerMicros", |sample| sample.server_micros),
        ("ClientMicros", |sample| sample.client_micros),
        ("UnitsPerFlush", |sample| sample.units_per_flush.unwrap_or(0.0)),
    ];
    for (prefix, side) in [("ours", Side::Ours), ("peer", Side::Etcd)] {
        for (name, number) in numbers {
            if let Some(value) = middle(side, &number) {
                line = line.with(&format!("{prefix}{name}"), value);
            }
        }
    }
    line
}

/// Measures one side while the other one idles.
async fn sample(
    bench: &mut Bench,
    pair: &Pair,
    side: Side,
    plan: Plan,
    name: &str,
    work: &impl AsyncFn(&Cluster, usize, Plan) -> Result<Loaded>,
) -> Result<Sample> {
    let cluster = pair.side(side).context("that side is not measured")?;
    let quiet = system::until_idle(&pair.pids(), IDLE_LIMIT).await;
    let (leader, term) = cluster.until_settled().await?;
    let own = [std::process::id()];
    let flushes = bench.disk.flushes();
    let (servers, client) = (system::cpu_ticks(&cluster.pids()), system::cpu_ticks(&own));
    let (meter, clock) = (Meter::start(), Clock::start());
    let loaded = work(cluster, leader, plan).await?;
    let seconds = clock.elapsed().as_secs_f64();
    let foreign = meter.foreign();
    let servers = system::cpu_ticks(&cluster.pids()).saturating_sub(servers);
    let client = system::cpu_ticks(&own).saturating_sub(client);
    let flushes =
        bench.disk.flushes().zip(flushes).map(|(after, before)| after.saturating_sub(before));
    let passed = cluster.term().await?.saturating_sub(term);
    bench.elections.looked += 1;
    match side {
        Side::Ours => bench.elections.ours += passed,
        Side::Etcd => bench.elections.etcd += passed,
    }
    if loaded.units == 0 {
        let why = loaded.first_failure.map_or("no call was answered".into(), |why| why.to_string());
        bail!("{} did nothing in {name}: {why}", side.name());
    }
    let rate = loaded.units as f64 / plan.measured.as_secs_f64();
    // The clients work before and after the window too.
    let all = rate * seconds;
    let micros = |ticks: u64| ticks as f64 / system::TICKS * 1e6 / all;
    let sample = Sample {
        rate,
        foreign,
        server_micros: micros(servers),
        client_micros: micros(client),
        units_per_flush: flushes.filter(|flushes| *flushes > 0).map(|flushes| all / flushes as f64),
        latency: loaded.latency,
    };
    tell(name, side, &sample, loaded.failures, passed, quiet);
    if let Some(failure) = &loaded.first_failure {
        eprintln!("    {} calls failed; the first: {failure}", loaded.failures);
    }
    Ok(sample)
}

fn tell(name: &str, side: Side, sample: &Sample, failures: u64, passed: u64, quiet: bool) {
    let Sample { rate, latency, foreign, server_micros, client_micros, units_per_flush } = sample;
    let flush = units_per_flush.map_or("?".to_owned(), |units| format!("{units:.1}"));
    let mut notes = String::new();
    if failures > 0 {
        notes.push_str(", FAILURES");
    }
    if passed > 0 {
        notes.push_str(", AN ELECTION");
    }
    if !quiet {
        notes.push_str(", not idle before");
    }
    eprintln!(
        "  {name:<28} {:<8} {rate:>8.0}/s  p50 {:.2} p99 {:.2} p99.9 {:.2} max {:.1} ms  servers {server_micros:.0} \
         client {client_micros:.0} us each, {flush} each flush, others {:.1} %{notes}",
        side.name(),
        latency.quantile_ms(0.5),
        latency.quantile_ms(0.99),
        latency.quantile_ms(0.999),
        latency.max_ms(),
        foreign * 100.0,
    );
}

/// Measures both sides in turns: etcd first in even rounds. Repeats what others disturbed.
pub(super) async fn point(
    bench: &mut Bench,
    pair: &Pair,
    plan: Plan,
    (name, round): (&str, usize),
    work: impl AsyncFn(&Cluster, usize, Plan) -> Result<Loaded>,
) -> Result<Point> {
    let mut best: Option<Point> = None;
    for _ in 0..TRIES_MAX {
        let (mut ours, mut etcd) = (None, None);
        let order = if round.is_multiple_of(2) {
            [Side::Etcd, Side::Ours]
        } else {
            [Side::Ours, Side::Etcd]
        };
        for side in order {
            match (side, &pair.etcd) {
                (Side::Ours, _) => ours = Some(sample(bench, pair, side, plan, name, &work).await?),
                (Side::Etcd, Some(_)) => {
                    etcd = Some(sample(bench, pair, side, plan, name, &work).await?);
                }
                (Side::Etcd, None) => {}
            }
        }
        let point = Point { ours: ours.context("nothing was measured")?, etcd };
        let is_better = best.as_ref().is_none_or(|best| point.foreign() < best.foreign());
        let is_quiet = point.foreign() <= FOREIGN_MAX;
        if is_better {
            best = Some(point);
        }
        if is_quiet {
            break;
        }
        eprintln!("    others had more than 5 % of the machine");
    }
    best.context("nothing was measured")
}
