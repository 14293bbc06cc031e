//! The kernel through its public doors, against its invariants.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clocks;
mod commits;
mod cursors;
mod determinism;
mod golden;
mod leases;
mod limits;
mod logs;
mod model;
mod ranges;
mod replicas;
mod transactions;
mod watching;
