//! A leader whose disk hangs or has become slow hands over; a replica whose disk is slow says so.
//!
//! # Invariants
//! - `DISK-1` Because of its disk a leader hands over only to a voter that has meanwhile made entries durable that the
//!   leader has not: where all disks stall, nothing is won and nobody leads in another term.

use std::{path::PathBuf, sync::Arc, time::Duration};

use openraft::AsyncRuntime;
use palisade_state::{Published, ReplicaId, Rt, roster};

use crate::{
    Tuning,
    fault::chain,
    handover::{leading, take_back},
    membership::health::Members,
    metrics::Metrics,
    offload::Disk,
    rivals::Rivals,
    sync_times::SyncTimes,
    types::Raft,
};

/// When the disk is measured after the start: serving comes first.
const PROBE_AFTER: Duration = Duration::from_secs(2);
/// The shortest time between two hand-overs because of slow syncs.
const SLOW_PAUSE: Duration = Duration::from_secs(300);
/// How long a replica leads before it hands over because of slow syncs; and how old a sync may be that counts.
const SLOW_WINDOW: Duration = Duration::from_secs(60);
/// Slow syncs that count as a slow disk; fewer are a hiccup.
const SLOW_ENOUGH: usize = 5;
/// The shortest time between two attempts while a sync hangs.
const HUNG_PAUSE: Duration = Duration::from_secs(1);

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

/// What is remembered from one look to the next while this replica leads in one term.
struct Watching {
    term: u64,
    since: Duration,
    rivals: Rivals,
    /// The last hand-over, and to whom, if nobody has taken it.
    handed: Option<(Duration, u64)>,
}

impl<R: AsyncRuntime> DiskWatch<R> {
    /// Watches until it is stopped.
    pub(crate) async fn run(self) {
        let begun = self.rt.now();
        // A simulated disk counts its syncs.
        let mut is_probed = !self.disk.real;
        let mut watching: Option<Watching> = None;
        let mut slow_not_before = Duration::ZERO;
        loop {
            self.rt.sleep(self.tuning.heartbeat).await;
            let now = self.rt.now();
            if !is_probed && now >= begun + PROBE_AFTER {
                is_probed = true;
                self.probe().await;
            }
            if let Some(quantiles) = self.times.quantiles() {
                self.metrics.wal_sync_p99.set(quantiles.p99.as_secs_f64());
            }
            let Some((term, members)) = leading(&self.raft) else {
                watching = None;
                continue;
            };
            let mut held = watching.take().filter(|held| held.term == term).unwrap_or(Watching {
                term,
                since: now,
                rivals: Rivals::default(),
                handed: None,
            });
            self.look(&mut held, &members, now, &mut slow_not_before).await;
            watching = Some(held);
        }
    }

    /// One look while this replica leads.
    async fn look(
        &self,
        held: &mut Watching,
        members: &Members,
        now: Duration,
        slow_not_before: &mut Duration,
    ) {
        let pending = self.times.pending();
        if pending.is_some_and(|took| took > self.tuning.heartbeat) {
            held.rivals.look(members);
        }
        let hangs = pending.filter(|took| *took > self.tuning.election_min * 2);
        if let Some((at, to)) = held.handed
            && hangs.is_none()
            && now.saturating_sub(at) >= self.tuning.handover
        {
            held.handed = None;
            take_back(&self.raft, to).await;
            return;
        }
        if let Some(took) = hangs {
            let is_due = held.handed.is_none_or(|(at, _)| now >= at + HUNG_PAUSE);
            let to = held.rivals.ahead(members, |id| self.fits(members, id));
            if let Some(to) = to.filter(|_| is_due) {
                self.hand_over(held, now, to, "a sync of the log hangs", took).await;
            }
            return;
        }
        let slow = self.times.slow(self.tuning.election_min, SLOW_WINDOW);
        let is_due = now >= held.since + SLOW_WINDOW && now >= *slow_not_before;
        if slow.is_some_and(|slow| slow >= SLOW_ENOUGH) && is_due && held.handed.is_none() {
            let to = held.rivals.faster(members, |id| self.fits(members, id));
            if let Some(to) = to {
                *slow_not_before = now + SLOW_PAUSE;
                let took = self.tuning.election_min;
                self.hand_over(held, now, to, "syncs of the log are slow", took).await;
            }
        }
    }

    /// Whether a voter may lead: it answers, and is not drained.
    fn fits(&self, members: &Members, id: u64) -> bool {
        let view = self.published.view();
        members.answers(id, self.tuning.election_max) && !roster::is_drained(&view, ReplicaId(id))
    }

    async fn probe(&self) {
        let (times, files, dir) = (self.times.clone(), self.disk.files.clone(), self.dir.clone());
        let work = move || times.probe(files.as_ref(), &dir);
        match self.disk.run("sync-probe", work).await {
            Ok(Ok(())) => {
                let shown = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                if let Some(quantiles) = self.times.quantiles() {
                    let (p50_us, p99_us) = (shown(quantiles.p50), shown(quantiles.p99));
                    tracing::info!(p50_us, p99_us, "the disk was measured");
                }
            }
            Ok(Err(error)) | Err(error) => {
                tracing::warn!(error = chain(&error), "the disk was not measured");
            }
        }
    }

    async fn hand_over(
        &self,
        held: &mut Watching,
        now: Duration,
        to: u64,
        why: &'static str,
        took: Duration,
    ) {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(successor = to, why, took_ms, "handing leadership over");
        self.metrics.disk_handovers.inc();
        held.handed = Some((now, to));
        if self.raft.trigger().transfer_leader(to).await.is_err() {
            tracing::debug!("consensus has stopped");
        }
    }
}
