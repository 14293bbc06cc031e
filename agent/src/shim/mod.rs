//! The shim: one small process beside each instance, so that the end of the agent is no end of
//! the instance.
//!
//! ```text
//! agent ─spawn→ shim (own process group) ─spawn→ shim --stage detached (setsid) ─spawn→ launcher
//!               └ exits at once: the next one                                   └ setsid, cgroup,
//!                 belongs to init, not to the agent                               exec: the workload
//! ```
//! It has one thread and no executor. It holds the read ends of two named pipes which the
//! workload has open for reading *and* writing: when the shim is killed the workload therefore
//! gets no SIGPIPE; its writes wait once a pipe is full, until the agent has started another
//! shim (`--stage attach`) which reads on. Only the exit status is lost then.
//!
//! # Invariants
//! - `AGENT-1` Nothing that happens to the agent, its terminal or its process group reaches the
//!   shim or the workload.
//! - `SHIM-1` One run has at most one workload: the shim holds `shim.lock`, and the launcher
//!   records itself in `state.json` before it becomes the workload.
//! - `SHIM-2` The shim in `state.json` is the one that started the launcher, never the process to
//!   which the launcher came when that one was killed. A launcher without its shim ends.
#![allow(
    clippy::disallowed_methods,
    reason = "the shim is a process of its own, never simulated; it has real time"
)]

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock};

use crate::driver::{
    Cause, Cgroup, Ended, InstanceDir, Problem, ProcessId, RunConfig, RunState, log, read_json,
    write_json,
};

mod launch;
mod pump;

use pump::{Outcome, Pump};

const LOCK_TRIES_MAX: u32 = 50;

/// What the shim was asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Detach from the agent.
    First,
    /// Keep an instance.
    Detached,
    /// Keep an instance whose shim was killed.
    Attach,
    /// Become the workload.
    Launch,
    /// Become a command beside the workload.
    Exec,
}

struct Args {
    stage: Stage,
    dir: InstanceDir,
    /// How this program is told to be the shim: its own arguments before ours.
    prefix: Vec<OsString>,
    rest: Vec<OsString>,
}

/// Runs the shim with the arguments that follow `palisade shim`:
/// `--dir <instance dir> [--stage detached|attach|launch|exec] [-- more…]`, where more is the
/// shim's process id and start for `launch`, and the command for `exec`.
///
/// Call it before anything else is set up: it must stay one thread.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match parse(args.into_iter().collect()) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("shim: {error}");
            return ExitCode::from(2);
        }
    };
    let result = match args.stage {
        Stage::First => first(&args),
        Stage::Detached => detached(&args),
        Stage::Attach => attach(&args),
        Stage::Launch => Err(launch::become_workload(&args.dir, &args.rest)),
        Stage::Exec => Err(launch::become_command(&args.dir, &args.rest)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shim: {}: {error}", args.dir.path().display());
            ExitCode::from(127)
        }
    }
}

fn parse(args: Vec<OsString>) -> Result<Args, String> {
    let own = std::env::args_os().skip(1);
    let prefix = own.take(std::env::args_os().len().saturating_sub(1 + args.len())).collect();
    let (mut stage, mut dir) = (Stage::First, None);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--dir") => dir = args.next().map(PathBuf::from),
            Some("--stage") => {
                stage = match args.next().as_deref().and_then(|text| text.to_str()) {
                    Some("detached") => Stage::Detached,
                    Some("attach") => Stage::Attach,
                    Some("launch") => Stage::Launch,
                    Some("exec") => Stage::Exec,
                    other => return Err(format!("unknown stage {other:?}")),
                };
            }
            Some("--") => break,
            _ => return Err(format!("unknown argument {}", arg.display())),
        }
    }
    let dir = dir.ok_or("--dir is missing; the agent starts the shim, people do not")?;
    Ok(Args { stage, dir: InstanceDir::new(dir), prefix, rest: args.collect() })
}

