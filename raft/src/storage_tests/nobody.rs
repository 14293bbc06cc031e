//! Wires that lead to nobody, for a replica that is alone in its cluster.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture, stream::BoxStream};

use crate::peer::{Answer, Answers, PeerApi, PeerError, Probe, Purpose, Transport, wire};

pub(crate) struct Nobody;

fn away<T: Send + 'static>() -> Answer<T> {
    std::future::ready(Err(PeerError::Unreachable("nobody is there".into()))).boxed()
}

macro_rules! away {
    ($($name:ident($($of:ty)?) -> $answer:ty;)*) => {$(
        fn $name(&self $(, _: $of)?) -> Answer<$answer> { away() }
    )*};
}

impl PeerApi for Nobody {
    away! {
        append(BoxStream<'static, wire::AppendRequest>) -> Answers<wire::AppendReply>;
        heartbeat(wire::AppendRequest) -> wire::AppendReply;
        vote(wire::VoteRequest) -> wire::VoteReply;
        pre_vote(wire::VoteRequest) -> wire::VoteReply;
        transfer(wire::TransferRequest) -> wire::TransferReply;
        snapshot(BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>) -> wire::SnapshotReply;
        snapshot_have(wire::SnapshotHead) -> wire::SnapshotOffset;
        propose(wire::ProposeRequest) -> wire::ProposeReply;
        propose_stream(BoxStream<'static, wire::ProposeRequest>) -> Answers<wire::ProposeReply>;
        read_index() -> wire::ReadIndexReply;
    }
}

impl Transport for Nobody {
    fn peer(&self, _: u64, _: &str, _: Purpose) -> Arc<dyn PeerApi> {
        Arc::new(Self)
    }

    fn probe(&self, _: &str) -> BoxFuture<'static, Probe> {
        std::future::ready(Probe::Unclear).boxed()
    }
}
