//! The last stage before the workload: everything that a process must do to itself.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::{
    Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit,
};
use sha2::{Digest, Sha256};

use super::now_ms;
use crate::{
    driver::{
        Cgroup, InstanceDir, LaunchError, Limits, Problem, ProcessId, RunConfig, RunState,
        exec_problem, lookup_user, not_enterable, read_json, resolve_command, secrets_given,
        secrets_of_run,
    },
    durable,
};

/// Becomes the workload, or tells the shim through standard input why not.
/// `shim` is the process id of the shim and when it began, in clock ticks.
pub(super) fn become_workload(dir: &InstanceDir, shim: &[OsString]) -> io::Error {
    // Closes itself when exec succeeds.
    let report = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(fd) => fd,
        Err(error) => return error.into(),
    };
    let problem = match prepare(dir, shim) {
        Ok((config, file, mut command)) => refused(&config, &file, &command.exec()),
        Err(problem) => problem,
    };
    let text = serde_json::to_vec(&problem).unwrap_or_default();
    let _ = File::from(report).write_all(&text);
    io::Error::other(problem.to_string())
}

/// Becomes a command in the workload's environment, for health checks.
pub(super) fn become_command(dir: &InstanceDir, argv: &[OsString]) -> io::Error {
    let run = || -> Result<io::Error, Problem> {
        let mut config = config(dir)?;
        config.command = argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let state = read_json::<RunState>(&dir.state()).ok().flatten();
        let cgroups = state.as_ref().map(|state| state.cgroups.clone()).unwrap_or_default();
        let _ = Cgroup::enter(&cgroups);
        let secrets = secrets_of_run(&config, state.as_ref())?;
        let (file, mut command) = command(&config, secrets)?;
        Ok(io::Error::other(refused(&config, &file, &command.exec()).to_string()))
    };
    run().unwrap_or_else(|problem| io::Error::other(problem.to_string()))
}

/// Why the program could not be executed. This process has the workload's user already, so it sees
/// what that user may not enter.
fn refused(config: &RunConfig, file: &Path, error: &io::Error) -> Problem {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return exec_problem(file, error);
    }
    let ways = [config.working_dir.as_path(), file.parent().unwrap_or(file)];
    ways.into_iter()
        .find_map(|way| not_enterable(way, &config.user))
        .unwrap_or_else(|| exec_problem(file, error))
}

fn config(dir: &InstanceDir) -> Result<RunConfig, Problem> {
    match read_json::<RunConfig>(&dir.run()) {
        Ok(Some(config)) => Ok(config),
        Ok(None) => Err(Problem::new("START_FAILED", "run.json is not there")),
        Err(error) => Err(Problem::new("START_FAILED", error.to_string())),
    }
}

/// The shim that started this process, which ends with it from here on. `SHIM-2`.
fn own_shim(told: &[OsString]) -> Result<ProcessId, Problem> {
    let failed = |why: String| Problem::new("START_FAILED", why);
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed(format!("cannot follow the shim's end: {error}")))?;
    // Asked only now: a parent that ended before the call above is not the parent any more.
    let parent =
        getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()).unwrap_or(0);
    let parent = ProcessId::of(parent)
        .map_err(|error| failed(format!("cannot read /proc of the shim: {error}")))?;
    let actual = [parent.pid.to_string(), parent.start_ticks.to_string()];
    if told.iter().eq(actual.iter().map(OsStr::new)) {
        return Ok(parent);
    }
    let told: Vec<_> = told.iter().map(|part| part.to_string_lossy()).collect();
    Err(failed(format!(
        "the shim {} is gone, process {} is the parent now",
        told.join("/"),
        parent.pid
    )))
}

