//! Finding out early that the leader is gone.
//!
//! openraft's own timers wait for the leader's lease and then for an election time-out: 1.5 to 2 s. Two detectors are
//! faster: the port of the leader refuses (its process is gone), or nothing came from it for a while. Either way this
//! follower drops its lease for *exactly that leader's vote* and stands for election with a pre-vote. After a start there
//! is no lease to drop: a replica that hears of no leader stands at once, so that a cluster that was down is back as soon
//! as two replicas have read their data.
//!
//! # Invariants
//! - `FAIL-1` A false alarm costs nothing but messages: a pre-vote needs a second follower that lost the leader too.
//!   Reads never rely on leases, which the alarm would shorten.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use openraft::{
    AsyncRuntime, RaftMetrics, ServerState, async_runtime::WatchReceiver,
    raft::TransferLeaderRequest,
};
use palisade_state::{Rt, port::jittered};
use tokio::sync::mpsc;

use crate::{
    addresses::Addresses,
    metrics::{Cause, CauseLabel, Metrics},
    options::Tuning,
    peer::{Probe, Transport},
    types::{Raft, TypeConfig, Vote},
};

const PROBES: u32 = 15;
const PROBE_EVERY: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A process that was itself late by this much knows nothing of the leader's silence.
const LATE: Duration = Duration::from_millis(100);
const SILENCE_GRACE: Duration = Duration::from_millis(40);
const RANK_STEP: Duration = Duration::from_millis(80);
const TRIES: u32 = 10;
/// How long a replica that was started waits for word from a leader before it stands for election.
const START_GRACE: Duration = Duration::from_millis(60);
/// Attempts after a start: the others may be reading their data for seconds.
const START_TRIES: u32 = 100;

/// What was heard of the leader, and when.
pub(crate) struct Detector {
    rt: Rt,
    heard_us: AtomicU64,
    /// How often a leader was heard.
    words: AtomicU64,
    term: AtomicU64,
    ended: mpsc::UnboundedSender<u64>,
    campaigning: AtomicBool,
}

/// Word from the leader over one append stream.
pub(crate) struct Word {
    detector: Arc<Detector>,
    leader: Option<u64>,
}

impl Word {
    pub(crate) fn heard(&mut self, vote: &Vote) {
        self.leader = Some(vote.leader_id.voted_for);
        self.detector.heard(vote);
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            let _ = self.detector.ended.send(leader);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Detector {
    /// A detector, and where it tells of streams that ended.
    pub(crate) fn new(rt: Rt) -> (Arc<Self>, mpsc::UnboundedReceiver<u64>) {
        let (ended, streams) = mpsc::unbounded_channel();
        let detector = Self {
            heard_us: AtomicU64::new(micros(rt.now())),
            words: AtomicU64::new(0),
            term: AtomicU64::new(0),
            rt,
            ended,
            campaigning: AtomicBool::new(false),
        };
        (Arc::new(detector), streams)
    }

    /// Word from a leader; one of an older term is no word from *the* leader.
    pub(crate) fn heard(&self, vote: &Vote) {
        let term = vote.leader_id.term;
        if vote.committed && self.term.fetch_max(term, Ordering::Relaxed) <= term {
            self.words.fetch_add(1, Ordering::Relaxed);
            self.touch();
        }
    }

    /// How many words were heard so far.
    pub(crate) fn words(&self) -> u64 {
        self.words.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        self.heard_us.store(micros(self.rt.now()), Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        let heard = Duration::from_micros(self.heard_us.load(Ordering::Relaxed));
        self.rt.now().saturating_sub(heard)
    }

    /// Follows one append stream; its end is told when the word is dropped.
    pub(crate) fn stream(self: &Arc<Self>) -> Word {
        Word { detector: self.clone(), leader: None }
    }
}

/// What the two detectors work with.
pub(crate) struct Watchdog<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) detector: Arc<Detector>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tuning: Tuning,
    pub(crate) me: u64,
}

impl<R: AsyncRuntime> Clone for Watchdog<R> {
    fn clone(&self) -> Self {
        Self {
            raft: self.raft.clone(),
            detector: self.detector.clone(),
            transport: self.transport.clone(),
            addresses: self.addresses.clone(),
            metrics: self.metrics.clone(),
            tuning: self.tuning.clone(),
            me: self.me,
        }
    }
}

/// A follower's view of a leader that may be gone.
struct Suspect {
    vote: Vote,
    leader: u64,
    rank: u32,
}

/// Who would be suspected: the leader, if this replica follows it and votes.
fn suspect<R: AsyncRuntime>(shown: &RaftMetrics<TypeConfig<R>>, me: u64) -> Option<Suspect> {
    let leader = shown.current_leader.filter(|leader| *leader != me)?;
    if shown.state != ServerState::Follower {
        return None;
    }
    let membership = shown.membership_config.membership();
    let mut others: Vec<u64> = membership.voter_ids().filter(|id| *id != leader).collect();
    others.sort_unstable();
    let rank = others.iter().position(|id| *id == me)?;
    Some(Suspect { vote: shown.vote, leader, rank: u32::try_from(rank).unwrap_or(u32::MAX) })
}

/// Whose streams have ended by now: one that is looked at may be an older leader's.
fn all_ended(first: u64, ended: &mut mpsc::UnboundedReceiver<u64>) -> BTreeSet<u64> {
    std::iter::once(first).chain(std::iter::from_fn(|| ended.try_recv().ok())).collect()
}

impl<R: AsyncRuntime> Watchdog<R> {
    fn rt(&self) -> &Rt {
        &self.detector.rt
    }

