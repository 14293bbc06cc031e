//! What must be true of a run when it has ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use palisade_state::View;

use super::{
    chores,
    clients::{self, value_of},
    eyes::{Breach, Eyes},
    l1,
    record::{Action, Outcome, Record},
};

fn breach(check: &'static str, message: String) -> Breach {
    Breach { check, message }
}

/// L2: no acknowledged write is lost, none is done twice. Every write leaves an event.
fn writes(records: &[Record], last: &View) -> Vec<Breach> {
    let mut done: BTreeMap<u64, u64> = BTreeMap::new();
    let set = last.events(1).filter(|(_, event)| event.kind.as_ref() == clients::SET);
    for (_, event) in set {
        let data = std::str::from_utf8(&event.data).unwrap_or_default();
        if let Ok(value) = data.parse::<u64>() {
            *done.entry(value).or_default() += 1;
        }
    }
    let mut breaches = vec![];
    for record in records {
        let value = match record.action {
            Action::Read => continue,
            Action::Write(value) | Action::Swap { new: value, .. } => value,
        };
        let times = done.get(&value).copied().unwrap_or(0);
        let told = format!("{value:x} of register {} by client {}", record.key, record.client);
        match (&record.outcome, times) {
            (Outcome::Done(_), 1) | (Outcome::Unknown, 0 | 1) => {}
            (Outcome::Refused | Outcome::Failed, 0) => {}
            (Outcome::Done(_), 0) => breaches.push(breach(
                "L2",
                format!("write {told} was acknowledged at {:?} and is lost", record.ended),
            )),
            (Outcome::Refused | Outcome::Failed, _) => breaches.push(breach(
                "L2",
                format!("write {told} was refused at {:?} and is there", record.ended),
            )),
            (_, times) => {
                breaches.push(breach("L2", format!("write {told} was done {times} times")));
            }
        }
    }
    breaches
}

/// L3: what a client sees never goes back, and misses nothing that was acknowledged to it.
fn revisions(records: &[Record]) -> Vec<Breach> {
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    let mut breaches = vec![];
    for record in records {
        let Some(revision) = record.revision else { continue };
        let before = seen.entry(record.client).or_default();
        if record.action == Action::Read && revision < *before {
            let client = record.client;
            breaches.push(breach(
                "L3",
                format!(
                    "client {client} read revision {revision} at {:?} after it had seen {before}",
                    record.ended
                ),
            ));
        }
        *before = (*before).max(revision);
    }
    breaches
}

/// L3 across clients: a read misses nothing that was acknowledged, to whomever, before it began.
fn freshness(records: &[Record]) -> Vec<Breach> {
    let mut ended: Vec<(Duration, u64)> =
        records.iter().filter_map(|record| Some((record.ended, record.revision?))).collect();
    ended.sort_unstable();
    let mut highest = 0;
    for (_, revision) in &mut ended {
        highest = highest.max(*revision);
        *revision = highest;
    }
    let reads = records.iter().filter(|record| record.action == Action::Read);
    reads
        .filter_map(|read| {
            let before = ended.partition_point(|(at, _)| *at < read.invoked);
            let known = ended.get(before.checked_sub(1)?)?.1;
            let revision = read.revision.filter(|revision| *revision < known)?;
            Some(breach(
                "L3",
                format!(
                    "client {} read revision {revision} at {:?}, begun at {:?}, when {known} was known",
                    read.client, read.ended, read.invoked
                ),
            ))
        })
        .collect()
}

/// E1 of events by their sequence numbers and revisions.
pub(crate) fn order(events: impl Iterator<Item = (u64, u64)>) -> Vec<Breach> {
    let mut breaches = vec![];
    let mut before: Option<(u64, u64)> = None;
    for (sequence, revision) in events {
        if let Some((earlier, earlier_revision)) = before
            && (sequence != earlier + 1 || revision < earlier_revision)
        {
            let message = format!(
                "event {sequence} of revision {revision} follows {earlier} of {earlier_revision}"
            );
            breaches.push(breach("E1", message));
        }
        before = Some((sequence, revision));
    }
    breaches
}

/// E1: events come in commit order and without a gap, and the audit chain verifies.
fn events(last: &View) -> Vec<Breach> {
    let mut breaches = order(last.events(1).map(|(sequence, event)| (sequence, event.revision)));
    if let Err(broken) = last.verify_audit() {
        breaches.push(breach("E1", format!("the audit chain is broken: {broken}")));
    }
    breaches
}

/// What the registers hold at the end was written by somebody.
fn ending(records: &[Record], last: &View, keys: u64) -> Vec<Breach> {
    let written: BTreeSet<u64> = records
        .iter()
        .filter_map(|record| match record.action {
            Action::Read => None,
            Action::Write(value) | Action::Swap { new: value, .. } => Some(value),
        })
        .collect();
    (0..keys)
        .filter_map(|key| value_of(last, key).map(|value| (key, value)))
        .filter(|(_, value)| !written.contains(value))
        .map(|(key, value)| {
            breach("L2", format!("register {key} holds {value:x}, which nobody wrote"))
        })
        .collect()
}

/// Judges the whole run by what clients saw and by the last state.
pub(crate) fn judge(records: &[Record], last: &View, keys: u64, eyes: &Eyes) -> Vec<Breach> {
    let mut breaches = writes(records, last);
    breaches.extend(l1::judge(records));
    breaches.extend(revisions(records));
    breaches.extend(freshness(records));
    breaches.extend(events(last));
    breaches.extend(ending(records, last, keys));
    breaches.extend(chores::judge(last, eyes));
    breaches.extend(chores::owners(last));
    breaches
}
