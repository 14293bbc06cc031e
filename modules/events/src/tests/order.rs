use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use serde_json::json;

use super::world::{Got, World, answer, subjects};

/// What each subject got that was answered with 2xx, in order: what happened, by its number.
fn accepted(got: &[Got], is_good: impl Fn(usize) -> bool) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, one) in got.iter().enumerate().filter(|(at, _)| is_good(*at)) {
        all.entry(one.subject().to_owned()).or_default().push(one.id.clone());
    }
    all
}

#[test]
fn whatever_fails_each_subject_is_told_in_order_and_nothing_is_lost() {
    for seed in 1..=4_u64 {
        let world = World::new();
        world.subscribe("pager", json!({}));
        // A receiver that fails as its seed says, and now and then for a while.
        let state = Mutex::new(seed);
        let goods = std::sync::Arc::new(Mutex::new(vec![]));
        let noted = goods.clone();
        world.receivers.answer(move |_| {
            let mut state = state.lock().unwrap();
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let is_good = (*state >> 33) % 2 == 0;
            noted.lock().unwrap().push(is_good);
            if is_good { answer(200) } else { answer(500) }
        });
        let mut expected: BTreeMap<String, usize> = BTreeMap::new();
        for n in 0..120 {
            let subject = format!("node/{}", n * seed % 7);
            world.publish("", "node.told", &subject);
            *expected.entry(subject).or_default() += 1;
            if n % 10 == 0 {
                world.run();
                world.bench.advance(3_000);
            }
        }
        world.run();
        world.pass(Duration::from_secs(12 * 3600), Duration::from_secs(120));
        let got = world.receivers.take();
        let goods = goods.lock().unwrap();
        let accepted = accepted(&got, |at| goods[at]);
        for (subject, count) in expected {
            let ids = &accepted[&subject];
            assert_eq!(ids.len(), count, "EVT-3: seed {seed}, {subject}");
            let numbers: Vec<u64> =
                ids.iter().map(|id| id.rsplit('-').next().unwrap().parse().unwrap()).collect();
            assert!(numbers.is_sorted(), "EVT-2: seed {seed}, {subject}: {numbers:?}");
        }
        assert_eq!(world.view().count("subscription_deliveries"), 0);
    }
}

#[test]
fn a_subject_that_fails_holds_up_no_other() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.receivers.answer(|got| answer(if got.subject() == "a" { 400 } else { 204 }));
    for subject in ["a", "b", "a", "b"] {
        world.publish("", "x.y", subject);
    }
    world.run();
    let got = world.receivers.take();
    let mut told = subjects(&got);
    told.sort_unstable();
    assert_eq!(told, ["a", "b", "b"], "EVT-2");
    world.publish("", "x.y", "c");
    world.run();
    assert_eq!(subjects(&world.receivers.take()), ["c"]);
    assert_eq!(world.listed("subscriptions.deliveries", "pager").len(), 2);
}

#[test]
fn a_receiver_that_is_down_is_not_overrun_and_gets_all_once_it_is_back() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.subscribe("other", json!({}));
    world.receivers.answer(|got| {
        if got.host == "pager.test" { Err("cannot connect".to_owned()) } else { answer(204) }
    });
    for n in 0..500 {
        world.publish("", "x.y", &format!("s/{n}"));
        if n % 100 == 0 {
            world.run();
        }
    }
    world.run();
    world.pass(Duration::from_secs(600), Duration::from_secs(10));
    let got = world.receivers.take();
    let to = |host: &str| got.iter().filter(|got| got.host == host).count();
    assert_eq!(to("other.test"), 500, "EVT-8");
    assert!(to("pager.test") < 250, "{} attempts", to("pager.test"));
    assert!(world.view().count("subscription_deliveries") <= 128, "EVT-5");
    world.receivers.answer(|_| answer(204));
    world.pass(Duration::from_secs(3600), Duration::from_secs(60));
    let got = world.receivers.take();
    assert_eq!(got.len(), 500, "EVT-3");
    assert!(got.iter().all(|got| got.host == "pager.test"));
}

#[test]
fn subscriptions_that_fail_at_each_other_make_no_loop() {
    let world = World::new();
    for name in ["one", "two", "three"] {
        world.subscribe(name, json!({}));
    }
    world.receivers.answer(|_| answer(410));
    world.publish("", "x.y", "a");
    for _ in 0..5 {
        world.run();
    }
    assert_eq!(
        world.receivers.take().len(),
        3,
        "EVT-6: each was told once, and nothing of the others"
    );
    assert_eq!(world.told()["subscription.disabled"], 3);
}

#[test]
fn a_tenant_is_told_nothing_of_another() {
    let world = World::new();
    world.subscribe("own", json!({"tenant": "acme"}));
    world.subscribe("all", json!({}));
    world.subscribe("cluster", json!({"ofTenant": ""}));
    for tenant in ["acme", "other", ""] {
        world.publish(tenant, "x.y", &format!("of-{tenant}"));
    }
    world.run();
    let got = world.receivers.take();
    let of = |host: &str| {
        let of_it: Vec<Got> = got.iter().filter(|got| got.host == host).cloned().collect();
        let mut told: Vec<String> = subjects(&of_it).iter().map(|one| (*one).to_owned()).collect();
        told.sort();
        told
    };
    assert_eq!(of("own.test"), ["of-acme"], "EVT-7");
    assert_eq!(of("all.test"), ["of-", "of-acme", "of-other"]);
    assert_eq!(of("cluster.test"), ["of-"]);
    let own = world.done("subscriptions.get", json!({"subscription": "own", "tenant": "acme"}));
    assert_eq!(own["behind"], json!(null), "TEN-1");
}
