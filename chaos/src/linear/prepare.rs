//! Makes a history easier to search without changing whether it has an order.
//!
//! * What was certainly not done, and a read without an answer, say nothing.
//! * A write without an answer whose value somebody saw, and nobody else wrote, was done before the
//!   first who saw it was answered: it has a return after all.
//! * A write without an answer whose value nobody saw changes nothing if it is left out, except for
//!   a compare-and-swap that found something else. It is a *filler*, which is needed only right
//!   before such a one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Op, Outcome,
    model::{self, Step},
};

/// An operation that was done and must have its moment from `call` to `ret`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Definite {
    /// Its place in the history.
    pub(super) op: usize,
    pub(super) call: u64,
    pub(super) ret: u64,
    pub(super) step: Step,
}

/// An operation that may have a moment after `call`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) call: u64,
    pub(super) step: Step,
    /// Only needed right before a compare-and-swap that must find something else.
    pub(super) filler: bool,
}

/// A history that is ready to be searched. Both lists are in the order of the calls.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) definite: Vec<Definite>,
    pub(super) pending: Vec<Pending>,
}

/// Which values somebody saw.
#[derive(Default)]
struct Seen {
    /// Each value with the first return of one who certainly saw it.
    surely: BTreeMap<Option<u64>, u64>,
    /// Values that one may have seen who may not have been done.
    maybe: BTreeSet<Option<u64>>,
}

impl Seen {
    fn add(&mut self, step: &Step, ret: u64) {
        if let Some(value) = step.observes() {
            let first = self.surely.entry(value).or_insert(ret);
            *first = ret.min(*first);
        }
    }
}

/// Prepares a history whose operations are in the order of their calls.
pub(super) fn prepare(ops: &[Op]) -> Prepared {
    let names = model::names(ops);
    let mut prepared = Prepared::default();
    let mut unknown: Vec<(usize, u64, Step)> = Vec::new();
    let mut writers: BTreeMap<Option<u64>, usize> = BTreeMap::new();
    let mut seen = Seen::default();
    let (mut nameless, mut differs) = (false, false);
    for (index, op) in ops.iter().enumerate() {
        let Some(step) = Step::of(op, &names) else { continue };
        nameless |= step.is_nameless();
        match step {
            Step::Put { value, .. } => *writers.entry(value).or_default() += 1,
            Step::Differ(condition) => {
                differs = true;
                if let model::Condition::Value(value) = condition {
                    seen.maybe.insert(value);
                }
            }
            Step::See { .. } => {}
        }
        if op.outcome == Outcome::Unknown {
            unknown.push((index, op.call, step));
            continue;
        }
        let ret = op.ret.unwrap_or(u64::MAX).max(op.call);
        seen.add(&step, ret);
        prepared.definite.push(Definite { op: index, call: op.call, ret, step });
    }
    settle(&mut prepared, &mut unknown, &writers, &mut seen);
    keep(&mut prepared, &unknown, &mut seen, nameless, differs);
    prepared.definite.sort_by_key(|definite| definite.call);
    prepared
}

/// Those whose value was seen and is their own have returned, as seen by others.
fn settle(
    prepared: &mut Prepared,
    unknown: &mut Vec<(usize, u64, Step)>,
    writers: &BTreeMap<Option<u64>, usize>,
    seen: &mut Seen,
) {
    loop {
        let before = unknown.len();
        unknown.retain(|&(op, call, step)| {
            let Step::Put { value: Some(value), .. } = step else { return true };
            if writers.get(&Some(value)) != Some(&1) {
                return true;
            }
            let Some(first) = seen.surely.get(&Some(value)).copied() else { return true };
            let ret = first.max(call);
            seen.add(&step, ret);
            prepared.definite.push(Definite { op, call, ret, step });
            false
        });
        if unknown.len() == before {
            break;
        }
    }
    tighten(prepared, writers, seen);
}

/// What was settled early may have been seen earlier by one who was settled later.
fn tighten(prepared: &mut Prepared, writers: &BTreeMap<Option<u64>, usize>, seen: &mut Seen) {
    loop {
        let mut changed = false;
        for definite in &mut prepared.definite {
            let Step::Put { value: Some(value), .. } = definite.step else { continue };
            if writers.get(&Some(value)) != Some(&1) {
                continue;
            }
            let Some(first) = seen.surely.get(&Some(value)).copied() else { continue };
            let ret = definite.ret.min(first.max(definite.call));
            if ret < definite.ret {
                definite.ret = ret;
                seen.add(&definite.step, ret);
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

/// Keeps of the others those that can matter.
fn keep(
    prepared: &mut Prepared,
    unknown: &[(usize, u64, Step)],
    seen: &mut Seen,
    nameless: bool,
    differs: bool,
) {
    let mut kept = vec![false; unknown.len()];
    loop {
        let mut changed = false;
        for (kept, (_, _, step)) in kept.iter_mut().zip(unknown) {
            let Step::Put { value, .. } = step else { continue };
            let matters = nameless || seen.surely.contains_key(value) || seen.maybe.contains(value);
            if matters && !*kept {
                *kept = true;
                changed = true;
                seen.maybe.extend(step.observes());
            }
        }
        if !changed {
            break;
        }
    }
    for (kept, (_, call, step)) in kept.into_iter().zip(unknown) {
        let deletes = matches!(step, Step::Put { value: None, .. });
        if kept || differs {
            let filler = !kept && !deletes;
            prepared.pending.push(Pending { call: *call, step: *step, filler });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::What, *};

    fn op(call: u64, ret: u64, what: What, outcome: Outcome) -> Op {
        Op { client: 0, key: "k".into(), call, ret: Some(ret), what, outcome }
    }

    fn read(call: u64, ret: u64, value: u64) -> Op {
        op(call, ret, What::Read, Outcome::Ok { value: Some(value), version: None })
    }

    #[test]
    fn an_unknown_write_that_was_seen_returned_before_it_was() {
        let ops =
            [op(0, 1, What::Write { value: 1 }, Outcome::Unknown), read(5, 9, 1), read(6, 7, 1)];
        let prepared = prepare(&ops);
        assert_eq!((prepared.definite[0].op, prepared.definite[0].ret), (0, 7));
        assert!(prepared.pending.is_empty());
    }

    #[test]
    fn an_unknown_write_of_what_another_wrote_too_stays_open() {
        let ops = [
            op(0, 1, What::Write { value: 1 }, Outcome::Unknown),
            op(0, 1, What::Write { value: 1 }, Outcome::Unknown),
            read(5, 9, 1),
        ];
        assert_eq!(prepare(&ops).pending.len(), 2);
    }

    #[test]
    fn an_unknown_write_that_nobody_saw_matters_only_to_a_mismatch() {
        let swap = What::Swap { expected: super::super::Expected::Value(Some(7)), value: 8 };
        let mut ops = vec![op(0, 1, What::Write { value: 1 }, Outcome::Unknown)];
        assert!(prepare(&ops).pending.is_empty());
        ops.push(op(2, 3, swap, Outcome::Mismatch));
        assert!(prepare(&ops).pending[0].filler);
    }

    #[test]
    fn what_failed_says_nothing() {
        let ops = [
            op(0, 1, What::Write { value: 1 }, Outcome::Failed),
            op(0, 1, What::Read, Outcome::Unknown),
        ];
        let prepared = prepare(&ops);
        assert!(prepared.definite.is_empty() && prepared.pending.is_empty());
    }
}
