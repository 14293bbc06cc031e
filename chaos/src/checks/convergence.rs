//! `quiet`: when the faults are over, everything converges.

use super::{Verdict, json};
use crate::history::{History, Quiet};

/// Its id.
pub(super) const ID: &str = "quiet";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let Some(quiet) = &history.quiet else { return verdict };
    verdict.subjects = 1;
    let missing = missing(quiet);
    if !missing.is_empty() {
        let message =
            format!("after {} ms without faults {}", quiet.took_ms, missing.join("; and "));
        verdict.add(ID, message, vec![json(quiet)]);
    }
    verdict
}

/// What is not as it should be.
pub(crate) fn missing(quiet: &Quiet) -> Vec<String> {
    let mut missing = Vec::new();
    for (replica, ready) in &quiet.ready {
        if !ready {
            missing.push(format!("replica {replica} is not ready"));
        }
    }
    let mut indexes = quiet.applied.values();
    let first = indexes.next().copied().flatten();
    if first.is_none() || indexes.any(|index| *index != first) {
        let all: Vec<String> = quiet
            .applied
            .iter()
            .map(|(replica, index)| match index {
                Some(index) => format!("{replica} at {index}"),
                None => format!("{replica} unknown"),
            })
            .collect();
        missing.push(format!("the replicas are not at one index ({})", all.join(", ")));
    }
    for (replica, voters) in &quiet.voters {
        if *voters != quiet.seated {
            missing.push(format!(
                "replica {replica} takes {voters:?} for the voters, and they should be {:?}",
                quiet.seated
            ));
        }
    }
    if quiet.healthy != quiet.wanted {
        missing.push(format!("{} of {} instances are healthy", quiet.healthy, quiet.wanted));
    }
    if quiet.removed == Some(false) {
        missing.push("instances do not go when their workload is removed".into());
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Quiet {
        Quiet {
            took_ms: 100,
            ready: [(1, true), (2, true)].into(),
            applied: [(1, Some(9)), (2, Some(9))].into(),
            wanted: 3,
            healthy: 3,
            seated: vec![1, 2],
            voters: [(1, vec![1, 2]), (2, vec![1, 2])].into(),
            removed: Some(true),
        }
    }

    fn violations(quiet: Quiet) -> usize {
        judge(&History { quiet: Some(quiet), ..History::default() }).violations.len()
    }

    #[test]
    fn a_cluster_that_converged_passes() {
        assert_eq!(violations(good()), 0);
    }

    #[test]
    fn a_replica_that_is_not_ready_is_found() {
        assert_eq!(violations(Quiet { ready: [(1, true), (2, false)].into(), ..good() }), 1);
    }

    #[test]
    fn a_replica_that_stays_behind_is_found() {
        let applied = [(1, Some(9)), (2, Some(8))].into();
        assert_eq!(violations(Quiet { applied, ..good() }), 1);
        let applied = [(1, Some(9)), (2, None)].into();
        assert_eq!(violations(Quiet { applied, ..good() }), 1);
    }

    #[test]
    fn a_member_too_many_or_too_few_is_found() {
        let voters = [(1, vec![1, 2]), (2, vec![1, 2, 3])].into();
        assert_eq!(violations(Quiet { voters, ..good() }), 1);
        let voters = [(1, vec![1]), (2, vec![1])].into();
        assert_eq!(violations(Quiet { voters, ..good() }), 1);
    }

    #[test]
    fn an_instance_that_did_not_come_back_is_found() {
        assert_eq!(violations(Quiet { healthy: 2, ..good() }), 1);
    }

    #[test]
    fn an_instance_that_does_not_go_is_found() {
        assert_eq!(violations(Quiet { removed: Some(false), ..good() }), 1);
    }

    #[test]
    fn a_run_without_a_quiet_phase_says_nothing() {
        assert_eq!(judge(&History::default()).subjects, 0);
    }
}
