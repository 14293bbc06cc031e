//! Consensus: openraft, log and snapshots on disk, peers over tonic.
