//! The command line.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::{
    bench::{self, etcd::Measure},
    checks, enclosure, rig, run,
    schedule::Fault,
    seed,
};

pub(crate) const USAGE: u8 = 2;
const INCOMPLETE: u8 = 3;

/// Drives real Palisade clusters into trouble and judges what they did.
#[derive(Debug, Parser)]
#[command(
    name = "palisade-chaos",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit codes of run and soak: 0 passed, 1 a claim was not kept, 2 usage, 3 incomplete\n\
        (a fault was skipped or a check had nothing to look at, for want of privilege or time).\n\
        Exit codes of sim: 0 passed, 1 a check failed, 2 usage.\n\
        Exit codes of bench: 0 measured, 2 usage, 3 something could not be measured."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Faults on real processes while clients work; then everything is checked
    Run(Run),
    /// Steady work for a long time, and whether anything grows that should not
    Soak(crate::soak::Soak),
    /// Whole clusters in simulated time, under faults that one seed decides
    Sim(crate::sim::Sim),
    /// Measure
    Bench(Bench),
    /// List the faults and the checks
    List,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// How long faults happen
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// What decides the faults and what clients do [default: another each time]
    #[arg(long, value_name = "[VERSION:]N", value_parser = seed::parse)]
    seed: Option<u64>,
    /// How many replicas
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    replicas: u8,
    /// How many agents
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=20))]
    agents: u8,
    /// How many clients
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Which faults, with commas between them [default: all]
    #[arg(long, value_delimiter = ',', value_name = "FAULT,…")]
    faults: Option<Vec<String>>,
    /// Which checks, with commas between them [default: all]
    #[arg(long, value_delimiter = ',', value_name = "CHECK,…")]
    checks: Option<Vec<String>>,
    /// Where to write report.html, report.json and history.json; it is tried before anything starts
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// The binary to drive [default: palisade beside this program]
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// The binary that replicas are rolled to, one after the other [default: the same]
    #[arg(long, value_name = "PATH")]
    bin_next: Option<PathBuf>,
    /// Keep the cluster's directory at the end: data and log of every process, and the reports if there is no --report.
    /// It is kept anyway after a violation, and when the run broke off with an error; after Ctrl-C it never is
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, clap::Args)]
struct Bench {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// The first ten minutes: start, apply, write latency, fail-over
    Smoke(Smoke),
    /// The replicas' store beside etcd, in turns on this machine, as ratios
    Etcd(Box<Etcd>),
    /// The API beside the kernel below it: changes, lists, watchers
    Api(Api),
}

#[derive(Debug, clap::Args)]
struct Api {
    /// Rounds of each measure
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Seconds of each figure
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Clients that change something
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: u64,
    /// Nodes that are listed
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: u64,
    /// Clients that watch; a replica serves 1,024 streams
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
    watchers: u64,
    /// Where to write everything as JSON, one object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The binary to measure [default: palisade beside this program]
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// Where the cluster's files are; must be on a disk [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Etcd {
    /// Which measures, with commas between them [default: all]
    #[arg(long, value_delimiter = ',', value_name = "MEASURE,…")]
    only: Option<Vec<String>>,
    /// Rounds of each measure
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Seconds of each figure
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Trials of a fail-over; half as many of a freeze
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    trials: u64,
    /// Minutes of the saturated run in which no election may happen [default: 20 s]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u64).range(0..=1440))]
    saturate_minutes: u64,
    /// MiB of state that are snapshotted
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=16384))]
    snapshot_mib: u64,
    /// Keys for memory and restart
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=20_000_000))]
    keys: u64,
    /// Numbers of clients, with commas between them, instead of each measure's own
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: Option<Vec<u64>>,
    /// Where to write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The binary to measure [default: palisade beside this program]
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// The etcd to measure [default: the one on the search path]
    #[arg(long, value_name = "PATH")]
    etcd: Option<PathBuf>,
    /// Where the clusters' files are; must be on a disk [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Measure without etcd, and so without ratios
    #[arg(long, conflicts_with = "etcd")]
    ours_only: bool,
}

#[derive(Debug, clap::Args)]
struct Smoke {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// The binary to drive [default: palisade beside this program]
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
}

/// Runs the program with these arguments (the first is its name).
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(cli.verb.filter()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    ExitCode::from(match cli.verb {
        Verb::Run(run) => run.run(),
        Verb::Soak(soak) => soak.run(),
        Verb::Sim(sim) => sim.run().unwrap_or_else(|message| {
            eprintln!("error: {message}");
            USAGE
        }),
        Verb::Bench(Bench { which: Which::Smoke(smoke) }) => smoke.run(),
        Verb::Bench(Bench { which: Which::Etcd(etcd) }) => etcd.run(),
        Verb::Bench(Bench { which: Which::Api(api) }) => api.run(),
        Verb::List => list(),
    })
}

