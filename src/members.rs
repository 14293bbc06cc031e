//! The members port of a process that runs a replica.

use std::sync::Arc;

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Error, Result,
    ports::{MemberChange, MemberChanged, Members},
};
use palisade_raft::{Change, ManageError, Replica, Why};
use palisade_state::ReplicaId;

/// Changes the members through this replica.
pub(crate) struct ReplicaMembers(pub(crate) Arc<Replica>);

fn change(change: MemberChange) -> Change {
    match change {
        MemberChange::Enrol { key, peer_addr, api_addr, replaces } => {
            Change::Enrol { key, peer_addr, api_addr, replaces: replaces.map(ReplicaId) }
        }
        MemberChange::Remove { replica, force } => {
            Change::Remove { replica: ReplicaId(replica), force }
        }
        MemberChange::SetAddress { replica, peer_addr, api_addr } => {
            Change::SetAddress { replica: ReplicaId(replica), peer_addr, api_addr }
        }
        MemberChange::TransferLeader { to } => Change::TransferLeader { to: to.map(ReplicaId) },
        MemberChange::Drain { replica, undo } => {
            Change::Drain { replica: ReplicaId(replica), undo }
        }
    }
}

fn error(error: ManageError) -> Error {
    let (code, hint) = match error.why {
        Why::UnknownReplica => (Code::NotFound, "`palisade cluster status` shows the members"),
        Why::Invalid => (Code::InvalidInput, "`palisade cluster status` shows the members"),
        Why::Address => (
            Code::InvalidInput,
            "write HOST:PEERPORT,APIPORT with two different ports, at which others reach it and no other replica is",
        ),
        Why::Drained => (
            Code::InvalidState,
            "`palisade cluster undrain` lets it lead again; or name another one",
        ),
        Why::Removed => (Code::InvalidState, "join a new replica with `palisade cluster join`"),
        Why::LastVoter => (Code::InvalidState, "`palisade cluster join` makes another one"),
        Why::AtRisk => (
            Code::InvalidState,
            "bring the others back, or join another one, first: `palisade cluster status`",
        ),
        Why::NotAVoter | Why::NotHealthy => {
            (Code::InvalidState, "`palisade cluster status` shows who answers and how far each is")
        }
        Why::Busy => (Code::Conflict, "try again in a moment"),
        Why::NoLeader => (
            Code::NoQuorum,
            "most replicas must run and reach each other: look at `palisade cluster status --local`",
        ),
        Why::Unknown => (
            Code::Unavailable,
            "`palisade cluster status --local` shows the change and for whom it waits; it cannot be taken back",
        ),
        _ => (Code::Unavailable, "look at `palisade cluster status`, then ask again"),
    };
    let mut told = Error::new(code, error.detail).hint(hint);
    // Asked again at once, a cluster that waits for somebody says less than this.
    told.retryable &= error.why != Why::Unknown;
    told
}

impl Members for ReplicaMembers {
    fn change(
        &self,
        asked: MemberChange,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<MemberChanged>> {
        let replica = self.0.clone();
        Box::pin(async move {
            let managed = replica.manage(change(asked), dry_run).await.map_err(error)?;
            Ok(MemberChanged { replica: managed.replica.0, note: managed.note })
        })
    }
}
