//! What replicas ask of each other, and the ways there.
//!
//! [`PeerApi`] is one trait for both ends: the local replica answers it, and a client of a peer offers it. Tonic with
//! mutual TLS connects the two in production; a simulation connects them by itself.

mod boots;
mod caller;
mod client;
mod codec;
pub(crate) mod convert;
mod gate;
mod gateway;
mod io;
pub(crate) mod local;
pub(crate) mod receive;
mod refused;
mod server;
mod store_server;
mod tls;
mod watches;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::{future::BoxFuture, stream::BoxStream};

use crate::addresses::Addresses;

pub(crate) use self::boots::Boot;
pub use self::client::Introduction;
pub(crate) use self::client::TonicTransport;
pub use self::gateway::{Gateway, GatewayStore};
pub(crate) use self::server::{HANDSHAKES_MAX, ServeOptions, serve};
pub(crate) use self::tls::TlsState;
pub use self::tls::{PeerTls, TlsError};

/// The messages, as they are on the wire.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; documented in proto/peer.proto"
)]
pub mod wire {
    tonic::include_proto!("palisade.raft.v1");
}

/// Why a call to a peer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection: certain that the request was not received.
    #[error("cannot reach the peer: {0}")]
    Unreachable(String),
    /// The peer turned this replica away.
    #[error("the peer refused: {0}")]
    Refused(String),
    /// The peer knows that this replica was removed from the cluster.
    #[error("this replica was removed: {0}")]
    Removed(String),
    /// The peer saw this replica's log end before something that it is known to have had.
    #[error("{why}")]
    Lost {
        /// The log entry that it had at least.
        floor: u64,
        /// What the peer saw.
        why: String,
    },
    /// The peer keeps this replica waiting: certain that the request was not looked at.
    #[error("the peer lets this replica wait: {0}")]
    Waits(String),
    /// The connection or the peer failed; the request may have been received.
    #[error("the call failed: {0}")]
    Failed(String),
}

/// What a call to a peer comes to.
pub type Answer<T> = BoxFuture<'static, Result<T, PeerError>>;

/// A stream of answers.
pub type Answers<T> = BoxStream<'static, Result<T, PeerError>>;

/// Who may come in, among those whose certificate names a replica of this cluster.
pub(crate) trait Door: Send + Sync + 'static {
    /// Lets a replica in.
    ///
    /// # Errors
    /// It was removed, or never was a member.
    fn admit(&self, caller: u64) -> Result<(), PeerError>;
}

/// What one replica can ask of another.
pub trait PeerApi: Send + Sync + 'static {
    /// Replicates the log: a reply for each request, in order.
    fn append(
        &self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> Answer<Answers<wire::AppendReply>>;
    /// A single append.
    fn heartbeat(&self, request: wire::AppendRequest) -> Answer<wire::AppendReply>;
    /// Asks for a vote.
    fn vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply>;
    /// Asks whether a vote would be granted.
    fn pre_vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply>;
    /// Announces a transfer of leadership.
    fn transfer(&self, request: wire::TransferRequest) -> Answer<wire::TransferReply>;
    /// Sends a snapshot.
    fn snapshot(
        &self,
        chunks: BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>,
    ) -> Answer<wire::SnapshotReply>;
    /// Asks how much of a snapshot the peer has already.
    fn snapshot_have(&self, head: wire::SnapshotHead) -> Answer<wire::SnapshotOffset>;
    /// Proposes a command to the leader.
    fn propose(&self, request: wire::ProposeRequest) -> Answer<wire::ProposeReply>;
    /// Proposes a stream of commands to the leader.
    fn propose_stream(
        &self,
        requests: BoxStream<'static, wire::ProposeRequest>,
    ) -> Answer<Answers<wire::ProposeReply>>;
    /// Asks the leader up to where a reader must wait.
    fn read_index(&self) -> Answer<wire::ReadIndexReply>;
    /// Asks for a change of the control plane's members.
    fn manage(&self, _request: wire::ManageRequest) -> Answer<wire::ManageReply> {
        not_here()
    }
    /// Asks for what only replicas may hold, as replica `from`.
    fn trust(&self, _from: u64) -> Answer<wire::TrustReply> {
        not_here()
    }
}

fn not_here<T: Send + 'static>() -> Answer<T> {
    Box::pin(std::future::ready(Err(PeerError::Failed("it does not know this call".to_owned()))))
}

/// What a connection is for. Each purpose has its own, so that none waits behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// The append stream.
    Append,
    /// Heartbeats.
    Heartbeat,
    /// Votes and transfers.
    Election,
    /// Snapshots.
    Bulk,
    /// Proposals and reads of followers.
    Store,
}

/// What a look at a peer's port tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Somebody listens.
    Open,
    /// The port refuses: nobody listens.
    Refused,
    /// Neither is certain.
    Unclear,
}

/// The ways to the peers.
pub trait Transport: Send + Sync + 'static {
    /// A client of the replica `peer` at `addr`; connects at its first use.
    fn peer(&self, peer: u64, addr: &str, purpose: Purpose) -> Arc<dyn PeerApi>;

    /// A client that looks its peer's addresses up each time it connects.
    fn peer_at(&self, peer: u64, addresses: &Arc<Addresses>, purpose: Purpose) -> Arc<dyn PeerApi> {
        self.peer(peer, &addresses.recorded(peer), purpose)
    }

    /// Looks at a port without saying anything.
    fn probe(&self, addr: &str) -> BoxFuture<'static, Probe>;
}
