//! An instance's directory: the only thing that agent and shim share.
//!
//! ```text
//! run.json    what to start; written by the agent before the shim is started
//! state.json  the process that was started; written by the shim
//! exit.json   how it ended; written by the shim, or by the agent when the shim was killed
//! stop.json   that a stop was asked for; written by the agent before the signal
//! shim.lock   held by the shim as long as it lives
//! out, err    pipes with names, from the workload to the shim
//! log, log.1… the workload's output (see `log`)
//! work/ tmp/  the workload's directory and its TMPDIR, its user's alone when they are made
//! ```
//! Each file carries the number of the run that it belongs to; one of another run is not looked
//! at.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use super::{Cause, End, SignalName, pid::ProcessId};
use crate::{durable, fence::Fence};

/// What the kernel is to enforce.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Limits {
    /// Thousandths of a core; 0: none.
    pub(crate) cpu_milli: u64,
    /// Bytes; 0: none.
    pub(crate) memory_bytes: u64,
    /// Processes and threads; 0: none.
    pub(crate) pids_max: u32,
}

/// `run.json`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct RunConfig {
    pub(crate) id: String,
    pub(crate) run: u32,
    #[serde(default)]
    pub(crate) restarts: u32,
    pub(crate) spec_version: u64,
    pub(crate) fence: Fence,
    pub(crate) command: Vec<String>,
    /// The whole environment, but for the secrets in it.
    pub(crate) env: BTreeMap<String, String>,
    /// The variables that hold secrets; what they hold is in no file.
    #[serde(default)]
    pub(crate) secret_env: Vec<String>,
    pub(crate) working_dir: PathBuf,
    /// Empty: that of the agent.
    pub(crate) user: String,
    pub(crate) limits: Limits,
    pub(crate) stop_signal: SignalName,
    pub(crate) stop_grace_ms: u64,
    pub(crate) log_bytes_max: u64,
    pub(crate) log_files_max: u32,
}

/// `state.json`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct RunState {
    pub(crate) run: u32,
    pub(crate) process: ProcessId,
    pub(crate) shim: ProcessId,
    pub(crate) started_at_ms: u64,
    /// Directories of its own cgroups, to kill and to measure.
    pub(crate) cgroups: Vec<PathBuf>,
    /// Limits that were asked for and could not be set.
    pub(crate) not_enforced: Vec<String>,
}

/// `exit.json`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ended {
    pub(crate) run: u32,
    pub(crate) cause: Cause,
    pub(crate) code: i32,
    pub(crate) signal: i32,
    pub(crate) at_ms: u64,
    pub(crate) out_of_memory: bool,
    pub(crate) ran_ms: u64,
}

impl Ended {
    pub(crate) fn end(self) -> End {
        End {
            cause: self.cause,
            code: self.code,
            signal: self.signal,
            at_ms: self.at_ms,
            out_of_memory: self.out_of_memory,
            ran_for: std::time::Duration::from_millis(self.ran_ms),
        }
    }
}

/// `stop.json`.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct StopMark {
    pub(crate) run: u32,
    pub(crate) grace_ms: u64,
}

/// Where an instance's files are.
#[derive(Clone, Debug)]
pub(crate) struct InstanceDir(PathBuf);

impl InstanceDir {
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.0.join("run.json")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    pub(crate) fn exit(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    pub(crate) fn stop(&self) -> PathBuf {
        self.0.join("stop.json")
    }

    pub(crate) fn shim_lock(&self) -> PathBuf {
        self.0.join("shim.lock")
    }

    pub(crate) fn shim_log(&self) -> PathBuf {
        self.0.join("shim.log")
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.0.join("out")
    }

    pub(crate) fn err(&self) -> PathBuf {
        self.0.join("err")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }
}

/// A file's content, or `None` when it is not there.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match durable::read(path)? {
        None => Ok(None),
        Some(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is damaged: {error}", path.display()),
            )
        }),
    }
}

/// Writes a file durably.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    durable::write(path, &serde_json::to_vec_pretty(value)?, 0o600)
}
