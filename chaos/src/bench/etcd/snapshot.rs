//! The longest pause of a steady writer while snapshots of a large state are taken.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};

use super::{
    Bench,
    client::Client,
    cluster::{Cluster, MEMBERS, Side},
    fill::{Fill, fill},
    load::{self, Keys, sized_value, value},
    report::{Goal, Line, Round},
    system,
};
use crate::{
    bench::{Better, Meter},
    clock::{self, Clock},
};

const VALUE: usize = 1024;
const BASELINE: Duration = Duration::from_secs(10);
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(150);
const AFTER: Duration = Duration::from_secs(1);
/// The filler's rows: large, few, and written over, so that the log grows and the state does not.
const FILLER_BYTES: usize = 64 * 1024;
const FILLER_ROWS: u64 = 64;
const FILLER_PAUSE: Duration = Duration::from_millis(4);

/// Fills that many MiB, lets snapshots be taken, and measures meanwhile.
pub(super) async fn measure(bench: &mut Bench, mib: u64) -> Result<Vec<Line>> {
    let cluster = bench.start(Side::Ours).await?;
    let rows = (mib << 20) / VALUE as u64;
    fill(&cluster, "large", Fill { rows, value_bytes: VALUE, together: 256 }).await?;
    system::until_idle(&cluster.pids(), Duration::from_secs(60)).await;
    let (leader, term) = cluster.until_settled().await?;
    let writer = Writer::start(&cluster, leader).await?;
    clock::sleep(BASELINE).await;
    let baseline = writer.stop().await?;
    let before = newest_of_all(&cluster);
    let (meter, clock) = (Meter::start(), Clock::start());
    let writer = Writer::start(&cluster, leader).await?;
    let filler = Filler::start(&cluster, leader).await?;
    let taken = clock::poll(SNAPSHOT_LIMIT, Duration::from_millis(100), || async {
        let now = newest_of_all(&cluster);
        let is_new = |(now, before): (&Option<Snapshot>, &Option<Snapshot>)| {
            now.is_some() && now.as_ref().map(|s| &s.path) != before.as_ref().map(|s| &s.path)
        };
        now.iter().zip(&before).all(is_new).then_some(now)
    })
    .await;
    drop(filler);
    let taken = taken.context("not every member has taken a snapshot in time")?;
    clock::sleep(AFTER).await;
    let stalled = writer.stop().await?;
    let foreign = meter.foreign();
    let bytes = taken.into_iter().flatten().map(|snapshot| snapshot.bytes).max().unwrap_or(0);
    eprintln!(
        "  snapshots of {} MiB by all members within {:.1} s: longest pause {:.1} ms (before: {:.1} ms), {} writes",
        bytes >> 20,
        clock.elapsed().as_secs_f64(),
        stalled.longest_ms,
        baseline.longest_ms,
        stalled.writes
    );
    if bytes >> 20 < mib * 9 / 10 {
        bail!("the snapshot has {} MiB, and {mib} were to be in it", bytes >> 20);
    }
    let passed = cluster.term().await?.saturating_sub(term);
    let name = format!("longest pause of writes while {} MiB are snapshotted", bytes >> 20);
    let round = Round { ours: stalled.longest_ms, peer: None, foreign };
    Ok(vec![
        Line::new(name, "ms", &[round], Goal::ValueAtMost(50.0), Better::Lower)
            .with("longestMsBefore", baseline.longest_ms)
            .with("snapshotBytes", bytes)
            .with("elections", passed),
    ])
}

/// A finished snapshot.
struct Snapshot {
    path: PathBuf,
    bytes: u64,
}

fn newest_of_all(cluster: &Cluster) -> Vec<Option<Snapshot>> {
    (1..=MEMBERS)
        .map(|id| newest(&cluster.dir.join(format!("cluster/replica-{id}/data/snapshots"))))
        .collect()
}

/// The last one in a directory: names begin with the index.
fn newest(dir: &Path) -> Option<Snapshot> {
    let is_snapshot = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "snap");
    let index = |path: &PathBuf| -> Option<u64> {
        path.file_stem()?.to_str()?.split('-').next()?.parse().ok()
    };
    let path = fs::read_dir(dir)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(is_snapshot)
        .max_by_key(index)?;
    let bytes = fs::metadata(&path).ok()?.len();
    Some(Snapshot { path, bytes })
}

/// What the writer saw.
struct Stall {
    longest_ms: f64,
    writes: u64,
}

/// One client that writes one row after the other.
struct Writer {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<Stall>>,
}

impl Writer {
    async fn start(cluster: &Cluster, leader: usize) -> Result<Self> {
        let mut client = load::connect(cluster, leader, 1).await?.pop().context("no connection")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let keys = Keys::new("steady", 0);
        let task = clock::spawn(async move {
            let (mut longest, mut writes) = (0, 0_u64);
            let mut last = Clock::start();
            while !stopped.load(Ordering::Relaxed) {
                writes += 1;
                let put = client.put((keys.key(writes % 1000), value(writes))).await;
                put.map_err(|failure| anyhow!("a write was refused: {failure}"))?;
                longest = longest.max(last.micros());
                last = Clock::start();
            }
            Ok(Stall { longest_ms: longest as f64 / 1000.0, writes })
        });
        Ok(Self { stop, task })
    }

    async fn stop(self) -> Result<Stall> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.context("the writer broke")?
    }
}

/// Lets the log grow until a snapshot is due.
struct Filler(tokio::task::JoinHandle<()>);

impl Filler {
    async fn start(cluster: &Cluster, leader: usize) -> Result<Self> {
        let client = load::connect(cluster, leader, 1).await?.pop().context("no connection")?;
        let failures = AtomicU64::new(0);
        Ok(Self(clock::spawn(fill_on(client, failures))))
    }
}

async fn fill_on(mut client: Client, failures: AtomicU64) {
    let keys = Keys::new("filler", 0);
    for number in 0.. {
        let row = (keys.key(number % FILLER_ROWS), sized_value(number, FILLER_BYTES));
        if let Err(failure) = client.put(row).await
            && failures.fetch_add(1, Ordering::Relaxed) == 0
        {
            eprintln!("    a write of the filler failed: {failure}");
        }
        clock::sleep(FILLER_PAUSE).await;
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_snapshot_is_the_one_with_the_largest_index() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("9-1.snap", 1), ("10-1.snap", 2), ("11-1.tmp", 3)] {
            fs::write(dir.path().join(name), vec![0; bytes]).unwrap();
        }
        let found = newest(dir.path()).unwrap();
        assert_eq!((found.path.file_name().unwrap().to_str(), found.bytes), (Some("10-1.snap"), 2));
        assert!(newest(&dir.path().join("none")).is_none());
    }
}
