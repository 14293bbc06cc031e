//! Events that have left memory, and what the replica's history has of them.

use std::sync::{Arc, Mutex};

use futures::{
    executor::block_on,
    future::{BoxFuture, ready},
};
use palisade_contract::{
    Code, Error, Module, Result,
    past::{History, Lives, Reach, Wanted, When},
};
use palisade_state::{
    View,
    audit::AuditRecord,
    command::{Kind, Trim},
    outbox::Event,
    past::Kept,
};
use serde_json::{Value, json};

use super::world::World;
use crate::{deliver::SUBSCRIBERS, records::PROGRESS};

/// A history of events.
#[derive(Default)]
struct Past {
    reach: Mutex<Option<(u64, u64)>>,
    events: Mutex<Vec<(u64, Event)>>,
    /// It answers nothing now.
    fails: Mutex<bool>,
}

fn unused<T: Send + 'static>() -> BoxFuture<'static, Result<T>> {
    Box::pin(ready(Err(Error::internal("only events are asked for"))))
}

impl History for Past {
    fn reach(&self) -> Reach {
        Reach { audit: None, events: *self.reach.lock().unwrap() }
    }

    fn audit(&self, _: u64, _: usize) -> BoxFuture<'static, Result<Vec<AuditRecord>>> {
        unused()
    }

    fn events(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<(u64, Event)>>> {
        let all = self.events.lock().unwrap();
        let found = all.iter().filter(|(seq, _)| *seq >= from).take(limit).cloned().collect();
        let busy = || Error::new(Code::Unavailable, "its disk is busy");
        Box::pin(ready(if *self.fails.lock().unwrap() { Err(busy()) } else { Ok(found) }))
    }

    fn view_at(&self, _: When, _: Vec<Kept>) -> BoxFuture<'static, Result<View>> {
        unused()
    }

    fn lives(&self, _: &'static str, _: Wanted) -> BoxFuture<'static, Result<Lives>> {
        unused()
    }

    fn times(&self, _: Vec<u64>) -> BoxFuture<'static, Result<Vec<Option<u64>>>> {
        unused()
    }
}

/// More happened while a subscription was paused than memory has, with an event that it asks for among each hundred; its history
/// has all of it.
fn behind() -> (World, Arc<Past>) {
    let (world, past) = (World::new(), Arc::new(Past::default()));
    world.bench.context.ports.history.fill(past.clone()).unwrap();
    world.subscribe("pager", json!({"types": ["node"]}));
    world.done("subscriptions.pause", json!({"subscription": "pager"}));
    for _ in 0..21 {
        world.bench.commit(|tx| {
            for n in 0..5_000 {
                let kind = if n % 100 == 0 { "node.told" } else { "a.b" };
                tx.publish(kind, "", "a".to_owned(), &Value::Null);
            }
            Ok(())
        });
    }
    let all: Vec<(u64, Event)> =
        world.view().events(0).map(|(seq, event)| (seq, event.clone())).collect();
    while world.view().events(0).count() > 100_000 {
        let all = Trim { events_below: u64::MAX, ..Trim::default() };
        assert!(world.bench.store.apply(Kind::Trim(all).into()).unwrap().is_applied());
    }
    *past.reach.lock().unwrap() = Some((1, all.last().unwrap().0));
    *past.events.lock().unwrap() = all;
    (world, past)
}

fn resume(world: &World) {
    world.done("subscriptions.resume", json!({"subscription": "pager"}));
    // As often as it takes: a run looks at so many events only.
    let steps = (0..1_000).take_while(|_| world.bench.step() > 0).count();
    assert!(steps < 1_000);
}

/// The numbers of the events that a receiver got.
fn got(world: &World) -> Vec<u64> {
    let number = |id: &str| id.rsplit('-').next().unwrap().parse().unwrap();
    world.receivers.take().iter().map(|got| number(&got.id)).collect()
}

/// The numbers of those that it was to get.
fn asked_for(past: &Past, is_known: impl Fn(u64) -> bool) -> Vec<u64> {
    let all = past.events.lock().unwrap();
    let asked = all.iter().filter(|(seq, event)| &*event.kind == "node.told" && is_known(*seq));
    asked.map(|(seq, _)| *seq).collect()
}

