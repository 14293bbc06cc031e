use palisade_contract::node::InstancePhase;
use proptest::prelude::*;
use serde_json::json;

use super::{World, web, with};
use crate::rollout::{Copy, Target, next};

const NODES: [&str; 2] = ["a", "b"];

/// Steps a world, checking the floor and the ceiling at each step.
fn roll(world: &World, floor: usize, ceiling: usize) {
    for _ in 0..300 {
        let ran = world.bench.step();
        let live = crate::records::INSTANCES.all(&world.bench.view()).unwrap();
        let live = live.iter().filter(|(_, row)| row.value.is_live()).count();
        assert!(world.ready() >= floor, "{} ready", world.ready());
        assert!(live <= ceiling, "{live} live");
        let news = ran == 0 && NODES.iter().filter(|node| world.report(node)).count() > 0;
        assert!(world.ready() >= floor, "{} ready", world.ready());
        if ran == 0 && !news {
            return;
        }
    }
    panic!("the roll-out never ends");
}

fn newer(spec: serde_json::Value) -> serde_json::Value {
    with(spec, &json!({"task": {"command": ["server", "v2"]}}))
}

#[test]
fn an_update_never_goes_below_the_floor() {
    for (surge, unavailable, floor, ceiling) in [(1, 0, 3, 4), (0, 1, 2, 3), (2, 1, 2, 5)] {
        let world = World::new(&NODES);
        let update = json!({"update": {"maxSurge": surge, "maxUnavailable": unavailable}});
        world.apply(with(web(3), &update));
        world.settle(&NODES);
        let applied = world.apply(newer(with(web(3), &update)));
        assert_eq!(applied["plan"]["replace"].as_array().unwrap().len(), 3);
        assert_eq!(world.phase("web"), "progressing");
        roll(&world, floor, ceiling);
        let commands = |node| {
            let told = world.told(node);
            told.spec.instances.into_values().map(|i| i.command[1].clone()).collect::<Vec<_>>()
        };
        let all: Vec<String> = NODES.iter().flat_map(|node| commands(node)).collect();
        assert_eq!(all, ["v2", "v2", "v2"]);
        assert_eq!((world.phase("web").as_str(), world.ready()), ("running", 3));
        world.books_balance();
    }
}

#[test]
fn an_update_that_does_not_become_healthy_leaves_the_old_ones_alone() {
    let world = World::new(&NODES);
    world.apply(web(3));
    world.settle(&NODES);
    world.answer(|name| match name {
        "web-4" => InstancePhase::CrashLoop,
        _ => InstancePhase::Healthy,
    });
    world.apply(newer(web(3)));
    roll(&world, 3, 4);
    assert_eq!((world.phase("web").as_str(), world.ready()), ("degraded", 3));
    // Back to the old spec: the bad one goes, the others are replaced as well.
    world.answer(|_| InstancePhase::Healthy);
    world.apply(web(3));
    roll(&world, 3, 4);
    assert_eq!((world.phase("web").as_str(), world.ready()), ("running", 3));
}

/// Found by the simulator: the old instance stayed until something else happened to its workload.
#[test]
fn an_update_of_one_that_waits_goes_on_although_no_agent_has_anything_to_tell() {
    let world = World::new(&NODES);
    world.apply(web(1));
    world.settle(&NODES);
    let too_large = json!({"resources": {"cpumem": {"cpu-request": "1000"}}});
    world.apply(with(web(3), &too_large));
    world.settle(&NODES);
    assert_eq!(world.names().len(), 4, "three wait, and the old one stays: {:?}", world.names());
    world.apply(newer(web(1)));
    while world.bench.step() > 0 {}
    let newest = |row: &&crate::records::InstanceRow| row.version == 3;
    let rows = crate::records::INSTANCES.all(&world.bench.view()).unwrap();
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row.value).collect();
    assert_eq!(rows.iter().filter(newest).count(), 1, "{rows:?}");
    roll(&world, 1, 2);
    assert_eq!((world.phase("web").as_str(), world.names().len()), ("running", 1));
}

