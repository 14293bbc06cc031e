//! The node agent: join, session, convergence, drivers, shim.
//!
//! It turns the last NodeSpec it accepted into running processes and keeps going without a
//! control plane. Entry points: [`join::join`], [`daemon::run`], [`plan::describe`] and
//! [`shim::main`].
//!
//! # Invariants
//! - `I4` The agent never acts on a fence below one that it has acted on; the highest one is on
//!   disk before the first effect (kept by [`spec`] and [`engine`]).
//! - `AGENT-1` The end of the agent's process, however it comes, ends no instance.
//! - `AGENT-2` A signal goes only to a process whose id, start time and boot id are those that
//!   were recorded when it was started.
//! - `AGENT-3` The join token leaves the node only after the server has proven a pinned key.

pub mod commands;
pub mod config;
pub mod converge;
pub mod daemon;
pub mod driver;
mod durable;
mod edge;
pub mod engine;
pub mod fence;
pub mod health;
mod identity;
pub mod inventory;
pub mod join;
mod lock;
mod logs;
pub mod plan;
pub mod port;
pub mod session;
pub mod shim;
pub mod spec;
mod tls;
mod token;

pub use edge::TokioRuntime;
pub use identity::{FileIdentities, Grant, Identity, IdentityError, IdentityStore};
pub use lock::{DirLock, LockError};
pub use tls::{ConnectError, Pin, PinError};
pub use token::{Token, TokenError};
