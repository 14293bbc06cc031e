//! Every replica asked at once what it knows by itself: it needs no quorum, and one that hangs holds up nobody.

use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

use super::cluster::Change;
use crate::{
    client::{Address, BASE, Call, Client, ClientError},
    output::{number, text},
};

/// How long a replica may take to say what it knows.
const LIMIT: Duration = Duration::from_secs(2);
/// Replicas that were heard of name others, so many times.
const ROUNDS_MAX: usize = 3;

/// What one replica said.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Where it was asked.
    pub address: Address,
    /// Whether the caller knew the address; otherwise another replica did.
    pub is_given: bool,
    /// Its `cluster.status`.
    pub said: Result<Value, ClientError>,
}

/// What all of them said.
#[derive(Debug)]
pub(crate) struct Survey(pub Vec<Seen>);

/// Asks the client's replicas, and whichever members they name.
pub(crate) async fn survey(client: &Client) -> Survey {
    let mut survey = Survey(ask(client, client.addresses().to_vec(), true).await);
    for _ in 0..ROUNDS_MAX {
        let named = survey.not_asked();
        if named.is_empty() {
            break;
        }
        survey.0.extend(ask(client, named, false).await);
    }
    survey
}

async fn ask(client: &Client, addresses: Vec<Address>, is_given: bool) -> Vec<Seen> {
    let call = Call::get(format!("{BASE}/cluster")).local();
    let one = async |address: Address| {
        let said = client.call_at(&address, &call, LIMIT).await.map(|answer| {
            let mut status = answer.body;
            if let (Value::Object(status), Some(revision)) = (&mut status, answer.revision) {
                status.entry("revision").or_insert(revision.into());
            }
            status
        });
        Seen { address, is_given, said }
    };
    join_all(addresses.into_iter().map(one)).await
}

