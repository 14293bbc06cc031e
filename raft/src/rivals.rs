//! How the others' disks do while a sync of the leader's own log takes long.

use std::collections::BTreeMap;

use crate::membership::health::Members;

/// Looks that say something.
const LOOKS_MIN: u32 = 10;
/// Looks that count: older ones are forgotten by halves.
const LOOKS_MAX: u32 = 100;

/// What was seen of the other voters each time when a sync of this leader was late.
#[derive(Debug, Default)]
pub(crate) struct Rivals {
    looks: u32,
    ahead: BTreeMap<u64, u32>,
}

/// The voters that have made entries durable that this leader has not, with how far.
fn ahead(members: &Members) -> impl Iterator<Item = (u64, u64)> + '_ {
    let matched = |id: u64| members.peers.get(&id).map_or(0, |peer| peer.matched);
    let own = matched(members.me);
    let voters = members.voters.iter().copied().filter(|id| *id != members.me);
    voters.map(move |id| (id, matched(id))).filter(move |(_, matched)| *matched > own)
}

impl Rivals {
    /// A sync is late. Where it holds no entries back nothing can be told.
    pub(crate) fn look(&mut self, members: &Members) {
        let own = members.peers.get(&members.me).map_or(0, |peer| peer.matched);
        if members.last <= own {
            return;
        }
        if self.looks >= LOOKS_MAX {
            self.looks /= 2;
            self.ahead.values_mut().for_each(|count| *count /= 2);
        }
        self.looks += 1;
        for (id, _) in ahead(members) {
            *self.ahead.entry(id).or_default() += 1;
        }
    }

    /// Who is furthest ahead now, among those whom `may` allows.
    pub(crate) fn ahead(&self, members: &Members, may: impl Fn(u64) -> bool) -> Option<u64> {
        let best = ahead(members).filter(|(id, _)| may(*id));
        best.max_by_key(|(id, matched)| (*matched, std::cmp::Reverse(*id))).map(|(id, _)| id)
    }

    /// Whose disk is faster: who was ahead at three looks of four, among those whom `may` allows.
    pub(crate) fn faster(&self, members: &Members, may: impl Fn(u64) -> bool) -> Option<u64> {
        let is_faster = |id: &u64| {
            let count = self.ahead.get(id).copied().unwrap_or(0);
            self.looks >= LOOKS_MIN && count * 4 >= self.looks * 3
        };
        let voters = members.voters.iter().filter(|id| **id != members.me && may(**id));
        let best = voters.filter(|id| is_faster(id));
        best.max_by_key(|id| (self.ahead.get(id), std::cmp::Reverse(**id))).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::membership::health::Peer;

    /// Replica 1 leads a log that ends with 100; what each voter has made durable.
    fn members(matched: [u64; 3]) -> Members {
        let peer = |matched| Peer { matched, silent: Some(Duration::ZERO) };
        Members {
            me: 1,
            last: 100,
            voters: [1, 2, 3].into(),
            peers: (1..).zip(matched.map(peer)).collect(),
            ..Members::default()
        }
    }

    #[test]
    fn whoever_made_durable_what_the_leader_did_not_may_take_over_and_nobody_else() {
        let rivals = Rivals::default();
        let all = |_: u64| true;
        assert_eq!(rivals.ahead(&members([90, 90, 90]), all), None, "DISK-1: all stall");
        assert_eq!(rivals.ahead(&members([90, 80, 90]), all), None, "DISK-1");
        assert_eq!(rivals.ahead(&members([90, 95, 100]), all), Some(3));
        assert_eq!(rivals.ahead(&members([90, 100, 100]), all), Some(2));
        assert_eq!(rivals.ahead(&members([90, 100, 100]), |id| id != 2), Some(3), "a drained one");
    }

    #[test]
    fn a_faster_disk_is_one_that_is_ahead_nearly_always() {
        let mut rivals = Rivals::default();
        let all = |_: u64| true;
        for round in 0..40 {
            // Replica 2 is as slow as the leader, and now and then first.
            let two = if round % 2 == 0 { 100 } else { 90 };
            rivals.look(&members([90, two, 100]));
            let enough = round >= 9;
            let now = members([100, 100, 100]);
            assert_eq!(rivals.faster(&now, all), enough.then_some(3), "{round}");
            assert_eq!(rivals.faster(&now, |id| id != 3), None);
        }
    }

    #[test]
    fn nothing_is_learnt_where_nothing_waits_and_old_looks_are_forgotten() {
        let mut rivals = Rivals::default();
        (0..50).for_each(|_| rivals.look(&members([100, 100, 100])));
        assert_eq!(rivals.looks, 0);
        (0..1000).for_each(|_| rivals.look(&members([90, 100, 90])));
        (0..1000).for_each(|_| rivals.look(&members([90, 90, 100])));
        assert_eq!(rivals.faster(&members([90, 100, 100]), |_| true), Some(3));
    }
}
