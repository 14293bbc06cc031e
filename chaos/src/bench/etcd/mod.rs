//! Our store beside etcd: the same machine, the same minutes, the same client.
//!
//! Both systems have three members on loopback, mutual TLS everywhere, default times and flushes
//! that reach the disk. They are measured in turns, round by round, each while the other one idles,
//! and compared as the ratio within one round, so that the mood of the machine is on both sides.
//!
//! # Invariants
//! - `BENCH-1` A round in which others had more than 5 % of the machine is repeated, and marked if
//!   that does not help.
//! - `BENCH-2` A figure counts only what was acknowledged, and what was acknowledged is looked for
//!   after SIGKILL of all members.

pub(super) mod client;
pub(super) mod cluster;
mod durability;
mod elections;
mod failover;
mod fill;
pub(super) mod histogram;
pub(super) mod load;
mod measures;
mod memory;
pub(super) mod report;
mod rounds;
mod snapshot;
pub(super) mod system;
mod throughput;
mod tls;
pub(super) mod watch;
mod way;
mod wire;
mod work;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

pub(crate) use measures::Measure;

use self::{
    cluster::{Cluster, Programs, Side},
    report::{Goal, Line, Report, Round},
    system::Disk,
};
use super::Better;
use crate::{
    clock,
    rig::{self, Binary},
};

/// What to measure, and with what.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Which measures.
    pub(crate) only: Vec<Measure>,
    /// Rounds of each measure of throughput.
    pub(crate) rounds: usize,
    /// Seconds of each figure.
    pub(crate) seconds: u64,
    /// Trials of a fail-over; half as many of a freeze.
    pub(crate) trials: usize,
    /// Minutes of the saturated run without elections; 0: some seconds.
    pub(crate) saturate_minutes: u64,
    /// MiB of state that are snapshotted.
    pub(crate) snapshot_mib: u64,
    /// Keys for memory and restart.
    pub(crate) keys: u64,
    /// Instead of each measure's own numbers of clients.
    pub(crate) clients: Option<Vec<usize>>,
    /// Where to write everything as JSON.
    pub(crate) json: Option<PathBuf>,
    /// Our binary.
    pub(crate) bin: Option<PathBuf>,
    /// etcd's.
    pub(crate) etcd: Option<PathBuf>,
    /// Where the clusters' directories are made.
    pub(crate) dir: Option<PathBuf>,
    /// No etcd: figures without ratios.
    pub(crate) ours_only: bool,
}

/// What all measures share.
struct Bench {
    options: Options,
    programs: Programs,
    folder: rig::Folder,
    disk: Disk,
    lines: Vec<Line>,
    failed: Vec<String>,
    /// Terms that passed during measures in which none should.
    elections: Elections,
}

/// Elections that nobody asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Elections {
    looked: usize,
    ours: u64,
    etcd: u64,
}

/// Both systems.
struct Pair {
    ours: Cluster,
    etcd: Option<Cluster>,
}

impl Pair {
    /// The processes of both.
    fn pids(&self) -> Vec<u32> {
        let etcd = self.etcd.iter().flat_map(Cluster::pids);
        self.ours.pids().into_iter().chain(etcd).collect()
    }

    fn side(&self, side: Side) -> Option<&Cluster> {
        match side {
            Side::Ours => Some(&self.ours),
            Side::Etcd => self.etcd.as_ref(),
        }
    }
}

impl Bench {
    /// Both systems, new.
    async fn pair(&self) -> Result<Pair> {
        let etcd = match self.programs.etcd {
            Some(_) => Some(self.start(Side::Etcd).await?),
            None => None,
        };
        Ok(Pair { ours: self.start(Side::Ours).await?, etcd })
    }

    async fn start(&self, side: Side) -> Result<Cluster> {
        Cluster::start(side, &self.programs, self.folder.path())
            .await
            .with_context(|| format!("{} did not start", side.name()))
    }

    fn wants(&self, measure: Measure) -> bool {
        self.options.only.contains(&measure)
    }

    /// Notes what a measure came to.
    fn took(&mut self, name: &str, measured: Result<Vec<Line>>) {
        match measured {
            Ok(lines) => self.lines.extend(lines),
            Err(error) => {
                eprintln!("{name} could not be measured: {error:#}");
                self.failed.push(format!("{name}: {error:#}"));
            }
        }
    }
}

