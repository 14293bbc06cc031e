use std::collections::BTreeMap;

use palisade_contract::{
    input::Problems,
    node::HostFacts,
    ports::{Misfit, PortRequest},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    cpumem::{self, Request},
    size::{self, parse_bytes, parse_cpus},
    *,
};
use crate::placement::strategy::Strategy;

fn machine(name: &str, cpu_milli: u64, memory_bytes: u64) -> Machine {
    Machine {
        name: name.to_owned(),
        ready: true,
        phase: "ready".to_owned(),
        schedulable: true,
        drivers: vec!["process".to_owned()],
        offered: Amount { cpu_milli, memory_bytes },
        port_first: 20_000,
        port_last: 20_003,
        ..Machine::default()
    }
}

fn ask(id: &str, cpu_milli: u64, memory_bytes: u64) -> Ask {
    Ask {
        id: id.to_owned(),
        group: "web".to_owned(),
        class: Class {
            tenant: String::new(),
            labels: BTreeMap::new(),
            includes: vec![],
            excludes: vec![],
            driver: "process".to_owned(),
            strategy: Strategy::Auto,
        },
        need: Amount { cpu_milli, memory_bytes },
        ports: vec![],
    }
}

fn reason(machine: Machine, ask: &Ask) -> String {
    let made = plan("default", &[machine], std::slice::from_ref(ask));
    made.unplaced[&ask.id][0].reason.clone()
}

fn nodes(plan: &Plan) -> Vec<&str> {
    plan.placed.iter().map(|p| p.node.as_str()).collect()
}

#[test]
fn copies_spread_before_load_counts() {
    let machines = [machine("a", 4000, 1000), machine("b", 1000, 1000), machine("c", 8000, 1000)];
    let asks = [ask("1", 500, 10), ask("2", 500, 10), ask("3", 500, 10), ask("4", 500, 10)];
    assert_eq!(nodes(&plan("default", &machines, &asks)), ["c", "a", "b", "c"]);
}

#[test]
fn the_scarcest_resource_decides_the_load() {
    let mut cpu_rich = machine("a", 8000, 1000);
    cpu_rich.used = Amount { cpu_milli: 0, memory_bytes: 800 };
    let mut even = machine("b", 8000, 1000);
    even.used = Amount { cpu_milli: 4000, memory_bytes: 500 };
    assert_eq!(nodes(&plan("default", &[cpu_rich, even], &[ask("1", 10, 10)])), ["b"]);
}

#[test]
fn ties_end_in_the_name() {
    let machines = [machine("b", 1000, 10), machine("a", 1000, 10)];
    assert_eq!(nodes(&plan("default", &machines, &[ask("1", 1, 1)])), ["a"]);
}

#[test]
fn every_reason_is_told_in_words() {
    let small = || machine("n", 1200, 1 << 30);
    assert_eq!(reason(small(), &ask("1", 4000, 0)), "needs 4 CPUs, 1.2 free");
    assert_eq!(
        reason(small(), &ask("1", 4000, 3 << 29)),
        "needs 4 CPUs, 1.2 free; needs 1.5 GiB of memory, 1 GiB free"
    );
    assert_eq!(reason(Machine { schedulable: false, ..small() }, &ask("1", 1, 1)), "cordoned");
    let lost = Machine { ready: false, phase: "lost".to_owned(), ..small() };
    assert_eq!(reason(lost, &ask("1", 1, 1)), "not ready (lost)");
    let mut wants_ssd = ask("1", 1, 1);
    wants_ssd.class.labels.insert("disk".to_owned(), "ssd".to_owned());
    assert_eq!(reason(small(), &wants_ssd), "lacks label disk=ssd");
    let mut docker = ask("1", 1, 1);
    "docker".clone_into(&mut docker.class.driver);
    assert_eq!(reason(small(), &docker), "lacks driver docker");
    let mut excluded = ask("1", 1, 1);
    excluded.class.excludes.push("n".to_owned());
    assert_eq!(reason(small(), &excluded), "among placement.excludes");
    let theirs = Machine { tenant: "acme".to_owned(), ..small() };
    assert_eq!(reason(theirs, &ask("1", 1, 1)), "belongs to another tenant");
    let none = plan("gpu", &[], &[ask("1", 1, 1)]);
    assert_eq!(none.unplaced["1"][0].reason, "pool gpu has no nodes");
}

