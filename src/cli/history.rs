//! `palisade history`: what became of one thing, change by change, and who asked for it.

use clap::Subcommand;
use serde_json::Value;

use super::Session;
use crate::{
    client::{BASE, Call, segment},
    output::{self, Outcome, Table, View, cell, number, text},
};

/// Differences that a table shows of one change.
const SHOWN: usize = 3;
/// Of a value in a table.
const CHARS: usize = 40;

/// Flags of `history`.
#[derive(Debug, clap::Args)]
pub struct History {
    #[command(subcommand)]
    of: Of,
}

#[derive(Debug, Subcommand)]
enum Of {
    /// What became of a workload
    Workload(One),
    /// What became of an instance
    Instance(One),
    /// What became of a node
    Node(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name or id, also of one that is gone
    name: String,
    /// The tenant that it belongs to [default: the tenant that you are bound to]
    #[arg(long)]
    tenant: Option<String>,
}

impl History {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let (kind, one) = match self.of {
            Of::Workload(one) => ("workloads", one),
            Of::Instance(one) => ("instances", one),
            Of::Node(one) => ("nodes", one),
        };
        let call = Call::get(format!("{BASE}/{kind}/{}/history", segment(&one.name)))
            .query_some("tenant", one.tenant);
        let answer = session.client()?.call(call).await?.body;
        tell(&answer);
        let none = vec![];
        let changes = answer.get("items").and_then(Value::as_array).unwrap_or(&none);
        output::print_list::<Changes>(session.format(), changes)
    }
}

/// Says what is not in the list.
fn tell(answer: &Value) {
    if answer.get("older") == Some(&Value::Bool(true)) {
        output::say("these are the newest; there are older ones");
    }
    let from = number(answer, "/knownFrom");
    if from > 0 {
        output::say(format!("this replica knows what ended at revision {from} or later"));
    }
    for gap in answer.get("unknown").and_then(Value::as_array).into_iter().flatten() {
        let (from, to) = (number(gap, "/from"), number(gap, "/to"));
        output::say(format!(
            "this replica does not know what changed in revisions {from} to {to}: ask another with --addr"
        ));
    }
}

/// How changes are shown.
pub(super) struct Changes;

impl Changes {
    fn who(change: &Value, field: &str) -> String {
        match change.get("by") {
            Some(Value::Array(calls)) if calls.is_empty() => "(control plane)".to_owned(),
            Some(Value::Array(calls)) => {
                calls.iter().map(|call| cell(call, field)).collect::<Vec<_>>().join(",")
            }
            _ => "?".to_owned(),
        }
    }

    fn short(value: &Value) -> String {
        let whole = match value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if whole.chars().count() <= CHARS {
            return whole;
        }
        format!("{}…", whole.chars().take(CHARS).collect::<String>())
    }

    /// `/spec/count: 2 → 3`
    pub fn difference(one: &Value) -> String {
        let of = |field: &str| Self::short(one.get(field).unwrap_or(&Value::Null));
        format!("{}: {} → {}", cell(one, "/pointer"), of("before"), of("after"))
    }

    fn differences(change: &Value, wide: bool) -> String {
        let Some(Value::Array(all)) = change.get("differences") else {
            return if text(change, "/what") == Some("changed") { "?" } else { "-" }.to_owned();
        };
        let shown = if wide { all.len() } else { SHOWN };
        let mut told: Vec<String> = all.iter().take(shown).map(Self::difference).collect();
        if all.len() > shown {
            told.push(format!("and {} more", all.len() - shown));
        }
        if told.is_empty() { "-".to_owned() } else { told.join("; ") }
    }
}

impl View for Changes {
    const KIND: &'static str = "change";

    fn table(changes: &[Value], wide: bool) -> Table {
        let mut header = vec!["REVISION", "TIME", "WHAT", "BY", "METHOD", "DIFFERENCES"];
        if wide {
            header.extend(["VERSION", "REQUEST", "ID"]);
        }
        let mut table = Table::new(&header);
        for change in changes {
            let mut row = vec![
                cell(change, "/revision"),
                cell(change, "/at"),
                cell(change, "/what"),
                Self::who(change, "/actor"),
                Self::who(change, "/method"),
                Self::differences(change, wide),
            ];
            if wide {
                row.extend([
                    cell(change, "/version"),
                    Self::who(change, "/requestId"),
                    cell(change, "/id"),
                ]);
            }
            table.row(row);
        }
        table
    }

    fn name(change: &Value) -> &str {
        text(change, "/id").unwrap_or("-")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_is_somebody_the_control_plane_or_not_known() {
        let call = json!({"actor": "token/ada", "method": "workloads.scale", "requestId": "r"});
        let difference =
            |n: u64| json!({"pointer": format!("/spec/{n}"), "before": n, "after": null});
        let changes = [
            json!({"revision": 1, "what": "created", "by": [call], "differences": null}),
            json!({"revision": 2, "what": "changed", "by": [], "differences": [difference(1), difference(2), difference(3), difference(4)]}),
            json!({"revision": 3, "what": "changed", "by": null, "differences": null}),
        ];
        let shown = Changes::table(&changes, false).render();
        let lines: Vec<&str> = shown.lines().skip(1).collect();
        assert!(lines[0].contains("token/ada") && lines[0].contains("workloads.scale"), "{shown}");
        assert!(lines[1].contains("(control plane)"), "{shown}");
        assert!(lines[1].contains("/spec/1: 1 → -;") && lines[1].contains("and 1 more"), "{shown}");
        assert!(lines[2].contains('?') && !lines[2].contains("control plane"), "{shown}");
    }
}
