//! Who leads, as this replica sees it, and who waits for a change.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::{AsyncRuntime, ServerState, async_runtime::WatchReceiver};
use palisade_state::Published;
use tokio::sync::Notify;

use crate::{
    forward::Forwarder,
    machine::Shared,
    replica::End,
    runtime::trace,
    stop::Stop,
    types::{Node, Raft, StoredMembership},
};

/// One moment's knowledge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) term: u64,
    pub(crate) leader: Option<u64>,
    /// When this leader, or that there is none, was first seen, on this process's monotonic clock.
    pub(crate) since: Duration,
    pub(crate) membership: Arc<StoredMembership>,
}

impl Seen {
    /// Where a member is reached.
    pub(crate) fn node(&self, id: u64) -> Option<&Node> {
        self.membership.membership().get_node(&id)
    }
}

/// Who leads.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    seen: Mutex<Seen>,
    changed: Notify,
}

/// A leader and its own term. What is shown as the vote is durable, and the leader need not be yet: while its vote is on
/// the way to the disk, or cannot get there, it is another's. `whole` is what belongs together, and can be older.
fn pair(vote: (u64, u64), leader: Option<u64>, whole: (u64, Option<u64>)) -> (u64, Option<u64>) {
    if whole.1 == leader && whole.0 >= vote.0 {
        (whole.0, leader)
    } else {
        (vote.0, leader.filter(|leader| *leader == vote.1))
    }
}

/// Who leads, of what `me` shows: whoever its vote is for, which is itself for ever when it led the term in which it was
/// removed, and starts again. It follows nobody then, and has to ask.
fn leading(shown: Option<u64>, me: u64, state: ServerState) -> Option<u64> {
    shown.filter(|leader| *leader != me || state == ServerState::Leader)
}

impl Leadership {
    fn held(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seen(&self) -> Seen {
        self.held().clone()
    }

    pub(crate) fn leader(&self) -> Option<u64> {
        self.held().leader
    }

    /// Waits until the leader or its term is another than in `from`.
    pub(crate) async fn changed_from(&self, from: &Seen) {
        loop {
            let changed = self.changed.notified();
            {
                let now = self.held();
                if now.leader != from.leader || now.term != from.term {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Waits until a replica other than `me` leads.
    pub(crate) async fn taken_by_other(&self, me: u64) {
        loop {
            let seen = self.seen();
            if seen.leader.is_some_and(|leader| leader != me) {
                return;
            }
            self.changed_from(&seen).await;
        }
    }

    /// Since when `me` was seen to lead in `term`; `None` while that is not seen.
    pub(crate) fn led_since(&self, me: u64, term: u64) -> Option<Duration> {
        let held = self.held();
        (held.leader == Some(me) && held.term == term).then_some(held.since)
    }

    /// Takes over what `raft` shows; true when the leader is another one.
    fn refresh<R: AsyncRuntime>(&self, raft: &Raft<R>, now: Duration) -> bool {
        let (vote, leader, membership) = {
            let server = raft.server_metrics();
            let shown = server.borrow_watched();
            let vote = (shown.vote.leader_id.term, shown.vote.leader_id.voted_for);
            let leader = leading(shown.current_leader, shown.id, shown.state);
            (vote, leader, shown.membership_config.clone())
        };
        let whole = {
            let metrics = raft.metrics();
            let shown = metrics.borrow_watched();
            (shown.current_term, leading(shown.current_leader, shown.id, shown.state))
        };
        let (term, leader) = pair(vote, leader, whole);
        let shown = Seen { term, leader, since: now, membership };
        self.take(shown)
    }

    fn take(&self, mut shown: Seen) -> bool {
        let mut held = self.held();
        let is_other = held.leader != shown.leader || held.term != shown.term;
        if !is_other {
            shown.since = held.since;
        }
        *held = shown;
        drop(held);
        if is_other {
            self.changed.notify_waiters();
        }
        is_other
    }
}

/// Follows consensus until it stops.
pub(crate) struct Follower<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) published: Arc<Published>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) end: Arc<Mutex<End>>,
}

impl<R: AsyncRuntime> Follower<R> {
    /// Tells of each new leader; at the end says why, if it was not asked for.
    pub(crate) async fn run(self) {
        let mut watched = self.raft.server_metrics();
        loop {
            if self.leadership.refresh(&self.raft, self.shared.rt.now()) {
                self.tell();
            }
            if watched.changed().await.is_err() {
                break;
            }
        }
        let running = self.raft.metrics().borrow_watched().running_state.clone();
        if !self.stop.is_set() {
            let why =
                running.err().map_or_else(|| "it ended".to_owned(), |fatal| fatal.to_string());
            self.shared.fault.raise(format!("consensus stopped: {why}"));
        }
        self.shared.progress.close();
        self.published.close();
        // A port that refuses tells the others at once.
        self.end.lock().unwrap_or_else(PoisonError::into_inner).serving = None;
    }

    fn tell(&self) {
        let seen = self.leadership.seen();
        tracing::info!(leader = seen.leader, term = seen.term, "the leader changed");
        self.shared.rt.trace(&[trace::LEADER, seen.term, seen.leader.unwrap_or(0)]);
        if seen.leader.is_some() {
            self.shared.metrics.leader_changes.inc();
        }
        self.forwarder.leader_changed(seen.leader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_never_shown_with_the_term_of_another() {
        // Its own vote is durable, or is all that is known.
        assert_eq!(pair((2, 1), Some(1), (2, Some(1))), (2, Some(1)));
        assert_eq!(pair((2, 1), Some(1), (1, Some(3))), (2, Some(1)));
        // It leads term 3, and the vote for it is not durable yet.
        assert_eq!(pair((2, 1), Some(5), (3, Some(5))), (3, Some(5)));
        assert_eq!(pair((2, 1), Some(5), (2, Some(1))), (2, None));
        assert_eq!(pair((2, 1), None, (3, None)), (3, None));
        // What belongs together is of an earlier term, and a newer vote for another is durable: no leader of it is known.
        assert_eq!(pair((4, 2), Some(1), (3, Some(1))), (4, None));
    }

    /// Seed 0.1.0-5:9056 of the simulator: one that had led when it was removed took itself for the leader after each
    /// start, and so never asked whether it still belonged.
    #[test]
    fn who_does_not_lead_is_not_its_own_leader() {
        assert_eq!(leading(Some(1), 1, ServerState::Leader), Some(1));
        assert_eq!(leading(Some(1), 1, ServerState::Learner), None);
        assert_eq!(leading(Some(2), 1, ServerState::Learner), Some(2));
        assert_eq!(leading(None, 1, ServerState::Candidate), None);
    }

    #[test]
    fn leadership_dates_from_when_it_was_first_seen_in_its_term() {
        let leadership = Leadership::default();
        let at = Duration::from_secs;
        let seen = |term, leader, since| Seen { term, leader, since, ..Seen::default() };
        assert!(leadership.take(seen(3, Some(1), at(10))));
        assert!(!leadership.take(seen(3, Some(1), at(20))), "only the membership is another");
        assert_eq!(leadership.led_since(1, 3), Some(at(10)));
        assert_eq!(leadership.led_since(2, 3), None);
        assert!(leadership.take(seen(4, Some(1), at(30))));
        assert_eq!((leadership.led_since(1, 3), leadership.led_since(1, 4)), (None, Some(at(30))));
    }
}
