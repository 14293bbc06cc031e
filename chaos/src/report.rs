//! What a run came to: JSON for programs, text and an HTML page for people.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    bands::{self, Second},
    checks::Violation,
    clock,
    history::{History, Operation, Outcome},
    inject::Injected,
    page,
    run::Options,
    schedule::Lane,
    seed,
};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything was exercised and nothing found.
    Passed,
    /// A claim was not kept.
    Violated,
    /// Nothing was found, but something could not be exercised.
    Incomplete,
}

/// Latencies of acknowledged operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latencies {
    /// How many.
    pub count: usize,
    /// Half are faster, in milliseconds.
    pub p50: f64,
    /// All but one in a hundred are faster.
    pub p99: f64,
    /// None was slower.
    pub max: f64,
}

impl Latencies {
    /// Of these microseconds.
    #[must_use]
    pub fn of(mut micros: Vec<u64>) -> Self {
        micros.sort_unstable();
        let at = |share: f64| {
            let last = micros.len().saturating_sub(1);
            // Nearest rank.
            let rank = (share * micros.len() as f64).ceil() as usize;
            micros
                .get(rank.saturating_sub(1).min(last))
                .map_or(0.0, |micros| *micros as f64 / 1000.0)
        };
        Self { count: micros.len(), p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// How many operations ended how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// All operations.
    pub operations: usize,
    /// How often they were sent.
    pub tries: u64,
    /// Acknowledged writes.
    pub acknowledged_writes: usize,
    /// Answered reads.
    pub answered_reads: usize,
    /// Of which nobody knows.
    pub unknown: usize,
    /// Refused, by code.
    pub refused: BTreeMap<String, usize>,
    /// Faults by name.
    pub faults: BTreeMap<String, usize>,
    /// Terms in which a leader was seen.
    pub terms: usize,
}

/// What one check came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Its id.
    pub id: String,
    /// What it claims.
    pub claim: String,
    /// How many things it looked at.
    pub subjects: u64,
    /// How many were wrong.
    pub violations: usize,
}

/// What the run was.
pub struct Setup<'a> {
    /// The product's version.
    pub product: String,
    /// What was asked for.
    pub options: &'a Options,
}

/// See the module documentation.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// This program's version.
    pub version: String,
    /// The product's version.
    pub product: String,
    /// Seconds since 1970.
    pub ended_at: u64,
    /// The seed.
    pub seed: u64,
    /// The command that runs the same again.
    pub replay: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What could not be exercised.
    pub incomplete: Vec<String>,
    /// The faults in the order of their begin.
    pub faults: Vec<Injected>,
    /// Counts.
    pub counts: Counts,
    /// Of acknowledged writes, retries included, in milliseconds.
    pub write_latency_ms: Latencies,
    /// Of reads.
    pub read_latency_ms: Latencies,
    /// What was done in each second, and how long it took.
    pub seconds: Vec<Second>,
    /// The longest time in which no write was acknowledged, in milliseconds.
    pub longest_silence_ms: f64,
    /// How long the quiet phase took.
    pub quiet_ms: Option<u64>,
    /// The checks.
    pub checks: Vec<Judged>,
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// The cluster's directory, when it was kept.
    pub kept: Option<String>,
}

