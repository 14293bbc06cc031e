//! What the leader does when a change of the members is asked of it: refuse first, then change, then mark.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use openraft::{AsyncRuntime, ChangeMembers, ReadPolicy};
use palisade_state::{
    ReplicaId, Tx,
    port::timeout,
    roster::{self, ENROLMENTS, Enrolment, REPLICAS, Standing},
};
use serde_json::json;

use super::{
    Result, Why, health, keeper,
    leader::{Members, TRIES_MAX, managed, not_leader, refuse},
};
use crate::{peer::wire, types::Node};

/// How many voters a change leaves.
fn remaining(voters: usize) -> String {
    match voters {
        1 => "one voter remains".to_owned(),
        many => {
            let spare = many - health::majority(many);
            format!("{many} voters remain, {spare} of which may fail")
        }
    }
}

/// What is said once a replica is removed; what was at risk before is so now.
fn removed(id: u64, voters: usize, risk: Option<String>) -> String {
    let note = format!("replica {id} is removed; {}", remaining(voters));
    match risk {
        Some(_) if voters == 1 => format!("{note}: {}", health::ALONE),
        Some(risk) => format!("{note}; {risk}"),
        None => note,
    }
}

/// Whether nobody who may still come was given one of these addresses.
fn addresses_are_not_promised<'a>(
    pending: impl Iterator<Item = &'a (ReplicaId, Enrolment)>,
    peer_addr: &str,
    api_addr: &str,
) -> Result<()> {
    for (id, row) in pending {
        for taken in [&row.peer_addr, &row.api_addr] {
            if !taken.is_empty() && (taken == peer_addr || taken == api_addr) {
                let what = format!(
                    "replica {id}, which may join and has not come yet, has the address {taken}: \
                     `palisade cluster remove {id}` takes that back"
                );
                return refuse(Why::Address, what);
            }
        }
    }
    Ok(())
}

impl<R: AsyncRuntime> Members<R> {
    pub(super) async fn enrol(&self, asked: wire::EnrolReplica, dry_run: bool) -> Result {
        let wire::EnrolReplica { key, peer_addr, api_addr, replaces } = asked;
        let members = self.members();
        if let Some(id) = roster::enrolled_as(&self.view(), &key)? {
            if roster::is_removed(&self.view(), id) {
                let what = format!("replica {id} had this key and was removed: make a new key");
                return refuse(Why::Removed, what);
            }
            return managed(id.0, format!("replica {id} was enrolled with this key before"));
        }
        // One that was enrolled and never came leaves its place, too.
        let pending = roster::pending(&self.view())?;
        let has_come = |id: ReplicaId| members.nodes.contains_key(&id.0);
        let instead =
            pending.iter().find(|(id, _)| replaces != 0 && id.0 == replaces && !has_come(*id));
        let given_up = instead.map(|(id, _)| id.0);
        let replaces = instead.map_or(replaces, |(_, row)| row.replaces.unwrap_or(0));
        if replaces != 0 {
            self.member(&members, replaces)?;
        }
        self.addresses_are_free(&members, replaces, &peer_addr, &api_addr)?;
        let others = pending.iter().filter(|(id, _)| Some(id.0) != given_up);
        addresses_are_not_promised(others, &peer_addr, &api_addr)?;
        let place = match (given_up, replaces) {
            (Some(id), _) => format!(" instead of replica {id}, which has not come"),
            (None, 0) => String::new(),
            (None, id) => format!(" in the place of replica {id}, which is removed once it votes"),
        };
        if dry_run {
            let what = format!("a new replica would be enrolled{place}; it gets its id then");
            return managed(0, what);
        }
        let at_ms = self.view().clock().now_ms;
        let replaces = (replaces != 0).then_some(replaces);
        let row = Enrolment { peer_addr, api_addr, replaces, at_ms };
        for _ in 0..TRIES_MAX {
            self.commit(|tx| {
                if let Some(id) = given_up {
                    self.forget(tx, id, "another joins in its place")?;
                }
                Ok(roster::enrol(tx, &key, &row)?)
            })
            .await?;
            let Some(id) = roster::enrolled_as(&self.view(), &key)? else { continue };
            // A founder was given its id by hand, which may be any number.
            let is_taken = self.members().nodes.contains_key(&id.0)
                || REPLICAS.get(&self.view(), &id.0)?.is_some();
            if !is_taken {
                tracing::info!(replica = %id, peer_addr = row.peer_addr, "a replica was enrolled");
                return managed(id.0, format!("replica {id} may join"));
            }
            self.commit(|tx| Ok(tx.delete(&ENROLMENTS, &key)?)).await?;
        }
        refuse(Why::Busy, "no free id was found: ask again")
    }

