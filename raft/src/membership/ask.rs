//! Finding whoever can make a change, and being found.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use openraft::AsyncRuntime;
use palisade_state::{ReplicaId, port::timeout};

use super::{
    Change, ManageError, Managed, Result, Why,
    enrol::Secrets,
    leader::{Members, not_leader},
};
use crate::{
    detector::Detector,
    peer::{PeerApi, PeerError, Purpose, wire},
    replica::Replica,
};

/// How often a replica looks whether it must show itself.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A replica that knows no leader, or hears nothing of the one that it knows, for so long asks the others about itself.
const LOST_AFTER: Duration = Duration::from_secs(1);
const HELLO_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// How long a member may take to hand out what only replicas may hold.
const TRUST_LIMIT: Duration = Duration::from_secs(5);

/// What a call came to: a result, or who leads.
pub(crate) enum Heard {
    Answer(Result),
    Leader(Option<(u64, String)>),
}

pub(crate) fn heard(reply: wire::ManageReply) -> Heard {
    use wire::manage_reply::Result as Reply;
    match reply.result {
        Some(Reply::Managed(managed)) => {
            let wire::Managed { replica, note } = managed;
            Heard::Answer(Ok(Managed { replica: ReplicaId(replica), note }))
        }
        Some(Reply::Refusal(refusal)) => {
            let why = wire::manage_refusal::Why::try_from(refusal.why);
            match why.map_or(Why::Unavailable, Why::from) {
                Why::NoLeader => {
                    let known = refusal.leader != 0;
                    Heard::Leader(known.then_some((refusal.leader, refusal.leader_addr)))
                }
                why => Heard::Answer(Err(ManageError::new(why, refusal.detail))),
            }
        }
        None => {
            Heard::Answer(Err(ManageError::new(Why::Unavailable, "an answer of a newer release")))
        }
    }
}

/// Asks for changes and shows this replica to the others.
pub(crate) struct Asking<R: AsyncRuntime> {
    pub(crate) members: Arc<Members<R>>,
    /// Where this replica is reached now, if its record is to say so.
    pub(crate) advertise: Option<(String, String)>,
    /// Hears of the leader.
    pub(crate) detector: Arc<Detector>,
}

impl<R: AsyncRuntime> Asking<R> {
    fn request(&self, change: wire::manage_request::Change, dry_run: bool) -> wire::ManageRequest {
        wire::ManageRequest { from: self.members.me(), dry_run, change: Some(change) }
    }

    /// Has the leader make a change, whoever that is by then.
    pub(crate) async fn ask(&self, change: Change, dry_run: bool) -> Result {
        let rt = &self.members.rt;
        let within = self.members.tuning.membership.change_within * 2;
        let deadline = rt.now() + within + self.members.tuning.patience;
        let request = self.request(change.to_wire(), dry_run);
        let mut last = not_leader();
        while rt.now() < deadline {
            let seen = self.members.leadership.seen();
            let answered = match seen.leader {
                None => not_leader(),
                Some(leader) if leader == self.members.me() => {
                    self.members.handle(request.clone()).await
                }
                Some(leader) => match seen.node(leader) {
                    None => not_leader(),
                    Some(node) => {
                        let peer = self.members.peers.get(leader, node, Purpose::Store);
                        self.call(peer, &request, within, change.is_repeatable()).await
                    }
                },
            };
            match answered {
                Err(error) if matches!(error.why, Why::NoLeader | Why::Busy) => last = Err(error),
                ended => return ended,
            }
            let changed = self.members.leadership.changed_from(&seen);
            let _ = timeout(rt.as_ref(), PAUSE, changed).await;
        }
        last
    }

    async fn call(
        &self,
        peer: Arc<dyn PeerApi>,
        request: &wire::ManageRequest,
        within: Duration,
        repeatable: bool,
    ) -> Result {
        let answer = timeout(self.members.rt.as_ref(), within, peer.manage(request.clone())).await;
        match answer {
            Some(Ok(reply)) => match heard(reply) {
                Heard::Answer(result) => result,
                Heard::Leader(_) => not_leader(),
            },
            Some(Err(error @ PeerError::Failed(_))) if !repeatable => {
                Err(ManageError::new(Why::Unknown, error.to_string()))
            }
            Some(Err(error)) => {
                self.members.exile.note(&error);
                not_leader()
            }
            None => Err(ManageError::new(Why::Unknown, "the leader did not answer in time")),
        }
    }

