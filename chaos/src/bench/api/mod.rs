//! What the API costs above the kernel: three replicas on loopback, the same minutes, as many clients.
//!
//! The kernel's own rate is that of the `Store` service by which followers and gateways reach it; the API's is what
//! operators and programs get over REST. Both are asked of the leader, in turns.

mod listing;
mod mutations;
mod watching;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Meter,
    etcd::{
        cluster::{Cluster, Programs, Side},
        load::{Loaded, Plan},
        report::{self, FOREIGN_MAX, Line},
        system,
    },
};
use crate::rig::{self, Binary};

const WARM: Duration = Duration::from_millis(500);
const IDLE_LIMIT: Duration = Duration::from_secs(8);

/// How much, and with what.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Rounds of each measure.
    pub(crate) rounds: usize,
    /// Seconds of each figure.
    pub(crate) seconds: u64,
    /// Clients that change something.
    pub(crate) clients: usize,
    /// Nodes that are listed.
    pub(crate) nodes: usize,
    /// Clients that watch.
    pub(crate) watchers: usize,
    /// Where to write everything as JSON.
    pub(crate) json: Option<PathBuf>,
    /// Our binary.
    pub(crate) bin: Option<PathBuf>,
    /// Where the cluster's directory is made.
    pub(crate) dir: Option<PathBuf>,
}

/// The cluster that is measured, and how much.
struct Bench {
    options: Options,
    cluster: Cluster,
}

/// One figure.
struct Sample {
    loaded: Loaded,
    /// Units a second.
    rate: f64,
    /// The share of the machine that others had.
    foreign: f64,
    /// Microseconds of CPU for each unit: of all replicas, and of the client.
    server_micros: f64,
    client_micros: f64,
}

impl Bench {
    fn plan(&self, clients: usize) -> Plan {
        Plan { clients, warm: WARM, measured: Duration::from_secs(self.options.seconds) }
    }

    /// Measures once what `work` does at the leader, when the cluster has come to rest.
    async fn sample(
        &self,
        name: &str,
        plan: Plan,
        work: impl AsyncFnOnce(usize) -> Result<Loaded>,
    ) -> Result<Sample> {
        let (pids, own) = (self.cluster.pids(), [std::process::id()]);
        system::until_idle(&pids, IDLE_LIMIT).await;
        let (leader, _) = self.cluster.until_settled().await?;
        let before = (system::cpu_ticks(&pids), system::cpu_ticks(&own));
        let meter = Meter::start();
        let loaded = work(leader).await?;
        let foreign = meter.foreign();
        let ticks = |after: u64, before: u64| after.saturating_sub(before) as f64;
        let servers = ticks(system::cpu_ticks(&pids), before.0);
        let client = ticks(system::cpu_ticks(&own), before.1);
        let first = loaded.first_failure.as_ref().map(ToString::to_string).unwrap_or_default();
        anyhow::ensure!(
            loaded.failures == 0,
            "{} calls failed; the first: {first}",
            loaded.failures
        );
        anyhow::ensure!(loaded.units > 0, "nothing was done");
        let rate = loaded.units as f64 / plan.measured.as_secs_f64();
        let all = rate * (plan.warm + plan.measured).as_secs_f64();
        let micros = |ticks: f64| ticks / system::TICKS * 1e6 / all;
        let sample = Sample {
            rate,
            foreign,
            server_micros: micros(servers),
            client_micros: micros(client),
            loaded,
        };
        sample.tell(name);
        Ok(sample)
    }
}

impl Sample {
    fn p99(&self) -> f64 {
        self.loaded.latency.quantile_ms(0.99)
    }

    fn tell(&self, name: &str) {
        let latency = &self.loaded.latency;
        let noisy = if self.foreign > FOREIGN_MAX { ", NOISY" } else { "" };
        eprintln!(
            "  {name:<44} {:>8.0}/s  p50 {:.2} p99 {:.2} max {:.1} ms  servers {:.0} client {:.0} us each, others {:.1} %{noisy}",
            self.rate,
            latency.quantile_ms(0.5),
            self.p99(),
            latency.max_ms(),
            self.server_micros,
            self.client_micros,
            self.foreign * 100.0,
        );
    }
}

/// Measures. Answers the exit status.
pub(crate) async fn run(options: &Options) -> Result<u8> {
    let binary = Binary::find(options.bin.as_deref())?;
    rig::adopt_orphans()?;
    eprintln!("{}, on {}", binary.version().await?, system::machine());
    let folder = rig::Folder::new_in(options.dir.as_deref())?;
    let programs = Programs { ours: binary, etcd: None };
    let cluster = Cluster::start(Side::Ours, &programs, folder.path()).await?;
    let bench = Bench { options: options.clone(), cluster };
    let (mut lines, mut failed) = (vec![], false);
    let mut took = |name: &str, measured: Result<Vec<Line>>| match measured {
        Ok(more) => lines.extend(more.into_iter().map(|line| line.of("api"))),
        Err(error) => {
            failed = true;
            eprintln!("NOT MEASURED: {name}: {error:#}");
        }
    };
    took("mutations", mutations::measure(&bench).await);
    took("watching", watching::measure(&bench).await);
    took("listing", listing::measure(&bench).await);
    print!("{}", report::table(&lines, ("REST", "kernel")));
    if let Some(path) = &options.json {
        let text: Result<String, _> = lines
            .iter()
            .map(|line| Ok(serde_json::to_string(line)? + "\n"))
            .collect::<Result<_, serde_json::Error>>();
        let text = text.context("the lines are no JSON")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if failed { super::INCOMPLETE } else { 0 })
}
