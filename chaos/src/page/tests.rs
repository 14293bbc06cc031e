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
        bin_next: None,
        keep: false,
    }
}

fn fault() -> Injected {
    Injected {
        planned: Planned {
            at_ms: 900,
            fault: Fault::Kill,
            target: Target::Leader,
            lasts_ms: 500,
            pick: 0,
        },
        hit: vec!["replica 2".into()],
        began_ms: 1000,
        ended_ms: 1500,
        ready_ms: Some(2300),
        note: String::new(),
        damage: None,
        wrong: None,
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

/// Violations of all kinds over a busy minute. `PALISADE_PAGE=FILE` writes it, to be looked at.
#[test]
fn a_page_with_many_violations_shows_each() {
    let mut history = History::default();
    for number in 0..600_u64 {
        let key = format!("hot-{}", number % 3);
        let action = match number % 4 {
            0 => Action::Read { key },
            1 => Action::Add { name: format!("row-{number}") },
            _ => Action::Write { key, value: number },
        };
        let read = matches!(action, Action::Read { .. }).then_some(number.saturating_sub(2));
        history.operations.push(Operation {
            client: u32::try_from(number % 4).unwrap(),
            ..operation(number * 100_000, action, read)
        });
    }
    let said = "log file /a/very/long/path/that/has/no/place/to/be/broken/00000001.seg is damaged";
    for number in 0..3 {
        history.exits.push(crate::history::Exit {
            at: number,
            process: "replica 1".into(),
            status: "exit status: 1".into(),
            log: vec![said.repeat(3)],
        });
        history.leaders.push(LeaderSeen { at: number, replica: 1, term: 4, leader: number + 1 });
    }
    let mut faults = Vec::new();
    for number in 0..60_u64 {
        let began_ms = number * 1000;
        let hit = vec![format!("replica {}", number % 4 + 1)];
        let note = "alone: 1-2 1-3 a1-1".to_owned();
        let chosen = Fault::ALL[usize::try_from(number).unwrap() % Fault::ALL.len()];
        let planned = Planned { fault: chosen, ..fault().planned };
        let (ended_ms, ready_ms) = (began_ms + 700, Some(began_ms + 900));
        faults.push(Injected { planned, hit, began_ms, ended_ms, ready_ms, note, ..fault() });
    }
    let options = Options { checks: checks::ALL.to_vec(), ..options() };
    let setup = Setup { product: "palisade 9.9".into(), options: &options };
    let report = Report::new(&setup, &history, faults);
    assert!(report.violations.len() > 4, "{}", report.violations.len());
    let page = render(&report, &history);
    for violation in report.violations.iter().take(VIOLATIONS_MAX) {
        assert!(page.contains(&text(&violation.message)));
    }
    if let Some(path) = std::env::var_os("PALISADE_PAGE") {
        std::fs::write(path, page).unwrap();
    }
}

#[test]
fn a_page_shows_what_happened_and_how_to_do_it_again() {
    let page = page();
    for shown in [
        "<h1>VIOLATED</h1>",
        "palisade 9.9",
        "palisade-chaos run --seconds 9 --seed",
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
fn a_moment_is_told_as_a_date() {
    assert_eq!(moment(1_796_037_577), "2026-11-30T11:19:37Z");
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
    let evidence = [json!("a line"), json!({"atTheEnd": {"rows": 2}})];
    assert!(!operations::draw(&mut page, &evidence));
    assert_eq!(page, "");
}