/// A status' members.
pub(crate) fn members(status: &Value) -> &[Value] {
    status.get("members").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// How much a status is worth: who leads knows most, and then who is furthest.
fn worth(status: &Value) -> (u64, bool, u64, u64) {
    let leads = text(status, "/state") == Some("leader");
    let at = |pointer| number(status, pointer);
    (at("/term"), leads, at("/committedIndex"), at("/lastIndex"))
}

impl Seen {
    /// Which replica answered.
    pub(crate) fn replica(&self) -> Option<u64> {
        self.status()?.get("replica").and_then(Value::as_u64)
    }

    /// What it said, if it did.
    pub fn status(&self) -> Option<&Value> {
        self.said.as_ref().ok()
    }

    /// The cluster that it belongs to.
    pub fn cluster(&self) -> Option<&str> {
        text(self.status()?, "/cluster")
    }
}

impl Survey {
    /// The clusters that were met.
    pub fn clusters(&self) -> Vec<&str> {
        let mut clusters: Vec<&str> = self.0.iter().filter_map(Seen::cluster).collect();
        clusters.sort_unstable();
        clusters.dedup();
        clusters
    }

    /// Whoever knows most of a cluster.
    pub fn best_of(&self, cluster: &str) -> Option<&Seen> {
        let of_it = self.0.iter().filter(|seen| seen.cluster() == Some(cluster));
        of_it.max_by_key(|seen| seen.status().map(worth))
    }

    /// Whoever knows most.
    pub fn best(&self) -> Option<&Seen> {
        let answered = self.0.iter().filter(|seen| seen.status().is_some());
        answered.max_by_key(|seen| {
            // Another life of the cluster counts its terms anew.
            let epoch = seen.status().map(|status| number(status, "/epoch"));
            (epoch, seen.status().map(worth))
        })
    }

    /// The statuses of one cluster's replicas.
    fn of<'a>(&'a self, cluster: &'a str) -> impl Iterator<Item = &'a Value> + 'a {
        let of_it = self.0.iter().filter(move |seen| seen.cluster() == Some(cluster));
        of_it.filter_map(Seen::status)
    }

    /// Whether a member of a cluster said anything.
    pub fn answered(&self, cluster: &str, id: u64) -> bool {
        self.of(cluster).any(|status| number(status, "/replica") == id)
    }

    /// Whether most voters answer: then there is a quorum that is slow, or there will be one. While the voters change,
    /// most of those before and most of those after are needed.
    pub fn most_answer(&self) -> bool {
        let Some(best) = self.best().and_then(Seen::status) else { return false };
        let Some(cluster) = text(best, "/cluster") else { return false };
        let is_voter = |member: &&Value| member.get("voter").and_then(Value::as_bool) == Some(true);
        let voters: Vec<u64> =
            members(best).iter().filter(is_voter).map(|member| number(member, "/id")).collect();
        let sets = Change::of(best).map_or_else(|| vec![voters], Change::sets);
        let answers = |id: &&u64| self.answered(cluster, **id);
        sets.iter().all(|set| set.iter().filter(answers).count() * 2 > set.len())
    }

    /// Members that answer under another name than the one that is recorded of them: who, where that is, and where they
    /// answer.
    pub fn answered_elsewhere(&self) -> Vec<(u64, Address, &Address)> {
        let mut found = vec![];
        let best = self.best().and_then(Seen::status);
        for member in best.map_or(&[][..], members) {
            let id = number(member, "/id");
            let Some(Ok(recorded)) = text(member, "/apiAddr").map(Address::parse) else { continue };
            let was_asked = |seen: &&Seen| seen.address.host_port() == recorded.host_port();
            let of_it = best.and_then(|best| text(best, "/cluster"));
            let answers = |seen: &&Seen| seen.replica() == Some(id) && seen.cluster() == of_it;
            if self.0.iter().any(|seen| was_asked(&seen)) {
                continue;
            }
            if let Some(seen) = self.0.iter().find(answers) {
                found.push((id, recorded, &seen.address));
            }
        }
        found
    }

    /// Members that whoever knows most of their cluster names, and that were not asked.
    pub(crate) fn not_asked(&self) -> Vec<Address> {
        let mut named: Vec<Address> = vec![];
        for cluster in self.clusters() {
            let best = self.best_of(cluster).and_then(Seen::status);
            // One that answered under another name was asked.
            let silent = |member: &&Value| !self.answered(cluster, number(member, "/id"));
            let places = best.map_or(&[][..], members).iter().filter(silent);
            let places = places.filter_map(|member| text(member, "/apiAddr"));
            for address in places.filter_map(|place| Address::parse(place).ok()) {
                let is_known = self.0.iter().any(|s| s.address.host_port() == address.host_port());
                if !is_known && !named.contains(&address) {
                    named.push(address);
                }
            }
        }
        named
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Replica `id` at port 7400 + `id` of a cluster of these members.
    pub(crate) fn seen(id: u64, cluster: &str, leader: Option<u64>, members: &[u64]) -> Seen {
        let member = |id: &u64| json!({"id": id, "voter": true, "apiAddr": format!("127.0.0.1:{}", 7400 + id)});
        let status = json!({
            "replica": id, "cluster": cluster, "leader": leader, "term": 3, "committedIndex": 10 + id,
            "state": if leader == Some(id) { "leader" } else { "follower" },
            "members": members.iter().map(member).collect::<Vec<_>>(),
        });
        Seen { address: address(id), is_given: true, said: Ok(status) }
    }

    pub(crate) fn address(id: u64) -> Address {
        Address::parse(&format!("127.0.0.1:{}", 7400 + id)).unwrap()
    }

    pub(crate) fn silent(id: u64) -> Seen {
        let error =
            ClientError::Unreachable { address: address(id).to_string(), reason: "refused".into() };
        Seen { address: address(id), is_given: true, said: Err(error) }
    }

    #[test]
    fn who_leads_knows_most_and_names_who_was_not_asked() {
        let survey = Survey(vec![
            seen(1, "c", Some(2), &[1, 2, 3]),
            seen(2, "c", Some(2), &[1, 2, 9]),
            silent(3),
        ]);
        assert_eq!(survey.best().unwrap().address, address(2));
        assert_eq!(survey.not_asked(), [address(9)]);
        assert!(survey.answered("c", 1) && !survey.answered("c", 3) && !survey.answered("d", 1));
    }

    #[test]
    fn who_answers_under_another_name_is_told_with_what_is_recorded() {
        let mut named = seen(1, "c", Some(1), &[1, 2]);
        named.address = Address::parse("replica-1.example:7401").unwrap();
        let survey = Survey(vec![named, seen(2, "c", Some(1), &[1, 2])]);
        let found = survey.answered_elsewhere();
        assert_eq!(found, [(1, address(1), &survey.0[0].address)]);
        let survey = Survey(vec![seen(1, "c", Some(1), &[1, 2]), seen(2, "c", Some(1), &[1, 2])]);
        assert!(survey.answered_elsewhere().is_empty());
    }

    #[test]
    fn a_quorum_is_there_when_most_voters_answer_also_while_they_change() {
        let all = [1, 2, 3];
        let two = |leader| vec![seen(1, "c", leader, &all), seen(2, "c", leader, &all), silent(3)];
        assert!(Survey(two(Some(1))).most_answer());
        assert!(Survey(two(None)).most_answer(), "they elect");
        let alone = vec![seen(1, "c", Some(1), &all), silent(2), silent(3)];
        assert!(!Survey(alone).most_answer());
        assert!(!Survey(vec![silent(1)]).most_answer());
        let mut changing = two(Some(1));
        if let Ok(Value::Object(status)) = &mut changing[0].said {
            status.insert("change".to_owned(), json!({"from": [1, 2, 3], "to": [1, 3]}));
        }
        assert!(!Survey(changing).most_answer(), "most of those after the change, too");
    }
}
