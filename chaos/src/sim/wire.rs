//! A node's ways to its peers, as the product asks for them.

use std::sync::{Arc, Mutex};

use futures::{FutureExt, future::BoxFuture, stream::BoxStream};
use palisade_raft::peer::{Answer, Answers, PeerApi, PeerError, Probe, Purpose, Transport, wire};
use tokio::sync::oneshot;

use super::{
    net::{Call, Link, Net, Serve, pipe, probe},
    nodes::Life,
};

/// One life's transport.
pub(crate) struct Wires {
    pub(crate) net: Arc<Net>,
    pub(crate) node: u64,
    pub(crate) life: Life,
}

impl Transport for Wires {
    fn peer(&self, peer: u64, _: &str, _: Purpose) -> Arc<dyn PeerApi> {
        let link = Link { net: self.net.clone(), from: self.node, to: peer };
        Arc::new(Peer { link, life: self.life })
    }

    fn probe(&self, addr: &str) -> BoxFuture<'static, Probe> {
        probe(Link { net: self.net.clone(), from: self.node, to: self.net.node_at(addr) })
    }
}

/// The way to one peer.
struct Peer {
    link: Link,
    life: Life,
}

fn broken<T>() -> Option<Result<T, PeerError>> {
    Some(Err(PeerError::Failed("the connection broke".to_owned())))
}

fn nothing<T>() -> Option<T> {
    None
}

impl Peer {
    fn call<A: Send + 'static>(&self, kind: &'static str, serves: Vec<Serve<A>>) -> Answer<A> {
        let (answer, answered) = oneshot::channel();
        let answer = Arc::new(Mutex::new(Some(answer)));
        for serve in serves {
            let (link, answer, life) = (self.link.clone(), answer.clone(), self.life);
            Call { link, kind, life, serve, answer }.go();
        }
        async move {
            let gone = || Err(PeerError::Failed("the connection broke".to_owned()));
            answered.await.unwrap_or_else(|_| gone())
        }
        .boxed()
    }

    /// A call that the network may carry twice.
    fn repeatable<Q: Clone + Send + 'static, A: Send + 'static>(
        &self,
        kind: &'static str,
        request: Q,
        serve: fn(&dyn PeerApi, Q) -> Answer<A>,
    ) -> Answer<A> {
        let copies = if self.link.is_doubled() { 2 } else { 1 };
        let one = |request: Q| -> Serve<A> { Box::new(move |api| serve(api.as_ref(), request)) };
        self.call(kind, (0..copies).map(|_| one(request.clone())).collect())
    }

    fn once<A: Send + 'static>(
        &self,
        kind: &'static str,
        serve: impl FnOnce(Arc<dyn PeerApi>) -> Answer<A> + Send + 'static,
    ) -> Answer<A> {
        self.call(kind, vec![Box::new(serve)])
    }

    /// The stream of answers on its way back; to be called at the other end.
    fn answers<T: Send + 'static>(link: &Link, answers: Answers<T>) -> Answers<T> {
        let back = Link { net: link.net.clone(), from: link.to, to: link.from };
        pipe(&back, answers, broken)
    }
}

impl PeerApi for Peer {
    fn append(
        &self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> Answer<Answers<wire::AppendReply>> {
        let link = self.link.clone();
        let requests = pipe(&link, requests, nothing);
        self.once("append", move |api| {
            let serving = api.append(requests);
            async move { Ok(Self::answers(&link, serving.await?)) }.boxed()
        })
    }

    fn heartbeat(&self, request: wire::AppendRequest) -> Answer<wire::AppendReply> {
        self.repeatable("heartbeat", request, |api, request| api.heartbeat(request))
    }

    fn vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        self.repeatable("vote", request, |api, request| api.vote(request))
    }

    fn pre_vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        self.repeatable("pre_vote", request, |api, request| api.pre_vote(request))
    }

    fn transfer(&self, request: wire::TransferRequest) -> Answer<wire::TransferReply> {
        self.repeatable("transfer", request, |api, request| api.transfer(request))
    }

    fn snapshot(
        &self,
        chunks: BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>,
    ) -> Answer<wire::SnapshotReply> {
        let chunks = pipe(&self.link, chunks, broken);
        self.once("snapshot", move |api| api.snapshot(chunks))
    }

    fn snapshot_have(&self, head: wire::SnapshotHead) -> Answer<wire::SnapshotOffset> {
        self.repeatable("have", head, |api, head| api.snapshot_have(head))
    }

    fn propose(&self, request: wire::ProposeRequest) -> Answer<wire::ProposeReply> {
        self.once("propose", move |api| api.propose(request))
    }

    fn propose_stream(
        &self,
        requests: BoxStream<'static, wire::ProposeRequest>,
    ) -> Answer<Answers<wire::ProposeReply>> {
        let link = self.link.clone();
        let requests = pipe(&link, requests, nothing);
        self.once("proposals", move |api| {
            let serving = api.propose_stream(requests);
            async move { Ok(Self::answers(&link, serving.await?)) }.boxed()
        })
    }

    fn read_index(&self) -> Answer<wire::ReadIndexReply> {
        self.repeatable("read", (), |api, ()| api.read_index())
    }

    fn manage(&self, request: wire::ManageRequest) -> Answer<wire::ManageReply> {
        // Who calls is what its certificate says, as everywhere.
        let from = self.link.from;
        self.once("manage", move |api| api.manage(wire::ManageRequest { from, ..request }))
    }

    fn trust(&self, from: u64) -> Answer<wire::TrustReply> {
        self.once("trust", move |api| api.trust(from))
    }
}
