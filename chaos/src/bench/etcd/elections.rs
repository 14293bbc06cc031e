//! Elections that nobody asked for: the cluster is saturated for a long time, and on a disk that is
//! slow; the term must be the same afterwards.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    Bench,
    cluster::{Cluster, Side},
    fill::Overwrites,
    load::{self, Keys, Plan, VALUE_BYTES},
    report::{Goal, Line, Round},
    system::Disk,
};
use crate::bench::{Better, Meter};

const CLIENTS: usize = 64;
/// Rows that each client writes over and over: memory must not be what ends a long run.
const ROWS: u64 = 500;
const SHORT: Duration = Duration::from_secs(20);
/// Writes to the disk that all three members together may do in a second: one flush then takes
/// tens of milliseconds.
const SLOW_WRITES: u32 = 150;
const CGROUPS: &str = "/sys/fs/cgroup/blkio";

/// Saturates for that many minutes, or for a short time if it is 0; then again on a slow disk.
pub(super) async fn measure(bench: &mut Bench, minutes: u64) -> Result<Vec<Line>> {
    let cluster = bench.start(Side::Ours).await?;
    let time = if minutes == 0 { SHORT } else { Duration::from_secs(60 * minutes) };
    let name = match minutes {
        0 => format!("elections, saturated for {} s", SHORT.as_secs()),
        _ => format!("elections, saturated for {minutes} min"),
    };
    let mut lines = vec![saturated(&cluster, name, time).await?];
    match Throttle::start(&bench.disk, &cluster.pids(), SLOW_WRITES) {
        Ok(_throttle) => {
            let name = format!("elections, with slow flushes, {} s", SHORT.as_secs());
            lines.push(saturated(&cluster, name, SHORT).await?);
        }
        Err(error) => {
            eprintln!(
                "SKIPPED: elections with slow flushes: the disk cannot be slowed down: {error:#}"
            );
        }
    }
    Ok(lines)
}

async fn saturated(cluster: &Cluster, name: String, time: Duration) -> Result<Line> {
    let (leader, term) = cluster.until_settled().await?;
    let meter = Meter::start();
    let plan = Plan { clients: CLIENTS, warm: Duration::ZERO, measured: time };
    let make = |number| Overwrites {
        keys: Keys::new("saturated", number),
        rows: ROWS,
        value_bytes: VALUE_BYTES,
        next: 0,
    };
    let (loaded, _) = load::closed_loop(cluster, leader, plan, make).await?;
    let passed = cluster.term().await?.saturating_sub(term);
    let rate = loaded.units as f64 / time.as_secs_f64();
    let (p50, p99) = (loaded.latency.quantile_ms(0.5), loaded.latency.quantile_ms(0.99));
    let max = loaded.latency.max_ms();
    eprintln!(
        "  {name:<40} {passed} terms, {rate:.0} writes/s, p50 {p50:.1} p99 {p99:.1} max {max:.1} ms, {} failed",
        loaded.failures
    );
    if let Some(failure) = &loaded.first_failure {
        eprintln!("    the first: {failure}");
    }
    let round = Round { ours: passed as f64, peer: None, foreign: meter.foreign() };
    Ok(Line::new(name, "elections", &[round], Goal::ValueAtMost(0.0), Better::Lower)
        .with("writesPerSecond", rate.round())
        .with("p50Ms", p50)
        .with("p99Ms", p99)
        .with("maxMs", max)
        .with("failedWrites", loaded.failures))
}

/// A control group whose processes may write to the disk so many times a second. It is taken away
/// when it is dropped.
struct Throttle(PathBuf);

impl Throttle {
    fn start(disk: &Disk, pids: &[u32], writes: u32) -> Result<Self> {
        Self::start_in(Path::new(CGROUPS), disk, pids, writes)
    }

    fn start_in(root: &Path, disk: &Disk, pids: &[u32], writes: u32) -> Result<Self> {
        let dir = root.join(format!("palisade-chaos-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| {
            format!("cannot make {} (needs root and the blkio control groups)", dir.display())
        })?;
        let throttle = Self(dir);
        let (major, minor) = disk.number;
        throttle.write("blkio.throttle.write_iops_device", &format!("{major}:{minor} {writes}"))?;
        for pid in pids {
            throttle.write("cgroup.procs", &pid.to_string())?;
        }
        Ok(throttle)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.0.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let inside = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        let root = self.0.with_file_name("cgroup.procs");
        for pid in inside.lines() {
            // One that has ended meanwhile is out already.
            let _ = fs::write(&root, pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_are_no_control_groups_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk { number: (254, 0) };
        let error = Throttle::start_in(&dir.path().join("no"), &disk, &[], 1).err().unwrap();
        assert!(format!("{error:#}").contains("needs root"), "{error:#}");
    }
}