    /// Whether no member but `but` has one of these addresses.
    fn addresses_are_free(
        &self,
        members: &health::Members,
        but: u64,
        peer_addr: &str,
        api_addr: &str,
    ) -> Result<()> {
        for (id, node) in members.nodes.iter().filter(|(id, _)| **id != but) {
            for taken in [&node.peer_addr, &node.api_addr] {
                if !taken.is_empty() && (taken == peer_addr || taken == api_addr) {
                    return refuse(Why::Address, format!("replica {id} has the address {taken}"));
                }
            }
        }
        let is_anywhere = |addr: &str| {
            addr.parse::<std::net::SocketAddr>()
                .is_ok_and(|addr| addr.ip().to_canonical().is_unspecified())
        };
        if let Some(addr) = [peer_addr, api_addr].into_iter().find(|addr| is_anywhere(addr)) {
            let what = format!(
                "{addr} is where to listen, and nobody is reached there: give a name or an IP"
            );
            return refuse(Why::Address, what);
        }
        if !peer_addr.is_empty() && peer_addr == api_addr {
            return refuse(Why::Address, format!("{peer_addr} cannot be both its addresses"));
        }
        Ok(())
    }

    pub(super) async fn remove(
        self: &Arc<Self>,
        asked: wire::RemoveReplica,
        dry_run: bool,
    ) -> Result {
        let wire::RemoveReplica { replica: id, force } = asked;
        let members = self.members();
        match self.member(&members, id) {
            Err(error) if error.why == Why::Removed => return managed(id, error.detail),
            Err(error) if error.why == Why::NotAVoter => return self.withdraw(id, dry_run).await,
            other => other?,
        }
        if !members.voters.contains(&id) {
            if !dry_run {
                self.note_joined(id).await?;
                self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await?;
                self.settle("removed by an operator").await?;
            }
            return managed(id, format!("replica {id}, which did not vote, is removed"));
        }
        let after: BTreeSet<u64> = members.voters.iter().copied().filter(|v| *v != id).collect();
        if after.is_empty() {
            let what = format!("replica {id} is the last voter: join another one first");
            return refuse(Why::LastVoter, what);
        }
        let risk = members.risk(&after, self.limit());
        if let Some(risk) = &risk
            && !force
        {
            let what =
                format!("replica {id} is not removed: {risk}; --force removes it all the same");
            return refuse(Why::AtRisk, what);
        }
        if dry_run {
            return managed(
                id,
                match &risk {
                    None => format!("replica {id} would be removed; {}", remaining(after.len())),
                    Some(risk) => format!("replica {id} would be removed by force: {risk}"),
                },
            );
        }
        if id == self.me() {
            self.step_aside(&members, |id| after.contains(&id)).await?;
            return not_leader();
        }
        // From here on the next leader marks it too, should this one be gone before it does.
        self.commit(|tx| {
            let row = tx.get(&REPLICAS, &id)?.unwrap_or_default();
            Ok(tx.put(&REPLICAS, &id, &row)?)
        })
        .await?;
        self.change(ChangeMembers::RemoveVoters(BTreeSet::from([id]))).await?;
        self.settle("removed by an operator").await?;
        managed(id, removed(id, after.len(), risk))
    }

    /// Takes back an enrolment that nobody came with.
    async fn withdraw(&self, id: u64, dry_run: bool) -> Result {
        if !dry_run {
            self.forget_enrolment(id, "withdrawn by an operator").await?;
        }
        managed(id, format!("the enrolment of replica {id} is withdrawn"))
    }

    pub(crate) async fn forget_enrolment(&self, id: u64, why: &str) -> Result<()> {
        self.commit(|tx| self.forget(tx, id, why)).await?;
        Ok(())
    }

    /// `MEMBER-5`: whoever came with it is not forgotten.
    fn forget(&self, tx: &mut Tx, id: u64, why: &str) -> Result<()> {
        let Some((key, _)) = roster::enrolment(&self.view(), ReplicaId(id))? else {
            return Ok(());
        };
        let has_come = tx.get(&REPLICAS, &id)?.is_some();
        if has_come || self.members().nodes.contains_key(&id) {
            return refuse(Why::Busy, format!("replica {id} has come meanwhile: ask again"));
        }
        tx.delete(&ENROLMENTS, &key)?;
        let gone = roster::Replica {
            standing: Standing::Removed,
            why: why.to_owned(),
            ..roster::Replica::default()
        };
        tx.put(&REPLICAS, &id, &gone)?;
        keeper::publish(tx, "replica.forgotten", id, &json!({ "why": why }));
        Ok(())
    }

