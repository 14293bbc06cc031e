//! The `process` driver: plain processes, each kept by a shim that outlives the agent.
//!
//! # Invariants
//! - `AGENT-1`, `AGENT-2` and `SHIM-1`: see [`crate::shim`] and `pid`.
//! - `PROC-1` Nothing is signalled or removed in an instance directory that this driver did not
//!   make.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
    process::Signal,
};

use super::{
    Cause, Driver, Instance, Problem, Process, SecretValue, SignalName, Start, StopAsked, Usage,
    cgroup,
    cgroup::Cgroup,
    files::{Ended, InstanceDir, RunConfig, RunState, StopMark, read_json, write_json},
    isolation, log,
    pid::{ProcessId, Stat, boot_id},
    prepare::{LogLimits, id_is_sound, io_problem, ports_are_free},
    secret,
};
use crate::edge::blocking;

const START_LIMIT_S: i64 = 20;
const LOG_BYTES_MAX: u64 = 10 << 20;
const LOG_FILES_MAX: u32 = 5;

/// How this program is run as the shim.
#[derive(Clone, Debug)]
pub struct ShimCommand {
    /// The program.
    pub program: PathBuf,
    /// What comes before `--dir`, such as `shim`.
    pub args: Vec<OsString>,
}

impl ShimCommand {
    /// This very program as `palisade shim`; also when its file was replaced meanwhile.
    #[must_use]
    pub fn current() -> Self {
        Self { program: PathBuf::from("/proc/self/exe"), args: vec![OsString::from("shim")] }
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct ProcessDriver {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    shim: ShimCommand,
    log: LogLimits,
}

impl ProcessDriver {
    /// Keeps its instances under `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, shim: ShimCommand) -> Self {
        Self::with_log_limits(root, shim, LOG_BYTES_MAX, LOG_FILES_MAX)
    }

    /// The same with other limits for logs.
    #[must_use]
    pub fn with_log_limits(
        root: impl Into<PathBuf>,
        shim: ShimCommand,
        log_bytes_max: u64,
        log_files_max: u32,
    ) -> Self {
        let root = root.into();
        // Working directories are given to programs as they are, so they must be absolute.
        let root = std::path::absolute(&root).unwrap_or(root);
        let log = LogLimits { bytes_max: log_bytes_max, files_max: log_files_max };
        Self { inner: Arc::new(Inner { root, shim, log }) }
    }

    /// All instances, without mending anything.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn look(&self) -> Result<Vec<Instance>, Problem> {
        self.inner.list(false)
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Problem> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Problem>> {
        let inner = self.inner.clone();
        Box::pin(async move {
            blocking(move || work(&inner)).await.map_err(|error| io_problem("driver", &error))?
        })
    }
}

impl Inner {
    fn dir(&self, id: &str) -> Result<InstanceDir, Problem> {
        if !id_is_sound(id) {
            return Err(Problem::new("INVALID_SPEC", format!("`{id}` cannot be an instance id")));
        }
        Ok(InstanceDir::new(self.root.join(id)))
    }

    fn inspect(&self, id: &str) -> Result<Option<Instance>, Problem> {
        self.look(id, true)
    }

    /// Reads an instance's files and compares them with the processes of this boot. With `mend`,
    /// a lost shim is replaced and an end that nobody recorded is recorded.
    fn look(&self, id: &str, mend: bool) -> Result<Option<Instance>, Problem> {
        let dir = self.dir(id)?;
        let fail = |error: io::Error| io_problem("cannot inspect the instance", &error);
        let Some(config) = read_json::<RunConfig>(&dir.run()).map_err(fail)? else {
            return Ok(None);
        };
        let stop = read_json::<StopMark>(&dir.stop()).map_err(fail)?;
        let process = self.process(&dir, &config, mend).map_err(fail)?;
        let ran_for = match &process {
            Process::Running { .. } => self.state(id)?.map(|state| state.process.age()),
            _ => None,
        };
        Ok(Some(Instance {
            ran_for: ran_for.unwrap_or_default(),
            id: config.id,
            run: config.run,
            spec_version: config.spec_version,
            fence: config.fence,
            stop_signal: config.stop_signal,
            stop_grace: Duration::from_millis(config.stop_grace_ms),
            process,
            restarts: config.restarts,
            stop_asked: stop
                .filter(|mark| mark.run == config.run)
                .map(|mark| StopAsked { grace: Duration::from_millis(mark.grace_ms) }),
        }))
    }