/// This program again, as another stage. The link also works when the file was replaced.
fn again(args: &Args, stage: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(&args.prefix).arg("--dir").arg(args.dir.path()).arg("--stage").arg(stage);
    command
}

/// Leaves the second process behind: it is no child of the agent and leads no group, so it may
/// begin a session. `--stage attach` is passed on the same way by the agent's second argument.
fn first(args: &Args) -> io::Result<()> {
    let stage =
        if args.rest.first().is_some_and(|arg| arg == "attach") { "attach" } else { "detached" };
    again(args, stage).stdin(Stdio::null()).spawn().map(drop)
}

fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(None)?;
    // Without a supervisor between, what the workload orphans becomes ours to end and to reap.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // The directory must not keep a file system busy.
    std::env::set_current_dir("/")?;
    let _ = std::fs::write("/proc/self/comm", "palisade-shim");
    Ok(())
}

/// `None` when another shim keeps the instance.
fn lock(dir: &InstanceDir) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.shim_lock())?;
    for _ in 0..LOCK_TRIES_MAX {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            // The agent holds it for a moment while it writes run.json.
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn detached(args: &Args) -> io::Result<()> {
    detach()?;
    let dir = &args.dir;
    let Some(_lock) = lock(dir)? else { return Ok(()) };
    let config: RunConfig = read_json(&dir.run())?
        .ok_or_else(|| io::Error::other("run.json is not there; there is nothing to start"))?;
    let known = |run: Option<u32>| run == Some(config.run);
    if known(read_json::<RunState>(&dir.state())?.map(|state| state.run))
        || known(read_json::<Ended>(&dir.exit())?.map(|ended| ended.run))
    {
        return Ok(());
    }
    let began = Instant::now();
    let (ended, cgroups) = match run(args, &config) {
        Ok(done) => done,
        Err(problem) => (end_of(config.run, Cause::NotStarted(problem)), Vec::new()),
    };
    let ran_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Cgroup::remove(&cgroups);
    write_json(&dir.exit(), &Ended { ran_ms, ..ended })
}

fn end_of(run: u32, cause: Cause) -> Ended {
    Ended { run, cause, code: -1, signal: 0, at_ms: now_ms(), out_of_memory: false, ran_ms: 0 }
}

/// Starts the workload and stays until it and what it left behind are gone.
fn run(args: &Args, config: &RunConfig) -> Result<(Ended, Vec<PathBuf>), Problem> {
    let dir = &args.dir;
    let failed = |what: &str, error: &io::Error| {
        Problem::new("START_FAILED", format!("{what} in {}: {error}", dir.path().display()))
    };
    let pipes =
        Pipes::make(dir, config).map_err(|error| failed("cannot make the pipes", &error))?;
    let (mut report, launcher_end) =
        io::pipe().map_err(|error| failed("cannot make a pipe", &error))?;
    let me =
        ProcessId::of(std::process::id()).map_err(|error| failed("cannot read /proc", &error))?;
    let child = again(args, "launch")
        .args(["--", &me.pid.to_string(), &me.start_ticks.to_string()])
        .stdin(Stdio::from(OwnedFd::from(launcher_end)))
        .stdout(Stdio::from(pipes.out_write))
        .stderr(Stdio::from(pipes.err_write))
        .spawn()
        .map_err(|error| failed("cannot start the launcher", &error))?;
    // The launcher's end closes itself when the launcher has become the workload.
    let mut answer = Vec::new();
    let read = report.read_to_end(&mut answer);
    if let Err(error) = read {
        return Err(failed("cannot hear the launcher", &error));
    }
    let log = log::Writer::new(dir.log(), config.log_bytes_max, config.log_files_max);
    let mut pump = Pump::new(pipes.out, pipes.err, log);
    let state = read_json::<RunState>(&dir.state()).ok().flatten();
    let cgroups = state
        .filter(|state| state.run == config.run)
        .map(|state| state.cgroups)
        .unwrap_or_default();
    if !answer.is_empty() {
        let _ = pump.until_child_ends(child.id());
        Cgroup::remove(&cgroups);
        return Err(serde_json::from_slice(&answer).unwrap_or_else(|_| {
            Problem::new("START_FAILED", String::from_utf8_lossy(&answer).into_owned())
        }));
    }
    tell_agent();
    let outcome = pump
        .until_child_ends(child.id())
        .map_err(|error| failed("cannot wait for the workload", &error))?;
    end_leftovers(&cgroups);
    pump.drain();
    Ok((ended(config.run, outcome, &cgroups), cgroups))
}

fn ended(run: u32, outcome: Outcome, cgroups: &[PathBuf]) -> Ended {
    Ended {
        code: outcome.code.unwrap_or(-1),
        signal: outcome.signal.unwrap_or(0),
        out_of_memory: outcome.signal == Some(9) && crate::driver::oom_kills(cgroups) > 0,
        ..end_of(run, Cause::Exited)
    }
}

/// Ends what the workload left behind: members of its groups, and orphans that came to us.
fn end_leftovers(cgroups: &[PathBuf]) {
    for _ in 0..200 {
        Cgroup::kill(cgroups);
        let children = crate::driver::children_of(std::process::id());
        for child in &children {
            let pid = i32::try_from(*child).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                // A child's number cannot be recycled before we have waited for it.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        pump::reap(None);
        if children.is_empty() && !Cgroup::populated(cgroups) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes over an instance whose shim was killed.
fn attach(args: &Args) -> io::Result<()> {
    detach()?;
    let dir = &args.dir;
    let Some(_lock) = lock(dir)? else { return Ok(()) };
    let (Some(config), Some(mut state)) =
        (read_json::<RunConfig>(&dir.run())?, read_json::<RunState>(&dir.state())?)
    else {
        return Ok(());
    };
    let Some(process) = state.process.open() else { return Ok(()) };
    let (out, err) =
        (open_pipe(&dir.out(), OFlags::RDONLY)?, open_pipe(&dir.err(), OFlags::RDONLY)?);
    state.shim = ProcessId::of(std::process::id())?;
    write_json(&dir.state(), &state)?;
    tell_agent();
    let began = Instant::now();
    let log = log::Writer::new(dir.log(), config.log_bytes_max, config.log_files_max);
    let mut pump = Pump::new(out, err, log);
    pump.until_gone(process.as_fd())?;
    end_leftovers(&state.cgroups);
    pump.drain();
    let ran_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Cgroup::remove(&state.cgroups);
    write_json(&dir.exit(), &Ended { ran_ms, ..end_of(state.run, Cause::Unknown) })
}

/// The agent reads our standard output to its end: that it ends says that the start is decided.
fn tell_agent() {
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

struct Pipes {
    out: File,
    err: File,
    out_write: File,
    err_write: File,
}

impl Pipes {
    fn make(dir: &InstanceDir, config: &RunConfig) -> io::Result<Self> {
        let user = crate::driver::lookup_user(&config.user);
        for path in [dir.out(), dir.err()] {
            match rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(user) = &user {
                // Lets the workload open /dev/stdout, which is this file.
                let _ = std::os::unix::fs::chown(&path, Some(user.uid), Some(user.gid));
            }
        }
        // Read ends first: a write end alone would wait.
        Ok(Self {
            out: open_pipe(&dir.out(), OFlags::RDONLY)?,
            err: open_pipe(&dir.err(), OFlags::RDONLY)?,
            out_write: blocking(open_pipe(&dir.out(), OFlags::RDWR)?)?,
            err_write: blocking(open_pipe(&dir.err(), OFlags::RDWR)?)?,
        })
    }
}

fn open_pipe(path: &std::path::Path, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// A program expects its standard output to wait, not to fail.
fn blocking(file: File) -> io::Result<File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