#[test]
fn a_tenant_is_not_told_of_the_nodes_of_another() {
    let theirs = Machine { tenant: "acme".to_owned(), ..machine("theirs", 10, 10) };
    let shared = machine("shared", 1, 1);
    let mut big = ask("1", 5, 5);
    "other".clone_into(&mut big.class.tenant);
    let told = |machines: &[Machine], ask: &Ask| -> Vec<(String, String)> {
        let made = plan("default", machines, std::slice::from_ref(ask));
        made.unplaced["1"].iter().map(|m| (m.node.clone(), m.reason.clone())).collect()
    };
    assert_eq!(
        told(&[theirs.clone(), shared.clone()], &big),
        told(std::slice::from_ref(&shared), &big)
    );
    assert_eq!(told(std::slice::from_ref(&theirs), &big), told(&[], &big), "as if there were none");
    big.class.includes.push("theirs".to_owned());
    assert_eq!(told(&[theirs.clone(), shared.clone()], &big), told(&[shared], &big));
    let clusters = ask("1", 50, 5);
    assert_eq!(told(&[theirs], &clusters)[0].0, "theirs", "the cluster knows of all");
}

#[test]
fn an_unknown_included_node_is_named() {
    let mut wants = ask("1", 1, 1);
    wants.class.includes.push("nowhere".to_owned());
    let made = plan("default", &[machine("n", 10, 10)], &[wants]);
    let expected =
        [("n", "not among placement.includes"), ("nowhere", "no such node in pool default")];
    let expected = expected.map(|(n, r)| Misfit { node: n.to_owned(), reason: r.to_owned() });
    assert_eq!(made.unplaced["1"], expected);
}

#[test]
fn ports_are_never_given_twice_and_not_again_at_once() {
    let port = |fixed| PortRequest { name: "http".to_owned(), fixed };
    let with = |id: &str, fixed| Ask { ports: vec![port(fixed)], ..ask(id, 1, 1) };
    let mut node = machine("n", 1000, 1000);
    node.ports.insert(20_001);
    node.port_next = 20_001;
    let asks = [with("1", None), with("2", Some(20_000)), with("3", None), with("4", None)];
    let made = plan("default", &[node], &asks);
    let ports: Vec<u16> = made.placed.iter().map(|p| p.ports["http"]).collect();
    assert_eq!(ports, [20_002, 20_000, 20_003]);
    assert_eq!(made.unplaced["4"][0].reason, "no free port in 20000-20003");
    let taken =
        reason(Machine { ports: [8080].into(), ..machine("n", 10, 10) }, &with("1", Some(8080)));
    assert_eq!(taken, "port 8080 is taken");
}

#[test]
fn a_free_choice_never_takes_a_fixed_port_of_the_same_ask() {
    let port = |name: &str, fixed| PortRequest { name: name.to_owned(), fixed };
    let both = Ask { ports: vec![port("a", None), port("b", Some(20_000))], ..ask("1", 1, 1) };
    let made = plan("default", &[machine("n", 10, 10)], &[both]);
    assert_eq!((made.placed[0].ports["a"], made.placed[0].ports["b"]), (20_001, 20_000));
}

#[test]
fn one_that_fits_nowhere_does_not_hold_up_the_others() {
    let made = plan("default", &[machine("n", 1000, 10)], &[ask("1", 2000, 1), ask("2", 500, 1)]);
    assert_eq!((nodes(&made), made.unplaced.len()), (vec!["n"], 1));
}

#[test]
fn many_misfits_are_counted_not_listed() {
    let machines: Vec<Machine> = (0..100)
        .map(|n| Machine { schedulable: n % 2 == 0, ..machine(&format!("n{n:03}"), 0, 0) })
        .collect();
    let made = plan("default", &machines, &[ask("1", 1, 1)]);
    let misfits = &made.unplaced["1"];
    assert_eq!(misfits.len(), MISFITS_MAX + 1);
    assert!(misfits[MISFITS_MAX].reason.starts_with("and 80 more nodes: 40 × "));
}

