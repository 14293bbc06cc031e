//! The simulator from outside: its seeds, its words, its exit codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::process::{Command, Output, Stdio};

fn sim(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-chaos"));
    command.arg("sim").args(args).output().unwrap()
}

fn first_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn one_seed_gives_one_hash_in_every_process() {
    let args = ["--seed", "3", "--until", "2000"];
    let (one, other) = (sim(&args), sim(&args));
    assert!(first_line(&one).ends_with(": passed"), "{}", String::from_utf8_lossy(&one.stdout));
    assert_eq!(first_line(&one), first_line(&other));
}

#[test]
fn one_seed_gives_one_hash_in_every_process_also_with_machines() {
    // Each takes half a minute in a build without optimisation, so they go at once.
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-chaos"));
        let args = ["sim", "--seed", "3", "--until", "2000", "--agents", "3", "--clients", "0"];
        command.args(args).stdout(Stdio::piped()).spawn().unwrap()
    };
    let (one, other) = (start(), start());
    let (one, other) = (one.wait_with_output().unwrap(), other.wait_with_output().unwrap());
    assert!(first_line(&one).ends_with(": passed"), "{}", String::from_utf8_lossy(&one.stdout));
    assert_eq!(first_line(&one), first_line(&other));
}

#[test]
fn what_it_does_not_know_it_refuses_with_what_it_knows() {
    let unknown = sim(&["--faults", "powr"]);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said.contains("did you mean power? The faults are: kill, power"), "{said}");
    let old = sim(&["--seed", "0.0.1-9:4"]);
    let said = String::from_utf8_lossy(&old.stderr).into_owned();
    assert_eq!(old.status.code(), Some(2));
    assert!(said.contains("simulator version 0.0.1-9, and this is"), "{said}");
}

/// What a line of the output that begins so goes on with.
fn line<'a>(said: &'a str, begin: &str) -> &'a str {
    said.lines()
        .find_map(|line| line.strip_prefix(begin))
        .unwrap_or_else(|| panic!("{begin}: {said}"))
}

#[test]
fn the_replay_command_of_a_seed_that_failed_fails_in_the_same_way() {
    let args = ["--seed", "23", "--until", "2200", "--clients", "1", "--faults", "kill", "--spoil"];
    let spoiled = sim(&args);
    let said = String::from_utf8_lossy(&spoiled.stdout).into_owned();
    assert_eq!(spoiled.status.code(), Some(1), "{said}");
    assert!(said.contains("\n1 of "), "one fault is enough: {said}");
    let breach = line(&said, "  L2: ");
    let command = line(&said, "replay: palisade-chaos sim ");
    let replayed = sim(&command.split(' ').collect::<Vec<_>>());
    let told = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert_eq!(replayed.status.code(), Some(1), "{told}");
    let write = |breach: &str| breach.split(" at ").next().unwrap_or_default().to_owned();
    assert_eq!(write(line(&told, "  L2: ")), write(breach), "{command}");
    assert!(told.contains("the faults are over"), "it is told line by line: {told}");
}

#[test]
fn hours_are_real_time_and_are_told_of() {
    let args = ["--hours", "0.001", "--until", "1000", "--jobs", "1"];
    let ran = sim(&args);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert!(said.contains("so far 0 failed; "), "{said}");
    assert!(said.contains(" runs, ") && said.ends_with(" seeds failed\n"), "{said}");
    let bad = sim(&["--hours", "0"]);
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn one_seed_of_many_that_fails_is_told_with_how_to_run_it_and_the_exit_code_says_so() {
    let args = ["--seed", "22", "--seeds", "2", "--until", "2200", "--faults", "kill", "--spoil"];
    let ran = sim(&args);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    let command = line(&said, "  replay: palisade-chaos sim ");
    assert!(command.contains("--minutes 1 --faults kill --spoil"), "{command}");
    assert!(said.contains(" of 2 seeds failed"), "{said}");
}

/// Takes minutes: `cargo test --profile sim -p palisade-chaos --features planted --test sim`.
#[cfg(feature = "planted")]
#[test]
fn each_planted_defect_is_caught_by_its_check() {
    let ran = sim(&["--plant", "all", "--seeds", "200", "--stop"]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    println!("{said}");
    assert_eq!(ran.status.code(), Some(0), "{said}");
}