    fn process(&self, dir: &InstanceDir, config: &RunConfig, mend: bool) -> io::Result<Process> {
        let exit = || -> io::Result<Option<Process>> {
            let ended = read_json::<Ended>(&dir.exit())?.filter(|ended| ended.run == config.run);
            Ok(ended.map(|ended| Process::Ended(ended.end())))
        };
        if let Some(ended) = exit()? {
            return Ok(ended);
        }
        let state = read_json::<RunState>(&dir.state())?.filter(|state| state.run == config.run);
        let Some(state) = state else { return Ok(Process::Prepared) };
        let running =
            Process::Running { pid: state.process.pid, started_at_ms: state.started_at_ms };
        if state.process.alive() {
            if mend && !state.shim.alive() {
                self.attach(dir)?;
            }
            return Ok(running);
        }
        if state.shim.alive() {
            // It is about to write how it ended.
            return Ok(running);
        }
        // The shim may have written between our two looks.
        if let Some(ended) = exit()? {
            return Ok(ended);
        }
        let cause = if state.process.this_boot() { Cause::Unknown } else { Cause::Rebooted };
        let ended = Ended {
            run: config.run,
            cause,
            code: -1,
            signal: 0,
            at_ms: 0,
            out_of_memory: false,
            ran_ms: 0,
        };
        if mend {
            Cgroup::end(&state.cgroups);
            write_json(&dir.exit(), &ended)?;
        }
        Ok(Process::Ended(ended.end()))
    }

    /// Starts another shim for a workload that lost its own.
    fn attach(&self, dir: &InstanceDir) -> io::Result<()> {
        tracing::warn!(dir = %dir.path().display(), "the shim is gone; starting another for its workload");
        self.spawn_shim(dir, &["--", "attach"], &BTreeMap::new())
    }

