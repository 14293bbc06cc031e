//! How much was done in each second of a run, and how long it took.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    history::{Operation, Outcome},
    report::Latencies,
};

const SECOND: u64 = 1_000_000;

/// What ended in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Second {
    /// Which, from the begin of the run.
    pub second: u64,
    /// What was acknowledged or answered, by kind.
    pub done: BTreeMap<&'static str, Latencies>,
    /// The same for all reads.
    pub reads: Latencies,
    /// The same for all writes.
    pub writes: Latencies,
    /// Operations without an answer.
    pub unknown: usize,
    /// Operations that were refused.
    pub refused: usize,
}

/// Each second from the begin to the last end, also those in which nothing ended.
#[must_use]
pub fn seconds(operations: &[Operation]) -> Vec<Second> {
    bands(operations, 1)
}

/// The same in steps of so many seconds; `second` is the first of each.
#[must_use]
pub fn bands(operations: &[Operation], width: u64) -> Vec<Second> {
    let width = width.max(1);
    let Some(last) = operations.iter().map(|operation| operation.ended / SECOND / width).max()
    else {
        return Vec::new();
    };
    let mut by_band: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        by_band.entry(operation.ended / SECOND / width).or_default().push(operation);
    }
    (0..=last)
        .map(|band| one(band * width, by_band.get(&band).map_or(&[], Vec::as_slice)))
        .collect()
}

fn one(second: u64, ended: &[&Operation]) -> Second {
    let latencies = |wanted: &dyn Fn(&Operation) -> bool| {
        let took = ended
            .iter()
            .filter(|operation| operation.is_ok() && wanted(operation))
            .map(|operation| operation.ended.saturating_sub(operation.invoked));
        Latencies::of(took.collect())
    };
    let mut done = BTreeMap::new();
    for kind in ended.iter().filter(|operation| operation.is_ok()).map(|o| o.action.kind()) {
        done.entry(kind).or_insert_with(|| latencies(&|operation| operation.action.kind() == kind));
    }
    let count = |wanted: fn(&Outcome) -> bool| {
        ended.iter().filter(|operation| wanted(&operation.outcome)).count()
    };
    Second {
        second,
        done,
        reads: latencies(&|operation| operation.action.is_read()),
        writes: latencies(&|operation| !operation.action.is_read()),
        unknown: count(|outcome| matches!(outcome, Outcome::Unknown { .. })),
        refused: count(|outcome| matches!(outcome, Outcome::Refused { .. })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Action;

    fn read(invoked: u64, ended: u64, outcome: Outcome) -> Operation {
        let action = Action::Read { key: "k".into() };
        Operation { client: 0, action, invoked, ended, tries: 1, outcome }
    }

    fn ok() -> Outcome {
        Outcome::Ok { revision: None, value: None, version: None }
    }

    #[test]
    fn operations_belong_to_the_second_in_which_they_end() {
        let operations = [
            read(900_000, 1_100_000, ok()),
            read(1_000_000, 1_001_000, ok()),
            read(0, 3_000_000, Outcome::Unknown { reason: "no".into() }),
        ];
        let seconds = seconds(&operations);
        let counts: Vec<usize> = seconds.iter().map(|second| second.reads.count).collect();
        assert_eq!(counts, [0, 2, 0, 0]);
        assert_eq!((seconds[1].reads.p50, seconds[1].reads.p99), (1.0, 200.0));
        assert_eq!(seconds[1].done["read"].count, 2);
        assert_eq!(seconds[3].unknown, 1);
    }

    #[test]
    fn bands_hold_several_seconds() {
        let operations = [read(0, 1_100_000, ok()), read(0, 2_100_000, ok())];
        let bands = bands(&operations, 2);
        assert_eq!(bands.len(), 2);
        assert_eq!((bands[1].second, bands[1].reads.count), (2, 1));
        assert_eq!(super::bands(&[], 2), []);
    }
}