#[test]
fn sizes_are_read_as_people_write_them() {
    for (text, bytes) in [
        ("1G", 1_073_741_824),
        ("100KB", 102_400),
        ("512MB", 536_870_912),
        ("1.5GiB", 1_610_612_736),
        ("17", 17),
        ("", 0),
        ("2 mb", 2_097_152),
    ] {
        assert_eq!(parse_bytes(&json!(text)), Ok(bytes), "{text}");
    }
    assert_eq!(parse_bytes(&json!(4096)), Ok(4096));
    for junk in ["hhhh", "--1G", "-1T", "1.5", "G", "1..5G", "1GG", "99999999P", "1e9", "."] {
        assert!(parse_bytes(&json!(junk)).is_err(), "{junk}");
    }
    for junk in [json!(1.5), json!(-1), json!(null), json!([]), json!(u64::MAX)] {
        assert!(parse_bytes(&junk).is_err(), "{junk}");
    }
}

#[test]
fn cpus_are_exact_thousandths() {
    for (value, milli) in [
        (json!(0.29), 290),
        (json!(1.13), 1130),
        (json!(2), 2000),
        (json!("0.5"), 500),
        (json!(1.0), 1000),
        (json!(4.35), 4350),
    ] {
        assert_eq!(parse_cpus(&value), Ok(milli), "{value}");
    }
    for junk in [json!(-1), json!(0.0001), json!(1e30), json!("two"), json!("1."), json!(true)] {
        assert!(parse_cpus(&junk).is_err(), "{junk}");
    }
}

#[test]
fn amounts_are_shown_as_people_read_them() {
    assert_eq!((size::cpus(1200), size::cpus(4000)), ("1.2".to_owned(), "4".to_owned()));
    assert_eq!(
        (size::bytes(512 << 20), size::bytes(3 << 29), size::bytes(7)),
        ("512 MiB".to_owned(), "1.5 GiB".to_owned(), "7 B".to_owned())
    );
}

fn read(value: Value) -> Result<Request, Vec<String>> {
    let mut problems = Problems::default();
    let map = BTreeMap::from([("cpumem".to_owned(), value)]);
    let request = cpumem::resources(&map, "/resources", &mut problems);
    match problems.into_result() {
        Ok(()) => Ok(request),
        Err(error) => {
            Err(error.problems.into_iter().map(|p| p.pointer + ": " + &p.message).collect())
        }
    }
}

#[test]
fn requests_are_normalised() {
    let both =
        read(json!({"cpu-limit": 2, "memory-request": "1G", "memory-limit": "512M"})).unwrap();
    assert_eq!((both.cpu_request_milli, both.cpu_limit_milli), (2000, 2000));
    assert_eq!((both.memory_request_bytes, both.memory_limit_bytes), (1 << 30, 1 << 30));
    let request_only = read(json!({"cpu-request": 0.5})).unwrap();
    assert_eq!((request_only.cpu_request_milli, request_only.cpu_limit_milli), (500, 0));
}

#[test]
fn junk_in_a_request_is_refused_with_its_pointer() {
    let problems = read(json!({"cpu_request": 1, "memory-limit": "lots", "cpu-bind": true}));
    assert_eq!(
        problems.unwrap_err(),
        [
            "/resources/cpumem/cpu-bind: cpu-bind is not supported yet",
            "/resources/cpumem/cpu_request: unknown field; did you mean \"cpu-request\"?",
            "/resources/cpumem/memory-limit: \"lots\" is not a size; write bytes or a size such as \"512MB\"",
        ]
    );
}

#[test]
fn an_unknown_plugin_is_named_with_the_nearest() {
    let mut problems = Problems::default();
    let map = BTreeMap::from([("cpu-mem".to_owned(), json!({}))]);
    cpumem::resources(&map, "/resources", &mut problems);
    let error = problems.into_result().unwrap_err();
    assert!(error.problems[0].message.ends_with("did you mean \"cpumem\"?"), "{error:?}");
}

#[test]
fn a_machine_offers_all_threads_and_four_fifths_of_its_memory() {
    let mut facts = HostFacts { threads: 4, memory_bytes: 4_000_000_000, ..HostFacts::default() };
    let all = Amount { cpu_milli: 4000, memory_bytes: 3_200_000_000 };
    assert_eq!(cpumem::offered(&facts), all);
    facts.offered_cpu_milli = 1500;
    facts.offered_memory_bytes = 7;
    assert_eq!(cpumem::offered(&facts), Amount { cpu_milli: 1500, memory_bytes: 7 });
}

