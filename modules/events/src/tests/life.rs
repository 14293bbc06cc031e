use std::time::Duration;

use palisade_contract::{Code, Module, SecretRef, Sweep, events::Posted};
use palisade_state::{
    Tx,
    command::{Kind, Trim},
};
use serde_json::{Value, json};

use super::world::{Notes, World, answer, secret, subjects};
use crate::{
    records::{LETTERS, PROGRESS, SUBSCRIPTIONS},
    signature::{SigningKey, header},
};

const HOUR: Duration = Duration::from_secs(3600);

fn one(name: &str) -> Value {
    json!({ "subscription": name })
}

#[test]
fn what_happens_from_now_on_is_sent_and_signed() {
    let world = World::new();
    world.publish("", "node.lost", "node/nd_0");
    world.subscribe("pager", json!({"types": ["node"]}));
    world.run();
    assert!(world.receivers.take().is_empty(), "EVT-9: it begins at the tail");
    world.publish("", "node.lost", "node/nd_1");
    world.publish("", "workload.applied", "workload/web");
    world.run();
    let got = world.receivers.take();
    assert_eq!(subjects(&got), ["node/nd_1"]);
    let got = &got[0];
    assert_eq!(got.body["type"], "node.lost");
    assert_eq!(got.body["id"], got.id.as_str());
    assert_eq!(got.body["data"], json!({"about": "node/nd_1"}));
    let key = SigningKey::parse(secret(1).as_bytes()).unwrap();
    let body = got.body.to_string();
    let expected = header(&[key], &got.id, got.timestamp.parse().unwrap(), body.as_bytes());
    assert_eq!(got.signature, expected, "EVT-1");
    let shown = world.shown("pager");
    assert_eq!(
        (&shown["state"], &shown["delivered"], &shown["waiting"]),
        (&json!("active"), &json!(1), &json!(0))
    );
    assert!(
        !world
            .view()
            .events(0)
            .any(|(_, event)| { String::from_utf8_lossy(&event.data).contains("whsec_") }),
        "SEC-1"
    );
}

#[test]
fn what_fails_comes_again_under_its_id_and_then_no_more() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.receivers.answer(|_| answer(500));
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    world.pass(Duration::from_secs(60), Duration::from_secs(1));
    let failed = world.receivers.take();
    assert!((3..=5).contains(&failed.len()), "{}", failed.len());
    let shown = world.shown("pager");
    assert_eq!(shown["state"], "failing");
    assert_eq!(shown["reason"], "the receiver answered 500, with no word");
    let waiting = world.listed("subscriptions.deliveries", "pager");
    assert_eq!(waiting[0]["attempts"], failed.len());
    world.receivers.answer(|_| answer(200));
    world.pass(Duration::from_secs(300), Duration::from_secs(5));
    let got = world.receivers.take();
    assert_eq!(got.len(), 1);
    assert!(failed.iter().all(|one| one.id == got[0].id), "EVT-1");
    assert_eq!(world.shown("pager")["state"], "active");
    assert!(world.listed("subscriptions.deliveries", "pager").is_empty());
}

#[test]
fn what_was_tried_for_three_days_is_a_dead_letter_and_can_be_replayed() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.receivers.answer(|_| answer(400));
    world.publish("", "node.lost", "node/nd_1");
    world.publish("", "node.ready", "node/nd_2");
    world.run();
    world.pass(HOUR * 74, Duration::from_secs(600));
    let tried = world.receivers.take().len();
    assert!(tried > 120 && tried < 200, "{tried}");
    let letters = world.listed("deadLetters.list", "pager");
    assert_eq!(letters.len(), 2);
    assert_eq!(
        (&letters[0]["type"], &letters[0]["reason"]),
        (&json!("node.lost"), &json!("exhausted"))
    );
    assert_eq!(world.told()["subscription.dead-letter"], 2);
    assert!(world.findings().contains(&"subscriptions.dead-letters".to_owned()));
    world.receivers.take();
    world.receivers.answer(|_| answer(204));
    let of_one = json!({"subscription": "pager", "letters": [letters[1]["id"]]});
    let replayed = world.done("deadLetters.replay", of_one);
    assert_eq!(replayed, json!({"handled": 1, "left": 1}));
    world.bench.settle();
    let got = world.receivers.take();
    assert_eq!((got.len(), &got[0].body["type"]), (1, &json!("node.ready")));
    assert_eq!(got[0].id, letters[1]["event"].as_str().unwrap(), "EVT-1: under the same id");
    let of_one = json!({"subscription": "pager", "letters": [letters[0]["id"]]});
    assert_eq!(world.done("deadLetters.drop", of_one), json!({"handled": 1, "left": 0}));
    assert!(world.listed("deadLetters.list", "pager").is_empty());
    assert!(!world.findings().contains(&"subscriptions.dead-letters".to_owned()));
}