    /// Keeps this replica's record right from its start on, and asks about itself when no leader is heard: the others
    /// may not know where it is, or know that it was removed. One that does not vote knows its leader for ever, however
    /// silent that is: it never campaigns.
    pub(crate) async fn introduce(self: Arc<Self>) {
        let rt = self.members.rt.clone();
        let me = self.members.me();
        let mut advertise = self.advertise.clone();
        let mut lost_since = None;
        let mut words = self.detector.words();
        loop {
            rt.sleep(LOOK_EVERY).await;
            let seen = self.members.leadership.seen();
            let before = std::mem::replace(&mut words, self.detector.words());
            let is_heard = seen.leader.is_some_and(|leader| leader == me || words != before);
            let own = seen.node(me);
            if own.is_some_and(|own| {
                advertise
                    .as_ref()
                    .is_some_and(|(peer, api)| own.peer_addr == *peer && own.api_addr == *api)
            }) {
                // Whatever is written over it from now on is newer.
                advertise = None;
            }
            let is_lost = if is_heard {
                lost_since = None;
                false
            } else {
                rt.now().saturating_sub(*lost_since.get_or_insert(rt.now())) >= LOST_AFTER
            };
            let must_move = advertise.is_some() && own.is_some();
            if !is_lost && !must_move {
                continue;
            }
            if is_lost {
                lost_since = Some(rt.now());
            }
            let (peer_addr, api_addr) = advertise.clone().unwrap_or_default();
            let hello = wire::Hello { peer_addr, api_addr };
            self.hello(hello, seen.leader.filter(|_| !is_lost)).await;
        }
    }

    async fn hello(&self, hello: wire::Hello, leader: Option<u64>) {
        let me = self.members.me();
        let request = self.request(wire::manage_request::Change::Hello(hello), false);
        if leader == Some(me) {
            if let Err(error) = self.members.handle(request).await {
                tracing::warn!(error = %error, "this replica's record was not brought up to date");
            }
            return;
        }
        let addresses = self.members.peers.addresses();
        let all = leader.map_or_else(|| addresses.peers(), |leader| vec![leader]);
        let calls = all.into_iter().filter(|id| *id != me).map(|id| {
            let (rt, request) = (self.members.rt.clone(), request.clone());
            async move {
                let peer = self.members.peers.client(id, Purpose::Store);
                timeout(rt.as_ref(), HELLO_LIMIT, peer.manage(request)).await
            }
        });
        for answer in join_all(calls).await.into_iter().flatten() {
            match answer.map(heard) {
                Ok(Heard::Leader(Some((id, addr)))) => addresses.hint(id, &addr),
                Ok(Heard::Answer(Err(error))) => {
                    if error.why == Why::Removed {
                        self.members.exile.begin("");
                    }
                    tracing::debug!(error = %error, "the leader did not take this replica's addresses");
                }
                Ok(_) => {}
                Err(error) => self.members.exile.note(&error),
            }
        }
    }
}

impl<R: AsyncRuntime> Replica<R> {
    /// Changes the control plane's members, through whoever leads.
    ///
    /// # Errors
    /// Why it was not done, with what to do.
    pub async fn manage(&self, change: Change, dry_run: bool) -> Result {
        if let Err(error) = self.check_serving() {
            return Err(ManageError { why: Why::Unavailable, detail: error.to_string() });
        }
        self.asking.ask(change, dry_run).await
    }

    /// What each other member hands out of what only replicas may hold, from those that answer. Secret.
    pub async fn secrets_of_others(&self) -> Vec<Secrets> {
        let members = &self.asking.members;
        let me = members.me();
        let others = members.peers.addresses().peers().into_iter().filter(|id| *id != me);
        let calls = others.map(|id| async move {
            let peer = members.peers.client(id, Purpose::Store);
            timeout(members.rt.as_ref(), TRUST_LIMIT, peer.trust(me)).await
        });
        let given = join_all(calls).await.into_iter().flatten().filter_map(|answer| {
            let secrets = answer.ok()?.secrets;
            Some(secrets.into_iter().map(|s| (s.name, s.content.to_vec())).collect())
        });
        given.collect()
    }

    /// Peers that hold one of these keys (SHA-256 of the SPKI, hex) are refused from now on, also those that are
    /// connected; no others are.
    pub fn refuse_keys(&self, keys: std::collections::BTreeSet<String>) {
        if let Some(state) = &self.tls {
            state.refusals().set_keys(keys);
            self.asking.members.peers.addresses().forget_refusals();
        }
    }

    /// The keys that it refuses since its start, by its own snapshot and log, until [`refuse_keys`](Self::refuse_keys)
    /// says others. `PEER-6`
    #[must_use]
    pub fn revoked_at_start(&self) -> &std::collections::BTreeSet<String> {
        &self.revoked
    }

    /// Whether it must not start again from its directory: it was removed from its cluster, or is a copy.
    #[must_use]
    pub fn is_barred(&self) -> bool {
        self.fault_of().is_barred()
    }
}
