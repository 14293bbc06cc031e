//! What Linux says of the machine, its disk, and the processes that are measured.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    clock::{self, Clock},
    proc::Stat,
};

/// Clock ticks a second of `/proc`: 100 on every Linux.
pub(in crate::bench) const TICKS: f64 = 100.0;
const TMPFS: u64 = 0x0102_1994;

/// The memory that a process has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resident {
    /// All of it, mapped files among it.
    pub(super) all: u64,
    /// What no file is behind.
    pub(super) anonymous: u64,
}

/// The memory that a process has now.
pub(super) fn resident(pid: u32) -> Option<Resident> {
    parse_resident(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_resident(text: &str) -> Option<Resident> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(Resident { all: bytes("VmRSS:")?, anonymous: bytes("RssAnon:")? })
}

/// CPU ticks of these processes together.
pub(in crate::bench) fn cpu_ticks(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|pid| Stat::read(*pid)).map(|stat| stat.cpu_ticks).sum()
}

/// Waits until these processes do next to nothing: what one measurement leaves behind (snapshots,
/// compaction, collection of garbage) must not be charged to the next one. Answers whether they do.
pub(in crate::bench) async fn until_idle(pids: &[u32], limit: Duration) -> bool {
    const LOOK: Duration = Duration::from_millis(300);
    /// Ticks in one look that all members of both systems may use: 20 % of a core.
    const IDLE_TICKS: u64 = 6;
    let clock = Clock::start();
    loop {
        let before = cpu_ticks(pids);
        clock::sleep(LOOK).await;
        if cpu_ticks(pids).saturating_sub(before) <= IDLE_TICKS {
            return true;
        }
        if clock.elapsed() > limit {
            return false;
        }
    }
}

/// A disk whose flushes are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    /// Its number.
    pub(super) number: (u32, u32),
}

impl Disk {
    /// The whole disk on which a directory lies.
    ///
    /// # Errors
    /// The directory lies in memory, where a flush is nothing.
    pub(super) fn of(dir: &Path) -> Result<Self> {
        let stat =
            rustix::fs::statfs(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
        if u64::try_from(stat.f_type).is_ok_and(|kind| kind == TMPFS) {
            bail!(
                "{} lies in memory (tmpfs), where a flush is nothing: give a directory on a disk with --dir",
                dir.display()
            );
        }
        let device = fs::metadata(dir).context("cannot look at the directory")?.dev();
        let number = (rustix::fs::major(device), rustix::fs::minor(device));
        Ok(Self { number: whole(number).unwrap_or(number) })
    }

    /// Flushes that the disk has done so far, of everybody. Neighbouring flushes are merged, so
    /// that this is a lower bound. `None` where the system does not count them.
    pub(super) fn flushes(&self) -> Option<u64> {
        parse_flushes(&fs::read_to_string("/proc/diskstats").ok()?, self.number)
    }
}

/// The number of the whole disk of a partition: flushes are counted there.
fn whole((major, minor): (u32, u32)) -> Option<(u32, u32)> {
    let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !dir.join("partition").exists() {
        return None;
    }
    let text = fs::read_to_string(dir.canonicalize().ok()?.parent()?.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The 18th field of a device's line counts its flushes.
fn parse_flushes(text: &str, number: (u32, u32)) -> Option<u64> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let at = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let is_it = at(0)? == u64::from(number.0) && at(1)? == u64::from(number.1);
        is_it.then(|| at(18)).flatten()
    })
}

/// The machine in a few words.
pub(in crate::bench) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok()
        })
        .unwrap_or(0_u64);
    format!(
        "{}, {cores} CPUs, {} GiB, Linux {}",
        field("model name").unwrap_or_else(|| "a CPU".into()),
        kib >> 20,
        kernel.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let read = Some(Resident { all: 2048 * 1024, anonymous: 1234 * 1024 });
        assert_eq!(parse_resident("VmRSS:\t  2048 kB\nRssAnon:\t    1234 kB\n"), read);
        assert_eq!(parse_resident("VmRSS:\t  10 kB\n"), None);
        assert!(resident(std::process::id()).unwrap().anonymous > 0);
    }

    #[test]
    fn flushes_are_those_of_the_disk_with_that_number() {
        let text = " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 77 17\n \
                     254 16 vdb 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 88 17\n";
        assert_eq!(parse_flushes(text, (254, 0)), Some(77));
        assert_eq!(parse_flushes(text, (254, 16)), Some(88));
        assert_eq!(parse_flushes(text, (8, 0)), None);
        assert_eq!(parse_flushes(" 254 0 vda 1 2 3\n", (254, 0)), None);
    }

    #[test]
    fn a_directory_in_memory_is_refused() {
        if !Path::new("/dev/shm").is_dir() {
            eprintln!("skipped: there is no /dev/shm on this machine");
            return;
        }
        let error = Disk::of(Path::new("/dev/shm")).unwrap_err().to_string();
        assert!(error.contains("--dir"), "{error}");
    }

    #[tokio::test]
    async fn a_process_that_sleeps_is_idle() {
        assert!(until_idle(&[], Duration::ZERO).await);
    }
}