#[test]
fn a_receiver_that_asks_for_no_more_gets_no_more_until_somebody_resumes() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.receivers.answer(|_| answer(410));
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    assert_eq!(world.receivers.take().len(), 1);
    world.publish("", "node.lost", "node/nd_2");
    world.run();
    world.pass(HOUR, Duration::from_secs(60));
    assert!(world.receivers.take().is_empty());
    let shown = world.shown("pager");
    assert_eq!(shown["state"], "disabled");
    assert!(shown["reason"].as_str().unwrap().contains("410"));
    assert_eq!(world.told()["subscription.disabled"], 1);
    assert_eq!(world.findings(), ["subscriptions.disabled"]);
    assert_eq!(
        world.call("subscriptions.test", one("pager")).unwrap_err().code,
        Code::InvalidState
    );
    world.receivers.answer(|_| answer(204));
    world.done("subscriptions.resume", one("pager"));
    world.run();
    assert_eq!(subjects(&world.receivers.take()), ["node/nd_1", "node/nd_2"], "EVT-3");
}

#[test]
fn a_receiver_is_left_alone_for_as_long_as_it_asks() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    let wait = Some(Duration::from_secs(120));
    world
        .receivers
        .answer(move |_| Ok(Posted { status: 429, retry_after: wait, excerpt: String::new() }));
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    world.publish("", "node.lost", "node/nd_2");
    world.run();
    assert_eq!(world.receivers.take().len(), 1);
    world.receivers.answer(|_| answer(204));
    world.pass(Duration::from_secs(115), Duration::from_secs(1));
    assert!(world.receivers.take().is_empty(), "Retry-After");
    world.pass(Duration::from_secs(30), Duration::from_secs(1));
    let got = world.receivers.take();
    assert_eq!(got.len(), 2);
}

#[test]
fn a_pause_loses_nothing() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.done("subscriptions.pause", one("pager"));
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    assert!(world.receivers.take().is_empty());
    assert_eq!(world.shown("pager")["state"], "paused");
    world.done("subscriptions.resume", one("pager"));
    world.run();
    assert_eq!(subjects(&world.receivers.take()), ["node/nd_1"]);
    let told = world.told();
    assert_eq!((told["subscription.paused"], told["subscription.resumed"]), (1, 1));
}

#[test]
fn a_test_goes_to_one_subscription_and_tells_no_other() {
    let world = World::new();
    world.subscribe("pager", json!({"types": ["node"]}));
    world.subscribe("other", json!({}));
    world.done("subscriptions.test", one("pager"));
    world.run();
    let got = world.receivers.take();
    assert_eq!(got.len(), 1, "EVT-6");
    assert_eq!(
        (got[0].host.as_str(), &got[0].body["type"]),
        ("pager.test", &json!("subscription.test"))
    );
}

