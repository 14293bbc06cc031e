//! The simulator from outside: its seeds, its words, its exit codes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

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
