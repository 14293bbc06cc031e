//! What the cluster is like: as its leader knows it, and without a quorum as the replicas that answer know it.

use std::time::Duration;

use futures::future::{Either, select};
use serde_json::Value;

use crate::{
    cli::survey::{Seen, Survey, members, survey},
    client::{Address, Answer, BASE, Call, Client, ClientError},
    edge,
    output::{self, Exit, Failure, Outcome, cell, number, text},
};

/// How long the cluster is waited for before the replicas are asked what each knows by itself.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// How long a cluster is waited for most of whose voters answer: longer than the 5 s after which they say that they have
/// no quorum all the same.
const SLOW: Duration = Duration::from_secs(10);
/// How long one replica is waited for.
const LIMIT: Duration = Duration::from_secs(2);
/// So long may a follower say nothing to the leader before it counts as away.
pub(super) const SILENT_MS: u64 = 2_000;

/// A change of the voters that is not over.
pub(crate) struct Change {
    from: Vec<u64>,
    to: Vec<u64>,
}

/// Ids with commas between them.
pub(crate) fn listed(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

impl Change {
    /// The one that a status tells of.
    pub(crate) fn of(status: &Value) -> Option<Self> {
        let change = status.get("change").filter(|change| !change.is_null())?;
        let ids = |name: &str| {
            let ids = change.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            ids.iter().filter_map(Value::as_u64).collect()
        };
        Some(Self { from: ids("from"), to: ids("to") })
    }

    /// The sets of voters of which most must agree meanwhile.
    pub(crate) fn sets(self) -> Vec<Vec<u64>> {
        [self.from, self.to].into_iter().filter(|set| !set.is_empty()).collect()
    }

    /// Whoever votes before or after it.
    pub(crate) fn all(&self) -> Vec<u64> {
        let mut all = [self.from.as_slice(), self.to.as_slice()].concat();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let to = listed(&self.to);
        if self.from.is_empty() {
            return write!(f, "a change of the voters to {to}");
        }
        write!(f, "a change of the voters from {} to {to}", listed(&self.from))
    }
}

/// What was seen.
pub(super) struct Look {
    /// `cluster.status`, with its revision, and for each member whether it `answers`.
    pub status: Value,
    /// `cluster.shards`.
    pub shards: Value,
    /// `cluster.backups`; null where nobody says.
    pub backups: Value,
}

fn read(path: &str, local: bool) -> Call {
    let call = Call::get(format!("{BASE}{path}"));
    if local { call.local() } else { call }
}

fn with_revision(answer: Answer) -> Value {
    let mut status = answer.body;
    if let (Value::Object(status), Some(revision)) = (&mut status, answer.revision) {
        status.entry("revision").or_insert(revision.into());
    }
    status
}

/// `cluster.status`, as whichever replica answers knows it; with its revision.
pub(crate) async fn status(client: &Client, local: bool) -> Outcome<Value> {
    Ok(with_revision(client.call(read("/cluster", local)).await?))
}

/// The leader's id, if there is one.
pub(crate) fn leader(status: &Value) -> Option<u64> {
    status.get("leader").and_then(Value::as_u64)
}

/// Whether it is the leader's own word.
fn is_of_leader(status: &Value) -> bool {
    leader(status).is_some() && leader(status) == status.get("replica").and_then(Value::as_u64)
}

/// Where operators reach the leader, if a status says so.
pub(crate) fn leader_address(status: &Value) -> Option<Address> {
    let leader = leader(status)?;
    let member = members(status).iter().find(|member| number(member, "/id") == leader)?;
    Address::parse(text(member, "/apiAddr")?).ok()
}

/// `cluster.status` as the leader knows it: it alone knows how far the others are behind. As
/// another knows it when the leader cannot be asked.
pub(super) async fn of_leader(client: &Client) -> Outcome<Value> {
    let first = status(client, false).await?;
    if is_of_leader(&first) {
        return Ok(first);
    }
    let Some(place) = leader_address(&first) else { return Ok(first) };
    client.prefer(place.host_port());
    let asked = client.call_at(&place, &read("/cluster", false), LIMIT).await;
    Ok(asked.map_or(first, with_revision))
}

/// The status, the shards and the backups; as one replica sees them when there is no quorum.
pub(super) async fn look(client: &Client, local: bool) -> Outcome<Look> {
    if local {
        let status = status(client, true).await?;
        return with_the_rest(client, status, true).await;
    }
    let mut asked = Box::pin(of_leader(client));
    if let Some(asked) = edge::within(PATIENCE, asked.as_mut()).await {
        return match asked {
            Ok(status) => with_the_rest(client, status, false).await,
            Err(failure) => instead(client, failure, survey(client).await).await,
        };
    }
    // It goes on meanwhile: a cluster that is slow, or that only starts, is not one without a quorum.
    let (asked, seen) = match select(asked, Box::pin(survey(client))).await {
        Either::Left((Ok(status), _)) => return with_the_rest(client, status, false).await,
        Either::Left((Err(failure), seen)) => (Err(failure), seen.await),
        Either::Right((seen, asked)) if seen.best().is_none() => (asked.await, seen),
        Either::Right((seen, asked)) if seen.most_answer() => {
            match edge::within(SLOW, asked).await {
                Some(asked) => (asked, seen),
                None => return without_quorum(client, &seen).await,
            }
        }
        Either::Right((seen, _)) => return without_quorum(client, &seen).await,
    };
    match asked {
        Ok(status) => with_the_rest(client, status, false).await,
        Err(failure) => instead(client, failure, seen).await,
    }
}

/// What is seen without a quorum, if it is for want of one that the cluster did not answer.
async fn instead(client: &Client, failure: Failure, seen: Survey) -> Outcome<Look> {
    // When not even that can be had, the first reason is the better one.
    if failure.exit != Exit::Unavailable || seen.best().is_none() {
        return Err(failure);
    }
    without_quorum(client, &seen).await
}

async fn with_the_rest(client: &Client, mut status: Value, local: bool) -> Outcome<Look> {
    let shards = client.call(read("/cluster/shards", local)).await?.body;
    let backups = client.call(read("/cluster/backups", local)).await;
    // A follower does not know who answers the leader.
    let seen = if local || is_of_leader(&status) { None } else { Some(survey(client).await) };
    note_answers(&mut status, seen.as_ref());
    Ok(Look { status, shards, backups: backups.map_or(Value::Null, |answer| answer.body) })
}

async fn without_quorum(client: &Client, seen: &Survey) -> Outcome<Look> {
    let Some((best, status)) = seen.best().and_then(|best| Some((best, best.status()?))) else {
        return Err(ClientError::NoAddress.into());
    };
    let replica = cell(status, "/replica");
    output::say(format!("without a quorum: as replica {replica} sees it"));
    let Seen { address, .. } = best;
    let ask = async |path: &str| {
        let asked = client.call_at(address, &read(path, true), LIMIT).await;
        asked.map_or(Value::Null, |answer| answer.body)
    };
    let (shards, backups) = (ask("/cluster/shards").await, ask("/cluster/backups").await);
    let mut status = status.clone();
    note_answers(&mut status, Some(seen));
    Ok(Look { status, shards, backups })
}

/// Notes of each member whether it answers the leader, or else this machine; null where nobody knows. And for whom a
/// change waits.
fn note_answers(status: &mut Value, seen: Option<&Survey>) {
    let cluster = cell(status, "/cluster");
    let (replica, is_of_leader) = (number(status, "/replica"), is_of_leader(status));
    let Some(Value::Array(members)) = status.get_mut("members") else { return };
    for member in members {
        let id = number(member, "/id");
        let silent = member.get("lastAckMs").and_then(Value::as_u64);
        let answers = match (silent, seen) {
            _ if id == replica => Some(true),
            // What a leader without a quorum heard once is older than what was just asked.
            (_, Some(seen)) => Some(seen.answered(&cluster, id)),
            (Some(silent), None) if is_of_leader => Some(silent <= SILENT_MS),
            _ => None,
        };
        if let Value::Object(member) = member {
            member.insert("answers".to_owned(), answers.into());
        }
    }
    let Some(change) = Change::of(status) else { return };
    let is_away = |id: &u64| {
        let of_it = self::members(status).iter().find(|member| number(member, "/id") == *id);
        of_it.and_then(|member| member.get("answers")?.as_bool()) == Some(false)
    };
    let away: Vec<u64> = change.all().into_iter().filter(is_away).collect();
    if let Some(Value::Object(change)) = status.get_mut("change") {
        change.insert("waitsFor".to_owned(), away.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cli::survey::tests::{seen, silent},
        client::stub::{Stub, client, dead_address},
    };

    fn answers(status: &Value) -> Vec<Value> {
        members(status).iter().map(|member| member["answers"].clone()).collect()
    }

    #[test]
    fn who_does_not_answer_the_leader_is_noted() {
        let mut status = json!({"cluster": "c", "replica": 1, "leader": 1, "members": [
            {"id": 1}, {"id": 2, "lastAckMs": 12}, {"id": 3, "lastAckMs": 9_000}, {"id": 4}]});
        note_answers(&mut status, None);
        assert_eq!(answers(&status), [json!(true), json!(true), json!(false), Value::Null]);
    }

    #[test]
    fn without_a_leader_a_member_answers_when_it_answers_here() {
        let all = Survey(vec![seen(1, "c", None, &[1, 2, 3]), seen(2, "c", None, &[]), silent(3)]);
        let mut status = all.0[0].status().unwrap().clone();
        note_answers(&mut status, Some(&all));
        assert_eq!(answers(&status), [json!(true), json!(true), json!(false)]);
    }

    #[test]
    fn a_change_waits_for_those_of_it_that_do_not_answer() {
        let mut status = json!({"cluster": "c", "replica": 1, "leader": 1,
            "members": [{"id": 1}, {"id": 2, "lastAckMs": 9_000}, {"id": 3, "lastAckMs": 2}, {"id": 4, "lastAckMs": 9_000}],
            "change": {"from": [1, 2, 3], "to": [1, 3]}});
        note_answers(&mut status, None);
        assert_eq!(status["change"]["waitsFor"], json!([2]));
    }

    #[tokio::test]
    async fn a_replica_that_hangs_holds_up_a_look_without_a_quorum_for_seconds_only() {
        // It takes connections and says nothing, as a stopped process does.
        let hung = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let hung = Address::plain(hung.local_addr().unwrap().port());
        let local = json!({"cluster": "c", "replica": 2, "leader": null, "members": [{"id": 2}, {"id": 3}]});
        let refused = json!({"code": "NO_QUORUM", "detail": "no"});
        let stub = Stub::by_line(move |line| {
            let is_local = line.contains("consistency=local");
            if is_local { (200, local.clone()) } else { (503, refused.clone()) }
        });
        let client = client(vec![hung, stub.address(), dead_address()], Duration::from_secs(30));
        let begun = edge::now();
        let look = look(&client, false).await.unwrap();
        assert!(edge::now() - begun < Duration::from_secs(10), "{:?}", edge::now() - begun);
        assert_eq!(look.status["replica"], 2);
        assert_eq!(answers(&look.status), [json!(true), json!(false)]);
    }
}
