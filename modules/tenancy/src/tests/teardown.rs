use std::{sync::atomic::Ordering, time::Duration};

use palisade_contract::{Code, Module, Severity, module::Run, tenants::Charging};
use serde_json::json;

use super::world::{WIDGETS, World, amounts};
use crate::SWEEP_EVERY;

/// `TEN-7`
#[test]
fn rows_of_two_kinds_are_removed_a_hundred_at_a_time_until_none_is_left() {
    let world = World::new();
    world.create("acme", json!({}));
    world.create("other", json!({}));
    world.fill("acme", 250);
    world.fill("other", 30);
    world.remove("acme");
    assert_eq!(world.state("acme"), "deleting");
    world.settle("acme");
    // Each is asked twice when it has something to remove: first only to see that, then in a transaction.
    let mut asked = world.things.asked.lock().unwrap().clone();
    asked.dedup();
    assert_eq!(asked, [(280, 280), (180, 180), (80, 80), (30, 30)]);
    assert_eq!((world.view().count("widgets"), world.view().count("gadgets")), (30, 30));
    let gone = world.get("acme");
    assert_eq!(gone["state"], "deleted");
    assert!(gone["deleted"]["teardownDoneAt"].is_string(), "{gone}");
    assert_eq!(world.events().last().unwrap(), "tenant.torn-down");
    assert_eq!(world.view().count("tenant_teardowns"), 0);
    assert_eq!(world.state("other"), "active");
}

#[test]
fn a_run_ends_after_so_many_passes_and_another_goes_on() {
    let world = World::new();
    world.create("acme", json!({}));
    for batch in 0..3 {
        world
            .commit(|tx| {
                for number in 0..1000 {
                    let key = format!("{batch}-{number}");
                    tx.put(&WIDGETS, &key, &"acme".to_owned())?;
                }
                Ok(())
            })
            .unwrap();
    }
    world.remove("acme");
    assert_eq!(world.sweep("acme").unwrap().unwrap(), Run::Again);
    assert_eq!(world.view().count("widgets"), 1000, "20 passes of 100");
    world.settle("acme");
    assert_eq!(world.state("acme"), "deleted");
}

fn is_failed(world: &World) -> bool {
    world.findings().iter().any(|finding| {
        finding.check == "tenancy.teardown-failed"
            && finding.severity == Severity::Error
            && finding.message.contains("acme")
            && finding.message.contains("things")
    })
}

#[test]
fn a_module_that_fails_is_asked_again_and_seen_meanwhile() {
    let world = World::new();
    world.create("acme", json!({}));
    world.fill("acme", 5);
    world.things.fails.store(true, Ordering::Relaxed);
    world.remove("acme");
    world.settle("acme");
    assert_eq!(world.state("acme"), "deleting");
    assert!(is_failed(&world), "{:?}", world.findings());
    let why = &world.get("acme")["deleted"]["failures"]["things"];
    assert_eq!(why, "the shop does not answer");
    let own = world.call_as("tenants.get", json!({"tenant": "acme"}), "acme").unwrap();
    assert_eq!(own["deleted"]["failures"], json!({}), "which may be nobody's own");
    let revision = world.view().revision();
    world.advance(SWEEP_EVERY - Duration::from_secs(1));
    assert!(world.sweep("acme").is_none(), "not yet");
    world.advance(Duration::from_secs(1));
    assert_eq!(world.sweep("acme").unwrap().unwrap(), Run::After(SWEEP_EVERY));
    assert!(world.view().revision() > revision);
    assert!(is_failed(&world));
    world.things.fails.store(false, Ordering::Relaxed);
    world.advance(SWEEP_EVERY);
    world.settle("acme");
    assert_eq!(world.state("acme"), "deleted");
    assert!(!is_failed(&world));
}

#[test]
fn a_module_that_panics_has_failed() {
    let world = World::new();
    world.create("acme", json!({}));
    world.fill("acme", 5);
    world.things.panics.store(true, Ordering::Relaxed);
    world.remove("acme");
    world.settle("acme");
    assert!(is_failed(&world));
    world.things.panics.store(false, Ordering::Relaxed);
    world.advance(SWEEP_EVERY);
    world.settle("acme");
    assert_eq!(world.state("acme"), "deleted");
}

/// `TEN-6`
#[test]
fn a_teardown_that_is_cut_off_between_its_steps_goes_on() {
    let world = World::new();
    world.create("acme", json!({}));
    world.fill("acme", 250);
    world.remove("acme");
    for left in [250, 150, 50] {
        assert_eq!(world.view().count("widgets"), left);
        // The leader ends after a module was asked and before what it removes is committed.
        *world.things.elects.lock().unwrap() = Some(world.store.clone());
        let cut = world.sweep("acme").unwrap().unwrap_err();
        assert_eq!(cut.code, Code::Fenced);
        assert_eq!(world.view().count("widgets"), left, "nothing of a step that was cut off");
        assert_eq!(world.state("acme"), "deleting");
        world.beat();
        // One step of the next owner, and no more.
        world.commit(|tx| world.things.tenant_deleted(&world.cx, tx, "acme").map(drop)).unwrap();
    }
    world.settle("acme");
    assert_eq!(world.state("acme"), "deleted");
    assert_eq!((world.view().count("widgets"), world.view().count("gadgets")), (0, 0));
    assert_eq!(world.events().iter().filter(|kind| *kind == "tenant.torn-down").count(), 1);
}

#[test]
fn charges_that_nobody_gave_back_go_with_the_tenant() {
    let world = World::new();
    world.create("acme", json!({}));
    for number in 0..150 {
        let subject = format!("workload/{number}");
        world.charge("acme", &subject, amounts(1), Charging::Asked).unwrap();
    }
    world.remove("acme");
    world.settle("acme");
    assert_eq!(world.state("acme"), "deleted");
    assert_eq!((world.view().count("tenant_charges"), world.view().count("tenant_usage")), (0, 0));
    assert!(world.findings().is_empty(), "{:?}", world.findings());
}

#[test]
fn a_teardown_that_takes_long_is_told_with_what_is_left() {
    let world = World::new();
    world.create("acme", json!({}));
    world.things.waits.store(true, Ordering::Relaxed);
    world.remove("acme");
    world.settle("acme");
    assert_eq!(world.get("acme")["deleted"]["waiting"], json!(["things"]));
    world.advance(Duration::from_secs(9 * 60));
    assert!(world.findings().is_empty(), "{:?}", world.findings());
    world.advance(Duration::from_secs(2 * 60));
    let found = world.findings();
    assert_eq!(
        (found[0].check.as_str(), found[0].severity),
        ("tenancy.teardown-slow", Severity::Warning)
    );
    assert!(found[0].message.ends_with("something is left: things"), "{found:?}");
    world.things.waits.store(false, Ordering::Relaxed);
    world.settle("acme");
    assert_eq!(world.state("acme"), "deleted");
}
