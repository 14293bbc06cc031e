//! The fault rig, its checks, and the benchmarks.
//!
//! The rig starts real clusters, kills and pauses their processes while clients work, and judges
//! the recorded history. It uses the product as anybody else would, through its command line and
//! its REST interface, and shares no code with it.

mod bench;
pub mod checks;
mod cli;
mod clock;
pub mod history;
mod http;
mod inject;
mod load;
mod proc;
mod random;
mod report;
mod rig;
mod run;
mod schedule;
mod watch;

pub use cli::main;
