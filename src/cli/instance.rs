//! `palisade instance`.

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Session,
    command::{Commands, finished},
    logs::{LogFlags, print_logs},
    session::{Narrow, Read, Whose},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, segment},
    output::{self, Format, Outcome, Table, View, cell, human, text},
};

/// Flags of `instance`.
#[derive(Debug, clap::Args)]
pub struct Instance {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List instances
    #[command(visible_alias = "list")]
    Ls {
        /// Only those of this workload
        #[arg(long, value_name = "NAME")]
        workload: Option<String>,
        /// Only those on this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one instance
    #[command(visible_alias = "get")]
    Show {
        /// Name or id
        instance: String,
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        read: Read,
    },
    /// Send its process a signal; what ends because of it is restarted as its workload says
    Signal {
        /// Name or id
        instance: String,
        /// TERM, INT, QUIT, HUP, USR1, USR2, KILL or WINCH
        signal: String,
        #[command(flatten)]
        whose: Whose,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
        /// Do not wait until it was sent
        #[arg(long)]
        no_wait: bool,
    },
    /// Print what it wrote
    #[command(visible_alias = "log")]
    Logs {
        /// Name or id
        instance: String,
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        flags: LogFlags,
    },
}

impl Instance {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let client = session.client()?;
        match self.verb {
            Verb::Ls { workload, node, whose, read, narrow, flag } => {
                let call = narrow
                    .say(read.get(format!("{BASE}/instances")))
                    .query_some("workload", workload)
                    .query_some("node", node);
                let call = whose.say(call);
                if flag.watch {
                    return watch::<Instances>(session, call).await;
                }
                let instances = narrow.ordered(client.list(call).await?);
                output::print_list::<Instances>(session.format(), &instances)
            }
            Verb::Show { instance, whose, read } => {
                let call = read.get(format!("{BASE}/instances/{}", segment(&instance)));
                let answer = client.call(whose.say(call)).await?;
                read.tell(&answer);
                output::print_one::<Instances>(session.format(), &answer.body)
            }
            Verb::Signal { instance, signal, whose, dry_run, no_wait } => {
                let path = format!("{BASE}/instances/{}/signal", segment(&instance));
                let call = Call::post(path).json(json!({ "signal": signal }));
                let sent = client.call(whose.say(call).dry_run(dry_run)).await?.body;
                let (record, got) = match (dry_run, no_wait) {
                    (true, _) => (sent, "would get"),
                    (false, true) => (sent, "is sent"),
                    (false, false) => (finished(session, &client, &sent).await?, "got"),
                };
                match session.format() {
                    Format::Table | Format::Wide => {
                        let signal = cell(&record, "/payload/signal");
                        output::data(format!("instance/{instance} {got} {signal}\n").as_bytes())
                    }
                    format => output::print_one::<Commands>(format, &record),
                }
            }
            Verb::Logs { instance, whose, flags } => {
                let call = Call::get(format!("{BASE}/instances/{}", segment(&instance)));
                let record = client.call(whose.say(call)).await?.body;
                print_logs(&client, &[record], &flags).await
            }
        }
    }
}

/// How instances are shown.
pub(super) struct Instances;

impl Instances {
    fn address(instance: &Value) -> String {
        let Some(address) = text(instance, "/address") else { return "-".to_owned() };
        let ports: Vec<String> = match instance.get("ports") {
            Some(Value::Object(ports)) => ports.values().map(Value::to_string).collect(),
            _ => vec![],
        };
        if ports.is_empty() { address.to_owned() } else { format!("{address}:{}", ports.join(",")) }
    }

    fn table_at(instances: &[Value], wide: bool, now: Timestamp) -> Table {
        let mut header =
            vec!["NAME", "STATUS", "NODE", "ADDRESS", "RESTARTS", "VERSION", "AGE", "MESSAGE"];
        if wide {
            header.extend(["PID", "ID"]);
        }
        let mut table = Table::new(&header);
        for instance in instances {
            let node = text(instance, "/nodeName").or_else(|| text(instance, "/node"));
            let mut row = vec![
                cell(instance, "/name"),
                cell(instance, "/status/phase"),
                node.unwrap_or("-").to_owned(),
                Self::address(instance),
                cell(instance, "/status/restarts"),
                cell(instance, "/version"),
                human::age(text(instance, "/createdAt"), now),
                cell(instance, "/status/message"),
            ];
            if wide {
                row.extend(["/status/pid", "/id"].map(|pointer| cell(instance, pointer)));
            }
            table.row(row);
        }
        table
    }
}

impl View for Instances {
    const KIND: &'static str = "instance";

    fn table(instances: &[Value], wide: bool) -> Table {
        Self::table_at(instances, wide, Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_a_table() {
        let running = json!({"id": "in_01", "name": "hello-1", "workload": "hello", "node": "nd_1",
            "nodeName": "node-1", "address": "127.0.0.1", "ports": {"http": 21000}, "version": 1,
            "createdAt": "2026-01-01T00:00:00Z",
            "status": {"phase": "healthy", "restarts": 0, "message": "", "pid": 4711}});
        let pending = json!({"id": "in_02", "name": "hello-2", "workload": "hello", "node": null,
            "nodeName": null, "address": "", "ports": {}, "version": 1,
            "createdAt": "2026-01-01T00:00:00Z",
            "status": {"phase": "pending", "restarts": 0, "message": "no node fits"}});
        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        insta::assert_snapshot!(Instances::table_at(&[running, pending], true, now).render(), @r"
        NAME     STATUS   NODE    ADDRESS          RESTARTS  VERSION  AGE  MESSAGE       PID   ID
        hello-1  healthy  node-1  127.0.0.1:21000  0         1        30s  -             4711  in_01
        hello-2  pending  -       -                0         1        30s  no node fits  -     in_02
        ");
    }
}