fn prepare(dir: &InstanceDir, shim: &[OsString]) -> Result<(RunConfig, PathBuf, Command), Problem> {
    let failed =
        |what: &str, error: io::Error| Problem::new("START_FAILED", format!("{what}: {error}"));
    let shim = own_shim(shim)?;
    let config = config(dir)?;
    rustix::process::setsid().map_err(|error| failed("cannot begin a session", error.into()))?;
    let (file, command) = command(&config, secrets_given(&config)?)?;
    let mut cgroup = Cgroup::create(&group_name(dir, &config), &config.limits);
    if let Err(error) = Cgroup::enter(&cgroup.dirs) {
        cgroup.not_enforced.push(format!("control group: {error}"));
    }
    limit(&config.limits, &mut cgroup);
    let process = ProcessId::of(std::process::id());
    let state = RunState {
        run: config.run,
        process: process.map_err(|error| failed("cannot read /proc", error))?,
        shim,
        started_at_ms: now_ms(),
        cgroups: cgroup.dirs,
        not_enforced: cgroup.not_enforced,
    };
    let text = serde_json::to_vec_pretty(&state)
        .map_err(|error| failed("cannot encode the state", error.into()))?;
    durable::replace(&dir.state(), &text, 0o600)
        .map_err(|error| failed("cannot record the process", error))?;
    // The workload is recorded and outlives its shim.
    set_parent_process_death_signal(None)
        .map_err(|error| failed("cannot outlive the shim", error.into()))?;
    Ok((config, file, command))
}

/// Groups are named on the whole machine, and another agent on it may have the same instance id.
fn group_name(dir: &InstanceDir, config: &RunConfig) -> String {
    let sum = Sha256::digest(dir.path().as_os_str().as_encoded_bytes());
    let short: String = hex::encode(sum).chars().take(12).collect();
    format!("{}-{short}", config.id)
}

/// Where there is no control group for memory, a limit per process is better than none.
fn limit(limits: &Limits, cgroup: &mut Cgroup) {
    let missing = cgroup
        .not_enforced
        .iter()
        .any(|text| text.starts_with("memory: ") || text.starts_with("control group: "));
    if limits.memory_bytes == 0 || !missing {
        return;
    }
    let both = Rlimit { current: Some(limits.memory_bytes), maximum: Some(limits.memory_bytes) };
    if let Err(error) = setrlimit(Resource::Data, both) {
        cgroup.not_enforced.push(format!("rlimit data: {error}"));
    }
}

fn command(
    config: &RunConfig,
    secrets: BTreeMap<String, OsString>,
) -> Result<(PathBuf, Command), LaunchError> {
    let dir = &config.working_dir;
    if !dir.is_dir() {
        return Err(Problem::new(
            "WORKING_DIR_MISSING",
            format!("the working directory {} does not exist on this node", dir.display()),
        ));
    }
    let path = match secrets.get("PATH") {
        Some(path) => path.to_string_lossy(),
        None => config.env.get("PATH").map_or("", String::as_str).into(),
    };
    let (name, args) = config
        .command
        .split_first()
        .ok_or_else(|| Problem::new("INVALID_SPEC", "the command is empty"))?;
    let file = resolve_command(name, &path, dir)?;
    let mut command = Command::new(&file);
    command
        .arg0(name)
        .args(args)
        .env_clear()
        .envs(&config.env)
        .envs(secrets)
        .current_dir(dir)
        .stdin(Stdio::null());
    as_user(&mut command, &config.user)?;
    Ok((file, command))
}

fn as_user(command: &mut Command, name: &str) -> Result<(), Problem> {
    if name.is_empty() {
        return Ok(());
    }
    let Some(user) = lookup_user(name) else {
        return Err(Problem::new(
            "USER_UNKNOWN",
            format!("the user `{name}` does not exist on this node"),
        ));
    };
    let me = rustix::process::geteuid();
    if me.as_raw() == user.uid {
        return Ok(());
    }
    if !me.is_root() {
        return Err(Problem::new(
            "USER_NEEDS_ROOT",
            format!(
                "the instance is to run as `{name}`, but the agent runs as user {} and only root may change users",
                me.as_raw()
            ),
        ));
    }
    command.uid(user.uid).gid(user.gid);
    Ok(())
}
