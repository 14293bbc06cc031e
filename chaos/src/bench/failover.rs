//! From the SIGKILL of the leader to the first acknowledged write that began after it.
//!
//! The prober fires attempts at the two that are left, one every few milliseconds over connections
//! that are open already, each with a limit of 100 ms, and never waits for one before it sends the
//! next: a client that waited would measure its own patience.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::json;

use super::{Line, Meter, median};
use crate::{
    clock::{self, Clock},
    http::{BASE, Http, Request, Tried},
    random::Random,
    rig::Rig,
};

const EVERY: Duration = Duration::from_millis(5);
/// How often once a second has gone without success: a prober must not keep down what it waits for.
const EVERY_LATE: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(1);
const ATTEMPT_LIMIT: Duration = Duration::from_millis(100);
const ROUND_LIMIT: Duration = Duration::from_secs(20);
const CONNECTIONS: usize = 12;
const WARM_UP: usize = 10;
const WARM_UP_MAX: usize = 100;
const GOAL_MS: f64 = 200.0;

pub(super) async fn measure(rig: &Rig, rounds: usize) -> Result<Vec<Line>> {
    let meter = Meter::start();
    let mut times = Vec::new();
    for round in 0..rounds {
        times.push(fail_over(rig, round).await?);
    }
    let foreign = meter.foreign();
    let of = |name: &str| format!("fail-over after SIGKILL of the leader, {name} of {rounds}");
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    Ok(vec![
        Line::milliseconds(of("median"), median(&times), Some(GOAL_MS), foreign),
        Line::milliseconds(of("min"), least, None, foreign),
        Line::milliseconds(of("max"), most, None, foreign),
    ])
}

async fn fail_over(rig: &Rig, round: usize) -> Result<f64> {
    let leader = settled(rig).await?;
    let survivors: Vec<usize> = (0..rig.replicas.len()).filter(|index| *index != leader).collect();
    let http = Arc::new(Http::new(rig.access.clone())?);
    let mut prober = Prober { http, round, random: Random::part(2, &round.to_string()), sent: 0 };
    for survivor in &survivors {
        prober.open(*survivor).await;
    }
    prober.warm_up(survivors[0]).await.with_context(|| format!("round {round}"))?;
    let member = &rig.replicas[leader];
    let clock = Clock::start();
    member.kill()?;
    let first = prober.until_acknowledged(clock, &survivors).await;
    member.start()?;
    rig.until_ready(Duration::from_secs(30)).await?;
    let took =
        first.with_context(|| format!("no write was acknowledged within {ROUND_LIMIT:?}"))?;
    Ok(took.as_secs_f64() * 1000.0)
}

/// The leader, once all replicas are at one index and have had a moment.
async fn settled(rig: &Rig) -> Result<usize> {
    let limit = Duration::from_secs(1);
    let leader = clock::poll(Duration::from_secs(30), Duration::from_millis(50), || async {
        let asked = (0..rig.replicas.len()).map(|index| rig.status(index, limit));
        let statuses: Vec<_> =
            futures::future::join_all(asked).await.into_iter().collect::<Option<_>>()?;
        let first = statuses.first()?;
        let same = |status: &crate::rig::Status| {
            (status.leader, status.term, status.applied)
                == (first.leader, first.term, first.applied)
        };
        let leader = statuses.iter().all(same).then_some(first.leader)??;
        usize::try_from(leader).ok()?.checked_sub(1)
    })
    .await
    .context("the replicas do not agree on a leader")?;
    clock::sleep(Duration::from_millis(1500)).await;
    Ok(leader)
}

struct Prober {
    http: Arc<Http>,
    round: usize,
    random: Random,
    sent: usize,
}

impl Prober {
    fn request(&mut self) -> Request {
        self.sent += 1;
        Request::post(
            format!("{BASE}/join-tokens"),
            format!("failover-{}-{}", self.round, self.sent),
            json!({"secretSha256": self.random.hex64(), "ttlSeconds": 60}),
        )
    }

    /// Opens connections to a replica, by asking it many things at once.
    async fn open(&self, replica: usize) {
        let request = Request::get(format!("{BASE}/cluster?consistency=local"));
        let asked =
            (0..CONNECTIONS).map(|_| self.http.once(replica, &request, Duration::from_secs(2)));
        futures::future::join_all(asked).await;
    }

    /// Writes until the very moment, so that nothing sleeps.
    async fn warm_up(&mut self, replica: usize) -> Result<()> {
        let mut acknowledged = 0;
        for _ in 0..WARM_UP_MAX {
            if self.attempt(replica).await.1 {
                acknowledged += 1;
            }
            if acknowledged == WARM_UP {
                return Ok(());
            }
        }
        bail!("{acknowledged} of {WARM_UP_MAX} writes were acknowledged before the kill")
    }

    /// One write. Answers when it began and whether it was acknowledged.
    fn attempt(&mut self, replica: usize) -> impl Future<Output = (Clock, bool)> + use<> {
        let (http, request) = (self.http.clone(), self.request());
        async move {
            let began = Clock::start();
            let tried = http.once(replica, &request, ATTEMPT_LIMIT).await;
            (began, matches!(tried, Tried::Done(_)))
        }
    }

    /// When the first write was acknowledged. All begin after `killed` did.
    async fn until_acknowledged(&mut self, killed: Clock, replicas: &[usize]) -> Option<Duration> {
        let mut flying = FuturesUnordered::new();
        let mut turn = 0;
        while killed.elapsed() < ROUND_LIMIT {
            if flying.len() < CONNECTIONS {
                flying.push(self.attempt(replicas[turn % replicas.len()]));
                turn += 1;
            }
            let every = if killed.elapsed() < LATE { EVERY } else { EVERY_LATE };
            let next = Clock::start();
            while let Some(left) = every.checked_sub(next.elapsed()) {
                match clock::within(left, flying.next()).await {
                    Some(Some((_, true))) => return Some(killed.elapsed()),
                    Some(Some((_, false))) => {}
                    Some(None) => clock::sleep(left).await,
                    None => break,
                }
            }
        }
        None
    }
}
