//! `palisade-chaos soak`: steady work for a long time, and whether anything grows that should not.

mod cli;
mod judge;

use std::{
    fmt::Write as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    clock::{self, Clock},
    history::{Exit, Operation},
    http::{BASE, Http, Request},
    load::Client,
    rig::{self, Binary, Disks, Folder, Member, Rig},
    watch,
};

pub(crate) use cli::Soak;
pub use judge::{BOUNDS, Bound, Growth, Measure, Sample, judge};

const SAMPLE_MS: u64 = 3000;
/// So often somebody else is made to lead, and connections are ended.
const STIR_MS: u64 = 20_000;
const HEALTHY_LIMIT: Duration = Duration::from_secs(30);

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long.
    pub minutes: u64,
    /// It decides what clients do.
    pub seed: u64,
    /// How many replicas.
    pub replicas: usize,
    /// How many agents.
    pub agents: usize,
    /// How many clients.
    pub clients: u32,
    /// The product's binary, if not the one beside this.
    pub bin: Option<PathBuf>,
    /// Keep the cluster's directory.
    pub keep: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Soaked {
    /// The bounds.
    pub bounds: Vec<Bound>,
    /// Of each process, what grew.
    pub growth: Vec<Growth>,
    /// Processes of which there are too few samples.
    pub undecided: Vec<String>,
    /// Processes that ended by themselves.
    pub exits: Vec<Exit>,
    /// What was measured, by process.
    pub samples: Vec<(String, Vec<Sample>)>,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Workloads that came, were scaled, and went.
    pub workloads: u64,
}

impl Soaked {
    /// The process's exit status.
    #[must_use]
    pub fn exit(&self) -> u8 {
        if !self.exits.is_empty() || self.growth.iter().any(Growth::is_too_much) {
            return 1;
        }
        if self.undecided.is_empty() && self.writes > 0 && self.workloads > 0 { 0 } else { 3 }
    }

    /// For people.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = format!(
            "{} writes acknowledged, {} workloads came and went\n{:<12} {:<8} {:>12} {:>12} {:>12} {:>12}\n",
            self.writes, self.workloads, "process", "what", "first", "last", "grew by", "bound"
        );
        for one in &self.growth {
            let show = |value: f64| shown(one.measure, value);
            let _ = writeln!(
                text,
                "{:<12} {:<8} {:>12} {:>12} {:>12} {:>12}{}",
                one.process,
                format!("{:?}", one.measure).to_lowercase(),
                show(one.first as f64),
                show(one.last as f64),
                show(one.grew),
                show(one.bound),
                if one.is_too_much() { "  TOO MUCH" } else { "" }
            );
        }
        for exit in &self.exits {
            let _ = writeln!(text, "{} ended by itself: {}", exit.process, exit.status);
            exit.log.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        for process in &self.undecided {
            let _ = writeln!(text, "incomplete: {process} did not run long enough to be judged");
        }
        text.push_str(match self.exit() {
            0 => "PASSED\n",
            1 => "VIOLATED\n",
            _ => "INCOMPLETE\n",
        });
        text
    }
}

fn shown(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Memory | Measure::Disk => format!("{:.1} MiB", value / f64::from(1 << 20)),
        Measure::Log => format!("{:.1} KiB", value / 1024.0),
        Measure::Files | Measure::Threads => format!("{value:.1}"),
    }
}

/// The bounds in words, to be said before anything is measured.
#[must_use]
pub fn stated() -> String {
    let mut text =
        String::from("what may grow after the warm-up (a third of the time), by its slope:\n");
    for bound in BOUNDS {
        let show = |value: u64| shown(bound.measure, value as f64);
        let name = format!("{:?}", bound.measure).to_lowercase();
        let _ = write!(text, "  {name:<8} {} once", show(bound.once));
        if bound.each_write > 0 {
            let _ = write!(text, ", {} bytes for each acknowledged write", bound.each_write);
        }
        if bound.each_minute > 0 {
            let _ = write!(text, ", {} a minute", show(bound.each_minute));
        }
        text.push('\n');
    }
    text
}

/// Runs it.
///
/// # Errors
/// The cluster could not be started.
pub async fn run(options: &Options) -> Result<Soaked> {
    let binary = Binary::find(options.bin.as_deref())?;
    let mut folder = Folder::new()?;
    let ran = drive(options, &binary, &folder).await;
    if options.keep || !ran.as_ref().is_ok_and(|soaked| soaked.exit() == 0) {
        folder.keep();
        eprintln!("kept {}", folder.path().display());
    }
    ran
}