impl Report {
    /// Judges a history.
    #[must_use]
    pub fn new(setup: &Setup<'_>, history: &History, faults: Vec<Injected>) -> Self {
        let options = setup.options;
        let mut checks = Vec::new();
        let mut violations = Vec::new();
        let mut incomplete = unexercised(options, &faults);
        for check in &options.checks {
            let verdict = check.judge(history);
            if verdict.subjects == 0 && verdict.violations.is_empty() {
                incomplete.push(format!("check {} had nothing to look at", check.id));
            }
            incomplete.extend(verdict.undecided);
            checks.push(Judged {
                id: check.id.into(),
                claim: check.claim.into(),
                subjects: verdict.subjects,
                violations: verdict.violations.len(),
            });
            violations.extend(verdict.violations);
        }
        if history.ending.is_none() {
            incomplete.push("what the cluster holds at the end could not be read".into());
        }
        let latency = |wanted: fn(&Operation) -> bool| {
            let chosen = history.operations.iter().filter(|operation| wanted(operation));
            Latencies::of(chosen.map(|operation| operation.ended - operation.invoked).collect())
        };
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            product: setup.product.clone(),
            ended_at: clock::unix_seconds(),
            seed: options.seed,
            replay: replay(options),
            verdict: match (violations.is_empty(), incomplete.is_empty()) {
                (false, _) => Verdict::Violated,
                (true, false) => Verdict::Incomplete,
                (true, true) => Verdict::Passed,
            },
            incomplete,
            counts: counts(history, &faults),
            faults,
            write_latency_ms: latency(|operation| is_write(operation) && operation.is_ok()),
            read_latency_ms: latency(|operation| !is_write(operation) && operation.is_ok()),
            seconds: bands::seconds(&history.operations),
            longest_silence_ms: longest_silence_ms(&history.operations),
            quiet_ms: history.quiet.as_ref().map(|quiet| quiet.took_ms),
            checks,
            violations,
            kept: None,
        }
    }

    /// The process's exit status.
    #[must_use]
    pub fn exit(&self) -> u8 {
        match self.verdict {
            Verdict::Passed => 0,
            Verdict::Violated => 1,
            Verdict::Incomplete => 3,
        }
    }

    /// For people.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        let _ = self.write_summary(&mut text);
        text
    }

    fn write_summary(&self, out: &mut String) -> std::fmt::Result {
        let counts = &self.counts;
        let faults: Vec<String> =
            counts.faults.iter().map(|(name, count)| format!("{count} {name}")).collect();
        writeln!(out, "seed       {}   ({}, rig {})", self.seed, self.product, self.version)?;
        writeln!(
            out,
            "faults     {}",
            if faults.is_empty() { "none".into() } else { faults.join(", ") }
        )?;
        writeln!(
            out,
            "operations {}: {} writes acknowledged, {} reads answered, {} unknown, {} refused; {} tries; {} terms",
            counts.operations,
            counts.acknowledged_writes,
            counts.answered_reads,
            counts.unknown,
            counts.refused.values().sum::<usize>(),
            counts.tries,
            counts.terms
        )?;
        for (name, latency) in
            [("writes", &self.write_latency_ms), ("reads", &self.read_latency_ms)]
        {
            writeln!(
                out,
                "{name:<10} p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
                latency.p50, latency.p99, latency.max
            )?;
        }
        writeln!(
            out,
            "silence    {:.0} ms without an acknowledged write at most",
            self.longest_silence_ms
        )?;
        if let Some(quiet_ms) = self.quiet_ms {
            writeln!(out, "quiet      converged or given up after {quiet_ms} ms")?;
        }
        for check in &self.checks {
            let word = match (check.violations, check.subjects) {
                (0, 0) => "nothing to look at".to_owned(),
                (0, subjects) => format!("holds ({subjects} looked at)"),
                (violations, _) => format!("VIOLATED {violations} times"),
            };
            writeln!(out, "{:<10} {word}: {}", check.id, check.claim)?;
        }
        for (code, count) in &counts.refused {
            writeln!(out, "refused    {count} × {code}")?;
        }
        for reason in &self.incomplete {
            writeln!(out, "incomplete {reason}")?;
        }
        self.write_violations(out)?;
        if let Some(kept) = &self.kept {
            writeln!(out, "kept       {kept}")?;
        }
        let verdict = match self.verdict {
            Verdict::Passed => "PASSED",
            Verdict::Violated => "VIOLATED",
            Verdict::Incomplete => "INCOMPLETE",
        };
        writeln!(out, "replay     {}\n{verdict}", self.replay)
    }

    fn write_violations(&self, out: &mut String) -> std::fmt::Result {
        for violation in self.violations.iter().take(10) {
            writeln!(out, "\n{}: {}", violation.check, violation.message)?;
            for evidence in &violation.evidence {
                match evidence.as_str() {
                    Some(line) => writeln!(out, "    {line}")?,
                    None => writeln!(out, "    {evidence}")?,
                }
            }
        }
        if self.violations.len() > 10 {
            writeln!(out, "\nand {} more violations", self.violations.len() - 10)?;
        }
        Ok(())
    }

    /// Writes `report.json`, `report.html` and `history.json` into a directory.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write(&self, dir: &Path, history: &History) -> Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        write(&dir.join("report.json"), self)?;
        write_bytes(&dir.join("report.html"), page::render(self, history).as_bytes())?;
        write(&dir.join("history.json"), history)
    }
}

fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    write_bytes(path, &serde_json::to_vec_pretty(value).context("cannot encode")?)
}

fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn is_write(operation: &Operation) -> bool {
    !operation.action.is_read()
}

fn unexercised(options: &Options, faults: &[Injected]) -> Vec<String> {
    let mut reasons = Vec::new();
    for fault in &options.faults {
        let of_it = || faults.iter().filter(|injected| injected.planned.fault == *fault);
        if of_it().any(|injected| injected.error.is_none()) {
            continue;
        }
        let why = match of_it().find_map(|injected| injected.error.clone()) {
            Some(error) => error,
            None if fault.lane() == Lane::Agents && options.agents == 0 => {
                "there is no agent".into()
            }
            None => "the run is too short".into(),
        };
        reasons.push(format!("fault {} did not happen: {why}", fault.name()));
    }
    reasons
}