#[test]
fn during_a_rotation_two_secrets_sign_and_then_the_new_one_alone() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    let key = |byte| SigningKey::parse(secret(byte).as_bytes()).unwrap();
    let sent = |subject: &str, keys: &[SigningKey]| {
        world.publish("", "node.lost", subject);
        world.run();
        let got = world.receivers.take().pop().unwrap();
        let expected =
            header(keys, &got.id, got.timestamp.parse().unwrap(), got.body.to_string().as_bytes());
        assert_eq!(got.signature, expected, "EVT-1");
    };
    sent("a", &[key(1)]);
    let rotate = json!({"subscription": "pager", "secret": secret(2), "overlapSeconds": 3600});
    world.done("subscriptions.rotate", rotate);
    sent("b", &[key(2), key(1)]);
    world.bench.advance(3_601_000);
    sent("c", &[key(2)]);
    world.bench.jobs("outbox-dispatch").tick();
    sent("c", &[key(2)]);
    let shown = world.shown("pager");
    assert_eq!(
        shown["signing"],
        json!([{"secret": "subscription.pager.2", "own": true, "retiring": false}])
    );
    // One that somebody else set, without an overlap; what was kept goes.
    world.set_secret("hook", &secret(3));
    world.done(
        "subscriptions.rotate",
        json!({"subscription": "pager", "secretRef": "hook", "overlapSeconds": 0}),
    );
    sent("d", &[key(3)]);
    assert_eq!(world.secrets(), ["hook"]);
    let hook = SecretRef { secret: "hook".into() };
    let users = world.module.secret_users(&mut Tx::new(world.view()), "", &hook).unwrap();
    assert!(users.by.contains("subscription/pager"), "it stays while it signs");
    world.set_secret("bad", "hunter2");
    let refused =
        world.call("subscriptions.rotate", json!({"subscription": "pager", "secretRef": "bad"}));
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.code, refused.problems[0].pointer.as_str()),
        (Code::InvalidInput, "/secretRef")
    );
    assert!(!format!("{refused:?}").contains("hunter2"), "SEC-1");
}

#[test]
fn a_removed_subscription_takes_its_secret_and_its_rows_along() {
    let world = World::new();
    world.subscribe("pager", json!({}));
    world.receivers.answer(|_| answer(500));
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    assert_eq!(world.secrets(), ["subscription.pager.1"]);
    world.done("subscriptions.remove", one("pager"));
    world.subscribe("pager", json!({}));
    assert!(world.listed("subscriptions.deliveries", "pager").is_empty(), "it is another one");
    assert_eq!(world.secrets(), ["subscription.pager.1"], "of the new one");
    assert_eq!(world.view().count("subscription_deliveries"), 1);
    world.bench.jobs("outbox-dispatch").tick();
    world.bench.advance(61_000);
    world.bench.jobs("outbox-dispatch").tick();
    assert_eq!(world.view().count("subscription_deliveries"), 0);
}

#[test]
fn a_sink_is_given_events_and_may_fail_as_a_receiver_may() {
    let world = World::new();
    let notes: &Notes = &world.notes;
    let unknown = json!({"name": "s", "sink": "notes@2"});
    assert_eq!(world.call("subscriptions.create", unknown).unwrap_err().code, Code::Unsupported);
    world.done("subscriptions.create", json!({"name": "s", "sink": "notes@1", "types": ["node"]}));
    *notes.fails.lock().unwrap() = true;
    world.publish("", "node.lost", "node/nd_1");
    world.publish("", "node.ready", "node/nd_1");
    world.run();
    assert_eq!(notes.got.lock().unwrap().len(), 1, "EVT-2");
    *notes.fails.lock().unwrap() = false;
    world.pass(Duration::from_secs(10), Duration::from_secs(1));
    let kinds: Vec<String> =
        notes.got.lock().unwrap().iter().map(|event| event.kind.clone()).collect();
    assert_eq!(kinds, ["node.lost", "node.lost", "node.ready"]);
}

