//! How much in a second: writes one by one, over streams and together; reads; units of work;
//! deliveries to watchers. Each measure has clusters of its own in each round.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Bench, Measure,
    cluster::{Cluster, Side},
    durability,
    load::{self, Gets, Keys, Loaded, Plan, Puts, PutsTogether, VALUE_BYTES},
    report::{Goal, Line},
    rounds::{self, Point},
    watch,
    work::{self, Way},
};
use crate::bench::Better;

const WARM: Duration = Duration::from_millis(500);
/// Writes of one transaction.
const TOGETHER: usize = 64;
/// Rows that are read.
const READ_ROWS: u64 = 10_000;

const MEASURES: [Measure; 7] = [
    Measure::Unary,
    Measure::Stream,
    Measure::Txn,
    Measure::Reads,
    Measure::Work,
    Measure::WorkStream,
    Measure::Watch,
];

type Points = BTreeMap<(Measure, usize), Vec<Point>>;

/// Measures what is wanted.
pub(super) async fn measure(bench: &mut Bench) {
    let wanted: Vec<Measure> =
        MEASURES.into_iter().filter(|measure| bench.wants(*measure)).collect();
    let (mut points, mut after) = (Points::new(), vec![]);
    for round in 0..bench.options.rounds {
        for measure in &wanted {
            eprintln!("round {} of {}: {}", round + 1, bench.options.rounds, measure.name());
            let measured = one(bench, *measure, round, &mut points, &mut after).await;
            if let Err(error) = measured {
                bench.took(measure.name(), Err(error));
            }
        }
    }
    for ((measure, clients), points) in &points {
        bench.lines.extend(lines(*measure, *clients, points));
    }
    bench.lines.extend(after);
}

async fn one(
    bench: &mut Bench,
    measure: Measure,
    round: usize,
    points: &mut Points,
    after: &mut Vec<Line>,
) -> Result<()> {
    let pair = bench.pair().await?;
    if measure == Measure::Reads {
        for side in [Side::Ours, Side::Etcd] {
            if let Some(cluster) = pair.side(side) {
                fill(cluster, READ_ROWS).await?;
            }
        }
    }
    let clients = bench.options.clients.clone().unwrap_or_else(|| clients(measure).to_vec());
    for clients in clients {
        let measured = Duration::from_secs(bench.options.seconds);
        let plan = Plan { clients, warm: WARM, measured };
        let name = format!("{} {clients}", measure.name());
        let work = async |cluster: &Cluster, leader: usize, plan: Plan| {
            load_of(measure, cluster, leader, plan).await
        };
        let point = rounds::point(bench, &pair, plan, (&name, round), work).await?;
        points.entry((measure, clients)).or_default().push(point);
    }
    if measure == Measure::Unary && round + 1 == bench.options.rounds {
        match durability::measure(&pair).await {
            Ok(lines) => after.extend(lines),
            Err(error) => bench.took("durability", Err(error)),
        }
    }
    Ok(())
}

fn clients(measure: Measure) -> &'static [usize] {
    match measure {
        Measure::Unary => &[1, 16, 64, 256],
        Measure::Stream => &[16, 64, 256],
        Measure::Watch => &[1000],
        _ => &[64],
    }
}

