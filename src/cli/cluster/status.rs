//! `palisade cluster status`: members, leader, how far each is, and who owns which shards.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::look::{Change, Look, leader, listed, look};
use crate::{
    cli::{Session, survey::members},
    output::{self, Format, Outcome, Table, cell, human, number, text},
};

/// Flags of `cluster status`.
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// As the replica that answers knows it, also without a quorum
    #[arg(long)]
    local: bool,
}

impl Status {
    /// Asks and prints.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let client = session.client()?;
        let Look { mut status, shards, backups } = look(&client, self.local).await?;
        match session.format() {
            Format::Table | Format::Wide => {
                output::data(page(&status, &shards, &backups).as_bytes())
            }
            Format::Name => {
                output::data(format!("cluster/{}\n", cell(&status, "/cluster")).as_bytes())
            }
            format => {
                if let Value::Object(status) = &mut status {
                    status.insert("shards".to_owned(), shards);
                    status.insert("backups".to_owned(), backups);
                }
                output::data(output::render_value(format, &status)?.as_bytes())
            }
        }
    }
}

/// Them in a line, if there is something to say.
fn backup_line(backups: &Value) -> Option<String> {
    let every = backups.get("everyHours").and_then(Value::as_u64);
    let last = text(backups, "/last/at")
        .map(|at| format!("{at} {}", text(backups, "/last/file").unwrap_or_default()));
    let mut line = match (last, every) {
        (Some(last), _) => last,
        (None, Some(_)) => "none yet".to_owned(),
        (None, None) if backups.is_null() => return None,
        (None, None) => return Some("none scheduled".to_owned()),
    };
    if let Some(every) = every {
        line.push_str(&format!(", one every {every} h"));
    }
    if backups.get("overdue").and_then(Value::as_bool) == Some(true) {
        line.push_str(", OVERDUE");
    }
    if let Some(error) = text(backups, "/failure/error") {
        let at = text(backups, "/failure/at").unwrap_or_default();
        line.push_str(&format!("; failed {at}: {error}"));
    }
    Some(line)
}

/// A change of the members, and a disk that is nearly full, in a line each.
fn under_way(status: &Value) -> String {
    let mut lines = String::new();
    if let Some(change) = Change::of(status) {
        let away = status.pointer("/change/waitsFor").and_then(Value::as_array);
        let away: Vec<u64> = away.into_iter().flatten().filter_map(Value::as_u64).collect();
        let waits = match away.as_slice() {
            [] => String::new(),
            away => format!("; replica {} does not answer", listed(away)),
        };
        lines.push_str(&format!("{:<12} {change} is under way{waits}\n", "Members"));
    }
    if let Some(path) = text(status, "/noSpace/path") {
        let bytes = |at| number(status, at);
        lines.push_str(&format!(
            "{:<12} replica {} takes no writes while it leads: {} bytes are free under {path}, and {} must be\n",
            "No space",
            cell(status, "/replica"),
            bytes("/noSpace/freeBytes"),
            bytes("/noSpace/neededBytes"),
        ));
    }
    lines
}

fn page(status: &Value, shards: &Value, backups: &Value) -> String {
    let mut page = String::new();
    let leader_text = leader(status).map_or("none".to_owned(), |id| format!("replica {id}"));
    for (label, value) in [
        ("Cluster", cell(status, "/cluster")),
        ("Lineage", cell(status, "/lineage")),
        ("Leader", leader_text),
        ("Term", cell(status, "/term")),
        ("Last index", cell(status, "/lastIndex")),
        ("Revision", cell(status, "/revision")),
        ("Format", cell(status, "/format")),
        ("Answered by", format!("replica {}", cell(status, "/replica"))),
    ] {
        page.push_str(&format!("{label:<12} {value}\n"));
    }
    page.push_str(&under_way(status));
    if let Some(line) = backup_line(backups) {
        page.push_str(&format!("{:<12} {line}\n", "Last backup"));
    }
    page.push('\n');
    page.push_str(&member_table(status, &owned(shards)).render());
    page
}

