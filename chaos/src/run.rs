//! `palisade-chaos run`: faults on real processes while clients work, then quiet, then the checks.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{
    checks::{Check, convergence},
    clock::{self, Clock},
    history::{Ending, History, InstanceSeen, Operation, ProcessSeen, Quiet, Register},
    http::{BASE, Request},
    inject::{self, Injected, Tools},
    load::{self, Client},
    report::{Report, Setup},
    rig::{self, Binary, Disks, Folder, Rig},
    schedule::{self, Fault, Lane},
    watch,
};

const WORKLOAD: &str = "chaos-web";
const INSTANCES: u64 = 3;
const HEALTHY_LIMIT: Duration = Duration::from_secs(30);
const QUIET_LIMIT: Duration = Duration::from_secs(60);
const READ_LIMIT: Duration = Duration::from_secs(20);

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long faults happen.
    pub seconds: u64,
    /// It decides the faults and what clients do.
    pub seed: u64,
    /// How many replicas.
    pub replicas: usize,
    /// How many agents.
    pub agents: usize,
    /// How many clients.
    pub clients: u32,
    /// Which faults.
    pub faults: Vec<Fault>,
    /// Which checks.
    pub checks: Vec<Check>,
    /// The product's binary, if not the one beside this.
    pub bin: Option<PathBuf>,
    /// The binary that replicas are rolled to, if not the same.
    pub bin_next: Option<PathBuf>,
    /// Keep the cluster's directory.
    pub keep: bool,
}

/// Runs it. Answers the report, and the history on which it stands.
///
/// # Errors
/// The cluster could not be started.
pub async fn run(options: &Options) -> Result<(Report, History)> {
    let binary = Binary::find(options.bin.as_deref())?;
    let product = binary.version().await?;
    let mut folder = Folder::new()?;
    let ran = drive(options, &binary, &folder).await;
    if options.keep || ran.is_err() {
        folder.keep();
    }
    let (history, injected) =
        ran.with_context(|| format!("see the logs in {}", folder.path().display()))?;
    let setup = Setup { product, options };
    let mut report = Report::new(&setup, &history, injected);
    if options.keep || !report.violations.is_empty() {
        folder.keep();
        report.kept = Some(folder.path().display().to_string());
    }
    Ok((report, history))
}

/// A cluster with its instances at work, and their processes.
async fn begin(
    options: &Options,
    binary: &Binary,
    folder: &Folder,
) -> Result<(Rig, BTreeMap<String, ProcessSeen>)> {
    let wanted = rig::Options { replicas: options.replicas, agents: options.agents };
    let mut rig = Rig::start_wired(binary, folder.path(), &wanted, Disks::Own).await?;
    rig.join_agents(options.agents).await?;
    let mut processes = BTreeMap::new();
    if options.agents > 0 {
        rig.apply(rig::hello(WORKLOAD, binary.path(), INSTANCES), "chaos-web").await?;
        rig.until_healthy(WORKLOAD, INSTANCES, HEALTHY_LIMIT).await?;
        for instance in rig.instances(WORKLOAD).await? {
            let process = instance.process.context("a healthy instance has no process")?;
            processes.insert(instance.name, process);
        }
    }
    Ok((rig, processes))
}

async fn drive(
    options: &Options,
    binary: &Binary,
    folder: &Folder,
) -> Result<(History, Vec<Injected>)> {
    let (rig, processes) = begin(options, binary, folder).await?;
    let rig = Arc::new(rig);
    let clock = Clock::start();
    let mut history = History::default();
    let watchers = Watchers::start(&rig, clock, processes);
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for id in 0..options.clients {
        let http = crate::http::Http::new(rig.access.clone())?;
        let client = Client::new(id, options.clients, options.seed, http, clock, stop.clone());
        clients.push(clock::spawn(client.run()));
    }
    let next = match &options.bin_next {
        Some(path) => Binary::find(Some(path))?,
        None => binary.clone(),
    };
    let tools = Tools { rig: rig.clone(), clock, next };
    let injected = faults(options, &tools).await;
    history.damaged = injected.iter().filter_map(|fault| fault.damage.clone()).collect();
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        history.operations.extend(client.await.context("a client ended")?);
    }
    history.operations.sort_by_key(|operation| operation.invoked);
    history.quiet = Some(quiet(&rig, options.agents > 0).await);
    // One more client, which begins when all else is over.
    let last = Client::new(
        options.clients,
        options.clients,
        options.seed,
        rig.http.clone(),
        clock,
        stop.clone(),
    );
    history.operations.extend(last.read_all(&rig.places()).await);
    watchers.end(&mut history).await?;
    history.exits.extend(injected.iter().filter_map(|fault| fault.wrong.clone()));
    history.ending = ending(&rig, &history.operations)
        .await
        .inspect_err(|error| tracing::warn!(error = format!("{error:#}"), "the end cannot be read"))
        .ok();
    history.books = rig
        .books()
        .await
        .inspect_err(|error| tracing::warn!(error = format!("{error:#}"), "no books were read"))
        .ok();
    if options.agents > 0 {
        seen_by_api(&rig, clock, &mut history).await;
        let removed = rig.remove(WORKLOAD, Duration::from_secs(20)).await;
        if let Err(error) = &removed {
            tracing::warn!(error = format!("{error:#}"), "the workload was not removed in time");
        }
        if let Some(quiet) = &mut history.quiet {
            quiet.removed = Some(removed.is_ok());
        }
    }
    Ok((history, injected))
}

