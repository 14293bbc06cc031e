//! Leaves out of a history what is not needed to see that it has no order.
//!
//! A read without the write that it saw has no order either, which would be a lie about the
//! register. So an operation takes those along that it stands on (the writes of what it saw; for a
//! compare-and-swap that found something else, the writes that can have been it), and one is only
//! left out together with all that stand on it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    Counterexample, Op, Outcome,
    model::{self, Step},
    prepare::prepare,
    search::{Found, search},
};

/// How many of the last operations are tried alone, at first.
const LAST_FEW: usize = 8;

/// Places in the history.
type Kept = BTreeSet<usize>;

/// Shrinks a history in the order of its calls that has no order, and in which `stuck` finds no
/// place.
pub(super) fn shrink(ops: &[Op], stuck: usize, steps: &mut u64) -> Counterexample {
    let shrink = Shrink::new(ops);
    let mut kept = shrink.last_few(stuck, steps);
    shrink.leave_out(&mut kept, steps);
    let least: Vec<Op> = kept.iter().map(|index| ops[*index].clone()).collect();
    let mut enough = u64::MAX;
    let stuck = match search(&prepare(&least), &mut enough) {
        Found::Stuck { op } => op,
        Found::Order | Found::Spent => kept.iter().position(|index| *index == stuck).unwrap_or(0),
    };
    let key = least.first().map(|op| op.key.clone()).unwrap_or_default();
    Counterexample { key, ops: least, stuck, of: ops.len() }
}

struct Shrink<'a> {
    ops: &'a [Op],
    steps: Vec<Option<Step>>,
    /// Who gives the register this value.
    writers: BTreeMap<Option<u64>, Vec<usize>>,
    /// Acknowledged writes by their return, each with the latest call of those until then.
    overwritten: Vec<(u64, u64)>,
    /// Writes, deletions and swaps that may have been done.
    changes: Vec<usize>,
}

impl<'a> Shrink<'a> {
    fn new(ops: &'a [Op]) -> Self {
        let names = model::names(ops);
        let steps: Vec<Option<Step>> = ops.iter().map(|op| Step::of(op, &names)).collect();
        let mut writers: BTreeMap<Option<u64>, Vec<usize>> = BTreeMap::new();
        let (mut changes, mut overwritten) = (Vec::new(), Vec::new());
        for (index, (op, step)) in ops.iter().zip(&steps).enumerate() {
            let Some(Step::Put { value, .. }) = step else { continue };
            writers.entry(*value).or_default().push(index);
            changes.push(index);
            if let (Outcome::Ok { .. }, Some(ret)) = (op.outcome, op.ret) {
                overwritten.push((ret, op.call));
            }
        }
        overwritten.sort_unstable();
        let mut latest = 0;
        for (_, call) in &mut overwritten {
            latest = latest.max(*call);
            *call = latest;
        }
        Self { ops, steps, writers, overwritten, changes }
    }

    /// What an operation stands on.
    fn supports(&self, index: usize) -> Vec<usize> {
        let Some(step) = &self.steps[index] else { return Vec::new() };
        let op = &self.ops[index];
        let ret =
            if op.outcome == Outcome::Unknown { u64::MAX } else { op.ret.unwrap_or(u64::MAX) };
        if step.is_nameless() {
            return self.changes.iter().copied().filter(|other| *other != index).collect();
        }
        let mut on = Vec::new();
        if let Some(value) = step.observes() {
            on.extend(self.writers.get(&value).into_iter().flatten().copied());
        }
        if let Step::Differ(condition) = step {
            if let model::Condition::Version { named: Some(value), .. } = condition {
                on.extend(self.writers.get(&Some(*value)).into_iter().flatten().copied());
            }
            let until = self.overwritten.partition_point(|(returned, _)| *returned < op.call);
            let since = until.checked_sub(1).map_or(0, |last| self.overwritten[last].1);
            on.extend(self.changes.iter().copied().filter(|change| {
                let change = &self.ops[*change];
                let open = change.outcome == Outcome::Unknown || change.ret.is_none();
                change.call <= ret && (open || change.ret >= Some(since))
            }));
        }
        on.retain(|other| *other != index);
        on
    }

    /// These, and all that they stand on.
    fn closed(&self, wanted: impl IntoIterator<Item = usize>) -> Kept {
        let mut kept = Kept::new();
        let mut next: Vec<usize> = wanted.into_iter().collect();
        while let Some(index) = next.pop() {
            if kept.insert(index) {
                next.extend(self.supports(index));
            }
        }
        kept
    }

    fn fails(&self, kept: &Kept, steps: &mut u64) -> bool {
        let ops: Vec<Op> = kept.iter().map(|index| self.ops[*index].clone()).collect();
        matches!(search(&prepare(&ops), steps), Found::Stuck { .. })
    }

    /// The last operations up to the one that is stuck, as few (in powers of two) as have no order.
    fn last_few(&self, stuck: usize, steps: &mut u64) -> Kept {
        let end = self.ops[stuck].ret.unwrap_or(u64::MAX).max(self.ops[stuck].call);
        let called = self.ops.partition_point(|op| op.call <= end);
        let mut few = LAST_FEW;
        while *steps > 0 && few < called * 2 {
            let kept = self.closed((called.saturating_sub(few)..called).chain([stuck]));
            if self.fails(&kept, steps) {
                return kept;
            }
            few *= 2;
        }
        (0..self.ops.len()).collect()
    }

    /// Leaves out what can be left out, many at once as long as there are many.
    fn leave_out(&self, kept: &mut Kept, steps: &mut u64) {
        let mut size = (kept.len() / 2).max(1);
        loop {
            let mut fewer = false;
            let mut all: Vec<usize> = kept.iter().copied().collect();
            // One by one, first those that stand on the most: what they stand on may go then too.
            if size == 1 {
                all.sort_by_cached_key(|index| Reverse(self.supports(*index).len()));
            }
            for chunk in all.chunks(size) {
                if *steps == 0 {
                    return;
                }
                let chunk: Vec<usize> =
                    chunk.iter().copied().filter(|index| kept.contains(index)).collect();
                let left = self.without(kept, &chunk);
                if left.len() < kept.len() && !left.is_empty() && self.fails(&left, steps) {
                    *kept = left;
                    fewer = true;
                }
            }
            match (size, fewer) {
                (1, false) => return,
                (1, true) => {}
                _ => size = (size / 2).max(1),
            }
        }
    }

    /// Without these and all that stand on them.
    fn without(&self, kept: &Kept, out: &[usize]) -> Kept {
        let mut gone: Kept = out.iter().copied().collect();
        loop {
            let more: Vec<usize> = kept
                .iter()
                .copied()
                .filter(|index| !gone.contains(index))
                .filter(|index| self.supports(*index).iter().any(|on| gone.contains(on)))
                .collect();
            if more.is_empty() {
                return kept.difference(&gone).copied().collect();
            }
            gone.extend(more);
        }
    }
}
