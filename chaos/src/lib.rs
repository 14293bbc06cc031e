//! The fault rig, its checks, and the benchmarks.
//!
//! The rig starts real clusters, kills and pauses their processes while clients work, and judges
//! the recorded history. It uses the product as anybody else would, through its command line and
//! its REST interface, and shares no code with it, so that one error cannot hide in both.
//!
//! The simulator is the other way round: it runs the product's own code in a simulated world, and
//! shares everything but the checks.
//!
//! One thing more is shared: `bench etcd` builds commands with the message types of `palisade-state`,
//! since it speaks the replicas' own protocol. No check uses them.

mod bands;
mod bench;
pub mod books;
pub mod checks;
mod cli;
mod clock;
mod enclosure;
mod fault;
pub mod history;
mod http;
mod inject;
pub mod linear;
mod load;
mod net;
mod page;
mod proc;
mod random;
mod report;
mod rig;
mod run;
mod schedule;
mod seed;
mod sim;
mod soak;
mod watch;

pub use cli::main;