async fn drive(options: &Options, binary: &Binary, folder: &Folder) -> Result<Soaked> {
    let wanted = rig::Options { replicas: options.replicas, agents: options.agents };
    let mut rig = Rig::start_wired(binary, folder.path(), &wanted, Disks::Shared).await?;
    rig.join_agents(options.agents).await?;
    let rig = Arc::new(rig);
    let (clock, stop) = (Clock::start(), Arc::new(AtomicBool::new(false)));
    let exits = clock::spawn(watch::exits(rig.clone(), clock, stop.clone()));
    let churn = clock::spawn(churn(rig.clone(), stop.clone()));
    let stir = clock::spawn(stir(rig.clone(), clock, stop.clone()));
    let written = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut clients = Vec::new();
    for id in 0..options.clients {
        let http = Http::new(rig.access.clone())?;
        let client = Client::new(id, options.clients, options.seed, http, clock, stop.clone());
        clients.push(clock::spawn(client.counted(written.clone()).run()));
    }
    let samples = sample(&rig, clock, options.minutes * 60_000, &written).await;
    stop.store(true, Ordering::Relaxed);
    let mut operations: Vec<Operation> = Vec::new();
    for client in clients {
        operations.extend(client.await.context("a client ended")?);
    }
    stir.await.context("the stirring ended")?;
    let workloads = churn.await.context("the churn ended")?;
    let exits = exits.await.context("a watcher ended")?;
    let warm_ms = options.minutes * 60_000 / 3;
    let (mut growth, mut undecided) = (Vec::new(), Vec::new());
    for (process, samples) in &samples {
        match judge(process, samples, warm_ms) {
            Some(judged) => growth.extend(judged),
            None => undecided.push(process.clone()),
        }
    }
    Ok(Soaked {
        bounds: BOUNDS.to_vec(),
        growth,
        undecided,
        exits,
        samples,
        writes: written.load(Ordering::Relaxed),
        workloads,
    })
}

/// Measures every process until the time is over.
async fn sample(
    rig: &Rig,
    clock: Clock,
    until_ms: u64,
    written: &std::sync::atomic::AtomicU64,
) -> Vec<(String, Vec<Sample>)> {
    let replicas = rig.seats.iter().filter(|seat| seat.id().is_some());
    let mut watched: Vec<(Arc<Member>, PathBuf, Vec<Sample>)> =
        replicas.map(|seat| (seat.member.clone(), seat.dir.clone(), Vec::new())).collect();
    for (index, agent) in rig.agents.iter().enumerate() {
        let dir = rig.dir.join(format!("agent-{}", index + 1));
        watched.push((agent.clone(), dir, Vec::new()));
    }
    while clock.millis() < until_ms {
        for (member, dir, samples) in &mut watched {
            let at_ms = clock.millis();
            let writes = written.load(Ordering::Relaxed);
            if let Some(sample) = measure(member, dir, at_ms, writes) {
                samples.push(sample);
            }
        }
        clock::sleep_ms(SAMPLE_MS).await;
    }
    watched.into_iter().map(|(member, _, samples)| (member.name.clone(), samples)).collect()
}

fn measure(member: &Member, dir: &Path, at_ms: u64, writes: u64) -> Option<Sample> {
    let pid = member.pid()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some(Sample {
        at_ms,
        pid,
        // Pages of files go when the system wants them, and the program's come one by one as they are used.
        memory: field("RssAnon:")? << 10,
        files: files as u64,
        threads: field("Threads:")?,
        disk: size(dir),
        log: member.log_length(),
        writes,
    })
}

/// Bytes below a directory, as the disk holds them.
fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => size(&entry.path()),
        Ok(about) => about.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Workloads come, grow, shrink and go, one after the other; answers how many did.
async fn churn(rig: Arc<Rig>, stop: Arc<AtomicBool>) -> u64 {
    let mut done = 0;
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) || rig.agents.is_empty() {
            break;
        }
        match one_workload(&rig, number).await {
            Ok(()) => done += 1,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "a workload did not go its way");
                clock::sleep_ms(500).await;
            }
        }
    }
    done
}

async fn one_workload(rig: &Rig, number: u64) -> Result<()> {
    let name = format!("churn-{number}");
    rig.apply(rig::hello(&name, rig.binary.path(), 2), &name).await?;
    rig.until_healthy(&name, 2, HEALTHY_LIMIT).await?;
    rig.apply(rig::hello(&name, rig.binary.path(), 1), &format!("{name}-less")).await?;
    rig.until_healthy(&name, 1, HEALTHY_LIMIT).await?;
    rig.remove(&name, HEALTHY_LIMIT).await
}

/// Now and then another replica leads, and all connections end.
async fn stir(rig: Arc<Rig>, clock: Clock, stop: Arc<AtomicBool>) {
    let mut next_ms = STIR_MS;
    while !stop.load(Ordering::Relaxed) {
        clock::sleep_ms(100).await;
        if clock.millis() < next_ms {
            continue;
        }
        next_ms = clock.millis() + STIR_MS;
        let key = format!("stir-{}", clock::unix_micros());
        let path = format!("{BASE}/cluster/transfer-leader");
        let request = Request::post(path, key, serde_json::json!({}));
        if let Err(error) = rig.http.ask(&request, Duration::from_secs(10)).await {
            tracing::warn!(error = format!("{error:#}"), "nobody else was made to lead");
        }
        if let Some(wires) = &rig.wires {
            wires.net.reset(|_| true);
        }
    }
}
