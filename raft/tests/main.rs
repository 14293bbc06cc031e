//! Replicas in one process, on loopback, with real disks, real sockets and real certificates.
#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on the real clock; the simulator has its own"
)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod absent;
mod copies;
mod crash;
mod damage;
mod failover;
mod fencing;
mod forgotten;
mod formation;
mod full_disk;
mod history;
mod load;
mod lost;
mod membership;
mod offline;
mod quorum;
mod restart;
mod resume;
mod revisions;
mod roster;
mod slow_disk;
mod snapshots;
mod store;
mod support;
mod upgrade;
mod wires;
