//! Processes, by what `/proc` says.

use std::{fs, os::unix::ffi::OsStrExt, path::Path};

use rustix::process::{Pid, Signal, kill_process};

fn signal(pid: u64, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    // It may be gone already.
    let _ = kill_process(pid, signal);
}

/// SIGKILL.
pub fn kill(pid: u64) {
    signal(pid, Signal::KILL);
}

/// SIGTERM.
pub fn terminate(pid: u64) {
    signal(pid, Signal::TERM);
}

/// SIGINT, as Ctrl-C sends it.
pub fn interrupt(pid: u64) {
    signal(pid, Signal::INT);
}

/// Whether it runs; a zombie does not.
pub fn alive(pid: u64) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

/// Processes that work in a directory or name it in their arguments.
pub fn naming(dir: &Path) -> Vec<u64> {
    let word = dir.as_os_str().as_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let names_it = fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.windows(word.len()).any(|part| part == word));
        let works_there =
            || fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        if pid != u64::from(std::process::id()) && (names_it || works_there()) && alive(pid) {
            found.push(pid);
        }
    }
    found
}
