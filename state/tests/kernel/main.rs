//! The kernel through its public doors, against its invariants.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod determinism;
mod leases;
mod model;
mod replicas;
mod transactions;
