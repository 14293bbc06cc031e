//! What is made before the shim is started: directories, files, the environment, `run.json`.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::Path,
};

use palisade_proto::agent as wire;

use super::{
    Problem, SignalName, Start,
    files::{InstanceDir, Limits, RunConfig},
    secret, user,
};
use crate::{durable, fence::Fence};

const STOP_GRACE_MS_DEFAULT: u64 = 10_000;
const PASSABLE: u32 = 0o711;
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How much of its output an instance may keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogLimits {
    pub(super) bytes_max: u64,
    pub(super) files_max: u32,
}

impl LogLimits {
    /// Makes the directories and files, and answers what the shim is to start.
    pub(super) fn prepare(self, dir: &InstanceDir, start: &Start) -> Result<RunConfig, Problem> {
        let fail = |error: io::Error| io_problem("cannot prepare the instance", &error);
        let spec = &start.spec;
        secret::check(&start.secrets)?;
        let stop_signal = SignalName::parse(&spec.stop_signal).ok_or_else(|| {
            Problem::new("INVALID_SPEC", format!("unknown stop signal `{}`", spec.stop_signal))
        })?;
        let user = user::lookup(&spec.user);
        let owner = user.as_ref().filter(|_| rustix::process::geteuid().is_root());
        for path in dir.path().parent().into_iter().chain([dir.path()]) {
            passable(path).map_err(fail)?;
        }
        for path in [dir.work(), dir.tmp()] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(fail)?;
            if let Some(owner) = owner {
                std::os::unix::fs::chown(&path, Some(owner.uid), Some(owner.gid)).map_err(fail)?;
            }
        }
        for (name, content) in &spec.files {
            write_file(&dir.work(), name, content, owner)?;
        }
        let resources = spec.resources.unwrap_or_default();
        let working_dir = match spec.working_dir.as_str() {
            "" => dir.work(),
            path => dir.work().join(path),
        };
        let grace_ms =
            if spec.stop_grace_ms == 0 { STOP_GRACE_MS_DEFAULT } else { spec.stop_grace_ms };
        Ok(RunConfig {
            id: spec.id.clone(),
            run: start.run,
            restarts: start.restarts,
            spec_version: spec.spec_version,
            fence: Fence::of(spec.fence.as_ref()),
            command: spec.command.clone(),
            env: environment(dir, start, user.as_ref()),
            secret_env: spec.secret_env.keys().cloned().collect(),
            working_dir,
            user: spec.user.clone(),
            limits: Limits {
                cpu_milli: resources.cpu_limit_milli,
                memory_bytes: resources.memory_limit_bytes,
                pids_max: resources.pids_max,
            },
            stop_signal,
            stop_grace_ms: grace_ms,
            log_bytes_max: self.bytes_max,
            log_files_max: self.files_max,
        })
    }
}

/// Makes a directory that all may pass through and only its owner may list, whatever the umask:
/// instances run as other users than the agent, and their directories are below it.
pub(crate) fn passable(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(PASSABLE).create(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o7777 == PASSABLE {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(PASSABLE))
}

pub(super) fn io_problem(what: &str, error: &io::Error) -> Problem {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "DISK_FULL",
        io::ErrorKind::PermissionDenied => "PERMISSION_DENIED",
        io::ErrorKind::InvalidData => "STATE_DAMAGED",
        _ => "IO_ERROR",
    };
    Problem::new(code, format!("{what}: {error}"))
}

/// Whether an id can be the name of a directory and of a control group.
pub(crate) fn id_is_sound(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 128
        && !id.starts_with(['.', '-'])
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Two programs on one port is an error that is clearer before the start than after it.
pub(super) fn ports_are_free(ports: &[wire::Port]) -> Result<(), Problem> {
    for port in ports {
        let number = u16::try_from(port.port).unwrap_or(0);
        if number == 0 {
            return Err(Problem::new(
                "INVALID_SPEC",
                format!("port `{}` has no number that a port can have: {}", port.name, port.port),
            ));
        }
        if let Err(error) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, number))
            && error.kind() == io::ErrorKind::AddrInUse
        {
            return Err(Problem::new(
                "PORT_IN_USE",
                format!("port {number} ({}) is taken by another process on this node", port.name),
            ));
        }
    }
    Ok(())
}

/// Where commands are looked up: the agent's own PATH, which whoever runs the agent decides.
fn path() -> String {
    std::env::var("PATH")
        .ok()
        .filter(|path| !path.is_empty())
        .unwrap_or_else(|| PATH_DEFAULT.to_owned())
}

fn environment(
    dir: &InstanceDir,
    start: &Start,
    user: Option<&user::User>,
) -> BTreeMap<String, String> {
    let spec = &start.spec;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), path()),
        ("HOME".to_owned(), user.map_or_else(|| text(&dir.work()), |user| user.home.clone())),
        ("TMPDIR".to_owned(), text(&dir.tmp())),
        ("PALISADE_NODE".to_owned(), start.node.clone()),
        ("PALISADE_INSTANCE".to_owned(), spec.id.clone()),
        ("PALISADE_INSTANCE_NAME".to_owned(), spec.name.clone()),
        ("PALISADE_WORKLOAD".to_owned(), spec.workload.clone()),
    ]);
    if let Some(user) = user {
        env.insert("USER".to_owned(), user.name.clone());
    }
    for port in &spec.ports {
        let name: String = port
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .collect();
        if !name.is_empty() {
            env.insert(format!("PORT_{name}"), port.port.to_string());
        }
    }
    if let [only] = spec.ports.as_slice() {
        env.insert("PORT".to_owned(), only.port.to_string());
    }
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    // An empty name or one with `=` or NUL cannot be passed on.
    env.retain(|name, value| {
        !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
    });
    env
}

fn write_file(
    work: &Path,
    name: &str,
    content: &[u8],
    owner: Option<&user::User>,
) -> Result<(), Problem> {
    let relative = Path::new(name);
    let plain = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if name.is_empty() || !plain {
        return Err(Problem::new(
            "INVALID_SPEC",
            format!("the file `{name}` is not a path inside the instance's directory"),
        ));
    }
    let fail = |error: io::Error| io_problem(&format!("cannot write the file `{name}`"), &error);
    // The workload owns this directory and may have put links where we are about to write.
    let mut parent = work.to_owned();
    for part in relative.parent().into_iter().flat_map(Path::components) {
        parent.push(part);
        match fs::symlink_metadata(&parent) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                return Err(fail(io::Error::other(format!(
                    "{} is no directory",
                    parent.display()
                ))));
            }
            Err(_) => {
                fs::create_dir(&parent).map_err(fail)?;
                if let Some(owner) = owner {
                    std::os::unix::fs::lchown(&parent, Some(owner.uid), Some(owner.gid))
                        .map_err(fail)?;
                }
            }
        }
    }
    let path = work.join(relative);
    durable::replace(&path, content, 0o644).map_err(fail)?;
    if let Some(owner) = owner {
        std::os::unix::fs::lchown(&path, Some(owner.uid), Some(owner.gid)).map_err(fail)?;
    }
    Ok(())
}
