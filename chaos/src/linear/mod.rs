//! Is there one order of these operations that explains what everybody saw?
//!
//! A history of reads, writes, deletions and compare-and-swaps of registers is *linearizable* when
//! each operation can be given one moment between its call and its return such that, one after the
//! other in the order of these moments, all answers are right. Keys are judged one by one, which is
//! enough: a history is linearizable exactly if that of each key is.
//!
//! The search is that of Wing and Gong with the memory of Lowe: a set of operations that were given
//! their moments together with the state that they led to is visited once. A set is kept as the
//! first operation that is not in it and the few behind that are, so that a moment at which nobody
//! was at work costs nothing: all that came before shrinks to one number.
//!
//! An operation nobody has an answer to (`Outcome::Unknown`) may take effect at any time after its
//! call, or never.
//!
//! # Invariants
//! - `LIN-1` What cannot be decided within the budget is `Verdict::Unknown`, never linearizable.
//! - `LIN-2` A counterexample is not linearizable by itself, and holds the writes of what its reads
//!   saw: no violation is made by leaving something out.

mod model;
mod prepare;
mod search;
mod shrink;
mod timeline;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One operation on one register. Times are of one clock; in which unit does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// Who asked.
    pub client: u32,
    /// Of which register.
    pub key: String,
    /// When it was asked for.
    pub call: u64,
    /// When the answer was there, or it was given up; none: never. Without meaning if the outcome
    /// is unknown.
    pub ret: Option<u64>,
    /// What was asked for.
    pub what: What,
    /// What was answered.
    pub outcome: Outcome,
}

/// What is done to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "camelCase")]
pub enum What {
    /// Read it.
    Read,
    /// Give it a value, whatever it holds.
    Write {
        /// The value.
        value: u64,
    },
    /// Take its value away.
    Delete,
    /// Give it a value if it holds what is expected.
    Swap {
        /// What is expected.
        expected: Expected,
        /// The value.
        value: u64,
    },
}

/// What a compare-and-swap expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Expected {
    /// This value; none: that there is none.
    Value(Option<u64>),
    /// The value of this version; 0: that there is none.
    Version(u64),
}

/// What came of an operation.
///
/// Versions, where a register has them, are given to each write, and a later one is higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum Outcome {
    /// It was done.
    Ok {
        /// What was read; none: there was nothing. Without meaning for what does not read.
        value: Option<u64>,
        /// The version that was read, or that this write was given; none: it was not told.
        version: Option<u64>,
    },
    /// A compare-and-swap found something else, and was not done.
    Mismatch,
    /// It was certainly not done, and nothing was seen.
    Failed,
    /// Nobody knows whether it was done, or will be.
    Unknown,
}

/// How much is looked at before the search is given up: one step is one operation that is tried at
/// one place. What was visited is remembered, which takes about 100 bytes for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Steps of the search, for each key.
    pub steps: u64,
    /// Steps more that are spent on making a counterexample small.
    pub shrink_steps: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { steps: 5_000_000, shrink_steps: 5_000_000 }
    }
}

/// What the search came to for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains everything.
    Linearizable,
    /// There is none.
    Violation(Box<Counterexample>),
    /// The budget was spent before it was known. This is no pass.
    Unknown {
        /// Steps that were made.
        explored: u64,
    },
}

impl Verdict {
    /// The counterexample, if there is one.
    #[must_use]
    pub fn counterexample(&self) -> Option<&Counterexample> {
        match self {
            Self::Violation(counterexample) => Some(counterexample),
            Self::Linearizable | Self::Unknown { .. } => None,
        }
    }
}

/// The least of a history that has no order. Its `Display` is a timeline for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// Of which register.
    pub key: String,
    /// Its operations by their call. Without any one of them (and those that saw what it wrote) an
    /// order exists, unless the budget ended first.
    pub ops: Vec<Op>,
    /// The one of `ops` that finds no place: all that returned before it can be put in an order.
    pub stuck: usize,
    /// How many operations the whole history of the key had.
    pub of: usize,
}

/// Judges each key of a history.
#[must_use]
pub fn check(ops: &[Op], budget: Budget) -> BTreeMap<String, Verdict> {
    let mut by_key: BTreeMap<&str, Vec<Op>> = BTreeMap::new();
    for op in ops {
        by_key.entry(&op.key).or_default().push(op.clone());
    }
    by_key.into_iter().map(|(key, ops)| (key.to_owned(), check_key(ops, budget))).collect()
}

/// Judges the history of one key, whose name the operations bear; they may come in any order.
#[must_use]
pub fn check_key(mut ops: Vec<Op>, budget: Budget) -> Verdict {
    ops.sort_by_key(|op| op.call);
    let mut left = budget.steps;
    match search::search(&prepare::prepare(&ops), &mut left) {
        search::Found::Order => Verdict::Linearizable,
        search::Found::Spent => Verdict::Unknown { explored: budget.steps },
        search::Found::Stuck { op } => {
            let mut left = budget.shrink_steps;
            Verdict::Violation(Box::new(shrink::shrink(&ops, op, &mut left)))
        }
    }
}
