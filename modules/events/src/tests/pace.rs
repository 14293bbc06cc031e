//! Who is slow, and what somebody asks for while a run is on its way.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, executor::block_on, future::BoxFuture};
use palisade_contract::{Module, ReconcileContext, Reconciler, Result, Run, events::Posted};
use serde_json::json;

use super::world::{World, answer, subjects};
use crate::{
    deliver::SUBSCRIBERS,
    records::{PROGRESS, QUEUE},
};

fn subscribers(world: &World) -> Arc<dyn Reconciler> {
    let all = world.module.reconcilers();
    all.into_iter().find(|reconciler| reconciler.name() == SUBSCRIBERS).unwrap()
}

/// Drives a run as far as it goes by itself.
fn begin<'a>(
    reconciler: &'a Arc<dyn Reconciler>,
    cx: &'a ReconcileContext,
) -> (BoxFuture<'a, Result<Run>>, bool) {
    let mut run = reconciler.run(cx, &cx.work.key);
    let is_over = (&mut run).now_or_never().is_some();
    (run, is_over)
}

/// Wakes subscriptions, without running them.
fn wake(world: &World, names: &[String]) {
    world.bench.commit(|tx| {
        Ok(names.iter().try_for_each(|name| tx.enqueue(SUBSCRIBERS, &format!("/{name}")))?)
    });
}

#[test]
fn a_run_ends_soon_although_its_receiver_is_slow() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    let clock = world.clock.clone();
    world.receivers.answer(move |_| {
        clock.pass(Duration::from_secs(19));
        answer(204)
    });
    for n in 0..20 {
        world.publish("", "x.y", "a");
        world.publish("", "x.y", &format!("b/{n}"));
    }
    let name = ["pager".to_owned()];
    wake(&world, &name);
    world.bench.step_only(SUBSCRIBERS);
    let first = world.receivers.take().len();
    assert!(first <= 8, "EVT-8: {first} attempts of 19 s");
    world.bench.settle();
    let got = world.receivers.take();
    assert_eq!(first + got.len(), 40, "EVT-3: it goes on by itself");
    assert_eq!(world.view().count("subscription_deliveries"), 0);
}

#[test]
fn slow_receivers_hold_up_no_other_although_they_take_all() {
    let world = World::new();
    let slow: Vec<String> = (0..30).map(|n| format!("slow-{n}")).collect();
    for name in &slow {
        world.subscribe(name, json!({"types": ["slow"]}));
    }
    world.subscribe("pager", json!({"types": ["node"]}));
    // Each has shown once how slow it is.
    let clock = world.clock.clone();
    world.receivers.answer(move |_| {
        clock.pass(Duration::from_secs(3));
        answer(204)
    });
    world.publish("", "slow.told", "a");
    wake(&world, &slow);
    world.bench.step_only(SUBSCRIBERS);
    assert_eq!(world.receivers.take().len(), 30);
    world.receivers.answer(|_| answer(204));
    world.receivers.keep_waiting(slow.iter().map(|name| format!("{name}.test")));
    world.publish("", "slow.told", "a");
    world.publish("", "node.lost", "node/nd_1");
    wake(&world, &slow);
    wake(&world, &["pager".to_owned()]);
    let reconciler = subscribers(&world);
    let contexts: Vec<ReconcileContext> =
        slow.iter().map(|name| world.bench.begin(SUBSCRIBERS, &format!("/{name}"))).collect();
    let mut on_their_way = vec![];
    for cx in &contexts {
        let (run, is_over) = begin(&reconciler, cx);
        if !is_over {
            on_their_way.push(run);
        }
    }
    assert_eq!(on_their_way.len(), 8, "EVT-8: the others wait for their places");
    assert_eq!(world.receivers.take().len(), 8, "EVT-8");
    let cx = world.bench.begin(SUBSCRIBERS, "/pager");
    assert!(begin(&reconciler, &cx).1, "EVT-8");
    assert_eq!(subjects(&world.receivers.take()), ["node/nd_1"], "EVT-8");
    assert_eq!(world.receivers.let_answer(), 8);
    for run in on_their_way {
        block_on(run).unwrap();
    }
    // Who answers at once for some time is one of the others again.
    world.receivers.keep_waiting([]);
    world.pass(Duration::from_secs(660), Duration::from_secs(1));
    world.receivers.keep_waiting(slow.iter().map(|name| format!("{name}.test")));
    world.receivers.take();
    world.publish("", "slow.told", "a");
    wake(&world, &slow);
    let contexts: Vec<ReconcileContext> =
        slow.iter().map(|name| world.bench.begin(SUBSCRIBERS, &format!("/{name}"))).collect();
    let runs: Vec<_> = contexts.iter().map(|cx| begin(&reconciler, cx)).collect();
    assert_eq!(runs.iter().filter(|(_, is_over)| !is_over).count(), 24);
}

