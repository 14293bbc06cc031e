//! Control groups: version 2 where the host has it, version 1's controllers otherwise.
//!
//! What cannot be enforced is said, never left out in silence: by [`isolation`] for the node and
//! by [`Cgroup::create`] for an instance.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::files::Limits;

const ROOT: &str = "/sys/fs/cgroup";
const PARENT: &str = "palisade";
const PERIOD_US: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Two,
    One,
}

fn version(root: &Path) -> Version {
    if root.join("cgroup.controllers").exists() { Version::Two } else { Version::One }
}

/// An instance's own groups: one directory in version 2, one per controller in version 1.
#[derive(Debug, Default)]
pub(crate) struct Cgroup {
    /// The directories that were made.
    pub(crate) dirs: Vec<PathBuf>,
    /// What was asked for and could not be had.
    pub(crate) not_enforced: Vec<String>,
}

impl Cgroup {
    /// Makes the groups and sets the limits; never fails, but says what it could not do.
    pub(crate) fn create(id: &str, limits: &Limits) -> Self {
        Self::create_under(Path::new(ROOT), id, limits)
    }

    fn create_under(root: &Path, id: &str, limits: &Limits) -> Self {
        let mut group = Self::default();
        for controller in ["cpu", "memory", "pids"] {
            let wanted = match controller {
                "cpu" => limits.cpu_milli > 0,
                "memory" => limits.memory_bytes > 0,
                _ => limits.pids_max > 0,
            };
            match make(root, controller, id) {
                Ok(dir) => {
                    if !group.dirs.contains(&dir) {
                        group.dirs.push(dir.clone());
                    }
                    if let Err(error) = set(&dir, version(root), controller, limits) {
                        group.refuse(wanted, controller, &error);
                    }
                }
                Err(error) => group.refuse(wanted, controller, &error),
            }
        }
        group
    }

    fn refuse(&mut self, wanted: bool, controller: &str, error: &io::Error) {
        if wanted {
            self.not_enforced.push(format!("{controller}: {error}"));
        }
    }

