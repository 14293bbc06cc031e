//! `palisade node`.

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::Value;

use super::{
    Session,
    approval::is_held,
    command::{Commands, finished},
    session::{Narrow, Read, Whose},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, segment},
    edge,
    output::{self, Format, Outcome, Table, View, cell, human, number, text},
};

/// Flags of `node`.
#[derive(Debug, clap::Args)]
pub struct Node {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List nodes
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one node
    #[command(visible_alias = "get")]
    Show {
        /// Name or id
        node: String,
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        read: Read,
    },
    /// Have nodes' agents answer, and show how long that takes
    Ping(Ping),
    /// Place nothing new on nodes
    Cordon(Change),
    /// Place new instances on nodes again
    Uncordon(Change),
    /// Remove nodes from the cluster
    #[command(visible_alias = "remove")]
    Rm(Removal),
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Names or ids
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    whose: Whose,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Ping {
    /// Names or ids
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    whose: Whose,
    /// Do not wait for the answer
    #[arg(long)]
    no_wait: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Removal {
    #[command(flatten)]
    change: Change,
    /// Also a node that holds instances: what runs there is left running, out of sight
    #[arg(long)]
    force: bool,
}

impl Node {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Ls { whose, read, narrow, flag } => {
                let call = whose.say(narrow.say(read.get(format!("{BASE}/nodes"))));
                if flag.watch {
                    return watch::<Nodes>(session, call).await;
                }
                let nodes = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Nodes>(session.format(), &nodes)
            }
            Verb::Show { node, whose, read } => {
                let call = whose.say(read.get(format!("{BASE}/nodes/{}", segment(&node))));
                let answer = session.client()?.call(call).await?;
                read.tell(&answer);
                output::print_one::<Nodes>(session.format(), &answer.body)
            }
            Verb::Ping(asked) => ping(session, &asked).await,
            Verb::Cordon(change) => change.each(session, "cordon", "cordoned", false).await,
            Verb::Uncordon(change) => change.each(session, "uncordon", "uncordoned", false).await,
            Verb::Rm(Removal { change, force }) => change.each(session, "", "removed", force).await,
        }
    }
}

/// The round trip is from here through the control plane's state to the agent, and back.
async fn ping(session: &Session, asked: &Ping) -> Outcome {
    let client = session.client()?;
    for node in &asked.nodes {
        let begin = edge::now();
        let call = asked.whose.say(Call::post(format!("{BASE}/nodes/{}/ping", segment(node))));
        let sent = client.call(call.dry_run(asked.dry_run)).await?.body;
        if asked.dry_run || asked.no_wait {
            print_change::<Commands>(session, &sent, node, "asked for", asked.dry_run)?;
            continue;
        }
        let mut record = finished(session, &client, &sent).await?;
        let ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        match session.format() {
            Format::Table | Format::Wide => {
                let name = cell(&record, "/nodeName");
                output::data(format!("node/{name} answered in {ms} ms\n").as_bytes())?;
            }
            format => {
                record["roundTripMs"] = ms.into();
                output::print_one::<Commands>(format, &record)?;
            }
        }
    }
    Ok(())
}

impl Change {
    async fn each(self, session: &Session, action: &str, done: &str, force: bool) -> Outcome {
        let client = session.client()?;
        for node in &self.nodes {
            let path = format!("{BASE}/nodes/{}", segment(node));
            let call = match action {
                "" => Call::delete(path).query_some("force", force.then_some("true")),
                action => Call::post(format!("{path}/{action}")),
            };
            let call = self.whose.say(call);
            let answer = client.call(call.dry_run(self.dry_run)).await?;
            if is_held(session, &answer)? {
                continue;
            }
            print_change::<Nodes>(session, &answer.body, node, done, self.dry_run)?;
        }
        Ok(())
    }
}

/// Prints what became of one thing: a line, or its record.
pub(super) fn print_change<V: View>(
    session: &Session,
    record: &Value,
    asked: &str,
    done: &str,
    dry: bool,
) -> Outcome {
    match session.format() {
        Format::Table | Format::Wide => {
            let name = match V::name(record) {
                "-" => asked,
                name => name,
            };
            let note = if dry { " (dry run)" } else { "" };
            output::data(format!("{}/{name} {done}{note}\n", V::KIND).as_bytes())
        }
        format => output::print_one::<V>(format, record),
    }
}

/// How nodes are shown.
pub(super) struct Nodes;

impl Nodes {
    /// The phase, with what an operator did to it.
    pub(super) fn status(node: &Value) -> String {
        let phase = cell(node, "/status/phase");
        match node.pointer("/schedulable").and_then(Value::as_bool) {
            Some(false) => format!("{phase},cordoned"),
            _ => phase,
        }
    }

    fn cpu(node: &Value) -> String {
        let total = node.pointer("/capacity/cpumem/cpu").and_then(Value::as_f64);
        let used = node.pointer("/used/cpumem/cpu").and_then(Value::as_f64).unwrap_or(0.0);
        match total {
            Some(total) => format!("{}/{}", human::cpus(used), human::cpus(total)),
            None => cell(node, "/facts/threads"),
        }
    }

