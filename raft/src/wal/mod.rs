//! The replica's log: entries, votes and marks in one stream of CRC-checked records in segment files.
//!
//! A log is [opened](Wal::open), which reads back everything acknowledged or refuses with a file and an offset, and
//! then given to a [`Driver`], whose [`Handle`] appends without blocking. The code knows nothing of the
//! consensus library; what an entry holds is opaque.
//!
//! ```text
//! log/00000007.seg   header, records, zeros up to the file's size
//! log/00000008.seg   the newest one is written
//! log/tail           the witness: up to where the log is known to be durable
//! log/next-….tmp     the next segment, being zero-filled
//! ```
//!
//! The invariants W1 to W8 are kept in `recover.rs`, `core.rs`, `driver.rs` and `reader.rs`.

mod core;
mod driver;
mod error;
mod reader;
mod record;
mod recover;
mod segment;
mod space;
mod types;
mod witness;

pub use self::core::Wal;
pub use self::driver::{Done, Driver, Handle, Running, Stats};
pub use self::error::WalError;
pub use self::reader::{LogReader, Wanted};
pub use self::types::{
    Cut, EntryRecord, Hooks, Identity, NoHooks, Options, Position, Record, Recovered, State, Vote,
};

#[cfg(test)]
mod tests;