#[test]
fn what_has_left_memory_is_sent_from_history_once_that_can_be_read() {
    let (world, past) = behind();
    let first = world.view().first_event().unwrap();
    assert!(first > 3_000, "{first}");
    let whole = *past.reach.lock().unwrap();
    let reconcilers = world.module.reconcilers();
    let subscribers = reconcilers.iter().find(|one| one.name() == SUBSCRIBERS).unwrap();
    world.done("subscriptions.resume", json!({"subscription": "pager"}));
    // It is not open yet, or has not come so far.
    for reach in [None, Some((1, 0)), Some((1, 2))] {
        *past.reach.lock().unwrap() = reach;
        let cx = world.bench.begin(SUBSCRIBERS, "/pager");
        let refused = block_on(subscribers.run(&cx, "/pager")).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (Code::Unavailable, true), "{reach:?}");
    }
    *past.reach.lock().unwrap() = whole;
    *past.fails.lock().unwrap() = true;
    let cx = world.bench.begin(SUBSCRIBERS, "/pager");
    assert_eq!(block_on(subscribers.run(&cx, "/pager")).unwrap_err().code, Code::Unavailable);
    *past.fails.lock().unwrap() = false;
    assert!(world.listed("deadLetters.list", "pager").is_empty(), "EVT-3: it is no gap");
    resume(&world);
    let expected = asked_for(&past, |_| true);
    assert!(expected.iter().filter(|seq| **seq < first).count() > 30);
    assert_eq!(got(&world), expected, "EVT-3, EVT-2");
    assert!(world.listed("deadLetters.list", "pager").is_empty());
    assert_eq!(world.shown("pager")["state"], "active");
}

#[test]
fn what_history_lacks_is_a_gap_and_the_rest_is_sent() {
    let (world, past) = behind();
    // It begins too late, and has a hole; the first event behind either is asked for.
    let asked = asked_for(&past, |_| true);
    let (begins, hole) = (asked[5], asked[15]..asked[17]);
    let is_lacking = |seq: u64| seq < begins || hole.contains(&seq);
    *past.reach.lock().unwrap() = Some((begins, 105_000));
    past.events.lock().unwrap().retain(|(seq, _)| !is_lacking(*seq));
    resume(&world);
    assert_eq!(got(&world), asked_for(&past, |seq| !is_lacking(seq)), "EVT-3");
    let gaps: Vec<Value> = world
        .listed("deadLetters.list", "pager")
        .iter()
        .map(|letter| letter["subject"].clone())
        .collect();
    let begun = gaps[0].as_str().unwrap();
    assert!(begun.ends_with(&format!(" to {}", begins - 1)), "EVT-3: {begun}");
    let of_hole = format!("{} to {}", hole.start, hole.end - 1);
    assert_eq!(gaps[1..], [json!(of_hole)], "EVT-3");
    assert_eq!(world.findings(), ["subscriptions.gap"]);
}

#[test]
fn a_history_that_begins_behind_what_memory_has_costs_only_what_neither_has() {
    let (world, past) = behind();
    let first = world.view().first_event().unwrap();
    let oldest = first + 1_000;
    *past.reach.lock().unwrap() = Some((oldest, 105_000));
    let expected = asked_for(&past, |seq| seq >= first);
    past.events.lock().unwrap().retain(|(seq, _)| *seq >= oldest);
    resume(&world);
    assert_eq!(got(&world), expected, "EVT-3");
    let gaps = world.listed("deadLetters.list", "pager");
    assert_eq!(gaps.len(), 1);
    let until = format!(" to {}", first - 1);
    assert!(gaps[0]["subject"].as_str().unwrap().ends_with(&until), "EVT-3: {}", gaps[0]);
}

#[test]
fn a_single_event_that_has_left_memory_is_missed_too() {
    let (world, past) = behind();
    let first = world.view().first_event().unwrap();
    *past.reach.lock().unwrap() = Some((first, 105_000));
    let key = "/pager".to_owned();
    let mut progress = PROGRESS.get(&world.view(), &key).unwrap().unwrap().value;
    progress.cursor = first - 2;
    world.bench.commit(|tx| Ok(tx.put(&PROGRESS, &key, &progress)?));
    resume(&world);
    assert_eq!(got(&world), asked_for(&past, |seq| seq >= first), "EVT-3");
    let gaps = world.listed("deadLetters.list", "pager");
    assert_eq!(gaps.len(), 1, "EVT-3");
}
