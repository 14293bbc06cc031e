//! Watching lists over REST.

use std::collections::BTreeSet;

use palisade_state::{
    Store,
    command::{EventDraft, Kind, Txn},
};
use serde_json::json;

use crate::support::{World, watcher::Watcher, world};

const LIST: &str = "/widgets?watch=true";

async fn put(world: &World, name: &str, size: u32) {
    let path = format!("/widgets/{name}");
    let done = world.api("PUT", &path).json(&json!({"sizeLimit": size})).send().await;
    assert_eq!(done.status, 200, "{:?}", done.body);
}

async fn remove(world: &World, name: &str) {
    let done = world.api("DELETE", &format!("/widgets/{name}")).send().await;
    assert_eq!(done.status, 200, "{:?}", done.body);
}

async fn watch(world: &World, last: Option<&str>) -> Watcher {
    Watcher::start(world, "pal_viewer", LIST, last).await
}

/// What is told until `wanted` was, in short; several changes may come at once or one by one.
async fn until(watcher: &mut Watcher, wanted: &str) -> (Vec<String>, String) {
    let mut told = vec![];
    loop {
        let (more, mark) = watcher.up_to_mark().await;
        told.extend(more);
        if told.iter().any(|short| short == wanted) {
            return (told, mark);
        }
    }
}

#[tokio::test]
async fn a_watch_tells_the_list_and_then_what_changes_in_it() {
    let world = world().await;
    put(&world, "a", 1).await;
    put(&world, "b", 2).await;
    let mut watcher = watch(&world, None).await;
    assert_eq!((watcher.status(), watcher.media()), (200, "text/event-stream"));
    let (told, _) = watcher.up_to_mark().await;
    assert_eq!(told, ["put a", "put b"]);
    put(&world, "b", 7).await;
    let event = watcher.next().await.unwrap();
    assert_eq!((event.name.as_str(), &event.data), ("put", &json!({"name": "b", "sizeLimit": 7})));
    assert_eq!(event.id, "", "the mark behind it has the id, so that no part of a batch is lost");
    watcher.up_to_mark().await;
    remove(&world, "a").await;
    assert_eq!(watcher.up_to_mark().await.0, ["delete a"]);
}

#[tokio::test]
async fn a_record_that_leaves_what_was_asked_for_is_told_as_deleted() {
    let world = world().await;
    put(&world, "a", 5).await;
    let mut watcher =
        Watcher::start(&world, "pal_viewer", "/widgets?atLeast=3&watch=true", None).await;
    assert_eq!(watcher.up_to_mark().await.0, ["put a"]);
    put(&world, "a", 1).await;
    assert_eq!(watcher.up_to_mark().await.0, ["delete a"]);
}

#[tokio::test]
async fn a_filter_narrows_what_is_watched() {
    let world = world().await;
    put(&world, "a", 5).await;
    put(&world, "b", 1).await;
    let path = "/widgets?filter=sizeLimit%3E3&watch=true";
    let mut watcher = Watcher::start(&world, "pal_viewer", path, None).await;
    assert_eq!(watcher.up_to_mark().await.0, ["put a"]);
    put(&world, "b", 4).await;
    assert_eq!(watcher.up_to_mark().await.0, ["put b"]);
    put(&world, "a", 3).await;
    assert_eq!(watcher.up_to_mark().await.0, ["delete a"]);
}

#[tokio::test]
async fn a_filter_narrows_events_and_their_marks_go_on() {
    let world = world().await;
    put(&world, "a", 1).await;
    let path = "/events?filter=subject%20%3D%20widget%2Fc&watch=true";
    let mut watcher = Watcher::start(&world, "pal_viewer", path, None).await;
    let (told, before) = watcher.up_to_mark().await;
    assert!(told.is_empty(), "{told:?}");
    put(&world, "b", 1).await;
    let (told, after) = watcher.up_to_mark().await;
    assert!(told.is_empty(), "{told:?}");
    assert_ne!(before, after, "a mark says how far it has looked");
    put(&world, "c", 1).await;
    let event = watcher.next().await.unwrap();
    assert_eq!(event.data["subject"], "widget/c");
}

#[tokio::test]
async fn a_watcher_that_comes_back_is_told_what_it_has_missed_and_nothing_else() {
    let world = world().await;
    for name in ["a", "b", "c"] {
        put(&world, name, 1).await;
    }
    let mut watcher = watch(&world, None).await;
    let (_, mark) = watcher.up_to_mark().await;
    drop(watcher);
    remove(&world, "a").await;
    put(&world, "d", 1).await;
    let mut again = watch(&world, Some(&mark)).await;
    let (told, later) = until(&mut again, "put d").await;
    assert_eq!(told, ["delete a", "put d"], "SSE-1");
    drop(again);
    let mut third = watch(&world, Some(&later)).await;
    assert_eq!(third.up_to_mark().await.0, Vec::<String>::new(), "nothing has happened");
}

#[tokio::test]
async fn a_watcher_that_nobody_knows_is_reset_when_something_has_changed() {
    let world = world().await;
    put(&world, "a", 1).await;
    let view = world.store.memory.view();
    let (cluster, revision) = (view.formation().unwrap().cluster.clone(), view.revision());
    let mut fresh = watch(&world, Some(&format!("{revision}@{cluster}"))).await;
    assert_eq!(fresh.up_to_mark().await.0, Vec::<String>::new(), "nothing has changed since");
    let mut old = watch(&world, Some(&format!("0@{cluster}"))).await;
    assert_eq!(old.up_to_mark().await.0, ["reset", "put a"], "SSE-1");
    let mut other = watch(&world, Some(&format!("{revision}@cl_other"))).await;
    assert_eq!(other.up_to_mark().await.0, ["reset", "put a"], "of before a restore");
}

