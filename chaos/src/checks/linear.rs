//! `L1`: each key's history of reads, writes and compare-and-swaps is linearizable.
//!
//! The keys are the hot ones, which all clients write through all replicas, and the registers with
//! one writer. A record's revision is its version: it rises with each write, and a compare-and-swap
//! (`If-Match`) names the one it replaces.

use super::{Verdict, json};
use crate::{
    history::{Action, History, Operation, Outcome},
    linear::{self, Budget, Counterexample, Expected, Op, What},
};

/// Its id.
pub(super) const ID: &str = "L1";

/// What a compare-and-swap is refused with when the key is at another version.
const MISMATCH: &str = "PRECONDITION_FAILED";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    judge_within(history, Budget::default())
}

fn judge_within(history: &History, budget: Budget) -> Verdict {
    let ops: Vec<Op> = history.operations.iter().filter_map(op).collect();
    let mut verdict = Verdict { subjects: ops.len() as u64, ..Verdict::default() };
    for (key, found) in linear::check(&ops, budget) {
        match found {
            linear::Verdict::Linearizable => {}
            linear::Verdict::Unknown { explored } => verdict.undecided.push(format!(
                "check {ID} cannot tell whether {key} is linearizable, after {explored} steps"
            )),
            linear::Verdict::Violation(least) => {
                let mut evidence: Vec<_> =
                    least.to_string().lines().skip(1).map(json_text).collect();
                evidence.extend(operations(history, &least).map(json));
                verdict.add(ID, least.sentence(), evidence);
            }
        }
    }
    verdict
}

fn json_text(line: &str) -> serde_json::Value {
    line.trim_end().into()
}

/// The recorded operations behind a counterexample.
fn operations<'a>(
    history: &'a History,
    least: &'a Counterexample,
) -> impl Iterator<Item = &'a Operation> {
    history.operations.iter().filter(|operation| {
        least.ops.iter().any(|op| (op.client, op.call) == (operation.client, operation.invoked))
    })
}

/// What an operation says about a key; none: nothing.
fn op(operation: &Operation) -> Option<Op> {
    let (key, what) = match &operation.action {
        Action::Add { .. } => return None,
        Action::Set { register, value } => (register, What::Write { value: *value }),
        Action::Write { key, value } => (key, What::Write { value: *value }),
        Action::Swap { key, at, value } => {
            (key, What::Swap { expected: Expected::Version(*at), value: *value })
        }
        Action::Get { register: key } | Action::Read { key } => (key, What::Read),
    };
    let outcome = match &operation.outcome {
        // A record without a value is none of ours.
        Outcome::Ok { value: None, .. } if what == What::Read => return None,
        // 0 is what a client notes when there is no record.
        Outcome::Ok { value: Some(0), .. } => linear::Outcome::Ok { value: None, version: None },
        Outcome::Ok { value, version, .. } => {
            linear::Outcome::Ok { value: *value, version: *version }
        }
        Outcome::Refused { code } if code == MISMATCH => linear::Outcome::Mismatch,
        Outcome::Refused { .. } => linear::Outcome::Failed,
        Outcome::Unknown { .. } => linear::Outcome::Unknown,
    };
    Some(Op {
        client: operation.client,
        key: key.clone(),
        call: operation.invoked,
        ret: Some(operation.ended),
        what,
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn key() -> String {
        "hot-0".into()
    }

    fn write(value: u64) -> Action {
        Action::Write { key: key(), value }
    }

    fn swap(at: u64, value: u64) -> Action {
        Action::Swap { key: key(), at, value }
    }

    fn look() -> Action {
        Action::Read { key: key() }
    }

    fn done(version: u64) -> Outcome {
        Outcome::Ok { revision: Some(version), value: None, version: Some(version) }
    }

    fn saw(value: u64, version: u64) -> Outcome {
        Outcome::Ok { revision: Some(version), value: Some(value), version: Some(version) }
    }

    fn mismatch() -> Outcome {
        Outcome::Refused { code: MISMATCH.into() }
    }

    /// A recorded history that is as it should be: two clients, one key, and one lost answer.
    fn good() -> Vec<Operation> {
        vec![
            operation(
                1,
                (0, 3),
                look(),
                Outcome::Ok { revision: None, value: Some(0), version: None },
            ),
            operation(1, (5, 9), write(11), done(4)),
            operation(2, (6, 12), look(), saw(11, 4)),
            operation(2, (14, 20), swap(4, 21), done(6)),
            operation(1, (15, 22), swap(4, 12), mismatch()),
            operation(1, (24, 40), write(13), unknown()),
            operation(2, (26, 30), look(), saw(13, 8)),
            operation(2, (32, 36), swap(8, 22), done(9)),
            operation(1, (42, 44), look(), saw(22, 9)),
        ]
    }

    fn judged(operations: Vec<Operation>) -> Verdict {
        judge(&history(operations, &[], None))
    }

    #[test]
    fn a_history_in_order_passes() {
        let verdict = judged(good());
        assert_eq!(verdict, Verdict { subjects: 9, ..Verdict::default() });
    }

    #[test]
    fn a_planted_stale_read_is_found_with_the_writes_before_it() {
        let mut operations = good();
        operations[8].outcome = saw(21, 6);
        let verdict = judged(operations);
        assert_eq!(
            verdict.violations[0].message,
            "hot-0: no order of 5 (of 9) operations explains their answers; read by client 1 that \
             saw 21 (version 6) finds no place"
        );
        let lines = verdict.violations[0].evidence.iter().filter(|item| item.is_string());
        assert_eq!(lines.count(), 5);
    }

    #[test]
    fn a_planted_lost_write_is_found() {
        // The swap to 22 is acknowledged and nobody ever sees it.
        let mut operations = good();
        operations[8].outcome = saw(13, 8);
        assert_eq!(judged(operations).violations.len(), 1);
    }

    #[test]
    fn a_planted_lost_update_is_found() {
        // Both replace version 4.
        let mut operations = good();
        operations[4].outcome = done(7);
        assert_eq!(judged(operations).violations.len(), 1);
    }

    #[test]
    fn a_planted_refusal_without_reason_is_found() {
        let mut operations = good();
        operations[7].outcome = mismatch();
        operations.truncate(8);
        assert_eq!(judged(operations).violations.len(), 1);
    }

    #[test]
    fn a_register_with_one_writer_is_judged_too() {
        let operations = vec![
            operation(1, (0, 1), set(1), ok(1)),
            operation(1, (2, 3), set(2), ok(2)),
            operation(2, (4, 5), get(), read(2, 1)),
        ];
        assert_eq!(judged(operations).violations.len(), 1);
    }

    #[test]
    fn what_cannot_be_decided_is_no_pass() {
        let budget = Budget { steps: 1, shrink_steps: 0 };
        let verdict = judge_within(&history(good(), &[], None), budget);
        assert_eq!(
            verdict.undecided,
            ["check L1 cannot tell whether hot-0 is linearizable, after 1 steps"]
        );
    }

    #[test]
    fn without_operations_on_keys_it_says_nothing() {
        assert_eq!(judged(vec![operation(1, (0, 1), add("a"), ok(1))]).subjects, 0);
    }
}
