use palisade_state::{Store, Txn, command::Enqueue};

use super::*;

fn hash(seed: u64, seconds: u64) -> (u64, u64, Vec<Breach>) {
    let ran = run(&Options::of(seed, Duration::from_secs(seconds), &Fault::ALL));
    (ran.hash, ran.events, ran.breaches)
}

#[test]
fn one_seed_gives_one_run_also_on_another_thread() {
    let first = hash(11, 5);
    assert_eq!(first, hash(11, 5));
    let other = std::thread::Builder::new().spawn(|| hash(11, 5)).unwrap();
    assert_eq!(first, other.join().unwrap());
    assert_ne!(first.0, hash(12, 5).0);
    assert!(first.1 > 1000, "something happened: {} events", first.1);
}

#[test]
fn each_defect_is_caught_by_checks_that_are_listed() {
    for defect in Defect::ALL {
        for check in planted::aim(defect).checks {
            assert!(CHECKS.iter().any(|(id, _)| id == check), "{check} of {}", defect.name());
        }
    }
}

/// Waits until it is so.
async fn until(is: impl Fn() -> bool) {
    let begun = now();
    while !is() {
        assert!(now() < begun + Duration::from_secs(10), "it does not come to it");
        world_sleep(Duration::from_millis(1)).await;
    }
}

/// What the judge finds of the state before a key was woken, and of the one after.
async fn judged_before_and_after(nodes: Arc<Nodes>) -> (Vec<Breach>, Vec<Breach>) {
    let world = World::new(5, nodes.clone(), 3);
    nodes.spawn(0, world.clone().keep().boxed());
    let records = Mutex::default();
    let is_formed = |id| world.view(id).is_some_and(|view| view.formation().is_some());
    until(|| is_formed(1) && world.leader().is_some()).await;
    let before = Ending::of(&world, &records);
    let work = Enqueue { kind: chores::KIND.into(), key: "c1".into(), delay_ms: 60_000 };
    let wakes = Txn { enqueues: vec![work], ..Txn::default() };
    world.ask(1, |replica| async move { replica.propose(wakes.into()).await }.boxed()).await;
    until(|| furthest(&world).is_some_and(|view| chores::has_work(&view))).await;
    let before = report(&world, before, 1, true).breaches;
    let after = report(&world, Ending::of(&world, &records), 1, true).breaches;
    world.tear_down();
    (before, after)
}

#[test]
fn a_key_that_is_woken_while_the_judge_asks_is_not_left_over() {
    let nodes = Nodes::new(5, false);
    let entered = Entered::new(nodes.clone());
    let mut runtime = NodesRt::with_seed(5);
    let (before, after) = runtime.block_on(judged_before_and_after(nodes));
    drop((runtime, entered));
    let is_left = |breach: &Breach| breach.check == "Q1";
    assert!(!before.iter().any(is_left), "{before:?}");
    assert!(after.iter().any(is_left), "{after:?}");
}
