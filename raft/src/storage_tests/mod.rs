//! What is on disk, tested as a whole: the log, the snapshots and the identity together.

mod golden;
mod suite;
