//! What is on disk, tested as a whole: the log, the snapshots and the identity together.

mod decay;
mod faults;
mod golden;
mod nobody;
mod suite;
