//! Processes by what cannot be recycled: id, start time and boot id together.
//!
//! # Invariants
//! - `AGENT-2` A signal goes only to a process that still is the one that was recorded.

use std::{fs, io, os::fd::OwnedFd, time::Duration};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// One process of one boot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ProcessId {
    /// The process id.
    pub(crate) pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks from boot to its start.
    pub(crate) start_ticks: u64,
    /// The kernel's boot id when it was started.
    pub(crate) boot_id: String,
}

impl ProcessId {
    /// Records a process that runs now.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let stat = Stat::read(pid)?;
        Ok(Self { pid, start_ticks: stat.start_ticks, boot_id: boot_id()? })
    }

    /// Whether it is of this boot.
    pub(crate) fn this_boot(&self) -> bool {
        boot_id().is_ok_and(|now| now == self.boot_id)
    }

    /// Whether it still runs. A zombie does not, and process 1 is nobody's shim or workload: it
    /// was recorded for a shim whose launcher it had taken over.
    pub(crate) fn alive(&self) -> bool {
        self.pid != 1
            && self.this_boot()
            && Stat::read(self.pid)
                .is_ok_and(|stat| stat.start_ticks == self.start_ticks && !stat.over())
    }

    /// How long ago it was started, if that was in this boot; by a clock that nobody sets.
    pub(crate) fn age(&self) -> Duration {
        if !self.this_boot() {
            return Duration::ZERO;
        }
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot = Duration::try_from(since_boot).unwrap_or_default();
        let ticks_hz = rustix::param::clock_ticks_per_second().max(1);
        since_boot
            .saturating_sub(Duration::from_millis(self.start_ticks.saturating_mul(1000) / ticks_hz))
    }

    fn rustix_pid(&self) -> Option<Pid> {
        i32::try_from(self.pid).ok().and_then(Pid::from_raw)
    }

    /// A descriptor that names exactly this process, or `None` when it is gone. It is opened
    /// first and compared after, so the number cannot change hands in between.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        let fd = pidfd_open(self.rustix_pid()?, PidfdFlags::empty()).ok()?;
        self.alive().then_some(fd)
    }

    /// Signals the process alone; `false` when it is gone.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(fd) = self.open() else { return Ok(false) };
        match pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Signals the process and its group; `false` when it is gone.
    pub(crate) fn signal_group(&self, signal: Signal) -> io::Result<bool> {
        let (Some(fd), Some(pid)) = (self.open(), self.rustix_pid()) else { return Ok(false) };
        // It leads its group. While we hold it open and see it alive, no other group can have
        // its number.
        match kill_process_group(pid, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => match pidfd_send_signal(&fd, signal) {
                Ok(()) => Ok(true),
                Err(rustix::io::Errno::SRCH) => Ok(false),
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }
}

/// What is needed of `/proc/<pid>/stat`.
pub(crate) struct Stat {
    state: u8,
    pub(crate) ppid: u32,
    pub(crate) cpu_ticks: u64,
    pub(crate) start_ticks: u64,
    pub(crate) rss_pages: u64,
}

impl Stat {
    pub(crate) fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::Error::other("unexpected form of /proc/<pid>/stat"))
    }

    fn over(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// The name in parentheses may hold anything, also parentheses: fields begin after the last.
    fn parse(text: &str) -> Option<Self> {
        let rest = text.get(text.rfind(')')? + 1..)?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok());
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            ppid: u32::try_from(number(4)?).ok()?,
            cpu_ticks: number(14)? + number(15)?,
            start_ticks: number(22)?,
            rss_pages: number(24)?,
        })
    }
}

/// The kernel's boot id.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The live and dead children of a process.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| Stat::read(*pid).is_ok_and(|stat| stat.ppid == parent))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "7 (a) S ) R) S 1 7 7 0 -1 4194304 1 2 3 4 11 22 0 0 20 0 1 0 987 1000 55 18446744073709551615 1";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.start_ticks, stat.cpu_ticks, stat.rss_pages), (987, 33, 55));
    }

    #[test]
    fn a_recycled_pid_is_not_the_process_and_gets_no_signal() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let real = ProcessId::of(child.id()).unwrap();
        let recycled = ProcessId { start_ticks: real.start_ticks - 1, ..real.clone() };
        assert!(!recycled.alive());
        assert!(!recycled.signal_group(Signal::KILL).unwrap());
        assert!(real.alive() && child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_first_process_is_no_living_shim() {
        assert!(!ProcessId::of(1).unwrap().alive());
    }

    #[test]
    fn a_process_of_another_boot_is_not_alive() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.alive());
        assert!(!ProcessId { boot_id: "another".into(), ..me }.alive());
    }
}
