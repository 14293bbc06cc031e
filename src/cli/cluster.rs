//! `palisade cluster`: the control plane itself.

use std::collections::{BTreeMap, BTreeSet};

use clap::Subcommand;
use serde_json::Value;

use super::Session;
use crate::{
    client::{BASE, Call, Client},
    output::{self, Format, Outcome, Table, cell, number, text},
};

/// Flags of `cluster`.
#[derive(Debug, clap::Args)]
pub struct Cluster {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show members, leader, term, last index, lag, and who owns which shards
    Status {
        /// As the replica that answers knows it, also without a quorum
        #[arg(long)]
        local: bool,
    },
    /// Show the lineage, the CA and the pins by which agents recognise this cluster
    Trust,
}

impl Cluster {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let client = session.client()?;
        match self.verb {
            Verb::Status { local } => {
                let mut status = status(&client, local).await?;
                let shards = shards(&client, local).await?;
                match session.format() {
                    Format::Table | Format::Wide => {
                        output::data(page(&status, &shards).as_bytes())
                    }
                    Format::Name => {
                        output::data(format!("cluster/{}\n", cell(&status, "/cluster")).as_bytes())
                    }
                    format => {
                        if let Value::Object(status) = &mut status {
                            status.insert("shards".to_owned(), shards);
                        }
                        output::data(output::render_value(format, &status)?.as_bytes())
                    }
                }
            }
            Verb::Trust => {
                let trust = client.call(Call::get(format!("{BASE}/cluster/trust"))).await?.body;
                let format = match session.format() {
                    Format::Json => Format::Json,
                    _ => Format::Yaml,
                };
                output::data(output::render_value(format, &trust)?.as_bytes())
            }
        }
    }
}

fn read(path: &str, local: bool) -> Call {
    let call = Call::get(format!("{BASE}{path}"));
    if local { call.local() } else { call }
}

/// `cluster.status`.
pub(crate) async fn status(client: &Client, local: bool) -> Outcome<Value> {
    Ok(client.call(read("/cluster", local)).await?.body)
}

async fn shards(client: &Client, local: bool) -> Outcome<Value> {
    Ok(client.call(read("/cluster/shards", local)).await?.body)
}

/// The leader's id, if there is one.
pub(crate) fn leader(status: &Value) -> Option<u64> {
    status.get("leader").and_then(Value::as_u64)
}

fn page(status: &Value, shards: &Value) -> String {
    let mut page = String::new();
    let leader_text = leader(status).map_or("none".to_owned(), |id| format!("replica {id}"));
    for (label, value) in [
        ("Cluster", cell(status, "/cluster")),
        ("Lineage", cell(status, "/lineage")),
        ("Leader", leader_text),
        ("Term", cell(status, "/term")),
        ("Last index", cell(status, "/lastIndex")),
        ("Revision", cell(status, "/revision")),
        ("Answered by", format!("replica {}", cell(status, "/replica"))),
    ] {
        page.push_str(&format!("{label:<12} {value}\n"));
    }
    page.push('\n');
    page.push_str(&members(status, &owned(shards)).render());
    page
}

fn members(status: &Value, owned: &Owned) -> Table {
    let mut header = vec!["REPLICA", "STATE", "LAST INDEX", "LAG", "API", "PEER"];
    // A table's header lives as long as the program; roles are few and known.
    let roles: Vec<&str> = owned.roles.iter().map(String::as_str).collect();
    let one = roles.len() <= 1;
    header.push(if one { "SHARDS" } else { "SHARDS BY ROLE" });
    let mut table = Table::new(&header);
    let empty = vec![];
    for member in status.get("members").and_then(Value::as_array).unwrap_or(&empty) {
        let id = number(member, "/id");
        let count = |role: &&str| owned.counts.get(&(id, (*role).to_owned())).copied().unwrap_or(0);
        let shards = match roles.as_slice() {
            [] => "0".to_owned(),
            [role] => count(role).to_string(),
            roles => roles
                .iter()
                .map(|role| format!("{role} {}", count(role)))
                .collect::<Vec<_>>()
                .join(", "),
        };
        table.row(vec![
            id.to_string(),
            state(member, leader(status)),
            cell(member, "/lastIndex"),
            cell(member, "/lag"),
            cell(member, "/apiAddr"),
            cell(member, "/peerAddr"),
            shards,
        ]);
    }
    table
}

