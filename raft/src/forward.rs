//! Proposing as follower: one stream of commands to the leader.
//!
//! # Invariants
//! - `FWD-1` A command is reported as certainly not applied only if it never left this replica, or if the leader said
//!   so. Whatever is open when a session ends is unknown.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::StreamExt;
use palisade_state::{Command, Outcome, Rt};
use prost::Message;
use tokio::sync::{mpsc, oneshot};

use crate::{
    exile::Exile,
    metrics::Metrics,
    peer::{PeerApi, PeerError, Purpose, wire},
    peers::Peers,
    refusal::Refusal,
    types::Node,
};

const QUEUE: usize = 4096;

type Answer = oneshot::Sender<Result<Outcome, Refusal>>;

struct Open {
    /// `None` once the session has ended, which ends the stream of requests too.
    requests: Option<mpsc::Sender<wire::ProposeRequest>>,
    answers: BTreeMap<u64, Answer>,
    next: u64,
}

/// A stream to one leader.
struct Session {
    leader: u64,
    addr: String,
    exile: Arc<Exile>,
    open: Mutex<Open>,
}

impl Session {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session: everything open gets this answer.
    fn end(&self, refusal: &Refusal) {
        let mut open = self.open();
        open.requests = None;
        let answers = std::mem::take(&mut open.answers);
        drop(open);
        for (_, answer) in answers {
            let _ = answer.send(Err(refusal.clone()));
        }
    }

    fn answer(&self, reply: wire::ProposeReply) {
        use wire::propose_reply::Result as Reply;
        let Some(answer) = self.open().answers.remove(&reply.id) else {
            return;
        };
        let result = match reply.result {
            Some(Reply::Outcome(bytes)) => Outcome::decode(bytes).map_err(|_| Refusal::Unknown),
            Some(Reply::Refusal(refusal)) => Err(refusal.into()),
            None => Err(Refusal::Unknown),
        };
        let _ = answer.send(result);
    }

    /// Carries the session until either end closes it.
    async fn run(&self, peer: Arc<dyn PeerApi>, requests: mpsc::Receiver<wire::ProposeRequest>) {
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests).boxed();
        let mut replies = match peer.propose_stream(requests).await {
            Ok(replies) => replies,
            Err(error) => {
                tracing::debug!(leader = self.leader, error = %error, "commands cannot be forwarded");
                self.exile.note(&error);
                let refusal = match error {
                    PeerError::Unreachable(_)
                    | PeerError::Waits(_)
                    | PeerError::Refused(_)
                    | PeerError::Removed(_)
                    | PeerError::Lost { .. } => Refusal::NotLeader,
                    PeerError::Failed(_) => Refusal::Unknown,
                };
                return self.end(&refusal);
            }
        };
        while let Some(Ok(reply)) = replies.next().await {
            self.answer(reply);
        }
        self.end(&Refusal::Unknown);
    }
}

/// Forwards commands to whoever leads.
pub(crate) struct Forwarder {
    rt: Rt,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
    session: Mutex<Option<Arc<Session>>>,
}

impl Forwarder {
    pub(crate) fn new(rt: Rt, peers: Arc<Peers>, metrics: Arc<Metrics>) -> Self {
        Self { rt, peers, metrics, session: Mutex::new(None) }
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, leader: u64, node: &Node) -> Arc<Session> {
        let mut held = self.held();
        if let Some(session) = held.as_ref() {
            let is_same = session.leader == leader && session.addr == node.peer_addr;
            if is_same && session.open().requests.is_some() {
                return session.clone();
            }
        }
        let (tx, rx) = mpsc::channel(QUEUE);
        let session = Arc::new(Session {
            leader,
            addr: node.peer_addr.clone(),
            exile: self.peers.exile().clone(),
            open: Mutex::new(Open { requests: Some(tx), answers: BTreeMap::new(), next: 0 }),
        });
        if let Some(before) = held.replace(session.clone()) {
            before.end(&Refusal::Unknown);
        }
        drop(held);
        let (peer, runs) = (self.peers.get(leader, node, Purpose::Store), session.clone());
        self.rt.spawn("forward", Box::pin(async move { runs.run(peer, rx).await }));
        session
    }

    /// Ends the session with a replica that leads no more.
    pub(crate) fn leader_changed(&self, leader: Option<u64>) {
        let mut held = self.held();
        if held.as_ref().is_some_and(|session| Some(session.leader) != leader)
            && let Some(before) = held.take()
        {
            drop(held);
            before.end(&Refusal::Unknown);
        }
    }

    /// Asks the leader.
    pub(crate) async fn forward(
        &self,
        leader: u64,
        node: &Node,
        command: Command,
    ) -> Result<Outcome, Refusal> {
        let session = self.session(leader, node);
        let (answer, answered) = oneshot::channel();
        let requests = session.open().requests.clone().ok_or(Refusal::NotLeader)?;
        let permit = requests.reserve_owned().await.map_err(|_| Refusal::NotLeader)?;
        {
            let mut open = session.open();
            if open.requests.is_none() {
                return Err(Refusal::NotLeader);
            }
            let id = open.next;
            open.next += 1;
            open.answers.insert(id, answer);
            permit.send(wire::ProposeRequest { id, command: command.encode_to_vec().into() });
        }
        self.metrics.commands_forwarded.inc();
        answered.await.unwrap_or(Err(Refusal::Unknown))
    }
}