    fn suspect(&self) -> Option<Suspect> {
        suspect::<R>(&self.raft.metrics().borrow_watched(), self.me)
    }

    /// Looks at the leader's port whenever its append stream ends.
    pub(crate) async fn watch_streams(self, mut ended: mpsc::UnboundedReceiver<u64>) {
        while let Some(leader) = ended.recv().await {
            let gone = all_ended(leader, &mut ended);
            if !self.tuning.refused_means_gone {
                continue;
            }
            let Some(suspect) = self.suspect().filter(|suspect| gone.contains(&suspect.leader))
            else {
                continue;
            };
            let is_gone = self.refuses(&self.addresses.last_good(suspect.leader)).await;
            // A leader that handed over and stopped is not missed.
            let is_current = self.suspect().is_some_and(|now| now.vote == suspect.vote);
            if is_gone && is_current {
                self.campaign(suspect, Cause::Refused, Duration::ZERO).await;
            }
        }
    }

    /// A dying process closes its streams before its listener, so one look is not enough.
    async fn refuses(&self, addr: &str) -> bool {
        for _ in 0..PROBES {
            if self.transport.probe(addr).await == Probe::Refused {
                return true;
            }
            self.rt().sleep(PROBE_EVERY).await;
        }
        false
    }

    /// Watches the time since the last word.
    pub(crate) async fn watch_silence(self) {
        let Some(limit) = self.tuning.silence else {
            return;
        };
        let mut due = self.rt().now() + LOOK_EVERY;
        loop {
            self.rt().sleep(LOOK_EVERY).await;
            let now = self.rt().now();
            let late = now.saturating_sub(due);
            due = now + LOOK_EVERY;
            if late > LATE {
                self.detector.touch();
                continue;
            }
            if self.detector.silent_for() < limit {
                continue;
            }
            if let Some(suspect) = self.suspect() {
                self.campaign(suspect, Cause::Silence, SILENCE_GRACE).await;
            }
            self.detector.touch();
        }
    }

    /// The rank of this replica among the voters, if it is one of several of a cluster that was formed.
    fn rank(&self) -> Option<u32> {
        let metrics = self.raft.metrics();
        let shown = metrics.borrow_watched();
        let mut voters: Vec<u64> = shown.membership_config.membership().voter_ids().collect();
        voters.sort_unstable();
        let rank = voters.iter().position(|id| *id == self.me).filter(|_| voters.len() > 1)?;
        u32::try_from(rank).ok()
    }

    /// Whether this replica leads, or has heard who does.
    fn knows_leader(&self) -> bool {
        self.detector.words.load(Ordering::Relaxed) > 0
            || self.raft.metrics().borrow_watched().state == ServerState::Leader
    }

    /// Stands for election after a start, until a leader is heard of. The others refuse while they hear one.
    pub(crate) async fn stand_after_start(self) {
        if self.tuning.silence.is_none() {
            return;
        }
        let Some(rank) = self.rank() else { return };
        self.rt().sleep(START_GRACE + RANK_STEP * rank).await;
        if self.knows_leader() {
            return;
        }
        self.metrics.elections.get_or_create(&CauseLabel { cause: Cause::Start }).inc();
        tracing::info!(rank, "no leader was heard of since the start: standing for election");
        for _ in 0..START_TRIES {
            if self.knows_leader() || self.raft.trigger().elect(true).await.is_err() {
                return;
            }
            // Not in step with the others.
            self.rt().sleep(jittered(self.rt().as_ref(), RANK_STEP)).await;
        }
    }

    async fn campaign(&self, suspect: Suspect, cause: Cause, grace: Duration) {
        if self.detector.campaigning.swap(true, Ordering::SeqCst) {
            return;
        }
        self.metrics.elections.get_or_create(&CauseLabel { cause }).inc();
        let (leader, term, rank) = (suspect.leader, suspect.vote.leader_id.term, suspect.rank);
        tracing::warn!(leader, term, ?cause, rank, "the leader seems gone: standing for election");
        let begun = self.rt().now();
        // Addressed to another replica, it only ends the lease of this very vote here.
        let drop_lease = TransferLeaderRequest::new(suspect.vote, leader, None);
        let dropped = self.raft.handle_transfer_leader(drop_lease).await;
        if !matches!(dropped, Ok(Ok(()))) {
            tracing::debug!("the leader's lease was not dropped");
        }
        self.rt().sleep(grace + RANK_STEP * rank).await;
        for _ in 0..TRIES {
            let heard_since = self.rt().now().saturating_sub(begun) > self.detector.silent_for();
            let moved_on = self.raft.metrics().borrow_watched().vote != suspect.vote;
            if heard_since || moved_on || self.raft.trigger().elect(true).await.is_err() {
                break;
            }
            self.rt().sleep(LOOK_EVERY).await;
        }
        self.detector.campaigning.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_newer_leaders_stream_is_not_lost_behind_an_older_ones() {
        let (ended, mut streams) = mpsc::unbounded_channel();
        for leader in [2, 3] {
            ended.send(leader).unwrap();
        }
        assert_eq!(all_ended(1, &mut streams), BTreeSet::from([1, 2, 3]));
        assert_eq!(all_ended(4, &mut streams), BTreeSet::from([4]));
    }
}
