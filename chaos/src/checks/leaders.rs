//! `M1`: at most one leader for each term.

use std::collections::BTreeMap;

use super::{Verdict, json};
use crate::history::{History, LeaderSeen};

/// Its id.
pub(super) const ID: &str = "M1";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut by_term: BTreeMap<u64, &LeaderSeen> = BTreeMap::new();
    let mut verdict = Verdict::default();
    for seen in &history.leaders {
        let first = by_term.entry(seen.term).or_insert(seen);
        if first.leader != seen.leader {
            let message = format!(
                "replicas {} and {} both led in term {}",
                first.leader, seen.leader, seen.term
            );
            verdict.add(ID, message, vec![json(first), json(seen)]);
        }
    }
    verdict.subjects = by_term.len() as u64;
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(replica: u64, term: u64, leader: u64) -> LeaderSeen {
        LeaderSeen { at: 0, replica, term, leader }
    }

    #[test]
    fn one_leader_a_term_passes() {
        let leaders = vec![seen(1, 1, 2), seen(2, 1, 2), seen(3, 2, 1), seen(1, 1, 2)];
        let verdict = judge(&History { leaders, ..History::default() });
        assert_eq!(verdict, Verdict { subjects: 2, ..Verdict::default() });
    }

    #[test]
    fn two_leaders_of_one_term_are_found() {
        let leaders = vec![seen(1, 4, 1), seen(2, 4, 2)];
        let verdict = judge(&History { leaders, ..History::default() });
        assert_eq!(verdict.violations[0].message, "replicas 1 and 2 both led in term 4");
        assert_eq!(verdict.violations[0].evidence.len(), 2);
    }
}
