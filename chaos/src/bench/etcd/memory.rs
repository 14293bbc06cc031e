//! Many rows: what they cost in memory, and how long all members take to come back with them.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

use super::{
    Bench, Measure, Pair,
    client::Client,
    cluster::{Cluster, MEMBERS, Side},
    fill::{Fill, Overwrites, fill},
    load::{self, Keys, Plan, VALUE_BYTES},
    report::{Goal, Line, Round},
    system::{self, Resident},
    wire::etcd::CompactionRequest,
};
use crate::{
    bench::{Better, Meter},
    clock::{self, Clock},
};

/// Small writes after the rows, so that both purge their logs: etcd does it each 100,000 entries.
const PURGING: u64 = 110_000;
const PURGING_BYTES: usize = 1024;
const PURGING_CLIENTS: usize = 256;
/// Memory is settled when it has stayed within a hundredth for so many looks.
const LOOKS: usize = 10;
const LOOK: Duration = Duration::from_secs(1);
/// etcd's runtime collects at the latest every two minutes.
const SETTLE_LIMIT: Duration = Duration::from_secs(140);
const RESTARTS: usize = 3;
const READ_LIMIT: Duration = Duration::from_millis(100);
const RESTART_LIMIT: Duration = Duration::from_secs(120);
const PREFIX: &str = "many";

/// Measures the memory of that many rows, and the restart with them, as far as they are wanted.
pub(super) async fn measure(bench: &mut Bench, rows: u64) -> Result<()> {
    let pair = bench.pair().await?;
    let meter = Meter::start();
    let (mut ours, mut etcd) = (None, None);
    for side in [Side::Etcd, Side::Ours] {
        let Some(cluster) = pair.side(side) else { continue };
        let each = grown(cluster, rows, bench.wants(Measure::Memory)).await?;
        match side {
            Side::Ours => ours = Some(each),
            Side::Etcd => etcd = Some(each),
        }
    }
    if bench.wants(Measure::Memory) {
        let ours = ours.context("nothing was measured")?;
        let foreign = meter.foreign();
        let line = |of: &str, goal: Goal, bytes: fn(Each) -> f64| {
            let round = Round { ours: bytes(ours), peer: etcd.map(bytes), foreign };
            let name = format!("{of} above empty, {rows} keys of {VALUE_BYTES} bytes, each");
            Line::new(name, "bytes", &[round], goal, Better::Lower)
        };
        let goal = Goal::RatioAtMost(0.55);
        bench.lines.push(line("resident memory", goal, |each| each.all));
        bench.lines.push(line("anonymous memory of it", Goal::None, |each| each.anonymous));
    }
    if bench.wants(Measure::Restart) {
        let line = restarts(&pair, rows).await?;
        bench.lines.push(line);
    }
    Ok(())
}

/// Bytes for each row.
#[derive(Clone, Copy)]
struct Each {
    all: f64,
    anonymous: f64,
}

/// Fills one side; what the middle one of the members has grown by for each row.
async fn grown(cluster: &Cluster, rows: u64, settle: bool) -> Result<Each> {
    let empty = middle(&cluster.resident());
    let clock = Clock::start();
    fill(cluster, PREFIX, Fill { rows, value_bytes: VALUE_BYTES, together: 100 }).await?;
    let filled = clock.elapsed().as_secs_f64();
    purge(cluster).await?;
    let full = if settle { settled(cluster).await } else { middle(&cluster.resident()) };
    let each = |full: u64, empty: u64| (full as f64 - empty as f64) / rows as f64;
    let (all, anonymous) = (each(full.all, empty.all), each(full.anonymous, empty.anonymous));
    eprintln!(
        "  {rows} keys  {:<8} written in {filled:.1} s; {} MiB empty, {} MiB full: {all:.0} bytes each, {anonymous:.0} \
         of them anonymous",
        cluster.side.name(),
        empty.all >> 20,
        full.all >> 20,
    );
    Ok(Each { all, anonymous })
}

/// The one in the middle.
fn middle(members: &[Resident]) -> Resident {
    let mut sorted = members.to_vec();
    sorted.sort_by_key(|resident| resident.all);
    let middle = sorted.get(sorted.len() / 2).copied();
    middle.unwrap_or(Resident { all: 0, anonymous: 0 })
}

