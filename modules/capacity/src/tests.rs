use std::collections::BTreeMap;

use palisade_contract::{
    Code, InstanceId, Module,
    node::NodePhase,
    ports::{Allocation, Capacity, Demand, PortRequest},
};
use palisade_testing::Bench;
use proptest::prelude::*;
use serde_json::json;

use crate::{
    CapacityModule, NODES_KIND, PLACER_KIND,
    books::{BOOKS, DEMANDS},
};

const GIB: u64 = 1 << 30;

fn bench() -> Bench {
    Bench::new(&[&CapacityModule])
}

fn demand(bench: &Bench, group: &str, cpus: f64, gib: u64) -> Demand {
    let request = json!({"cpu-request": cpus, "memory-request": gib * GIB});
    Demand {
        id: InstanceId::mint(&*bench.context.rt),
        group: group.to_owned(),
        tenant: String::new(),
        pool: "default".to_owned(),
        resources: BTreeMap::from([("cpumem".to_owned(), request)]),
        ports: vec![PortRequest { name: "http".to_owned(), fixed: None }],
        labels: BTreeMap::new(),
        includes: vec![],
        excludes: vec![],
        driver: "process".to_owned(),
        strategy: "auto".to_owned(),
        wake: ("test.wake".to_owned(), group.to_owned()),
    }
}

fn port(bench: &Bench) -> &dyn Capacity {
    &**bench.context.ports.capacity.get().unwrap()
}

fn add(bench: &Bench, demand: &Demand) -> InstanceId {
    bench.commit(|tx| port(bench).demand(tx, demand));
    demand.id.clone()
}

fn node_of(bench: &Bench, id: &InstanceId) -> Option<String> {
    match port(bench).allocation(&bench.view(), id).unwrap()? {
        Allocation::Placed { node, .. } => Some(
            bench
                .context
                .ports
                .nodes
                .get()
                .unwrap()
                .find(&bench.view(), node.as_str())
                .unwrap()?
                .name,
        ),
        Allocation::Pending { .. } => None,
    }
}

fn reasons(bench: &Bench, id: &InstanceId) -> Vec<String> {
    match port(bench).allocation(&bench.view(), id).unwrap() {
        Some(Allocation::Pending { misfits }) => {
            misfits.into_iter().map(|m| format!("{}: {}", m.node, m.reason)).collect()
        }
        other => panic!("not pending: {other:?}"),
    }
}

fn findings(bench: &Bench) -> Vec<String> {
    let found = CapacityModule.self_check(&bench.context, &bench.view()).unwrap();
    found.into_iter().map(|finding| finding.check).collect()
}

#[test]
fn one_transaction_places_all_and_wakes_each_group_once() {
    let bench = bench();
    bench.node("a", 4000, 4 * GIB);
    bench.node("b", 4000, 4 * GIB);
    let demands: Vec<Demand> = (0..4).map(|_| demand(&bench, "web", 0.5, 1)).collect();
    bench.commit(|tx| demands.iter().try_for_each(|d| port(&bench).demand(tx, d)));
    let before = bench.view().revision();
    assert_eq!(bench.step(), 1);
    assert_eq!(bench.view().revision(), before + 1);
    let nodes: Vec<String> = demands.iter().map(|d| node_of(&bench, &d.id).unwrap()).collect();
    assert_eq!(nodes, ["a", "b", "a", "b"]);
    let row = bench.view().work("test.wake", "web").cloned().unwrap();
    assert_eq!(row.generation, row.enqueued_rev, "woken once");
    assert!(bench.view().work(PLACER_KIND, "default").is_none());
    assert!(findings(&bench).is_empty());
}

#[test]
fn what_cannot_be_placed_says_why_and_is_placed_when_something_is_released() {
    let bench = bench();
    bench.node("a", 1000, 4 * GIB);
    let first = add(&bench, &demand(&bench, "web", 1.0, 1));
    let second = add(&bench, &demand(&bench, "web", 1.0, 1));
    bench.settle();
    assert_eq!(reasons(&bench, &second), ["a: needs 1 CPU, 0 free"]);
    bench.commit(|tx| port(&bench).release(tx, &first));
    bench.settle();
    assert_eq!(node_of(&bench, &second).as_deref(), Some("a"));
    assert_eq!(port(&bench).allocation(&bench.view(), &first).unwrap(), None);
}

