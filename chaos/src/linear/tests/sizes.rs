//! Large histories, in steps rather than in seconds, so that the machine does not matter.

use super::{super::*, judge};
use crate::random::Random;

/// What a register answers to `clients` who are always at work, over `count` operations; one in
/// `unknown_every` gets no answer.
fn busy(clients: usize, count: u64, unknown_every: u64, versions: bool) -> Vec<Op> {
    let mut random = Random::part(7, "linear/sizes");
    // A version is named once somebody was told it with its value.
    let (mut now, mut version, mut named) = (None, 0, false);
    let mut free_at = vec![0; clients];
    let mut ops = Vec::new();
    for (value, moment) in (1..=count).zip((1000..).step_by(10)) {
        let client = (0..clients).min_by_key(|client| free_at[*client]).unwrap();
        // Its moment is `moment`; calls and returns of the others lie around it.
        let call: u64 = free_at[client].max(moment - random.within(1, 9 * clients as u64));
        let call = call.min(moment);
        let ret = moment + random.within(1, 9 * clients as u64);
        free_at[client] = ret + 1;
        let seen = version;
        let (what, read) = match random.below(3) {
            0 => (What::Read, now),
            1 => (What::Write { value }, None),
            _ if versions && named => {
                (What::Swap { expected: Expected::Version(version), value }, None)
            }
            _ => (What::Swap { expected: Expected::Value(now), value }, None),
        };
        if what != What::Read {
            (now, version, named) = (Some(value), version + 1, false);
        }
        let told = if what == What::Read { seen } else { version };
        let outcome = match random.below(unknown_every) {
            0 => Outcome::Unknown,
            _ => Outcome::Ok { value: read, version: (versions && told > 0).then_some(told) },
        };
        named |= outcome != Outcome::Unknown;
        let client = u32::try_from(client).unwrap();
        ops.push(Op { client, key: "x".into(), call, ret: Some(ret), what, outcome });
    }
    ops
}

#[test]
fn a_hundred_thousand_operations_of_one_key_take_few_steps() {
    for versions in [true, false] {
        let mut ops = busy(5, 100_000, 50, versions);
        ops.sort_by_key(|op| op.call);
        let mut steps = 1_000_000;
        let found = search::search(&prepare::prepare(&ops), &mut steps);
        assert_eq!(found, search::Found::Order);
        println!("versions {versions}: {} steps", 1_000_000 - steps);
    }
}

#[test]
fn a_hundred_thousand_operations_over_many_keys_are_judged() {
    let mut ops = busy(8, 1000, 20, true);
    ops.sort_by_key(|op| op.call);
    let one = ops.clone();
    for key in 1..100 {
        ops.extend(one.iter().map(|op| Op { key: key.to_string(), ..op.clone() }));
    }
    let verdicts = check(&ops, Budget { steps: 100_000, ..Budget::default() });
    assert_eq!(verdicts.len(), 100);
    assert!(verdicts.values().all(|verdict| *verdict == Verdict::Linearizable));
}

#[test]
fn one_stale_read_among_a_hundred_thousand_operations_is_three_operations() {
    let mut ops = busy(5, 100_000, 50, true);
    let read =
        ops.iter().rposition(|op| op.what == What::Read && op.outcome != Outcome::Unknown).unwrap();
    let old = ops[..1000]
        .iter()
        .rev()
        .find_map(|op| match (op.what, op.outcome) {
            (What::Write { value }, Outcome::Ok { version, .. }) => Some((value, version)),
            _ => None,
        })
        .unwrap();
    ops[read].outcome = Outcome::Ok { value: Some(old.0), version: old.1 };
    let verdict = judge(&ops);
    let least = verdict.counterexample().expect("a violation");
    assert_eq!(least.ops.len(), 3, "{least}");
    assert_eq!(least.ops[least.stuck].what, What::Read, "{least}");
}