#[test]
fn a_change_of_count_alone_replaces_nothing() {
    let world = World::new(&NODES);
    world.apply(web(2));
    world.settle(&NODES);
    let applied = world.apply(web(3));
    assert_eq!(applied["version"], 2);
    assert_eq!(applied["plan"]["stay"], json!(["web-1", "web-2"]));
    assert_eq!(applied["plan"]["replace"], json!([]));
    roll(&world, 2, 3);
    assert_eq!(world.names(), ["web-1", "web-2", "web-3"]);
}

#[test]
fn a_restart_is_in_place_and_one_at_a_time() {
    let world = World::new(&NODES);
    world.apply(web(3));
    world.settle(&NODES);
    let before = world.instances();
    let answer = world.call("workloads.restart", json!({"workload": "web"})).unwrap();
    assert_eq!(answer["plan"]["restart"].as_array().unwrap().len(), 3);
    roll(&world, 2, 3);
    let versions: Vec<u64> = NODES
        .iter()
        .flat_map(|node| world.told(node).spec.instances.into_values())
        .map(|instance| instance.spec_version)
        .collect();
    assert_eq!(versions, [2, 2, 2]);
    let ids = |list: &[serde_json::Value]| list.iter().map(|i| i["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&world.instances()), ids(&before));
    assert_eq!(world.phase("web"), "running");
}

#[test]
fn only_the_newest_versions_are_kept_and_those_in_use() {
    let world = World::new(&NODES);
    world.apply(web(1));
    world.settle(&NODES);
    for count in 2..=70 {
        world.call("workloads.scale", json!({"workload": "web", "count": count % 2 + 1})).unwrap();
    }
    // web-1 is of version 1.
    assert_eq!(world.count("workload_versions"), 51);
    assert!(world.names().contains(&"web-1".to_owned()));
}

fn target() -> impl Strategy<Value = Target> {
    let limits = (1_usize..6, 0_usize..3, 0_usize..3);
    limits.prop_filter_map("an update must be able to begin", |(count, surge, unavailable)| {
        (surge + unavailable > 0).then_some(Target {
            count,
            template_version: 2,
            restarts: 0,
            up: true,
            max_surge: surge,
            max_unavailable: unavailable,
        })
    })
}

proptest! {
    /// ROLL-1 and ROLL-2, with instances that become ready and fail in any order; and it ends.
    #[test]
    fn every_roll_out_keeps_its_promises_and_ends(
        target in target(),
        old in 0_u64..7,
        ready in any::<u64>(),
        moves in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut copies: Vec<Copy> = (1..=old).map(|number| Copy {
            id: format!("{number:03}"), number, version: 1, ready: ready >> number & 1 == 1,
            restarts: 0,
        }).collect();
        let mut made = old;
        let mut moves = moves.into_iter();
        for round in 0..200 {
            let step = next(&target, &copies);
            let before = copies.iter().filter(|copy| copy.ready).count();
            let has_old = copies.iter().any(|copy| copy.version < 2);
            let taken = copies.iter().filter(|c| step.remove.contains(&c.id) && c.ready).count();
            let floor = target.count.saturating_sub(target.max_unavailable).min(before);
            prop_assert!(taken == 0 || before - taken >= floor);
            copies.retain(|copy| !step.remove.contains(&copy.id));
            for _ in 0..step.create {
                made += 1;
                let id = format!("{made:03}");
                copies.push(Copy { id, number: made, version: 2, ready: false, restarts: 0 });
            }
            prop_assert!(!has_old || step.create == 0
                || copies.len() + step.remove.len() <= target.count + target.max_surge
                || copies.len() <= target.count);
            let settled = step.create == 0 && step.remove.is_empty();
            if settled && copies.iter().all(|copy| copy.ready) {
                prop_assert_eq!(copies.len(), target.count);
                prop_assert!(copies.iter().all(|copy| copy.version == 2));
                return Ok(());
            }
            match moves.next() {
                Some(which) if !copies.is_empty() => {
                    let at = usize::from(which) % copies.len();
                    copies[at].ready = which & 64 == 0;
                }
                _ => copies.iter_mut().for_each(|copy| copy.ready = true),
            }
            prop_assert!(round < 199, "{target:?} {copies:?}");
        }
    }
}
