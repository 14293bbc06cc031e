//! Consensus: openraft, log and snapshots on disk, peers over tonic.
pub mod disk;
pub mod snapshot_file;
pub mod wal;
