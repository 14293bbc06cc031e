//! End-to-end tests: the real binary, real processes, real sockets, real signals.
//!
//! # Invariants
//! - `E2E-1` A test owns its directory, its ports and its processes, and at most two clusters run
//!   at once.
//! - `E2E-2` Nothing is waited for by sleeping: a condition is polled until a generous deadline.
//! - `E2E-3` When a test ends, however it ends, no process that names its directory is left.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these tests drive real processes from outside; nothing here runs in the simulator"
)]

mod agent;
mod approvals;
mod audit;
mod codes;
mod commands;
mod damage;
mod failover;
mod full_disk;
mod golden;
mod kills;
mod limits;
mod membership;
mod pki;
mod principals;
mod privileges;
mod recovery;
mod repair;
mod resume;
mod secrets;
mod specs;
mod strangers;
mod support;
mod support_bundle;
mod tenants;
mod terminal;
mod tidy;
mod tokens;
mod transcript;
mod upgrade;
mod webhooks;