fn member_table(status: &Value, owned: &Owned) -> Table {
    let mut table =
        Table::new(&["REPLICA", "STATE", "LAST INDEX", "LAG", "API", "PEER", "VERSION", "SHARDS"]);
    for member in members(status) {
        let id = number(member, "/id");
        let is_leader = leader(status) == Some(id);
        let (index, lag) = if is_leader {
            (cell(status, "/lastIndex"), "0".to_owned())
        } else {
            (cell(member, "/matchedIndex"), cell(member, "/lag"))
        };
        table.row(vec![
            id.to_string(),
            state(member, is_leader),
            index,
            lag,
            cell(member, "/apiAddr"),
            cell(member, "/peerAddr"),
            cell(member, "/version"),
            owned.of(id),
        ]);
    }
    let pending = status.get("pending").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for join in pending {
        let none = || "-".to_owned();
        table.row(vec![
            cell(join, "/id"),
            pending_state(join),
            none(),
            none(),
            cell(join, "/apiAddr"),
            cell(join, "/peerAddr"),
            none(),
            none(),
        ]);
    }
    table
}

/// One that may join and has not come.
fn pending_state(join: &Value) -> String {
    let since = i64::try_from(number(join, "/forMs") / 1000).unwrap_or(i64::MAX);
    let place = join.get("replaces").and_then(Value::as_u64);
    let place = place.map(|id| format!(" in the place of {id}")).unwrap_or_default();
    format!("may join{place}, not come for {}", human::span(since))
}

fn state(member: &Value, is_leader: bool) -> String {
    let drained = member.get("drained").and_then(Value::as_bool).unwrap_or(false);
    let drained = if drained { ", drained" } else { "" };
    if let Some(phase) = text(member, "/phase") {
        return format!("learner, {phase}{drained}");
    }
    let role = match member.get("voter").and_then(Value::as_bool) {
        _ if is_leader => "leader",
        Some(false) => "learner",
        _ => "follower",
    };
    if member.get("answers").and_then(Value::as_bool) != Some(false) {
        return format!("{role}{drained}");
    }
    match member.get("lastAckMs").and_then(Value::as_u64) {
        Some(silent) => format!("{role}, away {} s{drained}", silent / 1000),
        None => format!("{role}, does not answer{drained}"),
    }
}

/// How many shards each replica owns, by role.
#[derive(Debug, Default, PartialEq, Eq)]
struct Owned {
    roles: BTreeSet<String>,
    counts: BTreeMap<(u64, String), u64>,
}

/// Reads `{"owners": [{"role": …, "owner": "1", "shards": 86}, …]}`.
fn owned(shards: &Value) -> Owned {
    let mut owned = Owned::default();
    let owners = shards.get("owners").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for entry in owners {
        let role = cell(entry, "/role");
        let owner = text(entry, "/owner").and_then(|owner| owner.parse().ok()).unwrap_or(0);
        owned.roles.insert(role.clone());
        *owned.counts.entry((owner, role)).or_default() += number(entry, "/shards");
    }
    owned
}