fn state(member: &Value, leader: Option<u64>) -> String {
    let role = match text(member, "/state").or_else(|| text(member, "/role")) {
        Some(state) => state.to_owned(),
        None if leader == Some(number(member, "/id")) => "leader".to_owned(),
        None if member.get("voter").and_then(Value::as_bool) == Some(false) => "learner".to_owned(),
        None => "follower".to_owned(),
    };
    match member.get("reachable").and_then(Value::as_bool) {
        Some(false) => format!("{role}, unreachable"),
        _ => role,
    }
}

/// How many shards each replica owns, by role.
#[derive(Debug, Default, PartialEq, Eq)]
struct Owned {
    roles: BTreeSet<String>,
    counts: BTreeMap<(u64, String), u64>,
}

/// Reads `{"roles": [{"role": …, "owners": [{"replica": 1, "shards": 86}, …]}, …]}`, or the same
/// as objects keyed by role and replica.
fn owned(shards: &Value) -> Owned {
    let mut owned = Owned::default();
    match shards.get("roles") {
        Some(Value::Array(roles)) => {
            for entry in roles {
                owned.add(&cell(entry, "/role"), entry.get("owners").unwrap_or(&Value::Null));
            }
        }
        Some(Value::Object(roles)) => {
            for (role, owners) in roles {
                owned.add(role, owners.get("owners").unwrap_or(owners));
            }
        }
        _ => {}
    }
    owned
}

impl Owned {
    fn add(&mut self, role: &str, owners: &Value) {
        self.roles.insert(role.to_owned());
        match owners {
            Value::Array(owners) => {
                for owner in owners {
                    self.count(number(owner, "/replica"), role, number(owner, "/shards"));
                }
            }
            Value::Object(owners) => {
                for (replica, count) in owners {
                    if let Ok(replica) = replica.parse() {
                        self.count(replica, role, count.as_u64().unwrap_or(0));
                    }
                }
            }
            _ => {}
        }
    }

    fn count(&mut self, replica: u64, role: &str, shards: u64) {
        self.counts.insert((replica, role.to_owned()), shards);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status_sample() -> Value {
        let member = |id: u64, lag: u64| {
            json!({"id": id, "lastIndex": 42 - lag, "lag": lag, "reachable": id != 3,
                "apiAddr": format!("127.0.0.1:740{id}"), "peerAddr": format!("127.0.0.1:741{id}")})
        };
        json!({"cluster": "cl_1", "lineage": "ln_1", "leader": 2, "term": 3, "lastIndex": 42,
            "revision": 40, "replica": 1, "members": [member(1, 0), member(2, 0), member(3, 7)]})
    }

    #[test]
    fn the_status_is_a_page() {
        let shards = json!({"roles": [{"role": "scheduler", "owners": [
            {"replica": 1, "shards": 86}, {"replica": 2, "shards": 85}, {"replica": 3, "shards": 85}]}]});
        insta::assert_snapshot!(page(&status_sample(), &shards), @r"
        Cluster      cl_1
        Lineage      ln_1
        Leader       replica 2
        Term         3
        Last index   42
        Revision     40
        Answered by  replica 1

        REPLICA  STATE                  LAST INDEX  LAG  API             PEER            SHARDS
        1        follower               42          0    127.0.0.1:7401  127.0.0.1:7411  86
        2        leader                 42          0    127.0.0.1:7402  127.0.0.1:7412  85
        3        follower, unreachable  35          7    127.0.0.1:7403  127.0.0.1:7413  85
        ");
    }

    #[test]
    fn several_roles_are_counted_apart() {
        let shards = json!({"roles": {"scheduler": {"1": 86}, "controllers": {"2": 256}}});
        let owned = owned(&shards);
        assert_eq!(owned.roles.len(), 2);
        assert_eq!(owned.counts[&(2, "controllers".to_owned())], 256);
        assert!(page(&status_sample(), &shards).contains("controllers 256, scheduler 0"));
    }
}