#[test]
fn amounts_in_records_are_cpus_and_bytes() {
    let shown = |cpu_milli| cpumem::shown(Amount { cpu_milli, memory_bytes: 7 });
    assert_eq!(shown(4000), json!({"cpu": 4, "memory": 7}));
    assert_eq!(shown(1500), json!({"cpu": 1.5, "memory": 7}));
}

#[test]
fn strategies_of_later_are_told_from_nonsense() {
    assert_eq!(Strategy::parse("auto"), Ok(Strategy::Auto));
    assert!(Strategy::parse("binpack").unwrap_err().contains("not supported yet"));
    assert!(Strategy::parse("atuo").unwrap_err().contains("did you mean \"auto\"?"));
}

#[test]
fn the_check_finds_a_plan_that_gives_too_much() {
    let machines = [machine("n", 1000, 1000)];
    let asks = [ask("1", 600, 1), ask("2", 600, 1)];
    let mut made = plan("default", &machines, &asks);
    assert_eq!(check::check(&machines, &asks, &made), Ok(()));
    let mut second = made.placed[0].clone();
    "2".clone_into(&mut second.id);
    made.placed.push(second);
    assert!(matches!(
        check::check(&machines, &asks, &made),
        Err(check::Broken::Overcommitted { what: "cpu", .. })
    ));
}

fn machines_of() -> impl Strategy2<Value = Vec<Machine>> {
    let one = (0_u64..4000, 0_u64..4000, any::<bool>(), 0_u64..1500, 0_u16..4);
    prop::collection::vec(one, 0..6).prop_map(|rows| {
        let build = |(n, (cpu, memory, schedulable, used, ports)): (usize, _)| {
            let mut machine = Machine { schedulable, ..machine(&format!("n{n}"), cpu, memory) };
            machine.used = Amount { cpu_milli: used, memory_bytes: used };
            machine.ports = (20_000..20_000 + ports).collect();
            machine
        };
        rows.into_iter().enumerate().map(build).collect()
    })
}

fn asks_of() -> impl Strategy2<Value = Vec<Ask>> {
    let one = (0_u64..2000, 0_u64..2000, 0_u8..3, prop::option::of(19_999_u16..20_002));
    prop::collection::vec(one, 0..20).prop_map(|rows| {
        let build = |(n, (cpu, memory, group, fixed)): (usize, (u64, u64, u8, Option<u16>))| {
            let mut ask = ask(&format!("{n:02}"), cpu, memory);
            ask.group = format!("g{group}");
            if group > 0 {
                ask.ports.push(PortRequest { name: "p".to_owned(), fixed });
            }
            ask
        };
        rows.into_iter().enumerate().map(build).collect()
    })
}

use proptest::strategy::Strategy as Strategy2;

proptest! {
    #[test]
    fn no_plan_gives_more_than_there_is(machines in machines_of(), asks in asks_of()) {
        let made = plan("default", &machines, &asks);
        prop_assert_eq!(check::check(&machines, &asks, &made), Ok(()));
        prop_assert_eq!(made.placed.len() + made.unplaced.len(), asks.len());
    }

    #[test]
    fn a_plan_does_not_depend_on_the_order_of_its_input(
        machines in machines_of(),
        asks in asks_of(),
        turn in 0_usize..20,
    ) {
        let made = plan("default", &machines, &asks);
        let (mut others, mut turned) = (machines.clone(), asks.clone());
        others.reverse();
        turned.rotate_left(turn.min(asks.len()));
        prop_assert_eq!(plan("default", &others, &turned), made);
    }

    #[test]
    fn what_did_not_fit_fits_nowhere_afterwards(machines in machines_of(), asks in asks_of()) {
        let mut planner = Planner::new("default", machines);
        let mut missed = Vec::new();
        for ask in &asks {
            if planner.place(ask).is_err() {
                missed.push(ask);
            }
        }
        for ask in missed {
            prop_assert!(planner.clone().place(ask).is_err());
            prop_assert!(!planner.misfits(ask).is_empty());
        }
    }
}
