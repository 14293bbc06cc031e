//! How the ways to the peers are: pauses between attempts that fail, and one line for each change.
//!
//! # Invariants
//! - `LINK-1` An attempt to replicate that follows a failed one waits, longer each time; a reply ends the waiting.
//!   Votes never wait.
//! - `LINK-2` However often a peer fails, it is logged when it goes and when it is back, and not in between.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use palisade_state::{Rt, port::jittered};

use crate::{fault::chain, metrics::Metrics, peer::PeerError};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Heartbeats in a row without an answer after which a peer counts as gone: a second's worth.
const MISSED_MAX: u32 = 10;
/// Append streams in a row that failed after which a peer that can be reached counts as stuck.
const BROKEN_MAX: u32 = 4;

/// The pauses of one append stream.
#[derive(Default)]
pub(crate) struct Pace(AtomicU32);

impl Pace {
    /// How long the next attempt waits; `None` after a reply.
    pub(crate) fn pause(&self, rt: &Rt) -> Option<Duration> {
        let doublings = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        let base = PAUSE_MIN.saturating_mul(1 << doublings.min(8)).min(PAUSE_MAX);
        Some(jittered(rt.as_ref(), base).min(PAUSE_MAX))
    }

    pub(crate) fn failed(&self) {
        // Relaxed suffices: one session of a stream runs at a time.
        self.0.store(self.0.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    pub(crate) fn replied(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Which of a peer's two ways an attempt took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Append,
    Heartbeat,
}

#[derive(Default)]
struct State {
    /// Ways that cannot be taken, and since when the first of them.
    append_cut: bool,
    heartbeat_cut: bool,
    gone_at: Option<Duration>,
    missed: u32,
    broken: u32,
    stuck_at: Option<Duration>,
    /// What the peer has confirmed to this replica as the leader of a term.
    confirmed: Option<(u64, u64)>,
}

/// What is known of one peer.
pub(crate) struct Link {
    peer: u64,
    rt: Rt,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed_ms(&self, since: Duration) -> u64 {
        u64::try_from(self.rt.now().saturating_sub(since).as_millis()).unwrap_or(u64::MAX)
    }

    fn cut(&self, state: &mut State, way: Way, why: &str) {
        match way {
            Way::Append => state.append_cut = true,
            Way::Heartbeat => state.heartbeat_cut = true,
        }
        if state.gone_at.is_none() {
            state.gone_at = Some(self.rt.now());
            self.metrics.peers_lost.inc();
            tracing::warn!(peer = self.peer, why, "a peer cannot be reached");
        }
    }

    fn back(&self, state: &mut State, way: Way) {
        match way {
            Way::Append => state.append_cut = false,
            Way::Heartbeat => (state.heartbeat_cut, state.missed) = (false, 0),
        }
        if !state.append_cut
            && !state.heartbeat_cut
            && let Some(since) = state.gone_at.take()
        {
            let away_ms = self.passed_ms(since);
            tracing::info!(peer = self.peer, away_ms, "a peer can be reached again");
        }
    }

    /// The peer has all log entries up to `index`, and says so to the leader of `term`.
    pub(crate) fn confirmed(&self, term: u64, index: u64) {
        let mut state = self.state();
        let before = state.confirmed.filter(|(of, _)| *of == term);
        state.confirmed = Some((term, before.map_or(index, |(_, had)| had.max(index))));
    }

    /// The last log entry that the peer has confirmed to the leader of `term`.
    pub(crate) fn had(&self, term: u64) -> Option<u64> {
        self.state().confirmed.filter(|(of, _)| *of == term).map(|(_, had)| had)
    }

    /// The peer let this replica in.
    pub(crate) fn opened(&self, way: Way) {
        self.back(&mut self.state(), way);
    }

    /// The peer took log entries.
    pub(crate) fn took_entries(&self) {
        let mut state = self.state();
        self.back(&mut state, Way::Append);
        state.broken = 0;
        if let Some(since) = state.stuck_at.take() {
            let stuck_ms = self.passed_ms(since);
            tracing::info!(peer = self.peer, stuck_ms, "a peer takes log entries again");
        }
    }

    /// An attempt failed.
    pub(crate) fn failed(&self, way: Way, error: &PeerError) {
        let mut state = self.state();
        match (error, way) {
            (
                PeerError::Unreachable(_)
                | PeerError::Refused(_)
                | PeerError::Removed(_)
                | PeerError::Lost { .. },
                _,
            ) => {
                self.cut(&mut state, way, &chain(error));
            }
            (PeerError::Failed(_) | PeerError::Waits(_), Way::Heartbeat) => {
                self.missed(&mut state, &chain(error))
            }
            (PeerError::Failed(_) | PeerError::Waits(_), Way::Append) => {
                state.broken = state.broken.saturating_add(1);
                if state.broken >= BROKEN_MAX && state.stuck_at.is_none() {
                    state.stuck_at = Some(self.rt.now());
                    let why = chain(error);
                    tracing::warn!(peer = self.peer, why, "a peer takes no log entries");
                }
            }
        }
    }

    fn missed(&self, state: &mut State, why: &str) {
        state.missed = state.missed.saturating_add(1);
        if state.missed >= MISSED_MAX {
            self.cut(state, Way::Heartbeat, why);
        }
    }

    /// A heartbeat that is on its way; dropped before it ends, it is a missed one.
    pub(crate) fn heartbeat(self: &Arc<Self>) -> Beat {
        Beat { link: self.clone(), is_over: false }
    }
}

/// One heartbeat.
pub(crate) struct Beat {
    link: Arc<Link>,
    is_over: bool,
}

impl Beat {
    pub(crate) fn ended<T>(mut self, result: &Result<T, PeerError>) {
        self.is_over = true;
        match result {
            Ok(_) => self.link.opened(Way::Heartbeat),
            Err(error) => self.link.failed(Way::Heartbeat, error),
        }
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        if !self.is_over {
            self.link.missed(&mut self.link.state(), "it does not answer");
        }
    }
}

/// The links to all peers, one each.
pub(crate) struct Links {
    rt: Rt,
    metrics: Arc<Metrics>,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
}

impl Links {
    pub(crate) fn new(rt: Rt, metrics: Arc<Metrics>) -> Self {
        Self { rt, metrics, links: Mutex::default() }
    }

    pub(crate) fn get(&self, peer: u64) -> Arc<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.entry(peer).or_insert_with(|| {
            let (rt, metrics) = (self.rt.clone(), self.metrics.clone());
            Arc::new(Link { peer, rt, metrics, state: Mutex::default() })
        });
        link.clone()
    }
}