impl Owned {
    /// What a replica owns, in one cell.
    fn of(&self, replica: u64) -> String {
        if self.roles.is_empty() {
            return "0".to_owned();
        }
        let count = |role: &String| self.counts.get(&(replica, role.clone())).copied().unwrap_or(0);
        self.roles
            .iter()
            .map(|role| format!("{role} {}", count(role)))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status_sample() -> Value {
        let member = |id: u64, lag: Option<u64>| {
            json!({"id": id, "matchedIndex": lag.map(|lag| 42 - lag), "lag": lag, "voter": true,
                "leader": id == 2, "version": "0.1.0", "lastAckMs": if id == 3 { 9_000 } else { 12 }, "answers": id != 3,
                "apiAddr": format!("127.0.0.1:740{id}"), "peerAddr": format!("127.0.0.1:741{id}")})
        };
        json!({"cluster": "cl_1", "lineage": "ln_1", "leader": 2, "term": 3, "lastIndex": 42,
            "revision": 40, "replica": 2, "format": 1,
            "members": [member(1, Some(0)), member(2, None), member(3, Some(7))]})
    }

    #[test]
    fn the_status_is_a_page() {
        let owner = |role: &str, owner: &str, shards: u64| json!({"role": role, "owner": owner, "shards": shards});
        let shards = json!({"total": 256, "owners": [owner("scheduler", "1", 86), owner("scheduler", "2", 170),
            owner("controllers", "1", 128), owner("controllers", "2", 128)]});
        let backups = json!({"everyHours": 24, "overdue": false,
            "last": {"at": "2026-11-30T04:00:00Z", "file": "/kept/ln_1.backup"},
            "failure": {"at": "2026-12-01T04:00:00Z", "error": "no room"}});
        insta::assert_snapshot!(page(&status_sample(), &shards, &backups), @r"
        Cluster      cl_1
        Lineage      ln_1
        Leader       replica 2
        Term         3
        Last index   42
        Revision     40
        Format       1
        Answered by  replica 2
        Last backup  2026-11-30T04:00:00Z /kept/ln_1.backup, one every 24 h; failed 2026-12-01T04:00:00Z: no room

        REPLICA  STATE               LAST INDEX  LAG  API             PEER            VERSION  SHARDS
        1        follower            42          0    127.0.0.1:7401  127.0.0.1:7411  0.1.0    controllers 128, scheduler 86
        2        leader              42          0    127.0.0.1:7402  127.0.0.1:7412  0.1.0    controllers 128, scheduler 170
        3        follower, away 9 s  35          7    127.0.0.1:7403  127.0.0.1:7413  0.1.0    controllers 0, scheduler 0
        ");
    }

    #[test]
    fn what_waits_is_shown_and_who_is_silent() {
        let status = json!({"cluster": "cl_1", "lineage": "ln_1", "leader": null, "term": 3, "lastIndex": 42,
            "revision": 40, "replica": 2, "format": 1,
            "members": [
                {"id": 1, "voter": true, "answers": false, "apiAddr": "a:1", "peerAddr": "a:2"},
                {"id": 2, "voter": true, "answers": true, "apiAddr": "b:1", "peerAddr": "b:2"}],
            "change": {"from": [1, 2, 3], "to": [1, 2], "waitsFor": [1]},
            "noSpace": {"path": "/data/log", "freeBytes": 53_000_000, "neededBytes": 67_108_864},
            "pending": [{"id": 77, "apiAddr": "c:1", "peerAddr": "c:2", "replaces": 3, "forMs": 200_000}]});
        insta::assert_snapshot!(page(&status, &Value::Null, &Value::Null), @r"
        Cluster      cl_1
        Lineage      ln_1
        Leader       none
        Term         3
        Last index   42
        Revision     40
        Format       1
        Answered by  replica 2
        Members      a change of the voters from 1, 2, 3 to 1, 2 is under way; replica 1 does not answer
        No space     replica 2 takes no writes while it leads: 53000000 bytes are free under /data/log, and 67108864 must be

        REPLICA  STATE                                        LAST INDEX  LAG  API  PEER  VERSION  SHARDS
        1        follower, does not answer                    -           -    a:1  a:2   -        0
        2        follower                                     -           -    b:1  b:2   -        0
        77       may join in the place of 3, not come for 3m  -           -    c:1  c:2   -        -
        ");
    }

    #[test]
    fn what_became_of_backups_is_said_in_a_line() {
        assert_eq!(backup_line(&Value::Null), None, "nobody says");
        let said = |value: Value| backup_line(&value).unwrap();
        assert_eq!(said(json!({"everyHours": null, "last": null})), "none scheduled");
        let late = json!({"everyHours": 1, "last": null, "overdue": true});
        assert_eq!(said(late), "none yet, one every 1 h, OVERDUE");
    }
}
