//! Processes by what cannot be recycled: id, start time and boot id together.

use std::{fs, io, path::Path};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::layout::replace;

/// One process of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
    /// The kernel's boot id when it was started.
    pub boot_id: String,
}

impl ProcessId {
    /// Records a process that runs now.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(pid: u32) -> io::Result<Self> {
        let (start_ticks, _) = stat(pid)?;
        Ok(Self { pid, start_ticks, boot_id: boot_id()? })
    }

    /// Whether it still runs. A zombie does not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        boot_id().is_ok_and(|now| now == self.boot_id)
            && stat(self.pid).is_ok_and(|(ticks, is_over)| ticks == self.start_ticks && !is_over)
    }

    /// Signals exactly this process; answers whether it was there (`DEV-2`).
    pub(super) fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        // The descriptor is opened first and compared after: the number cannot change hands.
        let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        self.is_alive() && pidfd_send_signal(&fd, signal).is_ok()
    }

    /// Reads one from a file, if there is one.
    pub(super) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        replace(path, &serde_json::to_vec(self)?)
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Start time in ticks, and whether it is over.
fn stat(pid: u32) -> io::Result<(u64, bool)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/<pid>/stat");
    // The name is in parentheses and may itself hold anything.
    let (_, rest) = text.rsplit_once(')').ok_or_else(malformed)?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next().ok_or_else(malformed)?;
    // Field 22 of the line is the 19th after the state.
    let ticks = fields.nth(18).and_then(|field| field.parse().ok()).ok_or_else(malformed)?;
    Ok((ticks, matches!(state, "Z" | "X")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_a_namesake_is_not() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        let earlier = ProcessId { start_ticks: me.start_ticks - 1, ..me.clone() };
        assert!(!earlier.is_alive() && !earlier.signal(Signal::KILL));
        let other_boot = ProcessId { boot_id: "x".into(), ..me };
        assert!(!other_boot.is_alive() && !other_boot.signal(Signal::KILL));
    }
}