async fn faults(options: &Options, tools: &Tools) -> Vec<Injected> {
    let clock = tools.clock;
    let within_ms = options.seconds * 1000;
    let wanted = schedule::Wanted {
        seed: options.seed,
        within_ms,
        faults: options.faults.clone(),
        replicas: options.replicas,
        agents: options.agents,
    };
    let begin_ms = clock.millis();
    let lane = |lane| {
        let planned = schedule::plan(&wanted, lane);
        inject::lane(tools, begin_ms, within_ms, planned)
    };
    let (replicas, network, members, agents) = futures::join!(
        lane(Lane::Replicas),
        lane(Lane::Network),
        lane(Lane::Members),
        lane(Lane::Agents)
    );
    let left_ms = (begin_ms + within_ms).saturating_sub(clock.millis());
    clock::sleep_ms(left_ms).await;
    let mut injected = [replicas, network, members, agents].concat();
    injected.sort_by_key(|injected| injected.began_ms);
    injected
}

struct Watchers {
    stop: watch::Stop,
    leaders: Vec<tokio::task::JoinHandle<Vec<crate::history::LeaderSeen>>>,
    instances: tokio::task::JoinHandle<Vec<InstanceSeen>>,
    exits: tokio::task::JoinHandle<Vec<crate::history::Exit>>,
    held: tokio::task::JoinHandle<Vec<crate::books::BookSeen>>,
}

impl Watchers {
    fn start(rig: &Arc<Rig>, clock: Clock, processes: BTreeMap<String, ProcessSeen>) -> Self {
        let stop = watch::Stop::default();
        let leaders = (0..rig.replicas.len())
            .map(|index| clock::spawn(watch::leaders(rig.clone(), index, clock, stop.clone())))
            .collect();
        Self {
            leaders,
            instances: clock::spawn(watch::instances(processes, clock, stop.clone())),
            exits: clock::spawn(watch::exits(rig.clone(), clock, stop.clone())),
            held: clock::spawn(watch::held(rig.clone(), stop.clone())),
            stop,
        }
    }

    async fn end(self, history: &mut History) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for leaders in self.leaders {
            history.leaders.extend(leaders.await.context("a watcher ended")?);
        }
        history.leaders.sort_by_key(|seen| seen.at);
        history.instances = self.instances.await.context("a watcher ended")?;
        history.exits = self.exits.await.context("a watcher ended")?;
        history.held = self.held.await.context("a watcher ended")?;
        Ok(())
    }
}

/// Waits until everything has converged, or the time is over; answers how it is then.
async fn quiet(rig: &Rig, with_instances: bool) -> Quiet {
    let clock = Clock::start();
    loop {
        let mut quiet = look(rig, with_instances).await;
        quiet.took_ms = clock.millis();
        if convergence::missing(&quiet).is_empty() || clock.elapsed() >= QUIET_LIMIT {
            return quiet;
        }
        clock::sleep_ms(50).await;
    }
}

async fn look(rig: &Rig, with_instances: bool) -> Quiet {
    let limit = Duration::from_secs(2);
    let mut quiet = Quiet::default();
    let all = rig.places();
    let ids: Vec<u64> = all.iter().filter_map(|place| rig.seats.get(*place)?.id()).collect();
    let ready = all.iter().map(|index| rig.is_ready(*index));
    let ready = futures::future::join_all(ready).await;
    let statuses = all.iter().map(|index| rig.status(*index, limit));
    let statuses = futures::future::join_all(statuses).await;
    for ((id, ready), status) in ids.iter().zip(ready).zip(statuses) {
        quiet.ready.insert(*id, ready);
        quiet.applied.insert(*id, status.as_ref().map(|status| status.applied));
        quiet.voters.insert(*id, status.map(|status| status.voters).unwrap_or_default());
    }
    quiet.seated = ids;
    quiet.seated.sort_unstable();
    if with_instances {
        quiet.wanted = INSTANCES;
        let request = Request::get(format!("{BASE}/workloads/{WORKLOAD}"));
        let answer = rig.http.ask(&request, limit).await.ok();
        quiet.healthy =
            answer.and_then(|answer| answer.body.pointer("/status/healthy")?.as_u64()).unwrap_or(0);
    }
    quiet
}

/// Reads what the cluster holds.
async fn ending(rig: &Rig, operations: &[Operation]) -> Result<Ending> {
    let tokens = rig.http.list(&format!("{BASE}/join-tokens"), READ_LIMIT).await?;
    let mut ending = Ending { rows: load::count_rows(&tokens), ..Ending::default() };
    let clients: std::collections::BTreeSet<u32> =
        operations.iter().map(|operation| operation.client).collect();
    let records = rig.http.list(&format!("{BASE}/workloads"), READ_LIMIT).await?;
    for client in clients {
        let name = load::register_name(client);
        let found = records.iter().find(|record| {
            record.get("name").and_then(serde_json::Value::as_str) == Some(name.as_str())
        });
        let Some(record) = found else { continue };
        let value = rig::register_value(record).context("a register has no value")?;
        let version = record.get("version").and_then(serde_json::Value::as_u64);
        ending.registers.insert(name, Register { value, version });
    }
    Ok(ending)
}

/// Compares what the cluster says of the instances with what the process table said.
async fn seen_by_api(rig: &Rig, clock: Clock, history: &mut History) {
    match rig.instances(WORKLOAD).await {
        Ok(instances) => {
            history.instances.extend(instances.into_iter().map(|instance| InstanceSeen {
                at: clock.micros(),
                instance: instance.name,
                source: "api".into(),
                process: instance.process,
            }))
        }
        Err(error) => tracing::warn!(error = format!("{error:#}"), "instances cannot be listed"),
    }
}
