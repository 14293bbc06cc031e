//! Small random histories against all orders tried one by one.

use proptest::{prelude::*, test_runner::Config};

use super::{super::*, brute, judge};

fn what() -> impl Strategy<Value = What> {
    let maybe = prop_oneof![3 => (1..4u64).prop_map(Some), 1 => Just(None)];
    let expected =
        prop_oneof![maybe.prop_map(Expected::Value), (0..6u64).prop_map(Expected::Version)];
    prop_oneof![
        4 => Just(What::Read),
        4 => (1..4u64).prop_map(|value| What::Write { value }),
        1 => Just(What::Delete),
        3 => (expected, 1..4u64).prop_map(|(expected, value)| What::Swap { expected, value }),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let value = prop_oneof![4 => (1..4u64).prop_map(Some), 1 => Just(None)];
    let version = prop_oneof![2 => Just(None), 1 => (1..6u64).prop_map(Some)];
    prop_oneof![
        6 => (value, version).prop_map(|(value, version)| Outcome::Ok { value, version }),
        1 => Just(Outcome::Mismatch),
        1 => Just(Outcome::Failed),
        2 => Just(Outcome::Unknown),
    ]
}

fn op(client: u32) -> impl Strategy<Value = Op> {
    (0..14u64, 0..8u64, what(), outcome()).prop_map(move |(call, lasts, what, outcome)| Op {
        client,
        key: "x".into(),
        call,
        ret: (lasts < 7).then_some(call + lasts),
        what,
        outcome: match (outcome, what) {
            (Outcome::Mismatch, What::Swap { .. }) => Outcome::Mismatch,
            (Outcome::Mismatch, _) => Outcome::Failed,
            _ => outcome,
        },
    })
}

fn any_history(ops_max: usize) -> impl Strategy<Value = Vec<Op>> {
    (1..=ops_max).prop_flat_map(|count| {
        (0..count).map(|index| op(u32::try_from(index % 4).unwrap())).collect::<Vec<_>>()
    })
}

/// A history that a register made: each operation has its moment between call and return.
fn right_history(ops_max: usize) -> impl Strategy<Value = Vec<Op>> {
    let one = (what(), 0..5u64, 0..5u64, 0..6u8, any::<bool>());
    (prop::collection::vec(one, 1..=ops_max), any::<bool>()).prop_map(|(steps, versions)| {
        let (mut now, mut version) = (None, 0);
        let mut ops = Vec::new();
        for ((what, before, after, fate, unique), moment) in
            steps.into_iter().zip((10u64..).step_by(3))
        {
            let what = match what {
                What::Write { .. } if unique => What::Write { value: moment },
                What::Swap { expected, .. } if unique => What::Swap { expected, value: moment },
                other => other,
            };
            let lost = fate == 0;
            let applied = !(lost && unique);
            let told = versions.then_some(version).filter(|version| *version > 0);
            let matches = match what {
                What::Swap { expected: Expected::Value(value), .. } => now == value,
                What::Swap { expected: Expected::Version(0), .. } => now.is_none(),
                What::Swap { expected: Expected::Version(wanted), .. } => {
                    now.is_some() && version == wanted
                }
                _ => true,
            };
            let outcome = match what {
                What::Read => Outcome::Ok { value: now, version: now.and(told) },
                _ if !matches => Outcome::Mismatch,
                What::Delete => {
                    if applied {
                        now = None;
                    }
                    Outcome::Ok { value: None, version: None }
                }
                What::Write { value } | What::Swap { value, .. } => {
                    if applied {
                        now = Some(value);
                        version += 1;
                    }
                    Outcome::Ok { value: None, version: versions.then_some(version) }
                }
            };
            ops.push(Op {
                client: 0,
                key: "x".into(),
                call: moment - before,
                ret: Some(moment + after),
                what,
                outcome: if lost { Outcome::Unknown } else { outcome },
            });
        }
        ops
    })
}

fn same_as_brute_force(ops: &[Op]) -> Result<(), TestCaseError> {
    let expected = brute::has_order(ops);
    let verdict = judge(ops);
    let found = match &verdict {
        Verdict::Linearizable => true,
        Verdict::Violation(least) => {
            prop_assert!(!brute::has_order(&least.ops), "has an order:\n{least}");
            false
        }
        Verdict::Unknown { .. } => return Err(TestCaseError::fail("the budget is too small")),
    };
    prop_assert_eq!(found, expected, "{:#?}", ops);
    Ok(())
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(cases()) })]

    #[test]
    fn any_history_is_judged_as_by_brute_force(ops in any_history(7)) {
        same_as_brute_force(&ops)?;
    }

    #[test]
    fn what_a_register_did_has_an_order(ops in right_history(40)) {
        prop_assert_eq!(judge(&ops), Verdict::Linearizable);
    }

    #[test]
    fn one_altered_answer_is_judged_as_by_brute_force(
        mut ops in right_history(8),
        place in any::<prop::sample::Index>(),
        altered in outcome(),
    ) {
        let op = place.get_mut(&mut ops);
        if !matches!(op.what, What::Swap { .. }) && altered == Outcome::Mismatch {
            op.outcome = Outcome::Failed;
        } else {
            op.outcome = altered;
        }
        same_as_brute_force(&ops)?;
    }

    #[test]
    fn a_counterexample_lacks_nothing(mut ops in right_history(30), place in any::<prop::sample::Index>()) {
        let op = place.get_mut(&mut ops);
        op.outcome = Outcome::Ok { value: Some(2), version: None };
        let verdict = judge(&ops);
        if let Some(least) = verdict.counterexample() {
            // Every value that is seen in it was written in it, if it was written at all.
            for seen in least.ops.iter().filter_map(saw) {
                let writes = |op: &&Op| {
                    writes(op) == Some(seen)
                        && !matches!(op.outcome, Outcome::Failed | Outcome::Mismatch)
                };
                prop_assert_eq!(
                    ops.iter().filter(writes).count(),
                    least.ops.iter().filter(writes).count(),
                    "{}", least
                );
            }
        }
    }
}

fn saw(op: &Op) -> Option<u64> {
    match (op.what, op.outcome) {
        (What::Read, Outcome::Ok { value, .. }) => value,
        (What::Swap { expected: Expected::Value(value), .. }, Outcome::Ok { .. }) => value,
        _ => None,
    }
}

fn writes(op: &Op) -> Option<u64> {
    match op.what {
        What::Write { value } | What::Swap { value, .. } => Some(value),
        What::Read | What::Delete => None,
    }
}

/// `PALISADE_LINEAR_CASES` makes it more.
fn cases() -> u32 {
    let cases = std::env::var("PALISADE_LINEAR_CASES").ok();
    cases.and_then(|cases| cases.parse().ok()).unwrap_or(2000)
}