/// Writes a few rows over and over until both systems have purged their logs, and makes etcd forget
/// old revisions.
async fn purge(cluster: &Cluster) -> Result<()> {
    let (leader, _) = cluster.until_settled().await?;
    let mut written = 0;
    while written < PURGING {
        let plan = Plan {
            clients: PURGING_CLIENTS,
            warm: Duration::ZERO,
            measured: Duration::from_secs(2),
        };
        let make = |number| Overwrites {
            keys: Keys::new("purging", number),
            rows: 1,
            value_bytes: PURGING_BYTES,
            next: 0,
        };
        let (loaded, _) = load::closed_loop(cluster, leader, plan, make).await?;
        if loaded.units == 0 {
            return Err(anyhow!("{} takes no writes any more", cluster.side.name()));
        }
        written += loaded.units;
    }
    let mut client = cluster.client(leader).await?;
    let revision = client.put((b"last".to_vec(), vec![0])).await;
    let revision = revision.map_err(|failure| anyhow!("{failure}"))?;
    if let Client::Etcd { mut kv, .. } = client {
        let revision = i64::try_from(revision).context("that is no revision")?;
        kv.compact(CompactionRequest { revision, physical: true })
            .await
            .context("cannot compact")?;
    }
    Ok(())
}

/// Waits until memory stays where it is.
async fn settled(cluster: &Cluster) -> Resident {
    let clock = Clock::start();
    let mut looks: Vec<u64> = vec![];
    loop {
        clock::sleep(LOOK).await;
        let last = middle(&cluster.resident());
        looks.push(last.all);
        let mut recent = looks.iter().rev().take(LOOKS);
        let is_still = recent.all(|bytes| bytes.abs_diff(last.all) <= last.all / 100);
        if (looks.len() >= LOOKS && is_still && cluster.side == Side::Ours)
            || clock.elapsed() > SETTLE_LIMIT
        {
            return last;
        }
    }
}

/// SIGKILL of all members and their start until the first linearizable read, in turns.
async fn restarts(pair: &Pair, rows: u64) -> Result<Line> {
    let mut rounds = vec![];
    for trial in 0..RESTARTS {
        let (mut ours, mut peer) = (None, None);
        let meter = Meter::start();
        for side in [Side::Etcd, Side::Ours] {
            let Some(cluster) = pair.side(side) else { continue };
            system::until_idle(&pair.pids(), Duration::from_secs(30)).await;
            let took = restart(cluster).await?;
            eprintln!(
                "  restart of all with {rows} keys  {:<8} trial {} {took:.3} s",
                side.name(),
                trial + 1
            );
            match side {
                Side::Ours => ours = Some(took),
                Side::Etcd => peer = Some(took),
            }
        }
        let ours = ours.context("nothing was measured")?;
        rounds.push(Round { ours, peer, foreign: meter.foreign() });
    }
    let name = format!("SIGKILL of all, {rows} keys: start to first linearizable read");
    Ok(Line::new(name, "s", &rounds, Goal::RatioAtMost(0.5), Better::Lower))
}

async fn restart(cluster: &Cluster) -> Result<f64> {
    cluster.until_settled().await?;
    cluster.kill_all();
    let mut clients = (0..MEMBERS)
        .map(|member| cluster.lasting_client(member))
        .collect::<Result<Vec<Client>>>()?;
    let key = Keys::new(PREFIX, 0).key(0);
    let clock = Clock::start();
    cluster.start_all()?;
    for member in (0..MEMBERS).cycle() {
        let last = match clock::within(READ_LIMIT, clients[member].get(key.clone())).await {
            Some(Ok(Some(_))) => break,
            Some(Ok(None)) => return Err(anyhow!("a row is gone after the restart")),
            Some(Err(failure)) => failure.to_string(),
            None => "no answer within 100 ms".to_owned(),
        };
        if clock.elapsed() > RESTART_LIMIT {
            return Err(anyhow!("no read was answered within {RESTART_LIMIT:?}: {last}"));
        }
        clock::sleep_ms(2).await;
    }
    let took = clock.elapsed().as_secs_f64();
    cluster.until_settled().await?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_member_counts() {
        let resident = |all| Resident { all, anonymous: 1 };
        assert_eq!(middle(&[resident(30), resident(10), resident(20)]), resident(20));
    }
}
