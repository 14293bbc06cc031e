//! `L2`: no acknowledged write is lost; none is applied twice under one idempotency key.
//!
//! Rows tell it by their number: one for an acknowledged addition, at most one for an unknown one,
//! none for a refused one. A register has one writer and rising values, so that each read, and the
//! end, must show the last acknowledged value, or one whose write was still on its way.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Verdict, json};
use crate::history::{Action, Ending, History, Micros, Operation, Outcome};

/// Its id.
pub(super) const ID: &str = "L2";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let registers = Registers::of(&history.operations);
    for operation in &history.operations {
        registers.judge_read(operation, &mut verdict);
    }
    let Some(ending) = &history.ending else { return verdict };
    judge_rows(&history.operations, ending, &mut verdict);
    registers.judge_ending(ending, &mut verdict);
    verdict
}

fn judge_rows(operations: &[Operation], ending: &Ending, verdict: &mut Verdict) {
    let mut asked = BTreeSet::new();
    for operation in operations {
        let Action::Add { name } = &operation.action else { continue };
        asked.insert(name.as_str());
        let rows = ending.rows.get(name).copied().unwrap_or(0);
        verdict.subjects += 1;
        let wrong = match (&operation.outcome, rows) {
            (Outcome::Ok { .. }, 0) => "was acknowledged and is lost",
            (Outcome::Refused { .. }, 1) => "was refused and is done all the same",
            (_, 0 | 1) => continue,
            (_, _) => "was applied more than once under one idempotency key",
        };
        let evidence = vec![json(operation), json!({"atTheEnd": {"name": name, "rows": rows}})];
        verdict.add(ID, format!("the addition of {name} {wrong}"), evidence);
    }
    for (name, rows) in &ending.rows {
        if !asked.contains(name.as_str()) {
            let evidence = vec![json!({"atTheEnd": {"name": name, "rows": rows}})];
            verdict.add(ID, format!("there is a row {name} that nobody added"), evidence);
        }
    }
}

