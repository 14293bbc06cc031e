//! The members as the leader sees them at one moment, and what a change of them would mean.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use openraft::{AsyncRuntime, async_runtime::Instant};

use crate::types::{Node, TypeConfig};

/// What the leader knows of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The last index that it acknowledged.
    pub(crate) matched: u64,
    /// Since when it has said nothing; `None`: it never answered this leader.
    pub(crate) silent: Option<Duration>,
}

/// One moment's knowledge of all members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    pub(crate) me: u64,
    pub(crate) last: u64,
    pub(crate) voters: BTreeSet<u64>,
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) peers: BTreeMap<u64, Peer>,
    /// A change is half made.
    pub(crate) joint: bool,
    /// The membership is committed.
    pub(crate) committed: bool,
}

/// What it means to be the only voter.
pub(crate) const ALONE: &str = "while it is down nothing can be read or written, and when its disk is lost everything \
                                since the last backup is lost";

pub(crate) fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

impl Members {
    pub(crate) fn of<R: AsyncRuntime>(shown: &openraft::RaftMetrics<TypeConfig<R>>) -> Self {
        let membership = shown.membership_config.membership();
        let matched = shown.replication.clone().unwrap_or_default();
        let acked = shown.heartbeat.clone().unwrap_or_default();
        let peer = |id: &u64| Peer {
            matched: matched.get(id).copied().flatten().map_or(0, |at| at.index),
            silent: acked.get(id).copied().flatten().map(|at| at.into_inner().elapsed()),
        };
        let at = shown.membership_config.log_id().as_ref().map(|id| id.index);
        Self {
            me: shown.id,
            last: shown.last_log_index.unwrap_or(0),
            voters: membership.voter_ids().collect(),
            nodes: membership.nodes().map(|(id, node)| (*id, node.clone())).collect(),
            peers: membership.nodes().map(|(id, _)| (*id, peer(id))).collect(),
            joint: membership.get_joint_config().len() > 1,
            committed: at <= shown.local_committed.as_ref().map(|id| id.index),
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.committed && !self.joint
    }

    pub(crate) fn learners(&self) -> impl Iterator<Item = u64> + '_ {
        self.nodes.keys().copied().filter(|id| !self.voters.contains(id))
    }

    pub(crate) fn lag(&self, id: u64) -> u64 {
        if id == self.me {
            return 0;
        }
        let matched = self.peers.get(&id).map_or(0, |peer| peer.matched);
        self.last.saturating_sub(matched)
    }

    /// Whether a member answered within `limit`.
    pub(crate) fn answers(&self, id: u64, limit: Duration) -> bool {
        let silent = self.peers.get(&id).and_then(|peer| peer.silent);
        id == self.me || silent.is_some_and(|silent| silent <= limit)
    }

    /// What making these the voters would put at risk, in a sentence.
    pub(crate) fn risk(&self, after: &BTreeSet<u64>, limit: Duration) -> Option<String> {
        let needed = majority(after.len());
        let answering = after.iter().filter(|id| self.answers(**id, limit)).count();
        if answering < needed {
            let away: Vec<String> =
                after.iter().filter(|id| !self.answers(**id, limit)).map(u64::to_string).collect();
            return Some(format!(
                "of the {} voters that remain only {answering} would answer and {needed} must (replica {} does not): \
                 nothing can be written, and the change itself cannot end, until more of them are back",
                after.len(),
                away.join(", ")
            ));
        }
        if after.len() == 1 && self.voters.len() > 1 {
            return Some(format!("one voter would remain: {ALONE}"));
        }
        None
    }

    /// Who is best to lead among those whom `may` allows: answers, and is least behind.
    pub(crate) fn successor(&self, limit: Duration, may: impl Fn(u64) -> bool) -> Option<u64> {
        let fits = |id: &&u64| **id != self.me && self.answers(**id, limit) && may(**id);
        self.voters.iter().filter(fits).min_by_key(|id| (self.lag(**id), **id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    /// Replica 1 leads; `silent` say nothing.
    fn members(voters: &[u64], silent: &[u64]) -> Members {
        let peer = |id: &u64| {
            let silent = Duration::from_secs(if silent.contains(id) { 60 } else { 0 });
            (*id, Peer { matched: 100 - id, silent: Some(silent) })
        };
        Members {
            me: 1,
            last: 100,
            voters: voters.iter().copied().collect(),
            nodes: voters.iter().map(|id| (*id, Node::default())).collect(),
            peers: voters.iter().map(peer).collect(),
            joint: false,
            committed: true,
        }
    }

    fn risk(voters: &[u64], silent: &[u64], after: &[u64]) -> Option<String> {
        members(voters, silent).risk(&after.iter().copied().collect(), LIMIT)
    }

    #[test]
    fn a_dead_replica_leaves_without_risk_and_a_living_one_does_not() {
        assert_eq!(risk(&[1, 2, 3], &[3], &[1, 2]), None);
        let told = risk(&[1, 2, 3], &[3], &[1, 3]).unwrap();
        assert!(told.contains("only 1 would answer and 2 must (replica 3 does not)"), "{told}");
        assert_eq!(risk(&[1, 2, 3], &[], &[1, 2]), None);
        assert!(risk(&[1, 2, 3, 4, 5], &[4, 5], &[1, 2, 4, 5]).is_some());
    }

    #[test]
    fn the_last_but_one_leaves_by_force_only() {
        assert!(risk(&[1, 2], &[], &[1]).unwrap().contains("one voter would remain"));
        assert!(risk(&[1, 2], &[2], &[1]).is_some());
        assert_eq!(risk(&[1], &[], &[1]), None);
    }

    #[test]
    fn the_successor_answers_and_is_least_behind() {
        let all = members(&[1, 2, 3], &[]);
        assert_eq!(all.successor(LIMIT, |_| true), Some(2));
        assert_eq!(all.successor(LIMIT, |id| id != 2), Some(3));
        assert_eq!(members(&[1, 2, 3], &[2]).successor(LIMIT, |_| true), Some(3));
        assert_eq!(members(&[1, 2, 3], &[2, 3]).successor(LIMIT, |_| true), None);
    }
}
