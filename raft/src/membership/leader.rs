//! The members as the leader has them in hand: what a change of them is made with.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt;
use openraft::{
    AsyncRuntime, ChangeMembers,
    async_runtime::WatchReceiver,
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
};
use palisade_state::{
    Command, Published, ReplicaId, Rt, Tx, TxError, Verdict, View,
    port::timeout,
    roster::{self, Known, Standing},
};

use super::{
    ManageError, Managed, Result, Vault, Why, health,
    keeper::{self, Learner},
    reply,
};
use crate::{
    Identity,
    exile::Exile,
    handover,
    leadership::Leadership,
    options::Tuning,
    peer::{Answer, PeerError, Purpose, wire},
    peers::Peers,
    proposer::Proposer,
    refusal::Refusal,
    types::{Node, Raft},
};

/// Tries on a conflict.
pub(super) const TRIES_MAX: u32 = 8;
const HEAR_EVERY: Duration = Duration::from_millis(10);

type Asked = wire::manage_request::Change;

/// The members of the control plane, for the replica that leads.
pub(crate) struct Members<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) rt: Rt,
    pub(crate) identity: Arc<Identity>,
    pub(crate) published: Arc<Published>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) proposer: Proposer,
    pub(crate) peers: Arc<Peers>,
    pub(crate) exile: Arc<Exile>,
    pub(crate) tuning: Tuning,
    pub(crate) vault: Option<Vault>,
    /// `MEMBER-2`
    pub(crate) changing: tokio::sync::Mutex<()>,
    pub(crate) learners: Mutex<BTreeMap<u64, Learner>>,
}

pub(super) fn refuse<T>(why: Why, detail: impl Into<String>) -> Result<T> {
    Err(ManageError::new(why, detail))
}

pub(super) fn managed(replica: u64, note: impl Into<String>) -> Result {
    Ok(Managed { replica: ReplicaId(replica), note: note.into() })
}

pub(crate) fn not_leader<T>() -> Result<T> {
    refuse(Why::NoLeader, "no replica leads, or the one that does was not reached: ask again")
}

impl From<Refusal> for ManageError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotLeader => Self::new(Why::NoLeader, "this replica leads no more: ask again"),
            Refusal::Unknown => Self::new(Why::Unknown, "leadership was lost meanwhile: ask again"),
            other => Self::new(Why::Unavailable, other.into_store_error(0).to_string()),
        }
    }
}

impl From<TxError> for ManageError {
    fn from(error: TxError) -> Self {
        Self::new(Why::Unavailable, crate::fault::chain(&error))
    }
}

impl From<palisade_state::table::Corrupt> for ManageError {
    fn from(error: palisade_state::table::Corrupt) -> Self {
        Self::new(Why::Unavailable, crate::fault::chain(&error))
    }
}

impl<R: AsyncRuntime> Members<R> {
    pub(crate) fn me(&self) -> u64 {
        self.identity.replica.0
    }

    pub(crate) fn view(&self) -> View {
        self.published.view()
    }

    pub(crate) fn members(&self) -> health::Members {
        health::Members::of::<R>(&self.raft.metrics().borrow_watched())
    }

    pub(crate) fn limit(&self) -> Duration {
        self.tuning.membership.answer_within
    }

    /// Answers another replica: `MEMBER-7`.
    pub(crate) fn answer(
        self: Arc<Self>,
        request: wire::ManageRequest,
    ) -> Answer<wire::ManageReply> {
        async move {
            let from = request.from;
            match &request.change {
                Some(Asked::Farewell(farewell)) => {
                    self.may_say_farewell(from)?;
                    self.exile.begin(&farewell.why);
                    return Ok(reply(managed(self.me(), "farewell")));
                }
                Some(Asked::Hello(hello)) => self.peers.addresses().hint(from, &hello.peer_addr),
                _ => {}
            }
            if self.raft.as_leader().is_ok() {
                let is_hello = matches!(request.change, Some(Asked::Hello(_)));
                if !is_hello && !self.members().nodes.contains_key(&from) {
                    let why = format!("replica {from} is no member: it may say hello, and no more");
                    return Err(PeerError::Refused(why));
                }
                return Ok(reply(self.handle(request).await));
            }
            let seen = self.leadership.seen();
            let addr = seen.leader.and_then(|id| seen.node(id)).map(|node| node.peer_addr.clone());
            let refusal = wire::ManageRefusal {
                leader: seen.leader.unwrap_or(0),
                leader_addr: addr.unwrap_or_default(),
                ..wire::ManageRefusal::default()
            };
            let result = Some(wire::manage_reply::Result::Refusal(refusal));
            Ok(wire::ManageReply { result })
        }
        .boxed()
    }