async fn load_of(measure: Measure, cluster: &Cluster, leader: usize, plan: Plan) -> Result<Loaded> {
    // Keys are new each time, on clusters that are measured more than once.
    let prefix = format!("{}/{}/{}", measure.name(), plan.clients, crate::clock::unix_micros());
    match (measure, cluster.side) {
        (Measure::Stream, Side::Ours) => load::pipelined(cluster, leader, plan, &prefix).await,
        (Measure::Work, _) => work::run(cluster, leader, plan, &prefix, Way::Unary).await,
        (Measure::WorkStream, _) => work::run(cluster, leader, plan, &prefix, Way::Stream).await,
        (Measure::Watch, _) => watch::run(cluster, leader, plan).await,
        (Measure::Txn, _) => {
            let make = |number| PutsTogether(Keys::new(&prefix, number), TOGETHER);
            Ok(load::closed_loop(cluster, leader, plan, make).await?.0)
        }
        (Measure::Reads, _) => {
            let keys = read_keys();
            let make = |number| Gets { keys: keys.clone(), rows: READ_ROWS, state: number as u64 };
            Ok(load::closed_loop(cluster, leader, plan, make).await?.0)
        }
        _ => {
            let make = |number| Puts(Keys::new(&prefix, number));
            Ok(load::closed_loop(cluster, leader, plan, make).await?.0)
        }
    }
}

fn read_keys() -> Keys {
    Keys::new("read", 0)
}

/// Writes the rows that are read.
async fn fill(cluster: &Cluster, rows: u64) -> Result<()> {
    let (leader, _) = cluster.until_settled().await?;
    let mut client = cluster.client(leader).await?;
    let mut keys = read_keys();
    while keys.given() < rows {
        let some = (0..100).map(|_| keys.row()).collect();
        let put = client.put_all(some).await;
        put.map_err(|failure| anyhow::anyhow!("{failure}")).context("cannot write rows to read")?;
    }
    Ok(())
}

fn goal(measure: Measure, clients: usize) -> Goal {
    match (measure, clients) {
        (Measure::Unary, 1) => Goal::RatioAtLeast(1.3),
        (Measure::Unary, 16) | (Measure::Reads, 64) => Goal::RatioAtLeast(2.0),
        (Measure::Unary | Measure::Txn, 64) => Goal::RatioAtLeast(2.5),
        (Measure::Unary, 256) | (Measure::Stream, 16) => Goal::RatioAtLeast(3.0),
        (Measure::Stream | Measure::Work | Measure::WorkStream, 64) => Goal::RatioAtLeast(5.0),
        (Measure::Watch, 1000) => Goal::RatioAtLeast(1.5),
        (Measure::Stream, 256) => Goal::RatioAtLeast(8.0),
        _ => Goal::None,
    }
}

fn lines(measure: Measure, clients: usize, points: &[Point]) -> Vec<Line> {
    let who = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    let what = match measure {
        Measure::Unary => format!("durable writes of {VALUE_BYTES} bytes, one a unary call, {who}"),
        Measure::Stream => format!("durable writes over streams (etcd: unary), {who}"),
        Measure::Txn => format!("durable writes, {TOGETHER} in a transaction, {who}"),
        Measure::Work => {
            format!(
                "units of work enqueued, run and finished (etcd: three commits), {clients} producers"
            )
        }
        Measure::Watch => format!("deliveries, {clients} watchers of one writer"),
        _ => format!("linearizable reads, {who}"),
    };
    let rates: Vec<_> = points.iter().map(|point| point.round(|sample| sample.rate)).collect();
    let rate = Line::new(what, "1/s", &rates, goal(measure, clients), Better::Higher);
    let mut lines = vec![rounds::detailed(rate, points)];
    if measure == Measure::Unary {
        let p99s: Vec<_> = points
            .iter()
            .map(|point| point.round(|sample| sample.latency.quantile_ms(0.99)))
            .collect();
        let goal = if clients >= 16 { Goal::RatioAtMost(0.6) } else { Goal::None };
        let what = format!("their p99, {who}");
        lines.push(Line::new(what, "ms", &p99s, goal, Better::Lower));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_clients_that_is_measured_has_a_goal() {
        for measure in MEASURES {
            for clients in clients(measure) {
                assert_ne!(goal(measure, *clients), Goal::None, "{measure:?} {clients}");
            }
        }
    }

    #[test]
    fn a_number_of_clients_that_nobody_agreed_on_has_none() {
        assert_eq!(goal(Measure::Unary, 5), Goal::None);
    }
}
