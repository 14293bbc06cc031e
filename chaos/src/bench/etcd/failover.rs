//! From the end of the leader (SIGKILL) or its standstill (SIGSTOP) to the next acknowledged write.
//!
//! A prober begins one write each millisecond, the next member each time, and gives each 100 ms; it
//! never waits for one before it begins the next. What it measures begins with the signal and ends
//! with the first acknowledgement of a write that began after it. Both systems take turns; the
//! member is started again, and has caught up, before the next trial.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use futures::{StreamExt, stream::FuturesUnordered};
use tokio::task::JoinHandle;

use super::{
    Bench, Pair,
    client::Client,
    cluster::{Cluster, MEMBERS, Side},
    load::{CONNECTIONS_MAX, value},
    report::{FOREIGN_MAX, Goal, Line, Round},
};
use crate::{
    bench::{Better, Meter, median},
    clock::{self, Clock},
};

const ATTEMPT_LIMIT: Duration = Duration::from_millis(100);
const EVERY: Duration = Duration::from_millis(1);
/// Before the signal, so that nothing sleeps.
const WARM: Duration = Duration::from_millis(300);
const TRIAL_LIMIT: Duration = Duration::from_secs(30);
/// Elections and reconnections of the trial before are over.
const REST: Duration = Duration::from_millis(1200);
/// How often a trial that others disturbed is made at most.
const TRIES_MAX: usize = 2;
const SATURATING: usize = 64;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(2);
/// Rows that each saturating client writes over and over.
const ROWS: u64 = 500;

/// What happens to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    /// SIGKILL.
    Kill,
    /// SIGKILL, while 64 clients write as fast as they can.
    KillSaturated,
    /// SIGSTOP.
    Freeze,
}

impl Blow {
    fn describe(self) -> &'static str {
        match self {
            Self::Kill => "fail-over, SIGKILL of the leader",
            Self::KillSaturated => "fail-over, SIGKILL with 64 saturating clients",
            Self::Freeze => "fail-over, SIGSTOP of the leader",
        }
    }
}

/// Trials of both sides in turns.
pub(super) async fn measure(bench: &mut Bench, blow: Blow, trials: usize) -> Result<Vec<Line>> {
    let pair = bench.pair().await?;
    let mut foreigns = vec![];
    let (mut ours, mut etcd, mut more) = (vec![], vec![], 0);
    for trial in 0..trials {
        for side in [Side::Etcd, Side::Ours] {
            let Some(cluster) = pair.side(side) else { continue };
            let Trial { gap, elections, foreign } = quiet(cluster, &pair, blow, trial).await?;
            foreigns.push(foreign);
            match side {
                Side::Ours => {
                    ours.push(gap);
                    more += elections.saturating_sub(1);
                }
                Side::Etcd => etcd.push(gap),
            }
        }
    }
    Ok(lines(blow, &ours, &etcd, median(&foreigns), more))
}

/// What one trial came to.
#[derive(Clone, Copy)]
struct Trial {
    /// Milliseconds.
    gap: f64,
    /// Terms that passed.
    elections: u64,
    /// The share of the machine that others had.
    foreign: f64,
}

/// One trial, once more if others disturbed it.
async fn quiet(cluster: &Cluster, pair: &Pair, blow: Blow, number: usize) -> Result<Trial> {
    let mut best: Option<Trial> = None;
    for _ in 0..TRIES_MAX {
        let meter = Meter::start();
        let (gap, elections) = one(cluster, pair, blow, number).await?;
        let trial = Trial { gap, elections, foreign: meter.foreign() };
        eprintln!(
            "  {:<48} {:<8} trial {:>2} {gap:>8.1} ms, {elections} terms, others {:.1} %",
            blow.describe(),
            cluster.side.name(),
            number + 1,
            trial.foreign * 100.0
        );
        if best.is_none_or(|best| trial.foreign < best.foreign) {
            best = Some(trial);
        }
        if trial.foreign <= FOREIGN_MAX {
            break;
        }
    }
    best.context("there was no trial")
}

fn lines(blow: Blow, ours: &[f64], etcd: &[f64], foreign: f64, more: u64) -> Vec<Line> {
    let (ratio, most) = match blow {
        Blow::Freeze => (Goal::RatioAtMost(0.6), Goal::None),
        _ => (Goal::RatioAtMost(0.1), Goal::ValueAtMost(200.0)),
    };
    let of = |pick: fn(&[f64]) -> f64| {
        let peer = (!etcd.is_empty()).then(|| pick(etcd));
        [Round { ours: pick(ours), peer, foreign }]
    };
    let largest = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    let name = |what: &str| format!("{}, {what} of {}", blow.describe(), ours.len());
    vec![
        Line::new(name("median"), "ms", &of(median), ratio, Better::Lower)
            .with("ours", ours.to_vec())
            .with("peer", etcd.to_vec())
            .with("termsMoreThanNeeded", more),
        Line::new(name("max"), "ms", &of(largest), most, Better::Lower),
    ]
}

