//! What the leader does about its members by itself.
//!
//! A loop that takes no input: each time it looks at all of them, promotes a learner that is ready, gives up one that
//! stalls, finishes a change that an earlier leader left half made, marks those that left, and steps aside when it is
//! drained.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
    time::Duration,
};

use openraft::{AsyncRuntime, ChangeMembers};
use palisade_state::{
    ReplicaId, Tx,
    command::{ForgetReplica, Kind},
    roster::{self, ENROLMENTS, REPLICAS, Standing},
};
use serde_json::json;

use super::{MembershipTuning, Result, health, leader::Members};
use crate::types::Node;

/// How a learner comes along, as this leader has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Learner {
    matched: u64,
    progress_at: Duration,
    ready_since: Option<Duration>,
}

/// What is to be done about a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    Promote,
    GiveUp,
}

impl Learner {
    fn new(matched: u64, now: Duration) -> Self {
        Self { matched, progress_at: now, ready_since: None }
    }

    /// Takes note of how it is now.
    fn look(
        &mut self,
        now: Duration,
        matched: u64,
        ready: bool,
        tuning: &MembershipTuning,
    ) -> Verdict {
        if matched > self.matched || ready {
            self.matched = self.matched.max(matched);
            self.progress_at = now;
        }
        if !ready {
            self.ready_since = None;
            let stalled = now.saturating_sub(self.progress_at) >= tuning.learner_timeout;
            return if stalled { Verdict::GiveUp } else { Verdict::Wait };
        }
        let since = *self.ready_since.get_or_insert(now);
        if now.saturating_sub(since) >= tuning.promote_after {
            Verdict::Promote
        } else {
            Verdict::Wait
        }
    }

    /// How far it is, for people.
    fn phase(&self, now: Duration, lag: u64, tuning: &MembershipTuning) -> String {
        if let Some(since) = self.ready_since {
            let left = tuning.promote_after.saturating_sub(now.saturating_sub(since));
            return format!("caught up, votes in {} s", left.as_secs());
        }
        let idle = now.saturating_sub(self.progress_at);
        if idle < Duration::from_secs(5) {
            return format!("catching up, {lag} entries behind");
        }
        let left = tuning.learner_timeout.saturating_sub(idle);
        format!("no progress for {} s, given up in {} s", idle.as_secs(), left.as_secs())
    }
}

/// Publishes an event about a replica.
pub(crate) fn publish(tx: &mut Tx, kind: &str, id: u64, data: &serde_json::Value) {
    tx.publish(kind, "", format!("replica/{id}"), data);
}

impl<R: AsyncRuntime> Members<R> {
    fn learners(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<u64, Learner>> {
        self.learners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far a learner is with joining.
    pub(crate) fn phase(&self, id: u64) -> Option<String> {
        let members = self.members();
        let learners = self.learners();
        let learner = learners.get(&id)?;
        Some(learner.phase(self.rt.now(), members.lag(id), &self.tuning.membership))
    }

    /// Looks at the members again and again while this replica leads.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            self.rt.sleep(self.tuning.membership.check).await;
            for peer in self.leadership.seen().membership.membership().nodes() {
                self.peers.addresses().record(*peer.0, &peer.1.peer_addr);
            }
            if self.raft.as_leader().is_err() {
                self.learners().clear();
                continue;
            }
            // A change that is being made looks like one that was left half made.
            let Ok(_changing) = self.changing.try_lock() else { continue };
            if let Err(error) = self.look().await {
                tracing::debug!(error = %error, "the members could not be kept in order now");
            }
        }
    }

    async fn look(&self) -> Result<()> {
        let members = self.members();
        if members.joint && members.committed {
            tracing::info!("finishing a change of the members that was left half made");
            self.change(ChangeMembers::AddVoterIds(BTreeSet::new())).await?;
            return Ok(());
        }
        if !members.is_settled() {
            return Ok(());
        }
        self.settle("it left the membership").await?;
        self.note_all_joined(&members).await?;
        self.forget_old_enrolments(&members).await?;
        self.look_at_learners(&members).await?;
        if roster::is_drained(&self.view(), self.identity.replica) {
            let view = self.view();
            let may = |id| !roster::is_drained(&view, ReplicaId(id));
            if members.successor(self.limit(), may).is_some() {
                tracing::info!("this replica is drained and leads: it hands leadership over");
                self.step_aside(&members, may).await?;
            }
        }
        Ok(())
    }

