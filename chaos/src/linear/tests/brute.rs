//! All orders, tried one by one, on the history as it is.

use super::super::{
    Op, Outcome,
    model::{State, Step, names},
};

/// Whether some order of all that were done, and of some that may have been, is right.
pub(super) fn has_order(ops: &[Op]) -> bool {
    let names = names(ops);
    let steps: Vec<Option<Step>> = ops.iter().map(|op| Step::of(op, &names)).collect();
    extend(ops, &steps, &mut vec![false; ops.len()], State::default())
}

fn extend(ops: &[Op], steps: &[Option<Step>], done: &mut Vec<bool>, state: State) -> bool {
    let must = |index: usize| steps[index].is_some() && ops[index].outcome != Outcome::Unknown;
    let open: Vec<usize> = (0..ops.len()).filter(|index| !done[*index]).collect();
    if !open.iter().any(|index| must(*index)) {
        return true;
    }
    for &index in &open {
        let Some(step) = &steps[index] else { continue };
        let returned = |other: usize| ops[other].ret.unwrap_or(u64::MAX).max(ops[other].call);
        let late = open.iter().any(|other| must(*other) && returned(*other) < ops[index].call);
        if late {
            continue;
        }
        if let Some(state) = state.after(step) {
            done[index] = true;
            let found = extend(ops, steps, done, state);
            done[index] = false;
            if found {
                return true;
            }
        }
    }
    false
}
