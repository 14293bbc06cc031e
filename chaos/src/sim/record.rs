//! What clients did, as the checks read it.

use std::time::Duration;

/// What a client wanted of one key. Every value is written by one operation only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read it.
    Read,
    /// Write this value.
    Write(u64),
    /// Write `new` if it still is what this client read before.
    Swap { expected: Option<u64>, new: u64 },
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This was read.
    Value(Option<u64>),
    /// It was written, at this revision.
    Done(u64),
    /// The key was another by then: nothing was written.
    Refused,
    /// Nobody said.
    Unknown,
    /// It certainly was not done.
    Failed,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) client: u64,
    pub(crate) key: u64,
    pub(crate) action: Action,
    pub(crate) outcome: Outcome,
    pub(crate) invoked: Duration,
    pub(crate) ended: Duration,
    /// The revision of what was read, or at which was written.
    pub(crate) revision: Option<u64>,
}

/// A write that was never made, as if it had been acknowledged.
pub(crate) fn spoiled(now: Duration) -> Record {
    let (action, outcome) = (Action::Write(0), Outcome::Done(1));
    Record { client: 0, key: 0, action, outcome, invoked: now, ended: now, revision: Some(1) }
}