    /// The leader says it: the one that is seen, or one whom this replica, away for a while, knows as a voter. Who knows
    /// no voter yet believes it.
    fn may_say_farewell(&self, from: u64) -> std::result::Result<(), PeerError> {
        let seen = self.leadership.seen();
        let mut voters = seen.membership.membership().voter_ids().peekable();
        let is_new = voters.peek().is_none();
        if seen.leader == Some(from) || is_new || voters.any(|id| id == from) {
            return Ok(());
        }
        tracing::warn!(from, "a farewell of somebody who does not lead was refused");
        Err(PeerError::Refused(format!("replica {from} does not vote: it cannot remove anybody")))
    }

    /// Hands out what only replicas may hold.
    pub(crate) fn trust(&self, from: u64) -> Answer<wire::TrustReply> {
        let seen = self.leadership.seen();
        let is_member = seen.node(from).is_some();
        let vault = self.vault.clone();
        async move {
            if !is_member {
                let why = format!("replica {from} is no member yet: say hello to the leader first");
                return Err(PeerError::Refused(why));
            }
            let vault = vault.ok_or_else(|| PeerError::Failed("it holds no secrets".to_owned()))?;
            let secrets = vault().map_err(|error| PeerError::Failed(error.to_string()))?;
            tracing::info!(replica = from, "a member was given what only replicas may hold");
            let secret =
                |(name, content): (String, Vec<u8>)| wire::Secret { name, content: content.into() };
            Ok(wire::TrustReply { secrets: secrets.into_iter().map(secret).collect() })
        }
        .boxed()
    }

    /// Makes a change as leader.
    pub(crate) async fn handle(self: &Arc<Self>, request: wire::ManageRequest) -> Result {
        let wire::ManageRequest { from, dry_run, change } = request;
        let within = self.tuning.membership.change_within;
        let changing = timeout(self.rt.as_ref(), within, self.changing.lock()).await;
        let Some(_changing) = changing else {
            return refuse(Why::Busy, "another change of the members is on its way: ask again");
        };
        self.hear_all().await;
        match change {
            Some(Asked::Enrol(asked)) => self.enrol(asked, dry_run).await,
            Some(Asked::Remove(asked)) => self.remove(asked, dry_run).await,
            Some(Asked::SetAddress(asked)) => self.set_address(asked, dry_run).await,
            Some(Asked::TransferLeader(asked)) => self.transfer(asked.to, dry_run).await,
            Some(Asked::Drain(asked)) => self.drain(asked, dry_run).await,
            Some(Asked::Hello(hello)) => self.hello(from, hello).await,
            Some(Asked::Farewell(_)) | None => {
                refuse(Why::Invalid, "this release does not know that change")
            }
        }
    }

    /// Waits until each voter has answered since this was asked, or counts as silent: one that died a moment ago must not
    /// be counted on (`MEMBER-8`). A leader that has just been elected hears of the others first.
    async fn hear_all(&self) {
        let begun = self.rt.now();
        let is_young = || {
            let seen = self.leadership.seen();
            let since = self.leadership.led_since(self.me(), seen.term).unwrap_or(begun);
            self.rt.now().saturating_sub(since) < self.limit()
        };
        let is_known = || {
            let (members, asked) = (self.members(), self.rt.now().saturating_sub(begun));
            let is_silent = |id| !members.answers(id, self.limit()) && !is_young();
            members.voters.iter().all(|id| members.answers(*id, asked) || is_silent(*id))
        };
        while !is_known() && self.rt.now().saturating_sub(begun) < self.limit() * 2 {
            self.rt.sleep(HEAR_EVERY).await;
        }
    }

    /// Builds a transaction until it is applied; answers its revision.
    pub(crate) async fn commit(&self, build: impl Fn(&mut Tx) -> Result<()> + Send) -> Result<u64> {
        for _ in 0..TRIES_MAX {
            let mut tx = Tx::new(self.view());
            build(&mut tx)?;
            if tx.is_empty() {
                return Ok(self.view().revision());
            }
            let command: Command = tx.build()?.into();
            let outcome = self.proposer.propose(command).await?;
            match outcome.verdict {
                Some(Verdict::Applied(_) | Verdict::Replayed(_)) => return Ok(outcome.revision),
                Some(Verdict::Conflict(_)) => {}
                other => {
                    let what = format!("the kernel refused the roster's change: {other:?}");
                    return refuse(Why::Unavailable, what);
                }
            }
        }
        refuse(Why::Busy, "the roster kept changing: ask again")
    }