#[test]
fn unchanged_misfits_are_not_written_again() {
    let bench = bench();
    bench.node("a", 1000, GIB);
    let waiting = add(&bench, &demand(&bench, "web", 2.0, 1));
    bench.settle();
    let version = DEMANDS.get(&bench.view(), &waiting.key()).unwrap().unwrap().stamp.version;
    bench.commit(|tx| Ok(tx.enqueue(PLACER_KIND, "default")?));
    bench.settle();
    assert_eq!(DEMANDS.get(&bench.view(), &waiting.key()).unwrap().unwrap().stamp.version, version);
}

#[test]
fn a_node_that_becomes_fit_wakes_the_placer() {
    let bench = bench();
    bench.node("a", 1000, GIB);
    bench.change_node("a", &[], |node| node.schedulable = false);
    let waiting = add(&bench, &demand(&bench, "web", 1.0, 1));
    bench.settle();
    assert_eq!(reasons(&bench, &waiting), ["a: cordoned"]);
    bench.change_node("a", &[NODES_KIND], |node| node.schedulable = true);
    bench.settle();
    assert_eq!(node_of(&bench, &waiting).as_deref(), Some("a"));
}

#[test]
fn the_books_of_a_retired_node_are_closed() {
    let bench = bench();
    let node = bench.node("a", 1000, GIB);
    let placed = add(&bench, &demand(&bench, "web", 1.0, 1));
    bench.settle();
    bench.change_node("a", &[NODES_KIND], |node| node.phase = NodePhase::Retired);
    bench.settle();
    assert!(BOOKS.get(&bench.view(), &node.key()).unwrap().is_none());
    assert!(findings(&bench).is_empty());
    bench.commit(|tx| port(&bench).release(tx, &placed));
    assert_eq!(bench.view().count("capacity_demands"), 0);
}

#[test]
fn a_plan_that_was_overtaken_is_not_applied_but_made_again() {
    let bench = bench();
    let node = bench.node("a", 1000, 4 * GIB);
    let overtaken = add(&bench, &demand(&bench, "web", 1.0, 1));
    // Somebody else takes the room between the placer's view and its commit.
    let stale = bench.view();
    let other = add(&bench, &demand(&bench, "db", 0.5, 1));
    let mut tx = palisade_state::Tx::new(stale);
    let mut books = tx.get(&BOOKS, &node.key()).unwrap().unwrap_or_default();
    bench.settle();
    books.port_next = 1;
    tx.put(&BOOKS, &node.key(), &books).unwrap();
    let outcome = bench.store.apply(tx.build().unwrap().into()).unwrap();
    assert!(!outcome.is_applied(), "{outcome:?}");
    assert_eq!(node_of(&bench, &overtaken).as_deref(), Some("a"));
    assert_eq!(reasons(&bench, &other), ["a: needs 0.5 CPUs, 0 free"]);
}

#[test]
fn more_than_a_batch_is_placed_in_several_transactions() {
    let bench = bench();
    for name in ["a", "b"] {
        bench.node(name, 1_000_000, 4096 * GIB);
        bench.nodes.change(name, |node| node.facts.port_last = 40_000);
    }
    let demands: Vec<Demand> = (0..450).map(|_| demand(&bench, "web", 0.001, 0)).collect();
    bench.commit(|tx| demands.iter().try_for_each(|d| port(&bench).demand(tx, d)));
    assert_eq!(bench.settle(), 3);
    let books = BOOKS.get(&bench.view(), &node_id(&bench, "a")).unwrap().unwrap().value;
    assert_eq!((books.allocations.len(), books.used.cpu_milli), (225, 225));
}