    /// Puts the calling process into the groups.
    pub(crate) fn enter(dirs: &[PathBuf]) -> io::Result<()> {
        dirs.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), "0"))
    }

    /// Ends every process in the groups.
    pub(crate) fn kill(dirs: &[PathBuf]) {
        for dir in dirs {
            if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
                continue;
            }
            for pid in members(dir) {
                // A member of our own group is ours by definition, so its number is enough.
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
    }

    /// Ends every process in the groups, waits until they are gone, and removes the groups.
    #[allow(
        clippy::disallowed_methods,
        reason = "called on blocking threads and in the shim, never on an executor"
    )]
    pub(crate) fn end(dirs: &[PathBuf]) {
        for _ in 0..200 {
            Self::kill(dirs);
            if !Self::populated(dirs) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Self::remove(dirs);
    }

    /// Whether any process is left in them.
    pub(crate) fn populated(dirs: &[PathBuf]) -> bool {
        dirs.iter().any(|dir| !members(dir).is_empty())
    }

    /// Removes them; what still has a member stays.
    pub(crate) fn remove(dirs: &[PathBuf]) {
        for dir in dirs {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn members(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn make(root: &Path, controller: &str, id: &str) -> io::Result<PathBuf> {
    let parent = match version(root) {
        Version::Two => {
            let parent = root.join(PARENT);
            fs::create_dir_all(&parent)?;
            enable(root, controller)?;
            enable(&parent, controller)?;
            parent
        }
        Version::One => {
            let mounted = root.join(controller);
            if !mounted.join("cgroup.procs").exists() {
                return Err(io::Error::other("the controller is not mounted"));
            }
            mounted.join(PARENT)
        }
    };
    let dir = parent.join(id);
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn enable(dir: &Path, controller: &str) -> io::Result<()> {
    let enabled = fs::read_to_string(dir.join("cgroup.subtree_control"))?;
    if enabled.split_ascii_whitespace().any(|name| name == controller) {
        return Ok(());
    }
    fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"))
}

fn set(dir: &Path, version: Version, controller: &str, limits: &Limits) -> io::Result<()> {
    let quota_us = (limits.cpu_milli.saturating_mul(PERIOD_US) / 1000).max(1000);
    let put = |file: &str, value: String| fs::write(dir.join(file), value);
    match (controller, version) {
        ("cpu", Version::Two) if limits.cpu_milli > 0 => {
            put("cpu.max", format!("{quota_us} {PERIOD_US}"))
        }
        ("cpu", Version::One) if limits.cpu_milli > 0 => {
            put("cpu.cfs_period_us", PERIOD_US.to_string())?;
            put("cpu.cfs_quota_us", quota_us.to_string())
        }
        ("memory", Version::Two) if limits.memory_bytes > 0 => {
            // Swap on top of the limit would make the limit mean nothing; absent without swap.
            let _ = put("memory.swap.max", "0".to_owned());
            put("memory.max", limits.memory_bytes.to_string())
        }
        ("memory", Version::One) if limits.memory_bytes > 0 => {
            put("memory.limit_in_bytes", limits.memory_bytes.to_string())
        }
        ("pids", _) if limits.pids_max > 0 => put("pids.max", limits.pids_max.to_string()),
        _ => Ok(()),
    }
}

/// How many processes the kernel has ended in these groups for their use of memory.
pub(crate) fn oom_kills(dirs: &[PathBuf]) -> u64 {
    dirs.iter()
        .flat_map(|dir| [dir.join("memory.events"), dir.join("memory.oom_control")])
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
                .collect::<Vec<_>>()
        })
        .sum()
}

/// CPU time in microseconds and memory in bytes, as far as the groups tell.
pub(crate) fn usage(dirs: &[PathBuf]) -> (Option<u64>, Option<u64>) {
    let number = |name: &str| {
        dirs.iter()
            .find_map(|dir| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok())
    };
    let cpu_us = dirs.iter().find_map(|dir| {
        let text = fs::read_to_string(dir.join("cpu.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse::<u64>().ok())
    });
    let memory = number("memory.current").or_else(|| number("memory.usage_in_bytes"));
    (cpu_us, memory)
}

/// Per feature, `enforced` or the reason why it is not, found by trying.
pub(crate) fn isolation() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let probe = format!("probe-{}", std::process::id());
    let limits = Limits { cpu_milli: 1000, memory_bytes: 64 << 20, pids_max: 16 };
    let group = Cgroup::create(&probe, &limits);
    Cgroup::remove(&group.dirs);
    for controller in ["cpu", "memory", "pids"] {
        let prefix = format!("{controller}: ");
        let reason = group.not_enforced.iter().find_map(|text| text.strip_prefix(&prefix));
        let text = match (reason, controller) {
            (None, _) => "enforced".to_owned(),
            (Some(reason), "memory") => {
                format!("per process only (RLIMIT_DATA), no control group: {reason}")
            }
            (Some(reason), _) => format!("not enforced, no control group: {reason}"),
        };
        found.insert(controller.to_owned(), text);
    }
    let user = if rustix::process::geteuid().is_root() {
        "enforced".to_owned()
    } else {
        "not possible: the agent does not run as root".to_owned()
    };
    found.insert("user".to_owned(), user);
    found.insert(
        "private-tmp".to_owned(),
        "by TMPDIR only: each instance has its own directory, /tmp itself is shared".to_owned(),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_set_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { cpu_milli: 500, memory_bytes: 1 << 20, pids_max: 0 };
        let group = Cgroup::create_under(dir.path(), "x", &limits);
        assert!(group.dirs.is_empty());
        assert_eq!(group.not_enforced.len(), 2, "{:?}", group.not_enforced);
        assert!(group.not_enforced[0].starts_with("cpu: "));
    }

    #[test]
    fn every_feature_has_an_answer() {
        let found = isolation();
        for feature in ["cpu", "memory", "pids", "private-tmp", "user"] {
            assert!(found.contains_key(feature), "{feature}");
        }
    }
}