#[test]
fn wrong_input_is_refused_where_it_is_wrong() {
    let world = World::new();
    let pointers = |input: Value| -> Vec<String> {
        let refused = world.call("subscriptions.create", input).unwrap_err();
        assert_eq!(refused.code, Code::InvalidInput, "{refused:?}");
        refused.problems.into_iter().map(|problem| problem.pointer).collect()
    };
    let url = "https://pager.test/";
    assert_eq!(pointers(json!({"name": "P", "url": url, "secret": secret(1)})), ["/name"]);
    assert_eq!(pointers(json!({"name": "p", "url": "ftp://a/", "secret": secret(1)})), ["/url"]);
    assert_eq!(
        pointers(json!({"name": "p", "url": "https://a:b@c/", "secret": secret(1)})),
        ["/url"]
    );
    assert_eq!(
        pointers(json!({"name": "p", "url": "https://127.0.0.1/", "secret": secret(1)})),
        ["/url"],
        "EVT-4"
    );
    assert_eq!(pointers(json!({"name": "p", "url": url, "secret": "whsec_x"})), ["/secret"]);
    assert_eq!(pointers(json!({"name": "p", "url": url})), [""]);
    assert_eq!(
        pointers(json!({"name": "p", "url": url, "sink": "a@1", "secret": secret(1)})),
        [""]
    );
    assert_eq!(
        pointers(json!({"name": "p", "url": url, "secret": secret(1), "types": ["a*"]})),
        ["/types/0"]
    );
    let of =
        json!({"name": "p", "tenant": "acme", "ofTenant": "b", "url": url, "secret": secret(1)});
    assert_eq!(pointers(of), ["/ofTenant"]);
}

#[test]
fn what_is_of_a_deleted_tenant_goes_in_steps() {
    let world = World::new();
    world.subscribe("pager", json!({"tenant": "acme"}));
    // Its name begins as the other's does.
    world.subscribe("kept", json!({"tenant": "acme-2"}));
    world.receivers.answer(|_| answer(500));
    for n in 0..250 {
        world.publish("acme", "node.lost", "node/nd_1");
        if n < 3 {
            world.publish("acme-2", "node.lost", "node/nd_1");
        }
    }
    world.run();
    let waiting = |world: &World| world.view().count("subscription_deliveries");
    assert_eq!(waiting(&world), 253);
    let mut left = vec![];
    for _ in 0..10 {
        let mut swept = Sweep::Again;
        world.bench.commit(|tx| {
            swept = world.module.tenant_deleted(&world.bench.context, tx, "acme")?;
            Ok(())
        });
        left.push((waiting(&world), swept));
        if swept == Sweep::Done {
            break;
        }
    }
    let steps = [(153, Sweep::Again), (53, Sweep::Again), (3, Sweep::Done)];
    assert_eq!(left, steps, "so many in one transaction at most");
    let view = world.view();
    assert_eq!(view.count(SUBSCRIPTIONS.name()), 1);
    assert_eq!(view.count(PROGRESS.name()), 1);
    assert_eq!(waiting(&world), 3, "of the other tenant");
}

#[test]
fn events_that_left_memory_unread_are_a_gap_that_is_told() {
    let world = World::new();
    world.subscribe("pager", json!({"types": ["node"]}));
    world.done("subscriptions.pause", one("pager"));
    world.publish("", "node.lost", "node/nd_0");
    // So many that the first ones leave memory, and there is no history.
    for _ in 0..21 {
        world.bench.commit(|tx| {
            (0..5_000).for_each(|_| tx.publish("a.b", "", "a".to_owned(), &Value::Null));
            Ok(())
        });
    }
    for _ in 0..6 {
        let all = Trim { events_below: u64::MAX, ..Trim::default() };
        assert!(world.bench.store.apply(Kind::Trim(all).into()).unwrap().is_applied());
    }
    assert!(world.view().first_event().unwrap() > 5_000);
    world.publish("", "node.lost", "node/nd_1");
    world.done("subscriptions.resume", one("pager"));
    world.run();
    assert_eq!(subjects(&world.receivers.take()), ["node/nd_1"], "EVT-3: it goes on behind it");
    let letters = world.listed("deadLetters.list", "pager");
    assert_eq!((letters.len(), &letters[0]["reason"]), (1, &json!("gap")), "EVT-3");
    assert_eq!(world.told()["subscription.gap"], 1);
    assert_eq!(world.findings(), ["subscriptions.gap"]);
    let of_it = json!({"subscription": "pager", "letters": [letters[0]["id"]]});
    assert_eq!(
        world.call("deadLetters.replay", of_it.clone()).unwrap_err().code,
        Code::InvalidState
    );
    world.done("deadLetters.drop", of_it);
    assert_eq!(world.view().count(LETTERS.name()), 0);
    assert!(world.findings().is_empty());
}