impl Verb {
    /// What is logged unless the environment says otherwise.
    fn filter(&self) -> &'static str {
        // Thousands of runs, each with its broken connections; `--trace` tells of one.
        if matches!(self, Self::Sim(_)) { "off" } else { "warn" }
    }
}

impl Run {
    fn run(self) -> u8 {
        let options = match self.options() {
            Ok(options) => options,
            Err(message) => {
                eprintln!("error: {message}");
                return USAGE;
            }
        };
        let programs = [self.bin.as_deref(), self.bin_next.as_deref()];
        if !can_report(self.report.as_deref()) || !programs.into_iter().all(can_drive) {
            return USAGE;
        }
        if let Some(status) = enclosure::enter() {
            return status;
        }
        eprintln!("seed {}: faults for {} s", seed::written(options.seed), options.seconds);
        block_on(async {
            let (report, history) = run::run(&options).await?;
            print!("{}", report.summary());
            if let Some(dir) = &self.report {
                report.write(dir, &history)?;
                eprintln!("report in {}", dir.display());
            } else if let Some(kept) = &report.kept {
                report.write(std::path::Path::new(kept), &history)?;
            }
            Ok(report.exit())
        })
    }

    fn options(&self) -> Result<run::Options, String> {
        let faults = match &self.faults {
            None => Fault::ALL.to_vec(),
            Some(names) => faults_of(names)?,
        };
        let checks = match &self.checks {
            None => checks::ALL.to_vec(),
            Some(names) => checks_of(names)?,
        };
        Ok(run::Options {
            seconds: self.seconds,
            seed: self.seed.unwrap_or_else(seed::another),
            replicas: self.replicas.into(),
            agents: self.agents.into(),
            clients: self.clients,
            faults,
            checks,
            bin: self.bin.clone(),
            bin_next: self.bin_next.clone(),
            keep: self.keep,
        })
    }
}

/// Whether a program that is to be driven is there; says so if not.
pub(crate) fn can_drive(bin: Option<&std::path::Path>) -> bool {
    let Some(missing) = bin.filter(|bin| !bin.is_file()) else { return true };
    eprintln!("error: there is no program {}; nothing was started.", missing.display());
    false
}

/// Whether a report can be written there; says so if not.
pub(crate) fn can_report(dir: Option<&std::path::Path>) -> bool {
    let Some(dir) = dir else { return true };
    let Err(error) = writable(dir) else { return true };
    eprintln!(
        "error: the report cannot be written to {}: {error:#}; nothing was started. \
         Give --report a directory that you may write into.",
        dir.display()
    );
    false
}

fn faults_of(names: &[String]) -> Result<Vec<Fault>, String> {
    let known = || Fault::ALL.into_iter().map(Fault::name);
    let given = names.iter().filter(|name| *name != "none");
    given.map(|name| Fault::parse(name).ok_or_else(|| unknown("fault", name, known()))).collect()
}

fn checks_of(names: &[String]) -> Result<Vec<checks::Check>, String> {
    let known = || checks::ALL.into_iter().map(|check| check.id);
    let find = |name: &String| {
        let found = checks::ALL.into_iter().find(|check| check.id.eq_ignore_ascii_case(name));
        found.ok_or_else(|| unknown("check", name, known()))
    };
    names.iter().map(find).collect()
}

pub(crate) fn unknown(kind: &str, name: &str, known: impl Iterator<Item = &'static str>) -> String {
    let known: Vec<&str> = known.collect();
    let near = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .min()
        .filter(|(distance, near)| distance * 2 < near.len())
        .map_or(".".to_owned(), |(_, near)| format!("; did you mean {near}?"));
    format!("there is no {kind} {name:?}{near} The {kind}s are: {}", known.join(", "))
}

fn writable(dir: &std::path::Path) -> Result<()> {
    anyhow::ensure!(dir.is_dir() || !dir.exists(), "it is no directory");
    std::fs::create_dir_all(dir).context("the directory cannot be made")?;
    let probe = dir.join(".palisade-chaos");
    std::fs::write(&probe, b"").context("no file can be made in it")?;
    std::fs::remove_file(&probe).context("no file can be removed from it")
}

