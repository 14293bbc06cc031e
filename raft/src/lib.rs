//! Consensus: openraft, log and snapshots on disk, peers over tonic.
//!
//! [`Replica`] is one member of the cluster and the rest of Palisade's way to state: it implements
//! [`palisade_state::Store`]. A caller gives it a directory, an identity and certificates; several of them, told
//! of each other by [`Replica::form`], are a cluster.
//!
//! **Architecture invariant:** openraft's types do not leave this crate (but for the runtime parameter, which only a
//! simulation names). This crate knows no HTTP and issues no certificate.

pub mod backup;
pub mod disk;
pub mod snapshot_file;
pub mod wal;

mod addresses;
mod detector;
mod disk_watch;
mod exile;
mod fault;
mod formats;
mod forward;
mod handover;
pub mod history;
mod identity;
mod known;
#[cfg(feature = "planted")]
mod late_tick;
mod leadership;
mod link;
mod log_store;
mod machine;
mod membership;
mod metrics;
mod network;
pub mod offline;
mod offload;
mod options;
pub mod peer;
mod peers;
mod progress;
mod proposer;
mod quorum;
mod reached;
mod reads;
mod recovery;
mod refusal;
mod replica;
mod reports;
mod revoked;
mod rivals;
mod runtime;
mod schedule;
mod snapshots;
mod standing;
mod start;
mod stop;
#[cfg(test)]
mod storage_tests;
mod store;
mod sync_times;
mod types;

pub use addresses::Addresses;
pub use formats::Build;
pub use identity::{Identity, IdentityError};
pub use membership::{
    Change, ManageError, Managed, MembershipTuning, Neighbours, Vault, Why,
    enrol::{JoinError, Joining, Secrets, join},
};
pub use metrics::{Cause, Metrics};
pub use offload::Disk;
pub use options::{FormError, LogSizes, Member, ReplicaOptions, StartError, Tuning, Wires};
pub use peer::{PeerTls, TlsError};
pub use recovery::room_for_new;
pub use replica::Replica;
pub use revoked::RevokedKeys;
pub use runtime::{TokioRuntime, trace};
pub use snapshots::SnapshotsError;
pub use types::TokioExecutor;