    pub(super) async fn set_address(&self, asked: wire::SetAddress, dry_run: bool) -> Result {
        let wire::SetAddress { replica: id, peer_addr, api_addr } = asked;
        let members = self.members();
        self.member(&members, id)?;
        let Some(node) = members.nodes.get(&id) else { return not_leader() };
        let or = |new: String, old: &str| if new.is_empty() { old.to_owned() } else { new };
        let new = Node {
            peer_addr: or(peer_addr, &node.peer_addr),
            api_addr: or(api_addr, &node.api_addr),
        };
        if new == *node {
            return managed(id, format!("replica {id} has these addresses already"));
        }
        self.addresses_are_free(&members, id, &new.peer_addr, &new.api_addr)?;
        let pending = roster::pending(&self.view())?;
        addresses_are_not_promised(pending.iter(), &new.peer_addr, &new.api_addr)?;
        let at = format!("at {} and {}", new.peer_addr, new.api_addr);
        if dry_run {
            return managed(id, format!("replica {id} would be {at}"));
        }
        let note = format!("replica {id} is {at}");
        let data = json!({
            "from": { "peerAddr": node.peer_addr, "apiAddr": node.api_addr },
            "to": { "peerAddr": new.peer_addr, "apiAddr": new.api_addr },
        });
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(id, new)]))).await?;
        self.tell("replica.moved", id, data).await;
        managed(id, note)
    }

    pub(super) async fn transfer(self: &Arc<Self>, to: u64, dry_run: bool) -> Result {
        let members = self.members();
        let view = self.view();
        let drained = |id: u64| roster::is_drained(&view, ReplicaId(id));
        let to = if to == 0 {
            let Some(best) = members.successor(self.limit(), |id| !drained(id)) else {
                let what = "no other voter answers, is caught up and is not drained";
                return refuse(Why::NotHealthy, what);
            };
            best
        } else {
            self.member(&members, to)?;
            if !members.voters.contains(&to) {
                let what = format!("replica {to} does not vote yet, so it cannot lead");
                return refuse(Why::NotAVoter, what);
            }
            to
        };
        if to == self.me() {
            return managed(to, format!("replica {to} leads already"));
        }
        if drained(to) {
            let what = format!("replica {to} is drained: undo that first");
            return refuse(Why::Drained, what);
        }
        if !members.answers(to, self.limit()) {
            return refuse(Why::NotHealthy, format!("replica {to} does not answer"));
        }
        let lag = members.lag(to);
        if lag > self.tuning.membership.promote_lag {
            let what =
                format!("replica {to} is {lag} entries behind: ask again when it has caught up");
            return refuse(Why::NotHealthy, what);
        }
        if dry_run {
            return managed(to, format!("replica {to} would lead"));
        }
        self.hand_over(to).await?;
        managed(to, format!("replica {to} leads"))
    }

    pub(super) async fn drain(
        self: &Arc<Self>,
        asked: wire::DrainReplica,
        dry_run: bool,
    ) -> Result {
        let wire::DrainReplica { replica: id, undo } = asked;
        let members = self.members();
        self.member(&members, id)?;
        let view = self.view();
        let may_work = |other: &&u64| {
            **other != id
                && !roster::is_drained(&view, ReplicaId(**other))
                && members.answers(**other, self.limit())
        };
        if !undo && members.voters.iter().find(may_work).is_none() {
            let what = format!(
                "replica {id} is the last voter that answers and is not drained: nobody would be left to lead"
            );
            return refuse(Why::AtRisk, what);
        }
        let note = if undo {
            format!("replica {id} takes leadership, leases and agents again")
        } else {
            format!("replica {id} is drained: others lead, hold the leases and keep the agents")
        };
        if dry_run {
            let what = if undo { "take" } else { "give up" };
            let note = format!("replica {id} would {what} leadership, leases and agents");
            return managed(id, note);
        }
        let kind = if undo { "replica.undrained" } else { "replica.drained" };
        self.commit(|tx| {
            let mut row = tx.get(&REPLICAS, &id)?.unwrap_or_default();
            if row.drained == undo {
                row.drained = !undo;
                tx.put(&REPLICAS, &id, &row)?;
                keeper::publish(tx, kind, id, &json!({}));
            }
            Ok(())
        })
        .await?;
        if !undo && id == self.me() {
            // The keeper goes on with it when it does not succeed now.
            let _ = self.step_aside(&members, |_| true).await;
        }
        managed(id, note)
    }

    /// A replica shows itself: it is made a learner, or its record is brought up to date.
    pub(super) async fn hello(&self, from: u64, hello: wire::Hello) -> Result {
        let wire::Hello { peer_addr, api_addr } = hello;
        let members = self.members();
        if members.nodes.contains_key(&from) {
            // What an earlier hello may have left undone.
            self.note_joined(from).await?;
            let asked = wire::SetAddress { replica: from, peer_addr, api_addr };
            return self.set_address(asked, false).await;
        }
        // A leader of old, or one that has just begun to lead, does not know of every enrolment, and what it says of one that
        // is not there is for good: it must have applied all that was acknowledged.
        if roster::enrolment(&self.view(), ReplicaId(from))?.is_none() {
            let read = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
            match timeout(self.rt.as_ref(), self.tuning.membership.change_within, read).await {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return not_leader(),
            }
        }
        let Some((_, row)) = roster::enrolment(&self.view(), ReplicaId(from))? else {
            self.member(&members, from)?;
            return not_leader();
        };
        if REPLICAS.get(&self.view(), &from)?.is_some() {
            self.member(&members, from)?;
        }
        let or = |new: String, old: String| if new.is_empty() { old } else { new };
        let node =
            Node { peer_addr: or(peer_addr, row.peer_addr), api_addr: or(api_addr, row.api_addr) };
        self.addresses_are_free(
            &members,
            row.replaces.unwrap_or(0),
            &node.peer_addr,
            &node.api_addr,
        )?;
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(from, node)]))).await?;
        self.note_joined(from).await?;
        tracing::info!(replica = from, "a replica joins as a learner");
        managed(from, format!("replica {from} follows, and votes once it has caught up"))
    }
}
