//! The messages of both systems, as they are on the wire.

/// etcd's.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; documented in proto/etcd.proto"
)]
pub(super) mod etcd {
    tonic::include_proto!("etcdserverpb");
}

/// Ours.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; documented in proto/store.proto"
)]
pub(super) mod store {
    tonic::include_proto!("palisade.raft.v1");
}