#[tokio::test]
async fn many_watch_one_list_and_each_is_told_everything() {
    let world = world().await;
    let mut watchers = vec![];
    for _ in 0..40 {
        let mut watcher = watch(&world, None).await;
        watcher.up_to_mark().await;
        watchers.push(watcher);
    }
    let names: BTreeSet<String> = (0..20).map(|n| format!("w{n:02}")).collect();
    for name in &names {
        put(&world, name, 1).await;
    }
    for watcher in &mut watchers {
        let (told, _) = until(watcher, "put w19").await;
        let told: BTreeSet<String> =
            told.iter().filter_map(|short| short.strip_prefix("put ").map(str::to_owned)).collect();
        assert_eq!(told, names);
    }
}

#[tokio::test]
async fn a_watch_ends_when_its_credential_does() {
    let world = world().await;
    put(&world, "fleeting", 1).await;
    let mut watcher = Watcher::start(&world, "pal_fleeting", LIST, None).await;
    watcher.up_to_mark().await;
    remove(&world, "fleeting").await;
    let end = watcher.next().await.unwrap();
    assert_eq!((end.name.as_str(), &end.data["code"]), ("end", &json!("UNAUTHENTICATED")), "SSE-2");
    assert_eq!(watcher.next().await, None);
}

#[tokio::test]
async fn events_are_told_one_after_the_other_and_none_twice() {
    let world = world().await;
    put(&world, "a", 1).await;
    put(&world, "b", 1).await;
    let path = "/events?watch=true&limit=1";
    let mut watcher = Watcher::start(&world, "pal_viewer", path, None).await;
    let subject = |event: &crate::support::watcher::Event| event.data["subject"].clone();
    let first = watcher.next().await.unwrap();
    assert_eq!((first.name.as_str(), subject(&first)), ("put", json!("widget/b")), "the newest");
    watcher.up_to_mark().await;
    put(&world, "c", 1).await;
    let event = watcher.next().await.unwrap();
    assert_eq!(subject(&event), "widget/c");
    let (_, mark) = watcher.up_to_mark().await;
    drop(watcher);
    put(&world, "d", 1).await;
    put(&world, "e", 1).await;
    let mut again = Watcher::start(&world, "pal_viewer", path, Some(&mark)).await;
    for wanted in ["widget/d", "widget/e"] {
        let event = again.next().await.unwrap();
        assert_eq!((event.name.as_str(), subject(&event)), ("put", json!(wanted)), "SSE-1");
    }
    let mut other = Watcher::start(&world, "pal_viewer", path, Some("1@cl_other")).await;
    assert_eq!(other.next().await.unwrap().name, "reset");
    assert_eq!(subject(&other.next().await.unwrap()), "widget/e");
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused_and_says_why() {
    let world = world().await;
    for (path, pointer, words) in [
        ("/widgets/a?watch=true", "/watch", "widgets.get cannot be watched"),
        ("/widgets?watch=maybe", "/watch", "must be true or false"),
        ("/widgets?watch=true&limit=3", "/limit", "leave it out"),
        ("/widgets?watch=true&cursor=x", "/cursor", "leave it out"),
        ("/widgets?watch=true&dryRun=true", "/dryRun", "leave it out"),
        ("/widgets?watch=true&lastEventId=seven", "/lastEventId", "is not a cursor"),
        ("/widgets?lastEventId=7@cl_1", "/lastEventId", "add watch=true"),
        ("/events?watch=true&lastEventId=seven", "/cursor", "is not a cursor"),
    ] {
        let refused = world.api("GET", path).send().await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (400, "INVALID_INPUT"));
        let problem = refused.json()["errors"][0].clone();
        assert_eq!(problem["pointer"], pointer, "{path}: {problem}");
        assert!(problem["message"].as_str().unwrap().contains(words), "{path}: {problem}");
    }
    let denied = world.call("GET", "/api/compute/widgets?watch=true").send().await;
    assert_eq!(denied.status, 401);
}

/// Publishes an event of a tenant.
fn tell(world: &World, tenant: &str) {
    let event = EventDraft {
        kind: "pet.fed".to_owned(),
        tenant: tenant.to_owned(),
        subject: "pet/rex".to_owned(),
        data: b"{}".to_vec(),
    };
    let txn = Txn { events: vec![event], ..Txn::default() };
    assert!(world.store.memory.apply(Kind::Txn(txn).into()).unwrap().is_applied());
}

#[tokio::test]
async fn whoever_is_bound_to_a_tenant_watches_its_events_and_is_not_told_how_many_others_have() {
    let world = world().await;
    for tenant in ["acme", "other", "", "other"] {
        tell(&world, tenant);
    }
    let events = "/events?watch=true";
    let mut watcher = Watcher::start(&world, "pal_acme", events, None).await;
    let (told, mark) = watcher.up_to_mark().await;
    assert_eq!((told.len(), mark.as_str()), (1, "1@memory"), "TEN-1: {told:?}");
    tell(&world, "other");
    tell(&world, "acme");
    let event = watcher.next().await.unwrap();
    assert_eq!((&event.data["tenant"], &event.data["seq"]), (&json!("acme"), &json!(6)));
    let (_, later) = watcher.up_to_mark().await;
    assert_eq!(later, "6@memory");
    let mut again = Watcher::start(&world, "pal_acme", events, Some(&mark)).await;
    let (missed, end) = again.up_to_mark().await;
    assert_eq!((missed.len(), end.as_str()), (1, "6@memory"), "no gap, and nothing twice");
    let others = Watcher::start(&world, "pal_acme", "/events?tenant=other&watch=true", None).await;
    assert_eq!(others.status(), 403);
}