    /// Runs the shim's first stage and waits until the second says that it has decided.
    fn spawn_shim(
        &self,
        dir: &InstanceDir,
        more: &[&str],
        secrets: &BTreeMap<String, SecretValue>,
    ) -> io::Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o640)
            .open(dir.shim_log())?;
        let mut child = Command::new(&self.shim.program)
            .args(&self.shim.args)
            .arg("--dir")
            .arg(dir.path())
            .args(more)
            .envs(secret::for_shim(secrets))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log))
            // A signal to the agent's own group, such as Ctrl-C, does not reach it.
            .process_group(0)
            .spawn()?;
        child.wait()?;
        if let Some(mut out) = child.stdout.take() {
            let mut fds = [PollFd::new(&out, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: START_LIMIT_S, tv_nsec: 0 }))?;
            if fds.iter().all(|fd| fd.revents().is_empty()) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the shim does not answer"));
            }
            let _ = out.read_to_end(&mut Vec::new());
        }
        Ok(())
    }

    fn start(&self, start: &Start) -> Result<(), Problem> {
        let dir = self.dir(&start.spec.id)?;
        if let Some(known) = self.inspect(&start.spec.id)? {
            match known.process {
                _ if known.run > start.run => {
                    return Err(Problem::new("STALE_START", "a later run was started before"));
                }
                Process::Prepared => {}
                _ if known.run == start.run => return Ok(()),
                Process::Running { pid, .. } => {
                    return Err(Problem::new(
                        "STILL_RUNNING",
                        format!("the run before is still there, process {pid}"),
                    ));
                }
                Process::Ended(_) => {}
            }
        }
        ports_are_free(&start.spec.ports)?;
        let fail = |error: io::Error| io_problem("cannot prepare the instance", &error);
        let config = self.log.prepare(&dir, start)?;
        {
            let lock = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(dir.shim_lock())
                .map_err(fail)?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(Problem::new("BUSY", "a shim is at work in the instance's directory"));
            }
            write_json(&dir.run(), &config).map_err(fail)?;
        }
        self.spawn_shim(&dir, &[], &start.secrets)
            .map_err(|error| io_problem("cannot start the shim", &error))?;
        match self.inspect(&start.spec.id)?.map(|instance| instance.process) {
            Some(Process::Running { .. } | Process::Ended(_)) => Ok(()),
            _ => {
                let said = fs::read_to_string(dir.shim_log()).unwrap_or_default();
                Err(Problem::new(
                    "SHIM_FAILED",
                    format!("the shim started nothing: {}", said.trim()),
                ))
            }
        }
    }

    /// The recorded run and its state, if it has one.
    fn state(&self, id: &str) -> Result<Option<RunState>, Problem> {
        let dir = self.dir(id)?;
        let fail = |error: io::Error| io_problem("cannot read the instance's state", &error);
        let run = read_json::<RunConfig>(&dir.run()).map_err(fail)?.map(|config| config.run);
        let state = read_json::<RunState>(&dir.state()).map_err(fail)?;
        Ok(state.filter(|state| Some(state.run) == run))
    }

    fn stop(&self, id: &str, signal: SignalName, grace: Duration) -> Result<(), Problem> {
        let Some(state) = self.state(id)? else { return Ok(()) };
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let mark = StopMark { run: state.run, grace_ms };
        // First the mark: whoever finds the process ended must know that this was wanted.
        write_json(&self.dir(id)?.stop(), &mark)
            .map_err(|error| io_problem("cannot record the stop", &error))?;
        signal_group(&state.process, signal.signal())
    }

    fn signal(&self, id: &str, signal: SignalName) -> Result<bool, Problem> {
        let Some(state) = self.state(id)? else { return Ok(false) };
        let sent = state.process.signal(signal.signal());
        sent.map_err(|error| io_problem("cannot signal the process", &error))
    }

    fn kill(&self, id: &str) -> Result<(), Problem> {
        let Some(state) = self.state(id)? else { return Ok(()) };
        signal_group(&state.process, Signal::KILL)?;
        if state.process.this_boot() {
            Cgroup::kill(&state.cgroups);
        }
        Ok(())
    }

    fn list(&self, mend: bool) -> Result<Vec<Instance>, Problem> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_problem("cannot list the instances", &error)),
        };
        let mut ids: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|id| id_is_sound(id))
            .collect();
        ids.sort();
        let mut found = Vec::new();
        for id in ids {
            match self.look(&id, mend) {
                Ok(instance) => found.extend(instance),
                // One damaged directory is no reason to forget the others.
                Err(problem) => tracing::error!(instance = %id, %problem, "cannot inspect"),
            }
        }
        Ok(found)
    }

    fn remove(&self, id: &str) -> Result<(), Problem> {
        let dir = self.dir(id)?;
        if let Some(instance) = self.inspect(id)?
            && let Process::Running { pid, .. } = instance.process
        {
            return Err(Problem::new("STILL_RUNNING", format!("process {pid} is still there")));
        }
        if let Ok(Some(state)) = self.state(id) {
            Cgroup::remove(&state.cgroups);
        }
        match fs::remove_dir_all(dir.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_problem("cannot remove the instance's directory", &error))
            }
            _ => Ok(()),
        }
    }

    fn usage(&self, id: &str) -> Option<Usage> {
        let state = self.state(id).ok()??;
        let stat = Stat::read(state.process.pid).ok()?;
        let (cpu_us, memory) = cgroup::usage(&state.cgroups);
        let ticks_hz = rustix::param::clock_ticks_per_second().max(1);
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        Some(Usage {
            cpu: cpu_us.map_or_else(
                || Duration::from_millis(stat.cpu_ticks.saturating_mul(1000) / ticks_hz),
                Duration::from_micros,
            ),
            memory_bytes: memory.unwrap_or_else(|| stat.rss_pages.saturating_mul(page)),
        })
    }
}