fn counts(history: &History, faults: &[Injected]) -> Counts {
    let mut counts = Counts { operations: history.operations.len(), ..Counts::default() };
    for operation in &history.operations {
        counts.tries += u64::from(operation.tries);
        match &operation.outcome {
            Outcome::Ok { .. } if is_write(operation) => counts.acknowledged_writes += 1,
            Outcome::Ok { .. } => counts.answered_reads += 1,
            Outcome::Unknown { .. } => counts.unknown += 1,
            Outcome::Refused { code } => *counts.refused.entry(code.clone()).or_default() += 1,
        }
    }
    for injected in faults.iter().filter(|injected| injected.error.is_none()) {
        *counts.faults.entry(injected.planned.fault.name().into()).or_default() += 1;
    }
    let terms: std::collections::BTreeSet<u64> =
        history.leaders.iter().map(|seen| seen.term).collect();
    counts.terms = terms.len();
    counts
}

fn longest_silence_ms(operations: &[Operation]) -> f64 {
    let mut ended: Vec<u64> = operations
        .iter()
        .filter(|operation| is_write(operation) && operation.is_ok())
        .map(|operation| operation.ended)
        .collect();
    ended.sort_unstable();
    let gaps = ended.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or(0) as f64 / 1000.0
}

fn replay(options: &Options) -> String {
    let faults: Vec<&str> = options.faults.iter().map(|fault| fault.name()).collect();
    format!(
        "palisade-chaos run --seconds {} --seed {} --replicas {} --agents {} --clients {} --faults {}",
        options.seconds,
        seed::written(options.seed),
        options.replicas,
        options.agents,
        options.clients,
        if faults.is_empty() { "none".to_owned() } else { faults.join(",") }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checks,
        history::{Action, Ending},
        schedule::Fault,
    };

    fn options() -> Options {
        Options {
            seconds: 9,
            seed: 7,
            replicas: 3,
            agents: 0,
            clients: 1,
            faults: vec![],
            checks: checks::ALL.into_iter().filter(|check| check.id == "L2").collect(),
            bin: None,
            bin_next: None,
            keep: false,
        }
    }

    fn report(options: &Options, history: &History) -> Report {
        Report::new(&Setup { product: "palisade 0".into(), options }, history, vec![])
    }

    fn added(name: &str) -> Operation {
        Operation {
            client: 0,
            action: Action::Add { name: name.into() },
            invoked: 0,
            ended: 2000,
            tries: 1,
            outcome: Outcome::Ok { revision: Some(1), value: None, version: None },
        }
    }

    fn with_rows(rows: u64) -> History {
        let ending = Ending { rows: [("a".to_owned(), rows)].into(), ..Ending::default() };
        History { operations: vec![added("a")], ending: Some(ending), ..History::default() }
    }

    #[test]
    fn a_good_run_passes() {
        let report = report(&options(), &with_rows(1));
        assert_eq!((report.verdict, report.exit()), (Verdict::Passed, 0));
        assert!(report.summary().ends_with("PASSED\n"), "{}", report.summary());
    }

    #[test]
    fn a_violation_outranks_what_is_missing() {
        let options = Options { faults: vec![Fault::Kill], ..options() };
        let report = report(&options, &with_rows(2));
        assert_eq!((report.verdict, report.exit()), (Verdict::Violated, 1));
        assert!(report.summary().contains("more than once"), "{}", report.summary());
    }

    #[test]
    fn a_check_or_fault_without_subject_makes_a_run_incomplete() {
        let empty = History::default();
        assert_eq!(report(&options(), &empty).exit(), 3);
        let options = Options { faults: vec![Fault::KillAgent], ..options() };
        let report = report(&options, &with_rows(1));
        assert_eq!(report.incomplete, ["fault kill-agent did not happen: there is no agent"]);
        assert_eq!(report.exit(), 3);
    }

    #[test]
    fn the_replay_command_names_everything_that_decides() {
        let faults = vec![Fault::Kill, Fault::Pause, Fault::KillAll, Fault::KillAgent];
        let options = Options { faults, ..options() };
        assert_eq!(
            replay(&options),
            "palisade-chaos run --seconds 9 --seed 0.1.0-rig1:7 --replicas 3 --agents 0 --clients 1 \
             --faults kill,pause,kill-all,kill-agent"
        );
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let latencies = Latencies::of((1..=100).map(|n| n * 1000).collect());
        assert_eq!(latencies, Latencies { count: 100, p50: 50.0, p99: 99.0, max: 100.0 });
        assert_eq!(Latencies::of(vec![]), Latencies::default());
    }
}