fn measures_of(names: &[String]) -> Result<Vec<Measure>, String> {
    let known = || Measure::ALL.into_iter().map(Measure::name);
    let find =
        |name: &String| Measure::parse(name).ok_or_else(|| unknown("measure", name, known()));
    names.iter().map(find).collect()
}

impl Etcd {
    fn run(self) -> u8 {
        let only = match self.only.as_deref().map_or(Ok(Measure::ALL.to_vec()), measures_of) {
            Ok(only) => only,
            Err(message) => {
                eprintln!("error: {message}");
                return USAGE;
            }
        };
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let options = bench::etcd::Options {
            only,
            rounds: size(self.rounds),
            seconds: self.seconds,
            trials: size(self.trials),
            saturate_minutes: self.saturate_minutes,
            snapshot_mib: self.snapshot_mib,
            keys: self.keys,
            clients: self.clients.map(|all| all.into_iter().map(size).collect()),
            json: self.json,
            bin: self.bin,
            etcd: self.etcd,
            dir: self.dir,
            ours_only: self.ours_only,
        };
        block_on(async { bench::etcd::run(&options).await })
    }
}

impl Api {
    fn run(self) -> u8 {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let options = bench::api::Options {
            rounds: size(self.rounds),
            seconds: self.seconds,
            clients: size(self.clients),
            nodes: size(self.nodes),
            watchers: size(self.watchers),
            json: self.json,
            bin: self.bin,
            dir: self.dir,
        };
        block_on(async { bench::api::run(&options).await })
    }
}

impl Smoke {
    fn run(self) -> u8 {
        let options = bench::Options { json: self.json, quick: self.quick, bin: self.bin };
        block_on(async { bench::smoke(&options).await })
    }
}

/// Runs to the end, or to Ctrl-C; either way nothing that was started is left.
pub(crate) fn block_on(work: impl Future<Output = Result<u8>>) -> u8 {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the runtime: {error}");
            return INCOMPLETE;
        }
    };
    let ended = runtime.block_on(async {
        let stop = std::pin::pin!(stopped());
        let work = std::pin::pin!(work);
        match futures::future::select(work, stop).await {
            futures::future::Either::Left((ended, _)) => ended,
            futures::future::Either::Right(_) => {
                rig::start_no_more();
                Err(anyhow::anyhow!("interrupted"))
            }
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    rig::end_descendants();
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        INCOMPLETE
    })
}

/// Ready when somebody wants this program to end.
pub(crate) async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    let interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let term = std::pin::pin!(term.recv());
    let signal = futures::future::select(interrupt, term);
    futures::future::select(signal, std::pin::pin!(enclosure::left_alone())).await;
}

fn list() -> u8 {
    println!("faults");
    for fault in Fault::ALL {
        println!("  {:<13} {}", fault.name(), fault.describe());
    }
    println!("simulated faults");
    for fault in crate::sim::Fault::ALL {
        println!("  {:<13} {}", fault.name(), fault.describe());
    }
    println!("simulated checks");
    for (id, claim) in crate::sim::CHECKS {
        println!("  {id:<13} {claim}");
    }
    println!("checks");
    for check in checks::ALL {
        println!("  {:<13} {}", check.id, check.claim);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn an_unknown_fault_is_answered_with_the_known_ones() {
        let error = faults_of(&names(&["kil"])).unwrap_err();
        assert_eq!(
            error,
            format!(
                "there is no fault \"kil\"; did you mean kill? The faults are: {}",
                Fault::ALL.map(Fault::name).join(", ")
            )
        );
    }

    #[test]
    fn an_unknown_check_is_answered_with_the_known_ones() {
        let error = checks_of(&names(&["L2", "Z9"])).unwrap_err();
        assert_eq!(
            error,
            "there is no check \"Z9\". The checks are: L1, L2, L3, A2, C1, E1, S1, M1, exits, damage, quiet"
        );
    }

    #[test]
    fn an_unknown_measure_is_answered_with_the_near_one() {
        let error = measures_of(&names(&["unary", "faliover"])).unwrap_err();
        assert!(
            error.starts_with("there is no measure \"faliover\"; did you mean failover?"),
            "{error}"
        );
        assert!(error.ends_with("snapshot-stall, memory, restart"), "{error}");
    }

    #[test]
    fn no_faults_can_be_asked_for() {
        assert_eq!(faults_of(&names(&["none"])).unwrap(), []);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_found_before_the_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(writable(file.path()).is_err());
        assert!(writable(&file.path().with_extension("d")).is_ok());
        std::fs::remove_dir(file.path().with_extension("d")).unwrap();
    }
}
