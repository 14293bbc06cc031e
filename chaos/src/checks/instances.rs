//! `A2`: killing agents or the whole control plane stops no running instance.
//!
//! An instance that was seen running stays the same process, by number and start, in the process
//! table and in what the cluster says.

use std::collections::BTreeMap;

use super::{Verdict, json};
use crate::history::{History, InstanceSeen};

/// Its id.
pub(super) const ID: &str = "A2";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut by_instance: BTreeMap<&str, Vec<&InstanceSeen>> = BTreeMap::new();
    for seen in &history.instances {
        by_instance.entry(&seen.instance).or_default().push(seen);
    }
    let mut verdict = Verdict::default();
    for (instance, mut seen) in by_instance {
        seen.sort_by_key(|seen| seen.at);
        let Some(first) = seen.iter().find(|seen| seen.process.is_some()) else { continue };
        verdict.subjects += 1;
        let later = seen.iter().filter(|seen| seen.at >= first.at);
        if let Some(other) = later.into_iter().find(|seen| seen.process != first.process) {
            let message = match other.process {
                None => format!("instance {instance} ran and is gone from the {}", other.source),
                Some(_) => format!("instance {instance} is another process ({})", other.source),
            };
            verdict.add(ID, message, vec![json(first), json(other)]);
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::ProcessSeen;

    fn seen(at: u64, process: Option<(u32, u64)>) -> InstanceSeen {
        InstanceSeen {
            at,
            instance: "web-1".into(),
            source: "process table".into(),
            process: process.map(|(pid, start_ticks)| ProcessSeen { pid, start_ticks }),
        }
    }

    fn messages(instances: Vec<InstanceSeen>) -> Vec<String> {
        let verdict = judge(&History { instances, ..History::default() });
        verdict.violations.into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn an_instance_that_stays_passes() {
        let instances = vec![seen(0, None), seen(1, Some((7, 70))), seen(2, Some((7, 70)))];
        assert_eq!(messages(instances), [""; 0]);
    }

    #[test]
    fn an_instance_that_went_is_found() {
        assert_eq!(
            messages(vec![seen(0, Some((7, 70))), seen(1, None)]),
            ["instance web-1 ran and is gone from the process table"]
        );
    }

    #[test]
    fn an_instance_that_was_started_again_is_found() {
        assert_eq!(
            messages(vec![seen(0, Some((7, 70))), seen(1, Some((8, 90)))]),
            ["instance web-1 is another process (process table)"]
        );
    }

    #[test]
    fn a_number_that_was_used_again_is_found() {
        assert_eq!(messages(vec![seen(0, Some((7, 70))), seen(1, Some((7, 90)))]).len(), 1);
    }

    #[test]
    fn instances_that_never_ran_are_no_subjects() {
        let history = History { instances: vec![seen(0, None)], ..History::default() };
        assert_eq!(judge(&history).subjects, 0);
    }
}