const INSTALL: &str = "install it (Debian: apt-get install etcd-server), or name one with --etcd PATH, or measure \
    without it with --ours-only";

/// etcd, as it is named or found.
fn find_etcd(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return path.canonicalize().with_context(|| format!("there is no {}", path.display()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|path| path.is_file());
    match found {
        Some(path) => Ok(path),
        None => bail!("there is no etcd on the search path"),
    }
}

async fn etcd_version(program: &Path) -> Result<String> {
    let output = tokio::process::Command::new(program)
        .arg("--version")
        .output()
        .await
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version:"));
    Ok(format!("etcd {}", version.context("it does not say its version")?.trim()))
}

/// What the loss of the leader costs.
async fn blows(bench: &mut Bench) {
    use failover::Blow;
    let trials = bench.options.trials;
    let freezes = trials.div_ceil(2);
    for (measure, blow, trials) in [
        (Measure::Failover, Blow::Kill, trials),
        (Measure::FailoverLoaded, Blow::KillSaturated, trials),
        (Measure::Freeze, Blow::Freeze, freezes),
    ] {
        if bench.wants(measure) {
            let measured = failover::measure(bench, blow, trials).await;
            bench.took(measure.name(), measured);
        }
    }
}

/// What takes long or much.
async fn large(bench: &mut Bench) {
    let Options { saturate_minutes, snapshot_mib, keys, .. } = bench.options;
    if bench.wants(Measure::Elections) {
        let measured = elections::measure(bench, saturate_minutes).await;
        bench.took(Measure::Elections.name(), measured);
    }
    if bench.wants(Measure::SnapshotStall) {
        let measured = snapshot::measure(bench, snapshot_mib).await;
        bench.took(Measure::SnapshotStall.name(), measured);
    }
    if bench.wants(Measure::Memory) || bench.wants(Measure::Restart) {
        let measured = memory::measure(bench, keys).await.map(|()| vec![]);
        bench.took("memory and restart", measured);
    }
}

/// Measures. Answers the exit status.
pub(crate) async fn run(options: &Options) -> Result<u8> {
    let ours = Binary::find(options.bin.as_deref())?;
    let (etcd, peer) = if options.ours_only {
        (None, None)
    } else {
        match find_etcd(options.etcd.as_deref()) {
            Ok(path) => (Some(path.clone()), Some(etcd_version(&path).await?)),
            Err(error) => {
                eprintln!("SKIPPED: nothing was measured: {error:#}: {INSTALL}");
                return Ok(super::INCOMPLETE);
            }
        }
    };
    rig::adopt_orphans()?;
    let product = ours.version().await?;
    let machine = system::machine();
    let folder = rig::Folder::new_in(options.dir.as_deref())?;
    let disk = Disk::of(folder.path())?;
    eprintln!("{product} beside {}, on {machine}", peer.as_deref().unwrap_or("nobody"));
    let mut bench = Bench {
        options: options.clone(),
        programs: Programs { ours, etcd },
        folder,
        disk,
        lines: vec![],
        failed: vec![],
        elections: Elections::default(),
    };
    throughput::measure(&mut bench).await;
    blows(&mut bench).await;
    large(&mut bench).await;
    let Bench { mut lines, failed, elections, .. } = bench;
    lines.extend(elections.line());
    if let Some(peer) = &peer {
        lines.iter_mut().for_each(|line| line.named(peer));
    }
    print!("{}", report::table(&lines, ("palisade", "etcd")));
    if let Some(path) = &options.json {
        let report = Report {
            palisade: &product,
            etcd: peer.as_deref(),
            machine: &machine,
            unix_seconds: clock::unix_seconds(),
            lines: &lines,
            failed: &failed,
        };
        let text = serde_json::to_string_pretty(&report).context("the report is no JSON")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    for failed in &failed {
        println!("NOT MEASURED: {failed}");
    }
    Ok(if failed.is_empty() { 0 } else { super::INCOMPLETE })
}

impl Elections {
    fn line(self) -> Option<Line> {
        let peer = Some(self.etcd as f64);
        let round = Round { ours: self.ours as f64, peer, foreign: 0.0 };
        let measure = "elections that nobody asked for, during all of this";
        (self.looked > 0).then(|| {
            let goal = Goal::ValueAtMost(0.0);
            Line::new(measure, "elections", &[round], goal, Better::Lower)
                .with("looked", self.looked)
        })
    }
}
