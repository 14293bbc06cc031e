//! `palisade dev`: a whole cluster on this machine: three replicas and two agents as child
//! processes on loopback, with real TLS.
//!
//! # Invariants
//! - `DEV-1` One supervisor in one directory: it holds the lock as long as it lives.
//! - `DEV-2` A signal goes only to a process whose id, start time and boot are those recorded.
//! - `DEV-3` Nothing is removed from a directory that is not recognisably one of `dev`.
//! - `DEV-4` A supervisor that is gone, however it went, leaves no replica and no agent behind:
//!   each child ends when the pipe to its standard input does.

mod child;
mod kill_leader;
mod layout;
mod live;
mod lock;
mod machine;
mod nodes;
mod orphans;
mod ports;
mod process;
mod run_state;
mod start;
mod stop;
mod supervisor;
mod takeover;
mod up;

pub use kill_leader::{Killed, kill_leader};
pub use layout::{DEFAULT_DIR, Layout};
pub use process::ProcessId;
pub use stop::{StopOptions, Stopped, check_ours, stop};
pub use supervisor::{Part, Status, status};
pub use up::{UpOptions, detach, supervise};

/// How many replicas there are.
pub const REPLICAS: u64 = 3;
/// How many agents there are.
pub const AGENTS: u64 = 2;
/// The context that leads to it.
pub const CONTEXT: &str = "dev";
