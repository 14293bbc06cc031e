//! L1: what clients saw of each register has an order that explains it.

use super::{
    eyes::Breach,
    record::{Action, Outcome, Record},
};
use crate::linear::{self, Budget, Expected, Op, Verdict, What};

fn op(record: &Record) -> Op {
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let what = match record.action {
        Action::Read => What::Read,
        Action::Write(value) => What::Write { value },
        Action::Swap { expected, new } => {
            What::Swap { expected: Expected::Value(expected), value: new }
        }
    };
    let outcome = match record.outcome {
        Outcome::Value(value) => linear::Outcome::Ok { value, version: None },
        Outcome::Done(_) => linear::Outcome::Ok { value: None, version: None },
        Outcome::Refused => linear::Outcome::Mismatch,
        Outcome::Failed => linear::Outcome::Failed,
        Outcome::Unknown => linear::Outcome::Unknown,
    };
    Op {
        client: u32::try_from(record.client).unwrap_or(0),
        key: format!("r{}", record.key),
        call: nanos(record.invoked),
        ret: (record.outcome != Outcome::Unknown).then(|| nanos(record.ended)),
        what,
        outcome,
    }
}

/// Judges all registers.
pub(crate) fn judge(records: &[Record]) -> Vec<Breach> {
    let ops: Vec<Op> = records.iter().map(op).collect();
    let mut breaches = vec![];
    for (key, verdict) in linear::check(&ops, Budget::default()) {
        let message = match verdict {
            Verdict::Linearizable => continue,
            Verdict::Violation(example) => {
                format!("register {key} is not linearizable:\n{example}")
            }
            Verdict::Unknown { explored } => {
                format!("register {key} was not decided after {explored} steps")
            }
        };
        breaches.push(Breach { check: "L1", message });
    }
    breaches
}