    /// Marks those that are in the membership no more.
    pub(crate) async fn settle(&self, why: &str) -> Result<()> {
        let members = self.members();
        if !members.is_settled() {
            return Ok(());
        }
        let view = self.view();
        let mut left: BTreeSet<u64> = BTreeSet::new();
        for (id, row) in REPLICAS.all(&view)? {
            if row.value.standing == Standing::Member && !members.nodes.contains_key(&id) {
                left.insert(id);
            }
        }
        for id in left {
            self.commit(|tx| {
                let mut row = tx.get(&REPLICAS, &id)?.unwrap_or_default();
                if row.standing == Standing::Member {
                    row = roster::Replica {
                        standing: Standing::Removed,
                        drained: false,
                        why: why.to_owned(),
                    };
                    tx.put(&REPLICAS, &id, &row)?;
                    publish(tx, "replica.removed", id, &json!({ "why": why }));
                }
                Ok(())
            })
            .await?;
            tracing::info!(replica = id, why, "a replica was removed");
            let _ = self
                .proposer
                .propose(Kind::ForgetReplica(ForgetReplica { replica: id }).into())
                .await;
            self.farewell(id, why);
        }
        Ok(())
    }

    /// `MEMBER-5`: writes the row of a member that came with an enrolment, if it has none. A leader that makes it a
    /// learner may be gone, or without room, before it writes that.
    pub(crate) async fn note_joined(&self, id: u64) -> Result<()> {
        let Some((_, enrolment)) = roster::enrolment(&self.view(), ReplicaId(id))? else {
            return Ok(());
        };
        let node = self.members().nodes.get(&id).cloned().unwrap_or_else(|| Node {
            peer_addr: enrolment.peer_addr.clone(),
            api_addr: enrolment.api_addr.clone(),
        });
        let data = json!({ "peerAddr": node.peer_addr, "apiAddr": node.api_addr });
        self.commit(|tx| {
            if tx.get(&REPLICAS, &id)?.is_none() {
                tx.put(&REPLICAS, &id, &roster::Replica::default())?;
                publish(tx, "replica.joining", id, &data);
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    async fn note_all_joined(&self, members: &health::Members) -> Result<()> {
        for id in members.nodes.keys() {
            if REPLICAS.get(&self.view(), id)?.is_none() {
                self.note_joined(*id).await?;
            }
        }
        Ok(())
    }

    async fn forget_old_enrolments(&self, members: &health::Members) -> Result<()> {
        let view = self.view();
        let life = self.tuning.membership.enrolment_life;
        let life = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
        for (_, row) in ENROLMENTS.all(&view)? {
            let id = row.stamp.created_rev;
            let is_old = view.clock().now_ms.saturating_sub(row.value.at_ms) >= life;
            let has_come = members.nodes.contains_key(&id);
            if is_old && !has_come && REPLICAS.get(&view, &id)?.is_none() {
                self.forget_enrolment(id, "nobody came with it").await?;
            }
        }
        Ok(())
    }

    async fn look_at_learners(&self, members: &health::Members) -> Result<()> {
        let (now, tuning) = (self.rt.now(), &self.tuning.membership);
        let mut due = vec![];
        {
            let mut learners = self.learners();
            learners.retain(|id, _| members.learners().any(|learner| learner == *id));
            for id in members.learners() {
                let matched = members.peers.get(&id).map_or(0, |peer| peer.matched);
                let ready = members.answers(id, self.limit())
                    && members.lag(id) <= tuning.promote_lag
                    && matched > 0;
                let learner = learners.entry(id).or_insert_with(|| Learner::new(matched, now));
                let verdict = learner.look(now, matched, ready, tuning);
                if verdict != Verdict::Wait {
                    due.push((id, verdict));
                }
            }
        }
        for (id, verdict) in due {
            match verdict {
                Verdict::GiveUp => self.give_up(id).await?,
                Verdict::Promote => self.promote(members, id).await?,
                Verdict::Wait => {}
            }
        }
        Ok(())
    }

    async fn give_up(&self, id: u64) -> Result<()> {
        let seconds = self.tuning.membership.learner_timeout.as_secs();
        let why = format!("it made no progress for {seconds} s while it joined");
        tracing::warn!(replica = id, why, "a learner is given up");
        self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await?;
        self.tell("replica.stalled", id, json!({ "why": why })).await;
        self.settle(&why).await
    }

    async fn promote(&self, members: &health::Members, id: u64) -> Result<()> {
        let enrolment = roster::enrolment(&self.view(), ReplicaId(id))?;
        let replaces = enrolment.and_then(|(_, row)| row.replaces);
        let leaves = replaces.filter(|old| members.voters.contains(old));
        let mut after = members.voters.clone();
        after.insert(id);
        if let Some(old) = leaves {
            after.remove(&old);
        }
        if members.risk(&after, self.limit()).is_some() {
            tracing::debug!(replica = id, "a learner is ready and too few voters answer");
            return Ok(());
        }
        if leaves == Some(self.me()) {
            // The next leader promotes it, and removes this one.
            return self.step_aside(members, |_| true).await;
        }
        let add = ChangeMembers::AddVoterIds(BTreeSet::from([id]));
        let change = match leaves {
            None => add,
            Some(old) => {
                self.commit(|tx| {
                    let row = tx.get(&REPLICAS, &old)?.unwrap_or_default();
                    Ok(tx.put(&REPLICAS, &old, &row)?)
                })
                .await?;
                let remove = ChangeMembers::RemoveVoters(BTreeSet::from([old]));
                ChangeMembers::Batch(vec![add, remove])
            }
        };
        self.change(change).await?;
        self.learners().remove(&id);
        tracing::info!(replica = id, replaces, "a learner votes now");
        self.tell("replica.promoted", id, json!({ "replaces": leaves })).await;
        self.settle(&format!("replica {id} took its place")).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning() -> MembershipTuning {
        MembershipTuning {
            promote_after: Duration::from_secs(10),
            learner_timeout: Duration::from_secs(600),
            ..MembershipTuning::default()
        }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_learner_votes_after_ten_healthy_seconds_in_a_row() {
        let mut learner = Learner::new(0, at(0));
        assert_eq!(learner.look(at(1), 5, false, &tuning()), Verdict::Wait);
        assert_eq!(learner.look(at(2), 9, true, &tuning()), Verdict::Wait);
        assert_eq!(learner.look(at(11), 9, true, &tuning()), Verdict::Wait);
        assert_eq!(learner.look(at(12), 9, false, &tuning()), Verdict::Wait, "it stumbled");
        assert_eq!(learner.look(at(13), 9, true, &tuning()), Verdict::Wait);
        assert_eq!(learner.look(at(22), 9, true, &tuning()), Verdict::Wait);
        assert_eq!(learner.look(at(23), 9, true, &tuning()), Verdict::Promote);
    }

    #[test]
    fn a_learner_that_makes_no_progress_is_given_up() {
        let mut learner = Learner::new(0, at(0));
        assert_eq!(learner.look(at(599), 1, false, &tuning()), Verdict::Wait, "it moved");
        assert_eq!(learner.look(at(1198), 1, false, &tuning()), Verdict::Wait);
        assert_eq!(learner.look(at(1199), 1, false, &tuning()), Verdict::GiveUp);
    }

    #[test]
    fn people_are_told_how_far_a_learner_is() {
        let mut learner = Learner::new(0, at(0));
        learner.look(at(1), 5, false, &tuning());
        assert_eq!(learner.phase(at(2), 70, &tuning()), "catching up, 70 entries behind");
        assert_eq!(learner.phase(at(31), 70, &tuning()), "no progress for 30 s, given up in 570 s");
        learner.look(at(40), 75, true, &tuning());
        assert_eq!(learner.phase(at(43), 0, &tuning()), "caught up, votes in 7 s");
    }
}