/// The writes of each register, in the order of their only writer.
struct Registers<'a>(BTreeMap<&'a str, Vec<(u64, &'a Operation)>>);

impl<'a> Registers<'a> {
    fn of(operations: &'a [Operation]) -> Self {
        let mut all: BTreeMap<&str, Vec<(u64, &Operation)>> = BTreeMap::new();
        for operation in operations {
            if let Action::Set { register, value } = &operation.action {
                all.entry(register).or_default().push((*value, operation));
            }
        }
        for writes in all.values_mut() {
            writes.sort_by_key(|(value, _)| *value);
        }
        Self(all)
    }

    fn writes(&self, register: &str) -> &[(u64, &'a Operation)] {
        self.0.get(register).map_or(&[], Vec::as_slice)
    }

    /// Why a read from `began` to `ended` cannot have seen `value`.
    fn refute(
        &self,
        register: &str,
        value: u64,
        began: Micros,
        ended: Micros,
    ) -> Option<Wrong<'a>> {
        let writes = self.writes(register);
        let before = |write: &&(u64, &Operation)| write.1.is_ok() && write.1.ended < began;
        let last = writes.iter().rev().find(before).copied();
        let Some((_, write)) = writes.iter().find(|(written, _)| *written == value).copied() else {
            // 0 is what a register holds before its first write.
            return match (value, last) {
                (0, None) => None,
                (0, Some((_, last))) => Some(Wrong::Lost(last)),
                _ => Some(Wrong::Invented),
            };
        };
        match (&write.outcome, last) {
            _ if write.invoked > ended => Some(Wrong::Invented),
            (Outcome::Refused { .. }, _) => Some(Wrong::Refused(write)),
            // Nobody knows when it is done: it may come after later ones.
            (Outcome::Unknown { .. }, _) | (_, None) => None,
            (Outcome::Ok { .. }, Some((newest, last))) => {
                (value < newest).then_some(Wrong::Lost(last))
            }
        }
    }

    fn judge_read(&self, read: &Operation, verdict: &mut Verdict) {
        let (Action::Get { register }, Outcome::Ok { value: Some(value), .. }) =
            (&read.action, &read.outcome)
        else {
            return;
        };
        verdict.subjects += 1;
        if let Some(wrong) = self.refute(register, *value, read.invoked, read.ended) {
            let (message, mut evidence) = wrong.say(register, *value);
            evidence.push(json(read));
            verdict.add(ID, message, evidence);
        }
    }

    fn judge_ending(&self, ending: &Ending, verdict: &mut Verdict) {
        for (register, seen) in &ending.registers {
            verdict.subjects += 1;
            let at_the_end = json!({"atTheEnd": {"register": register, "seen": seen}});
            if let Some(wrong) = self.refute(register, seen.value, Micros::MAX, Micros::MAX) {
                let (message, mut evidence) = wrong.say(register, seen.value);
                evidence.push(at_the_end.clone());
                verdict.add(ID, message, evidence);
            }
            let Some(version) = seen.version else { continue };
            let count = |wanted: fn(&Operation) -> bool| {
                self.writes(register).iter().filter(|(_, write)| wanted(write)).count() as u64
            };
            let acknowledged = count(Operation::is_ok);
            let possible = acknowledged + count(Operation::is_unknown);
            if !(acknowledged..=possible).contains(&version) {
                let message = format!(
                    "register {register} was written {version} times, by {acknowledged} \
                     acknowledged writes and {} unknown ones",
                    possible - acknowledged
                );
                verdict.add(ID, message, vec![at_the_end]);
            }
        }
        for (register, writes) in &self.0 {
            let missing = !ending.registers.contains_key(*register);
            if let Some((_, write)) = writes.iter().find(|(_, write)| missing && write.is_ok()) {
                let message = format!("register {register} was written and is not there");
                verdict.add(ID, message, vec![json(write)]);
            }
        }
    }
}

enum Wrong<'a> {
    Lost(&'a Operation),
    Refused(&'a Operation),
    Invented,
}

impl Wrong<'_> {
    fn say(&self, register: &str, value: u64) -> (String, Vec<Value>) {
        match self {
            Self::Lost(write) => (
                format!("register {register} showed {value} after a later write was acknowledged"),
                vec![json(write)],
            ),
            Self::Refused(write) => (
                format!("register {register} showed {value}, whose write was refused"),
                vec![json(write)],
            ),
            Self::Invented => {
                (format!("register {register} showed {value}, which nobody had written"), vec![])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn messages(history: &History) -> Vec<String> {
        judge(history).violations.into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn a_history_in_order_passes() {
        let operations = vec![
            operation(1, (0, 1), add("a"), ok(1)),
            operation(1, (2, 3), add("b"), unknown()),
            operation(1, (4, 5), add("c"), unknown()),
            operation(1, (4, 5), add("d"), Outcome::Refused { code: "INVALID_INPUT".into() }),
            operation(2, (0, 1), set(1), ok(2)),
            operation(2, (2, 3), set(2), ok(3)),
            operation(3, (4, 5), get(), read(3, 2)),
        ];
        let history = history(operations, &[("a", 1), ("b", 1)], Some((2, 2)));
        assert_eq!(messages(&history), [""; 0]);
        assert_eq!(judge(&history).subjects, 6);
    }

    #[test]
    fn a_lost_row_is_found() {
        let history = history(vec![operation(1, (0, 1), add("a"), ok(1))], &[], None);
        assert_eq!(messages(&history), ["the addition of a was acknowledged and is lost"]);
    }

    #[test]
    fn a_doubled_row_is_found_whether_acknowledged_or_not() {
        for outcome in [ok(1), unknown()] {
            let history = history(vec![operation(1, (0, 1), add("a"), outcome)], &[("a", 2)], None);
            assert_eq!(
                messages(&history),
                ["the addition of a was applied more than once under one idempotency key"]
            );
        }
    }

    #[test]
    fn a_refused_row_that_is_there_is_found() {
        let refused = Outcome::Refused { code: "NOT_FOUND".into() };
        let history = history(vec![operation(1, (0, 1), add("a"), refused)], &[("a", 1)], None);
        assert_eq!(messages(&history), ["the addition of a was refused and is done all the same"]);
    }

    #[test]
    fn a_row_of_nobody_is_found() {
        let history = history(vec![], &[("ghost", 1)], None);
        assert_eq!(messages(&history), ["there is a row ghost that nobody added"]);
    }

    #[test]
    fn a_lost_update_is_found_at_the_end() {
        let operations =
            vec![operation(1, (0, 1), set(1), ok(1)), operation(1, (2, 3), set(2), ok(2))];
        let history = history(operations, &[], Some((1, 2)));
        assert_eq!(
            messages(&history),
            ["register r showed 1 after a later write was acknowledged"]
        );
    }

    #[test]
    fn a_lost_update_is_found_by_a_read_in_between() {
        let operations = vec![
            operation(1, (0, 1), set(1), ok(1)),
            operation(1, (2, 3), set(2), ok(2)),
            operation(2, (4, 5), get(), read(2, 1)),
        ];
        let history = history(operations, &[], Some((2, 2)));
        assert_eq!(
            messages(&history),
            ["register r showed 1 after a later write was acknowledged"]
        );
    }

    #[test]
    fn a_register_that_fell_back_to_nothing_is_found() {
        let operations =
            vec![operation(1, (0, 1), set(1), ok(1)), operation(2, (4, 5), get(), read(2, 0))];
        assert_eq!(messages(&history(operations, &[], Some((1, 1)))).len(), 1);
    }

    #[test]
    fn a_read_beside_a_write_may_see_either() {
        for value in [1, 2] {
            let operations = vec![
                operation(1, (0, 1), set(1), ok(1)),
                operation(1, (2, 9), set(2), ok(2)),
                operation(2, (3, 4), get(), read(1, value)),
            ];
            assert_eq!(messages(&history(operations, &[], Some((2, 2)))), [""; 0]);
        }
    }

    #[test]
    fn an_unknown_write_may_come_after_later_ones() {
        let operations =
            vec![operation(1, (0, 1), set(1), unknown()), operation(1, (2, 3), set(2), ok(2))];
        assert_eq!(messages(&history(operations, &[], Some((1, 2)))), [""; 0]);
    }

    #[test]
    fn an_update_applied_twice_is_found_by_its_count() {
        let operations = vec![operation(1, (0, 1), set(1), ok(1))];
        assert_eq!(
            messages(&history(operations, &[], Some((1, 2)))),
            ["register r was written 2 times, by 1 acknowledged writes and 0 unknown ones"]
        );
    }

    #[test]
    fn a_value_that_nobody_wrote_is_found() {
        let operations =
            vec![operation(2, (0, 1), get(), read(1, 7)), operation(1, (2, 3), set(7), ok(2))];
        assert_eq!(
            messages(&history(operations, &[], Some((7, 1)))),
            ["register r showed 7, which nobody had written"]
        );
    }

    #[test]
    fn without_an_ending_rows_say_nothing() {
        let operations = vec![operation(1, (0, 1), add("a"), ok(1))];
        let history = History { operations, ..History::default() };
        assert_eq!(judge(&history), Verdict::default());
    }
}
