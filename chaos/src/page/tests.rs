use serde_json::json;

use super::*;
use crate::{
    checks,
    history::{Action, LeaderSeen, Operation, Outcome},
    inject::Injected,
    report::Setup,
    run::Options,
    schedule::{Fault, Planned, Target},
};

fn options() -> Options {
    Options {
        seconds: 9,
        seed: 7,
        replicas: 3,
        agents: 0,
        clients: 1,
        faults: vec![Fault::Kill, Fault::KillAgent],
        checks: checks::ALL.into_iter().filter(|check| check.id == "L1").collect(),
        bin: None,
        keep: false,
    }
}

fn fault() -> Injected {
    Injected {
        planned: Planned { at_ms: 900, fault: Fault::Kill, target: Target::Leader, lasts_ms: 500 },
        hit: vec!["replica 2".into()],
        began_ms: 1000,
        ended_ms: 1500,
        ready_ms: Some(2300),
        error: None,
    }
}

fn operation(at: u64, action: Action, value: Option<u64>) -> Operation {
    let outcome = Outcome::Ok { revision: Some(1), value, version: None };
    Operation { client: 1, action, invoked: at, ended: at + 5000, tries: 1, outcome }
}

/// A run with one fault and a stale read of a key whose name means harm.
fn page() -> String {
    let key = "<script>alert(1)</script>".to_owned();
    let write = |value| Action::Write { key: key.clone(), value };
    let operations = vec![
        operation(0, write(1), None),
        operation(1_000_000, write(2), None),
        operation(2_000_000, Action::Read { key: key.clone() }, Some(1)),
    ];
    let leaders = vec![LeaderSeen { at: 0, replica: 1, term: 1, leader: 2 }];
    let history = History { operations, leaders, ..History::default() };
    let options = options();
    let setup = Setup { product: "palisade 9.9".into(), options: &options };
    render(&Report::new(&setup, &history, vec![fault()]), &history)
}

#[test]
fn a_page_shows_what_happened_and_how_to_do_it_again() {
    let page = page();
    for shown in [
        "<h1>VIOLATED</h1>",
        "palisade 9.9",
        "palisade-chaos run --seconds 9 --seed 7",
        "fault kill-agent did not happen: there is no agent",
        "no order of 3 (of 3) operations",
        "replica 2 led in term 1",
        "kill: 1000 to 1500 ms, ready at 2300 ms",
        "from 1 s: 0 reads, 1 writes",
    ] {
        assert!(page.contains(shown), "{shown} is not in {page}");
    }
}

#[test]
fn a_page_loads_nothing_and_runs_nothing() {
    let page = page();
    for harmful in ["<script", "src=", "href=", "url(", "@import", "http://", "https://"] {
        assert!(!page.contains(harmful), "{harmful}");
    }
}

#[test]
fn every_element_is_closed() {
    let page = page();
    for element in ["svg", "section", "figure", "table", "details", "article", "dl", "main", "text"]
    {
        let opened = page.matches(&format!("<{element}>")).count()
            + page.matches(&format!("<{element} ")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
    }
}

#[test]
fn a_run_in_which_nothing_happened_has_a_page() {
    let options = options();
    let setup = Setup { product: String::new(), options: &options };
    let history = History::default();
    let page = render(&Report::new(&setup, &history, vec![]), &history);
    assert!(page.contains("INCOMPLETE") && !page.contains("NaN"), "{page}");
}

#[test]
fn evidence_that_is_no_operation_is_not_drawn() {
    let mut page = String::new();
    operations::draw(&mut page, &[json!("a line"), json!({"atTheEnd": {"rows": 2}})]);
    assert_eq!(page, "");
}
