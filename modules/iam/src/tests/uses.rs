//! Last uses of tokens (`IAM-6`).

use futures::executor::block_on;
use serde_json::json;

use super::world::{World, text};
use crate::{records::TOKEN_USES, uses::Uses};

const MINUTE: u64 = 60_000;

fn written(world: &World) -> Option<u64> {
    let row = TOKEN_USES.get(&world.view(), &"boot".to_owned()).unwrap();
    row.map(|row| row.value.last_used_ms)
}

fn shown(world: &World) -> serde_json::Value {
    world.call("apiTokens.list", json!({})).unwrap()[0]["lastUsedAt"].clone()
}

#[test]
fn whoever_is_let_in_writes_nothing_by_it() {
    let world = World::new();
    let before = (world.view().applied(), world.view().revision());
    for _ in 0..1000 {
        world.present(&text("boot", 1)).unwrap();
        shown(&world);
    }
    assert_eq!((world.view().applied(), world.view().revision()), before, "IAM-6");
}

#[test]
fn a_use_is_shown_at_once_to_the_minute() {
    let world = World::new();
    assert_eq!(shown(&world), json!(null));
    world.store.advance(90_000);
    let wall_ms = world.view().clock().wall_ms;
    world.present(&text("boot", 9)).unwrap_err();
    assert_eq!(shown(&world), json!(null), "nobody was let in");
    world.present(&text("boot", 1)).unwrap();
    let used = palisade_contract::time::rfc3339(wall_ms - wall_ms % MINUTE);
    assert_eq!(shown(&world), json!(used));
}

#[test]
fn of_one_token_one_use_an_hour_is_written() {
    let world = World::new();
    let uses = &world.module.port.uses;
    assert_eq!(block_on(uses.write(&world.cx)).unwrap(), 0, "there is none");
    world.present(&text("boot", 1)).unwrap();
    assert_eq!(block_on(uses.write(&world.cx)).unwrap(), 1);
    let (first, revision) = (written(&world).unwrap(), world.view().revision());
    world.store.advance(59 * MINUTE);
    let revision = world.view().revision().max(revision);
    world.present(&text("boot", 1)).unwrap();
    assert_eq!(block_on(uses.write(&world.cx)).unwrap(), 0, "IAM-6");
    assert_eq!((written(&world), world.view().revision()), (Some(first), revision), "IAM-6");
    world.store.advance(MINUTE);
    world.present(&text("boot", 1)).unwrap();
    assert_eq!(block_on(uses.write(&world.cx)).unwrap(), 1);
    assert_eq!(written(&world), Some(first + 60 * MINUTE));
}

#[test]
fn replicas_write_the_newest_use_and_show_what_others_wrote() {
    let world = World::new();
    let (here, there) = (&world.module.port.uses, Uses::default());
    let start = world.view().clock().wall_ms;
    here.note("boot", start + 10 * MINUTE);
    there.note("boot", start + 300 * MINUTE);
    assert_eq!(block_on(there.write(&world.cx)).unwrap(), 1);
    assert_eq!(block_on(here.write(&world.cx)).unwrap(), 0, "a newer one is written");
    assert_eq!(written(&world), Some(start + 300 * MINUTE));
    assert_eq!(
        here.shown(&world.view(), "boot").unwrap().map(|at| at / MINUTE),
        Some((start + 300 * MINUTE) / MINUTE)
    );
}

#[test]
fn uses_of_tokens_that_are_gone_are_not_written() {
    let world = World::new();
    let uses = &world.module.port.uses;
    uses.note("gone", 1);
    assert_eq!(block_on(uses.write(&world.cx)).unwrap(), 0);
    assert!(TOKEN_USES.all(&world.view()).unwrap().is_empty());
}

#[test]
fn the_task_writes_and_ends() {
    use palisade_contract::{Context, Module};
    use palisade_state::step::StepRuntime;
    use std::{sync::Arc, time::Duration};
    let world = World::new();
    let rt = StepRuntime::new(3);
    let cx = Context::new(rt.clone(), world.store.clone());
    let module = crate::Iam::new(None);
    block_on(module.start(&cx)).unwrap();
    let access = cx.ports.access.get().unwrap().clone();
    let token = palisade_contract::ports::Credential::Token(text("boot", 1));
    access.authenticate(&world.view(), &token).unwrap();
    rt.advance(Duration::from_secs(59));
    assert_eq!(written(&world), None);
    rt.advance(Duration::from_secs(2));
    assert!(written(&world).is_some());
    let before = Arc::strong_count(&module.port.uses);
    block_on(module.stop()).unwrap();
    rt.advance(Duration::from_mins(2));
    assert!(Arc::strong_count(&module.port.uses) < before, "the task has ended");
}