fn signal_group(process: &ProcessId, signal: Signal) -> Result<(), Problem> {
    process
        .signal_group(signal)
        .map(drop)
        .map_err(|error| io_problem("cannot signal the process", &error))
}

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn start(&self, start: Start) -> BoxFuture<'static, Result<(), Problem>> {
        self.run(move |inner| inner.start(&start))
    }

    fn stop(
        &self,
        id: &str,
        signal: SignalName,
        grace: Duration,
    ) -> BoxFuture<'static, Result<(), Problem>> {
        let id = id.to_owned();
        self.run(move |inner| inner.stop(&id, signal, grace))
    }

    fn signal(&self, id: &str, signal: SignalName) -> BoxFuture<'static, Result<bool, Problem>> {
        let id = id.to_owned();
        self.run(move |inner| inner.signal(&id, signal))
    }

    fn kill(&self, id: &str) -> BoxFuture<'static, Result<(), Problem>> {
        let id = id.to_owned();
        self.run(move |inner| inner.kill(&id))
    }

    fn inspect(&self, id: &str) -> BoxFuture<'static, Result<Option<Instance>, Problem>> {
        let id = id.to_owned();
        self.run(move |inner| inner.inspect(&id))
    }

    fn list(&self) -> BoxFuture<'static, Result<Vec<Instance>, Problem>> {
        self.run(|inner| inner.list(true))
    }

    fn ended(&self, id: &str) -> BoxFuture<'static, ()> {
        let (inner, id) = (self.inner.clone(), id.to_owned());
        Box::pin(async move {
            loop {
                let look = (inner.clone(), id.clone());
                let state = blocking(move || look.0.state(&look.1)).await;
                let Ok(Ok(Some(state))) = state else { return };
                // The shim ends last, after it has written how the workload ended.
                let Some(fd) = state.shim.open().or_else(|| state.process.open()) else { return };
                let interest = tokio::io::Interest::READABLE;
                #[expect(
                    deprecated,
                    reason = "its successor is an unsafe function; an OwnedFd is sound"
                )]
                let Ok(fd) = tokio::io::unix::AsyncFd::with_interest(fd, interest) else { return };
                let _ = fd.readable().await;
                if !state.process.alive() {
                    return;
                }
                // The shim was killed: another one is started, and is waited for.
                let look = (inner.clone(), id.clone());
                let _ = blocking(move || look.0.inspect(&look.1)).await;
            }
        })
    }

    fn usage(&self, id: &str) -> BoxFuture<'static, Option<Usage>> {
        let (inner, id) = (self.inner.clone(), id.to_owned());
        Box::pin(async move { blocking(move || inner.usage(&id)).await.ok().flatten() })
    }

    fn logs(&self, id: &str, tail_lines: u32) -> Result<log::Reader, Problem> {
        let dir = self.inner.dir(id)?;
        if !dir.path().is_dir() {
            return Err(Problem::new(
                "INSTANCE_UNKNOWN",
                format!("this node has no instance `{id}`"),
            ));
        }
        log::Reader::open(dir.log(), tail_lines)
            .map_err(|error| io_problem("cannot read the log", &error))
    }

    fn remove(&self, id: &str) -> BoxFuture<'static, Result<(), Problem>> {
        let id = id.to_owned();
        self.run(move |inner| inner.remove(&id))
    }

    fn exec(&self, id: &str, command: Vec<String>) -> BoxFuture<'static, Result<i32, Problem>> {
        let (inner, id) = (self.inner.clone(), id.to_owned());
        Box::pin(async move {
            let dir = inner.dir(&id)?;
            let status = tokio::process::Command::new(&inner.shim.program)
                .args(&inner.shim.args)
                .arg("--dir")
                .arg(dir.path())
                .args(["--stage", "exec", "--"])
                .args(command)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .kill_on_drop(true)
                .status()
                .await
                .map_err(|error| io_problem("cannot run the command", &error))?;
            Ok(status.code().unwrap_or(-1))
        })
    }

    fn takes_secrets(&self) -> bool {
        true
    }

    fn isolation(&self) -> BTreeMap<String, String> {
        isolation()
    }
}

/// The boot id, or nothing when /proc cannot be read.
pub(crate) fn boot_id_or_empty() -> String {
    boot_id().unwrap_or_default()
}