#[test]
fn a_node_takes_only_so_many_instances() {
    let bench = bench();
    bench.node("a", 1_000_000, 4096 * GIB);
    bench.nodes.change("a", |node| node.facts.port_last = 40_000);
    let demands: Vec<Demand> = (0..401).map(|_| demand(&bench, "web", 0.001, 0)).collect();
    bench.commit(|tx| demands.iter().try_for_each(|d| port(&bench).demand(tx, d)));
    bench.settle();
    let waiting = reasons(&bench, &demands[400].id);
    assert_eq!(waiting, ["a: has 400 instances, the most that a node takes"]);
}

fn node_id(bench: &Bench, name: &str) -> String {
    bench.context.ports.nodes.get().unwrap().find(&bench.view(), name).unwrap().unwrap().id.key()
}

#[test]
fn a_dry_run_is_what_then_happens() {
    let bench = bench();
    bench.node("a", 1000, 4 * GIB);
    bench.node("b", 3000, 4 * GIB);
    bench.node("c", 100, 4 * GIB);
    let demands: Vec<Demand> = (0..3).map(|_| demand(&bench, "web", 1.0, 1)).collect();
    let (nodes, misfits) =
        port(&bench).dry_run(&bench.context, &bench.view(), &demands[0], 3).unwrap();
    assert_eq!(misfits.iter().map(|m| m.node.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    bench.commit(|tx| demands.iter().try_for_each(|d| port(&bench).demand(tx, d)));
    bench.settle();
    let then: Vec<String> = demands.iter().map(|d| node_of(&bench, &d.id).unwrap()).collect();
    assert_eq!(nodes, then);
}

#[test]
fn junk_and_duplicates_are_refused() {
    let bench = bench();
    let mut junk = demand(&bench, "web", 1.0, 1);
    junk.resources = BTreeMap::from([("cpumem".to_owned(), json!({"memory-request": "hhhh"}))]);
    let mut tx = palisade_state::Tx::new(bench.view());
    assert_eq!(port(&bench).demand(&mut tx, &junk).unwrap_err().code, Code::InvalidInput);
    let good = demand(&bench, "web", 1.0, 1);
    port(&bench).demand(&mut tx, &good).unwrap();
    assert_eq!(port(&bench).demand(&mut tx, &good).unwrap_err().code, Code::Conflict);
}

#[test]
fn unbalanced_books_are_found() {
    let bench = bench();
    let node = bench.node("a", 1000, GIB);
    add(&bench, &demand(&bench, "web", 0.5, 0));
    bench.settle();
    bench.commit(|tx| {
        let mut books = tx.get(&BOOKS, &node.key())?.unwrap_or_default();
        books.used.cpu_milli += 1;
        Ok(tx.put(&BOOKS, &node.key(), &books)?)
    });
    assert_eq!(findings(&bench), ["capacity.books"]);
}

#[test]
fn a_node_that_offers_less_than_before_is_a_warning() {
    let bench = bench();
    bench.node("a", 1000, GIB);
    add(&bench, &demand(&bench, "web", 1.0, 0));
    bench.settle();
    bench.nodes.change("a", |node| node.facts.offered_cpu_milli = 500);
    assert_eq!(findings(&bench), ["capacity.overcommitted"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// C1: whatever comes and goes, the books balance and no node gives more than it offers.
    #[test]
    fn the_books_always_balance(
        steps in prop::collection::vec((0_u8..4, 1_u32..2500, 0_u64..3), 1..30),
    ) {
        let bench = bench();
        bench.node("a", 2000, 4 * GIB);
        bench.node("b", 3000, 2 * GIB);
        let mut alive: Vec<InstanceId> = Vec::new();
        for (what, milli, gib) in steps {
            if what == 0 && !alive.is_empty() {
                let id = alive.remove(milli as usize % alive.len());
                bench.commit(|tx| port(&bench).release(tx, &id));
            } else {
                alive.push(add(&bench, &demand(&bench, "web", f64::from(milli) / 1000.0, gib)));
            }
            if what != 1 {
                bench.settle();
                prop_assert!(findings(&bench).is_empty());
            }
        }
    }
}
