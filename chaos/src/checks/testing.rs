//! Histories for tests.

use crate::history::{Action, Ending, History, Operation, Outcome, Register};

/// An operation of `client` from `invoked` to `ended`.
pub(super) fn operation(
    client: u32,
    (invoked, ended): (u64, u64),
    action: Action,
    outcome: Outcome,
) -> Operation {
    Operation { client, action, invoked, ended, tries: 1, outcome }
}

pub(super) fn ok(revision: u64) -> Outcome {
    Outcome::Ok { revision: Some(revision), value: None, version: None }
}

pub(super) fn read(revision: u64, value: u64) -> Outcome {
    Outcome::Ok { revision: Some(revision), value: Some(value), version: None }
}

pub(super) fn unknown() -> Outcome {
    Outcome::Unknown { reason: "no answer".into() }
}

pub(super) fn add(name: &str) -> Action {
    Action::Add { name: name.into() }
}

pub(super) fn set(value: u64) -> Action {
    Action::Set { register: "r".into(), value }
}

pub(super) fn get() -> Action {
    Action::Get { register: "r".into() }
}

/// A history of these operations, with an ending in which the rows and the register `r` are.
pub(super) fn history(
    operations: Vec<Operation>,
    rows: &[(&str, u64)],
    register: Option<(u64, u64)>,
) -> History {
    let rows = rows.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    let registers = register
        .map(|(value, version)| ("r".to_owned(), Register { value, version: Some(version) }))
        .into_iter()
        .collect();
    History { operations, ending: Some(Ending { rows, registers }), ..History::default() }
}
