//! The checks: pure functions over a history. Each has a test that plants the defect and sees the
//! check fail.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::history::History;

mod capacity;
pub(crate) mod convergence;
mod copies;
mod damage;
mod events;
mod exits;
mod instances;
mod leaders;
mod linear;
mod revisions;
mod writes;

#[cfg(test)]
mod testing;

/// A claim that a history does not keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// Which check.
    pub check: String,
    /// What is wrong.
    pub message: String,
    /// The least of the history that shows it.
    pub evidence: Vec<Value>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// How many things there were to look at; 0: the check says nothing.
    pub subjects: u64,
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// What could not be decided. A run with any is incomplete.
    pub undecided: Vec<String>,
}

impl Verdict {
    fn add(&mut self, check: &str, message: impl Into<String>, evidence: Vec<Value>) {
        self.violations.push(Violation { check: check.into(), message: message.into(), evidence });
    }
}

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// By which it is asked for.
    pub id: &'static str,
    /// What it claims.
    pub claim: &'static str,
    judge: fn(&History) -> Verdict,
}

impl Check {
    /// Judges a history.
    #[must_use]
    pub fn judge(&self, history: &History) -> Verdict {
        (self.judge)(history)
    }
}

/// All checks, in the order in which they are reported.
pub const ALL: [Check; 11] = [
    Check {
        id: linear::ID,
        claim: "each key's reads, writes and compare-and-swaps have an order that explains them all",
        judge: linear::judge,
    },
    Check {
        id: writes::ID,
        claim: "no acknowledged write is lost; none is applied twice under one idempotency key",
        judge: writes::judge,
    },
    Check {
        id: revisions::ID,
        claim: "revisions that a client sees never go back, and a read misses no acknowledged write",
        judge: revisions::judge,
    },
    Check {
        id: instances::ID,
        claim: "killing agents or the whole control plane stops no running instance",
        judge: instances::judge,
    },
    Check {
        id: capacity::ID,
        claim: "nodes never hold more than they have; their books equal their instances",
        judge: capacity::judge,
    },
    Check {
        id: events::ID,
        claim: "events come in commit order with no gap; the audit chain verifies",
        judge: events::judge,
    },
    Check {
        id: copies::ID,
        claim: "replicas serve the same records of one moment",
        judge: copies::judge,
    },
    Check { id: leaders::ID, claim: "at most one leader for each term", judge: leaders::judge },
    Check {
        id: exits::ID,
        claim: "no replica and no agent ends by itself, or otherwise than it is told to",
        judge: exits::judge,
    },
    Check {
        id: damage::ID,
        claim: "a replica with a damaged file recovers, or refuses by name and comes back by a repair",
        judge: damage::judge,
    },
    Check {
        id: convergence::ID,
        claim: "when the faults are over, everything converges: replicas, instances, and their removal",
        judge: convergence::judge,
    },
];

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}