    /// Changes consensus' membership, and waits for it.
    pub(crate) async fn change(&self, what: ChangeMembers<u64, Node>) -> Result<()> {
        let within = self.tuning.membership.change_within;
        let changed = timeout(self.rt.as_ref(), within, self.raft.change_membership(what, false));
        let Some(changed) = changed.await else {
            let what = format!(
                "the change was begun and was not committed within {} s: too few voters answer; it ends by itself \
                 once they do",
                within.as_secs()
            );
            return refuse(Why::Unknown, what);
        };
        let error = match changed {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => not_leader(),
            RaftError::APIError(ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::InProgress(_),
            )) => refuse(Why::Busy, "another change of the members is on its way: ask again"),
            RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => {
                refuse(Why::Invalid, error.to_string())
            }
            RaftError::APIError(error) => refuse(Why::Unknown, error.to_string()),
            RaftError::Fatal(fatal) => refuse(Why::Unavailable, fatal.to_string()),
        }
    }

    /// A member's id; or why it is none.
    pub(super) fn member(&self, members: &health::Members, id: u64) -> Result<()> {
        if members.nodes.contains_key(&id) {
            return Ok(());
        }
        match roster::known(&self.view(), ReplicaId(id))? {
            Known::Replica(row) if row.standing == Standing::Removed => {
                refuse(Why::Removed, format!("replica {id} was removed; its id never comes back"))
            }
            Known::Enrolled(_) => {
                refuse(Why::NotAVoter, format!("replica {id} is enrolled and has not come yet"))
            }
            _ => {
                let known: Vec<String> = members.nodes.keys().map(u64::to_string).collect();
                let known = known.join(", ");
                let what = format!("there is no replica {id}: the members are {known}");
                refuse(Why::UnknownReplica, what)
            }
        }
    }

    /// Lets `to` lead, and waits for it. When nobody takes leadership, this replica stands again.
    pub(crate) async fn hand_over(&self, to: u64) -> Result<()> {
        self.has_caught_up(to).await?;
        if let Err(fatal) = self.raft.trigger().transfer_leader(to).await {
            return refuse(Why::Unavailable, fatal.to_string());
        }
        let taken = self.leadership.taken_by_other(self.me());
        match timeout(self.rt.as_ref(), self.tuning.handover, taken).await {
            Some(()) if self.leadership.leader() == Some(to) => Ok(()),
            Some(()) => {
                refuse(Why::Unknown, format!("replica {to} did not take leadership, another did"))
            }
            None => {
                handover::take_back(&self.raft, to).await;
                refuse(Why::NotHealthy, format!("replica {to} did not take leadership in time"))
            }
        }
    }

    /// Whether `to` acknowledges now what the log ends with: whoever cannot take entries cannot lead.
    async fn has_caught_up(&self, to: u64) -> Result<()> {
        let (last, begun) = (self.members().last, self.rt.now());
        loop {
            let matched = self.members().peers.get(&to).map_or(0, |peer| peer.matched);
            if matched >= last {
                return Ok(());
            }
            if self.rt.now().saturating_sub(begun) >= self.tuning.handover {
                let lag = last - matched;
                let what = format!("replica {to} is {lag} entries behind and does not catch up");
                return refuse(Why::NotHealthy, what);
            }
            self.rt.sleep(HEAR_EVERY).await;
        }
    }

    /// Lets the best of those whom `may` allows lead.
    pub(crate) async fn step_aside(
        &self,
        members: &health::Members,
        may: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let view = self.view();
        let drained = |id: u64| roster::is_drained(&view, ReplicaId(id));
        let best = members
            .successor(self.limit(), |id| may(id) && !drained(id))
            .or_else(|| members.successor(self.limit(), &may));
        let Some(best) = best else {
            let what = format!(
                "replica {} leads and nobody can take over: no other voter answers",
                self.me()
            );
            return refuse(Why::NotHealthy, what);
        };
        self.hand_over(best).await
    }

    /// Publishes an event about a replica; what it tells of has happened whether it is told or not.
    pub(crate) async fn tell(&self, kind: &str, id: u64, data: serde_json::Value) {
        let told = self.commit(|tx| {
            keeper::publish(tx, kind, id, &data);
            Ok(())
        });
        if let Err(error) = told.await {
            tracing::warn!(replica = id, kind, error = %error, "an event was not published");
        }
    }

    /// Says goodbye to a replica that was removed, for some time.
    pub(crate) fn farewell(&self, id: u64, why: &str) {
        let peer = self.peers.client(id, Purpose::Store);
        let (rt, why) = (self.rt.clone(), why.to_owned());
        let task = async move {
            for _ in 0..10 {
                let change = Some(Asked::Farewell(wire::Farewell { why: why.clone() }));
                let request = wire::ManageRequest { change, ..wire::ManageRequest::default() };
                let said = timeout(rt.as_ref(), Duration::from_secs(2), peer.manage(request)).await;
                if matches!(said, Some(Ok(_))) {
                    return;
                }
                rt.sleep(Duration::from_secs(1)).await;
            }
        };
        self.rt.spawn("farewell", Box::pin(task));
    }
}
