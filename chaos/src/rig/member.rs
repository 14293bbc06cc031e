//! One process of the cluster: a replica or an agent.
//!
//! # Invariants
//! - `RIG-1` A signal goes only to a process that this rig started and has not waited for yet.
#![allow(clippy::disallowed_methods, reason = "the rig drives real processes in real time")]

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

const LOG_LINES: usize = 15;

/// Set once this program is to end: a watcher must not start again what is being ended.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Whether what runs is being ended.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Starts no member any more.
pub(crate) fn start_no_more() {
    ENDING.store(true, Ordering::SeqCst);
}

/// See the module documentation.
pub(crate) struct Member {
    /// For people: `replica 1`, `agent 2`.
    pub(crate) name: String,
    launch: Mutex<Launch>,
    log: PathBuf,
    child: Mutex<Option<Child>>,
    /// A fault looks after its end by itself.
    tended: AtomicBool,
}

/// How a member is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// The command by which it is brought into its own network, if it has one.
    pub(crate) within: Vec<OsString>,
    /// More of its environment.
    pub(crate) env: Vec<(OsString, OsString)>,
}

impl Launch {
    fn command(&self) -> Command {
        let mut words = self.within.iter();
        let Some(first) = words.next() else {
            let mut command = Command::new(&self.program);
            command.args(&self.args);
            return command;
        };
        let mut command = Command::new(first);
        command.args(words).arg(&self.program).args(&self.args);
        command
    }
}

impl Member {
    pub(crate) fn new(name: String, program: &Path, args: Vec<OsString>, log: PathBuf) -> Self {
        let launch = Launch { program: program.to_owned(), args, ..Launch::default() };
        Self::launched(name, launch, log)
    }

    pub(crate) fn launched(name: String, launch: Launch, log: PathBuf) -> Self {
        Self {
            name,
            launch: Mutex::new(launch),
            log,
            child: Mutex::new(None),
            tended: AtomicBool::new(false),
        }
    }

    /// Changes how it is started the next time.
    pub(crate) fn relaunch(&self, change: impl FnOnce(&mut Launch)) {
        change(&mut self.launch.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn launch(&self) -> Launch {
        self.launch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on its end is looked after, or no more.
    pub(crate) fn tend(&self, tended: bool) {
        self.tended.store(tended, Ordering::SeqCst);
    }

    /// Whether somebody looks after its end.
    pub(crate) fn is_tended(&self) -> bool {
        self.tended.load(Ordering::SeqCst)
    }

    /// How many bytes it has written.
    pub(crate) fn log_length(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |about| about.len())
    }

    /// What it wrote since then.
    pub(crate) fn log_since(&self, length: u64) -> Vec<String> {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let begin = usize::try_from(length).unwrap_or(0).min(text.len());
        let text = String::from_utf8_lossy(text.get(begin..).unwrap_or_default()).into_owned();
        text.lines().map(str::to_owned).collect()
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&self) -> Result<()> {
        let mut child = self.child();
        if child.is_some() {
            return Ok(());
        }
        if ENDING.load(Ordering::SeqCst) {
            bail!("the rig is ending");
        }
        let log = append(&self.log)?;
        let launch = self.launch();
        let started = launch
            .command()
            .env("PATH", path_with(&launch.program))
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot use the log")?)
            .stderr(log)
            // Ctrl-C is for the rig alone, which then ends them in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", launch.program.display()))?;
        *child = Some(started);
        Ok(())
    }

    /// Its process, while it is to run.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    fn signal(&self, signal: Signal) -> Result<u32> {
        let child = self.child();
        let pid = child.as_ref().map(Child::id).context("it does not run")?;
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).context("it has no number")?;
        kill_process(raw, signal).with_context(|| format!("cannot signal {}", self.name))?;
        Ok(pid)
    }

    /// SIGKILL. Answers its number.
    pub(crate) fn kill(&self) -> Result<u32> {
        // Under one lock, so that nobody takes its end for one of its own.
        let mut child = self.child().take().context("it does not run")?;
        let pid = child.id();
        child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(pid)
    }

    /// SIGSTOP. Answers its number.
    pub(crate) fn pause(&self) -> Result<u32> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) -> Result<u32> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM. Answers its number.
    pub(crate) fn terminate(&self) -> Result<u32> {
        self.signal(Signal::TERM)
    }

    /// Whether it ended although nobody ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.child().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// How it ended, if nobody ended it. Afterwards it can be started again.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        let mut child = self.child();
        let status = child.as_mut()?.try_wait().ok()??;
        *child = None;
        Some(status)
    }

    /// The end of what it wrote.
    pub(crate) fn log_tail(&self) -> Vec<String> {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.len().saturating_sub(LOG_LINES);
        lines.into_iter().skip(first).map(str::to_owned).collect()
    }

    /// Says that it did not do what was expected, with the end of its log.
    pub(crate) fn complaint(&self, what: &str) -> anyhow::Error {
        let tail = self.log_tail().join("\n  ");
        anyhow!("{} {what}; it wrote at last:\n  {tail}", self.name)
    }
}

/// The search path, with the program's directory first: specs name `palisade` as one that is
/// installed.
fn path_with(program: &Path) -> OsString {
    let own = program.parent().map(Path::to_owned);
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = own.into_iter().chain(std::env::split_paths(&rest));
    std::env::join_paths(all).unwrap_or(rest)
}

fn append(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    fn sleeper(dir: &Path, seconds: &str) -> Member {
        Member::new("sleeper".into(), Path::new("sleep"), vec![seconds.into()], dir.join("log"))
    }

    #[test]
    fn a_killed_member_is_gone_and_starts_again() {
        let dir = tempfile::tempdir().unwrap();
        let member = sleeper(dir.path(), "60");
        member.start().unwrap();
        let first = proc::process(member.pid().unwrap()).unwrap();
        assert_eq!(member.kill().unwrap(), first.pid);
        assert!(!proc::runs(first));
        assert!(member.kill().is_err());
        member.start().unwrap();
        assert!(member.ended().is_none());
        member.kill().unwrap();
    }

    #[test]
    fn a_member_that_ends_by_itself_is_noticed_once() {
        let dir = tempfile::tempdir().unwrap();
        let member = sleeper(dir.path(), "0");
        member.start().unwrap();
        let status = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            member.ended()
        });
        assert!(status.unwrap().success());
        assert!(member.ended().is_none());
    }
}
