//! A leader whose disk hangs or has become very slow hands over; a replica whose disk is slow says so.
//!
//! A hand-over is an election, and helps only if another disk is better. So a sync hangs only if a successor has made
//! durable what this replica has not: where all disks are slow, or are one, there is none.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use openraft::{
    AsyncRuntime, ServerState,
    async_runtime::{Instant as _, WatchReceiver},
};
use palisade_state::{Published, ReplicaId, Rt, View, roster};

use crate::{
    Tuning,
    fault::chain,
    metrics::Metrics,
    offload::Disk,
    sync_times::SyncTimes,
    types::{LogId, Raft},
};

/// When the disk is measured after the start: serving comes first.
const PROBE_AFTER: Duration = Duration::from_secs(2);
/// The shortest time between two hand-overs because of slow syncs: where all disks are slow, nothing is won.
const SLOW_PAUSE: Duration = Duration::from_secs(300);
/// The shortest time between two attempts while a sync hangs.
const HUNG_PAUSE: Duration = Duration::from_secs(1);
/// A sync that takes so many times the longest election time-out hangs. Slow ones take a second on a busy disk, and
/// writes go on without it: the others make a majority.
const HUNG_ELECTIONS: u32 = 4;

/// The voter that has the most of the log among those that answered lately, are not drained and have everything up to
/// `at_least`; `None` unless this replica leads.
fn successor<R: AsyncRuntime>(
    raft: &Raft<R>,
    view: &View,
    answered: Duration,
    at_least: u64,
) -> Option<u64> {
    let shown = raft.metrics().borrow_watched().clone();
    if shown.state != ServerState::Leader {
        return None;
    }
    let voters: Vec<u64> = shown.membership_config.membership().voter_ids().collect();
    let matched: BTreeMap<u64, _> = shown.replication.unwrap_or_default();
    let acked = shown.heartbeat.unwrap_or_default();
    let answers = |id: &u64| {
        let at = acked.get(id).copied().flatten();
        let is_drained = roster::is_drained(view, ReplicaId(*id));
        !is_drained && at.is_some_and(|at| at.into_inner().elapsed() <= answered)
    };
    let has = |at: &Option<LogId>| at.map_or(0, |at| at.index) >= at_least;
    let best = matched
        .into_iter()
        .filter(|(id, at)| *id != shown.id && voters.contains(id) && answers(id) && has(at))
        .max_by_key(|(id, at)| (at.map(|at| at.index), std::cmp::Reverse(*id)));
    best.map(|(id, _)| id)
}

/// What an operator is told of the disk.
pub(crate) fn warning(times: &SyncTimes, tuning: &Tuning) -> Option<String> {
    let p99 = times.quantiles()?.p99;
    let limit = tuning.heartbeat / 3;
    (p99 > limit).then(|| {
        format!(
            "one in a hundred syncs of the log takes {} ms or more, and a third of the heartbeat is {} ms: put the \
             data directory on a faster disk, or one that it does not share",
            p99.as_millis(),
            limit.as_millis()
        )
    })
}

/// See the module.
pub(crate) struct DiskWatch<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) rt: Rt,
    pub(crate) disk: Disk,
    pub(crate) dir: PathBuf,
    pub(crate) times: Arc<SyncTimes>,
    pub(crate) published: Arc<Published>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tuning: Tuning,
}

impl<R: AsyncRuntime> DiskWatch<R> {
    /// Watches until it is stopped.
    pub(crate) async fn run(self) {
        let begun = self.rt.now();
        // A simulated disk counts its syncs.
        let mut is_probed = !self.disk.real;
        let mut not_before = (Duration::ZERO, Duration::ZERO);
        // Since a sync takes long: the last entry of the log then.
        let mut hanging = None;
        loop {
            self.rt.sleep(self.tuning.heartbeat).await;
            let now = self.rt.now();
            if !is_probed && now >= begun + PROBE_AFTER {
                is_probed = true;
                // By itself: it may hang like any other sync.
                let (times, disk, dir) = (self.times.clone(), self.disk.clone(), self.dir.clone());
                self.rt.spawn("sync-probe", Box::pin(probe(times, disk, dir)));
            }
            let quantiles = self.times.quantiles();
            if let Some(quantiles) = quantiles {
                self.metrics.wal_sync_p99.set(quantiles.p99.as_secs_f64());
            }
            let pending = self.times.pending().unwrap_or_default();
            if pending < self.tuning.election_min {
                hanging = None;
            } else if hanging.is_none() {
                hanging = self.last();
            }
            let Some(last) = hanging else { continue };
            let (hung, slow) = &mut not_before;
            if pending > self.tuning.election_max * HUNG_ELECTIONS {
                if now >= *hung && self.hand_over("a sync of the log hangs", pending, last).await {
                    *hung = now + HUNG_PAUSE;
                }
            } else if let Some(quantiles) = quantiles
                && quantiles.p50 > self.tuning.election_min
                && now >= *slow
                && self.hand_over("syncs of the log are slow", quantiles.p50, last).await
            {
                *slow = now + SLOW_PAUSE;
            }
        }
    }

    /// The last entry of the log, durable here or not.
    fn last(&self) -> Option<u64> {
        self.raft.metrics().borrow_watched().last_log_index
    }

    async fn hand_over(&self, why: &'static str, took: Duration, at_least: u64) -> bool {
        let view = self.published.view();
        let successor = successor(&self.raft, &view, self.tuning.election_max, at_least);
        let Some(to) = successor else { return false };
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(successor = to, why, took_ms, "handing leadership over");
        self.metrics.disk_handovers.inc();
        self.raft.trigger().transfer_leader(to).await.is_ok()
    }
}

/// Measures the disk and says how it was.
async fn probe(times: Arc<SyncTimes>, disk: Disk, dir: PathBuf) {
    let (measured, files) = (times.clone(), disk.files.clone());
    let work = move || measured.probe(files.as_ref(), &dir);
    match disk.run("sync-probe", work).await {
        Ok(Ok(())) => {
            let shown = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            if let Some(quantiles) = times.quantiles() {
                let (p50_us, p99_us) = (shown(quantiles.p50), shown(quantiles.p99));
                tracing::info!(p50_us, p99_us, "the disk was measured");
            }
        }
        Ok(Err(error)) | Err(error) => {
            tracing::warn!(error = chain(&error), "the disk was not measured");
        }
    }
}