/// One trial: milliseconds, and how many terms passed.
async fn one(cluster: &Cluster, pair: &Pair, blow: Blow, trial: usize) -> Result<(f64, u64)> {
    // The other side rests too: what its last trial left must not be measured here.
    super::system::until_idle(&pair.pids(), Duration::from_secs(5)).await;
    let (leader, term) = cluster.until_settled().await?;
    clock::sleep(REST).await;
    let mut prober = Prober::new(cluster, trial)?;
    let saturating = match blow {
        Blow::KillSaturated => Some(Saturating::start(cluster, leader).await?),
        _ => None,
    };
    prober.run(Clock::start(), WARM, false).await;
    let member = cluster.members.get(leader).context("the leader is not a member")?;
    let clock = Clock::start();
    match blow {
        Blow::Freeze => member.pause()?,
        _ => member.kill()?,
    };
    let first = prober.run(clock, TRIAL_LIMIT, true).await;
    drop(saturating);
    match blow {
        Blow::Freeze => {
            member.resume()?;
        }
        _ => member.start()?,
    }
    let (_, after) = cluster.until_settled().await?;
    let first = first.ok_or_else(|| {
        let why = prober.last_failure.as_deref().unwrap_or("nothing was refused");
        anyhow!("no write was acknowledged within {TRIAL_LIMIT:?} of the blow; the last: {why}")
    })?;
    Ok((first.as_secs_f64() * 1000.0, after.saturating_sub(term)))
}

struct Prober {
    clients: Vec<Client>,
    trial: usize,
    turn: usize,
    last_failure: Option<String>,
}

impl Prober {
    fn new(cluster: &Cluster, trial: usize) -> Result<Self> {
        let clients =
            (0..MEMBERS).map(|member| cluster.lasting_client(member)).collect::<Result<_>>()?;
        Ok(Self { clients, trial, turn: 0, last_failure: None })
    }

    /// One write, by the next member.
    fn attempt(&mut self) -> impl Future<Output = Result<(), String>> + use<> {
        let mut client = self.clients[self.turn % self.clients.len()].clone();
        let key = format!("probe/{}/{}", self.trial, self.turn).into_bytes();
        self.turn += 1;
        async move {
            match clock::within(ATTEMPT_LIMIT, client.put((key, value(1)))).await {
                Some(Ok(_)) => Ok(()),
                Some(Err(failure)) => Err(failure.to_string()),
                None => Err("no answer within 100 ms".to_owned()),
            }
        }
    }

    /// Begins one attempt each millisecond until the limit, or until the first is acknowledged if
    /// that is what is wanted. Answers when that was.
    async fn run(&mut self, clock: Clock, limit: Duration, to_first: bool) -> Option<Duration> {
        let mut flying = FuturesUnordered::new();
        let mut next = Duration::ZERO;
        while clock.elapsed() < limit {
            while next <= clock.elapsed() {
                flying.push(self.attempt());
                next += EVERY;
            }
            let left = next.saturating_sub(clock.elapsed());
            match clock::within(left, flying.next()).await {
                Some(Some(Ok(()))) if to_first => return Some(clock.elapsed()),
                Some(Some(Ok(()))) | None => {}
                Some(Some(Err(failure))) => self.last_failure = Some(failure),
                Some(None) => clock::sleep(left).await,
            }
        }
        None
    }
}

/// Clients that write as fast as they can, and go to the next member when one does not answer.
struct Saturating {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Saturating {
    async fn start(cluster: &Cluster, leader: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut connections: Vec<Vec<Client>> = vec![];
        for _ in 0..CONNECTIONS_MAX {
            let all = (0..MEMBERS).map(|member| cluster.lasting_client(member));
            connections.push(all.collect::<Result<_>>()?);
        }
        let tasks = (0..SATURATING)
            .map(|number| {
                let clients = connections[number % CONNECTIONS_MAX].clone();
                clock::spawn(saturate(clients, leader, number, stop.clone()))
            })
            .collect();
        clock::sleep(Duration::from_millis(500)).await;
        Ok(Self { stop, tasks })
    }
}

impl Drop for Saturating {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn saturate(mut clients: Vec<Client>, leader: usize, number: usize, stop: Arc<AtomicBool>) {
    let (mut member, mut row) = (leader, 0);
    while !stop.load(Ordering::Relaxed) {
        row += 1;
        let key = format!("saturate/{number:03}/{}", row % ROWS).into_bytes();
        let Some(client) = clients.get_mut(member) else { return };
        let put = clock::within(ATTEMPT_LIMIT, client.put((key, value(row)))).await;
        if !matches!(put, Some(Ok(_))) {
            member = (member + 1) % MEMBERS;
            clock::sleep(PAUSE_AFTER_FAILURE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_has_a_ratio_for_its_median_and_a_limit_for_its_max() {
        let made = lines(Blow::Kill, &[20.0, 30.0, 250.0], &[1000.0, 1200.0, 1500.0], 0.01, 0);
        let text = super::super::report::table(&made, ("palisade", "etcd"));
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].contains("median of 3") && rows[1].contains("met"), "{text}");
        assert!(rows[2].contains("max of 3") && rows[2].contains("MISSED"), "{text}");
    }

    #[test]
    fn a_freeze_is_judged_without_a_limit() {
        let made = lines(Blow::Freeze, &[900.0], &[1000.0], 0.01, 0);
        let text = super::super::report::table(&made, ("palisade", "etcd"));
        assert!(text.lines().nth(1).unwrap().contains("MISSED"), "{text}");
        assert!(text.lines().nth(2).unwrap().contains("max of 1"), "{text}");
    }
}