/// Something that happens while a run is on its way, which the receiver answers then.
fn in_flight(world: &World, happens: impl FnOnce()) {
    world.receivers.keep_waiting(["pager.test".to_owned()]);
    wake(world, &["pager".to_owned()]);
    let reconciler = subscribers(world);
    let cx = world.bench.begin(SUBSCRIBERS, "/pager");
    let (run, is_over) = begin(&reconciler, &cx);
    assert!(!is_over);
    happens();
    world.receivers.keep_waiting([]);
    assert_eq!(world.receivers.let_answer(), 1);
    block_on(run).unwrap();
    assert_eq!(world.receivers.take().len(), 1);
}

/// A run that is on its way while somebody resumes its subscription.
fn resumed_in_flight(world: &World) {
    world.publish("", "x.y", "a");
    in_flight(world, || {
        world.done("subscriptions.resume", json!({"subscription": "pager"}));
        world.bench.advance(3_000);
    });
}

#[test]
fn a_run_moves_a_cursor_only_from_where_it_found_it() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.publish("", "x.y", "a");
    let key = "/pager".to_owned();
    let progress = || PROGRESS.get(&world.view(), &key).unwrap().unwrap().value;
    let mut moved = progress();
    moved.cursor -= 1;
    in_flight(&world, || world.bench.commit(|tx| Ok(tx.put(&PROGRESS, &key, &moved)?)));
    assert_eq!(progress(), moved, "EVT-3");
}

#[test]
fn what_was_removed_while_a_run_tried_it_stays_so() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.receivers.answer(|_| answer(500));
    world.publish("", "x.y", "a");
    world.bench.settle();
    world.run();
    assert_eq!(world.receivers.take().len(), 1);
    let rows = || QUEUE.all(&world.view()).unwrap();
    assert_eq!(rows().len(), 1);
    world.bench.advance(60_000);
    in_flight(&world, || {
        let (row, _) = rows().remove(0);
        world.bench.commit(|tx| Ok(tx.delete(&QUEUE, &row)?));
    });
    assert_eq!(rows().len(), 0);
}

#[test]
fn what_somebody_asks_for_while_a_run_is_on_its_way_stands() {
    for status in [410, 429, 500] {
        let world = World::new();
        world.subscribe("pager", json!({}));
        let retry_after = Some(Duration::from_secs(600));
        world.receivers.answer(move |_| Ok(Posted { status, retry_after, excerpt: String::new() }));
        resumed_in_flight(&world);
        assert_ne!(world.shown("pager")["state"], "disabled", "{status}");
        assert!(!world.told().contains_key("subscription.disabled"), "{status}");
        // It asked for everything to be tried at once.
        world.receivers.answer(|_| answer(204));
        world.bench.settle();
        assert_eq!(world.receivers.take().len(), 1, "{status}");
        assert_eq!(world.shown("pager")["state"], "active", "{status}");
    }
}