    fn memory(node: &Value) -> String {
        let total = match number(node, "/capacity/cpumem/memory") {
            0 => return compact(number(node, "/facts/memoryBytes")),
            total => total,
        };
        format!("{}/{}", compact(number(node, "/used/cpumem/memory")), compact(total))
    }

    fn address(node: &Value) -> String {
        text(node, "/status/address")
            .or_else(|| text(node, "/facts/address"))
            .unwrap_or("-")
            .to_owned()
    }
}

impl View for Nodes {
    const KIND: &'static str = "node";

    fn table(nodes: &[Value], wide: bool) -> Table {
        Self::table_at(nodes, wide, Timestamp::now())
    }
}

impl Nodes {
    fn table_at(nodes: &[Value], wide: bool, now: Timestamp) -> Table {
        let mut header = vec!["NAME", "STATUS", "CPU", "MEMORY", "INSTANCES", "ADDRESS", "AGE"];
        if wide {
            header.extend(["POOL", "REPLICA", "AGENT", "KERNEL", "ID", "MESSAGE"]);
        }
        let mut table = Table::new(&header);
        for node in nodes {
            let mut row = vec![
                cell(node, "/name"),
                Self::status(node),
                Self::cpu(node),
                Self::memory(node),
                instances(node),
                Self::address(node),
                human::age(text(node, "/joinedAt"), now),
            ];
            if wide {
                row.extend(
                    ["/pool", "/status/replica", "/agentVersion", "/facts/kernel", "/id"]
                        .map(|pointer| cell(node, pointer)),
                );
                row.push(cell(node, "/status/message"));
            }
            table.row(row);
        }
        table
    }
}

/// A size without a space in it, so that a row stays so many words.
fn compact(bytes: u64) -> String {
    human::bytes(bytes).replace(' ', "")
}

fn instances(node: &Value) -> String {
    match node.get("allocations") {
        Some(Value::Array(allocations)) => allocations.len().to_string(),
        Some(Value::Object(allocations)) => allocations.len().to_string(),
        Some(Value::Number(count)) => count.to_string(),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Vec<Value> {
        let node = |name: &str, phase: &str, schedulable: bool| {
            json!({
                "id": "nd_01", "name": name, "pool": "default", "schedulable": schedulable,
                "agentVersion": "0.1.0", "joinedAt": "2026-01-01T00:00:00.000Z",
                "facts": {"threads": 8, "memoryBytes": 17_179_869_184_u64, "kernel": "6.8.0"},
                "capacity": {"cpumem": {"cpu": 4.0, "memory": 8_589_934_592_u64}},
                "used": {"cpumem": {"cpu": 0.5, "memory": 268_435_456}},
                "allocations": 2,
                "status": {"phase": phase, "replica": 1, "address": "127.0.0.1", "message": ""},
            })
        };
        let mut bare = node("node-3", "joining", true);
        bare["capacity"] = json!({});
        bare["allocations"] = json!([]);
        vec![node("node-1", "ready", true), node("node-2", "ready", false), bare]
    }

    fn now() -> Timestamp {
        "2026-01-01T00:03:00Z".parse().unwrap()
    }

    #[test]
    fn nodes_are_a_table() {
        insta::assert_snapshot!(Nodes::table_at(&sample(), false, now()).render(), @r"
        NAME    STATUS          CPU    MEMORY       INSTANCES  ADDRESS    AGE
        node-1  ready           0.5/4  256MiB/8GiB  2          127.0.0.1  3m
        node-2  ready,cordoned  0.5/4  256MiB/8GiB  2          127.0.0.1  3m
        node-3  joining         8      16GiB        0          127.0.0.1  3m
        ");
    }

    #[test]
    fn a_wide_table_says_more() {
        insta::assert_snapshot!(Nodes::table_at(&sample(), true, now()).render(), @r"
        NAME    STATUS          CPU    MEMORY       INSTANCES  ADDRESS    AGE  POOL     REPLICA  AGENT  KERNEL  ID     MESSAGE
        node-1  ready           0.5/4  256MiB/8GiB  2          127.0.0.1  3m   default  1        0.1.0  6.8.0   nd_01  -
        node-2  ready,cordoned  0.5/4  256MiB/8GiB  2          127.0.0.1  3m   default  1        0.1.0  6.8.0   nd_01  -
        node-3  joining         8      16GiB        0          127.0.0.1  3m   default  1        0.1.0  6.8.0   nd_01  -
        ");
    }

    #[test]
    fn names_are_kind_and_name() {
        let names = output::render_list::<Nodes>(Format::Name, &sample()).unwrap();
        assert_eq!(names, "node/node-1\nnode/node-2\nnode/node-3\n");
    }

    #[test]
    fn json_of_a_list_is_one_array_of_the_records() {
        let text = output::render_list::<Nodes>(Format::Json, &sample()).unwrap();
        let parsed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed, Value::Array(sample()));
    }
}
