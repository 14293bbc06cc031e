//! `palisade command`: what agents are to do once, and what became of it.

use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::Value;

use super::{
    Session,
    node::print_change,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, Client, segment},
    edge,
    output::{self, Exit, Failure, Outcome, Table, View, cell, human, text},
};

/// Flags of `command`.
#[derive(Debug, clap::Args)]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List commands: those that go on, and those that ended lately
    #[command(visible_alias = "list")]
    Ls {
        /// Only those to this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Only those of this kind
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
        /// Only those in this state: held, pending, sent, running, succeeded, failed, timed_out,
        /// expired or cancelled
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one command
    #[command(visible_alias = "get")]
    Show {
        /// Its id
        command: String,
        #[command(flatten)]
        read: Read,
    },
    /// Take commands back that were not sent yet
    Cancel {
        /// Ids
        #[arg(required = true, value_name = "COMMAND")]
        commands: Vec<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

impl Command {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Ls { node, kind, state, read, narrow, flag } => {
                let call = narrow
                    .say(read.get(format!("{BASE}/commands")))
                    .query_some("node", node)
                    .query_some("kind", kind)
                    .query_some("state", state);
                if flag.watch {
                    return watch::<Commands>(session, call).await;
                }
                let commands = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Commands>(session.format(), &commands)
            }
            Verb::Show { command, read } => {
                let call = read.get(format!("{BASE}/commands/{}", segment(&command)));
                let answer = session.client()?.call(call).await?;
                output::print_one::<Commands>(session.format(), &answer.body)
            }
            Verb::Cancel { commands, dry_run } => {
                let client = session.client()?;
                for command in &commands {
                    let path = format!("{BASE}/commands/{}/cancel", segment(command));
                    let answer = client.call(Call::post(path).dry_run(dry_run)).await?;
                    let body = &answer.body;
                    print_change::<Commands>(session, body, command, "cancelled", dry_run)?;
                }
                Ok(())
            }
        }
    }
}

const POLL_FIRST: Duration = Duration::from_millis(15);
const POLL_MAX: Duration = Duration::from_millis(250);

/// Waits until a command is finished, and answers its record; an end that is no success is a failure.
pub(super) async fn finished(session: &Session, client: &Client, sent: &Value) -> Outcome<Value> {
    let id = cell(sent, "/id");
    let (begin, limit) = (edge::now(), session.wait_limit());
    let mut pause = POLL_FIRST;
    let mut record = sent.clone();
    loop {
        match ended(&record) {
            Some(Ok(())) => return Ok(record),
            Some(Err(failure)) => return Err(failure),
            None if begin.elapsed() >= limit => {
                let state = cell(&record, "/state");
                return Err(Failure::new(
                    Exit::TimedOut,
                    format!("command {id} is still {state} after {} s", limit.as_secs()),
                )
                .hint(format!("`palisade command show {id}` says what becomes of it")));
            }
            None => {}
        }
        edge::sleep(pause).await;
        pause = (pause * 5 / 4).min(POLL_MAX);
        let call = Call::get(format!("{BASE}/commands/{}", segment(&id)));
        record = client.call(call).await?.body;
    }
}

/// How a command ended; `None`: it goes on.
fn ended(record: &Value) -> Option<Outcome> {
    let exit = match text(record, "/state")? {
        "succeeded" => return Some(Ok(())),
        "failed" => Exit::Error,
        "timed_out" => Exit::TimedOut,
        "expired" => Exit::Unavailable,
        "cancelled" => Exit::Conflict,
        _ => return None,
    };
    let node = text(record, "/nodeName").or_else(|| text(record, "/node")).unwrap_or("-");
    let (kind, why) = (cell(record, "/kind"), Commands::result(record));
    let failure = Failure::new(exit, format!("{kind} on node {node}: {why}"));
    Some(Err(match exit {
        Exit::Unavailable => failure.hint("`palisade node ls` shows whether its agent is there"),
        _ => failure,
    }))
}

/// How commands are shown.
pub(super) struct Commands;

impl Commands {
    /// What became of it, in a line.
    fn result(command: &Value) -> String {
        let part = |pointer| text(command, pointer);
        match (part("/result/code"), part("/result/message")) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(one), None) | (None, Some(one)) => one.to_owned(),
            (None, None) => match command.pointer("/result/data") {
                None | Some(Value::Null) => "-".to_owned(),
                Some(data) => data.to_string(),
            },
        }
    }

    fn table_at(commands: &[Value], wide: bool, now: Timestamp) -> Table {
        let mut header = vec!["ID", "NODE", "KIND", "LANE", "STATE", "AGE", "RESULT"];
        if wide {
            header.extend(["SENT", "BY", "KEY"]);
        }
        let mut table = Table::new(&header);
        for command in commands {
            let node = text(command, "/nodeName").or_else(|| text(command, "/node"));
            let mut row = vec![
                cell(command, "/id"),
                node.unwrap_or("-").to_owned(),
                cell(command, "/kind"),
                cell(command, "/lane"),
                cell(command, "/state"),
                human::age(text(command, "/createdAt"), now),
                Self::result(command),
            ];
            if wide {
                row.extend(["/sent", "/createdBy", "/key"].map(|pointer| cell(command, pointer)));
            }
            table.row(row);
        }
        table
    }
}

impl View for Commands {
    const KIND: &'static str = "command";

    fn table(commands: &[Value], wide: bool) -> Table {
        Self::table_at(commands, wide, Timestamp::now())
    }

    fn name(record: &Value) -> &str {
        text(record, "/id").unwrap_or("-")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_end_that_is_no_success_is_a_failure_with_its_own_exit_code() {
        let end = |state: &str| {
            let result = json!({"code": "NOT_RUNNING", "message": "the instance does not run"});
            let record = json!({"state": state, "nodeName": "node-1", "kind": "instance.signal",
                "result": result});
            ended(&record).map(|end| end.map_err(|failure| (failure.exit, failure.detail)))
        };
        for going in ["held", "pending", "sent", "running"] {
            assert_eq!(end(going), None, "{going}");
        }
        assert_eq!(end("succeeded"), Some(Ok(())));
        let why = "instance.signal on node node-1: NOT_RUNNING: the instance does not run";
        for (state, exit) in [
            ("failed", Exit::Error),
            ("timed_out", Exit::TimedOut),
            ("expired", Exit::Unavailable),
            ("cancelled", Exit::Conflict),
        ] {
            assert_eq!(end(state), Some(Err((exit, why.to_owned()))), "{state}");
        }
    }

    #[test]
    fn commands_are_a_table() {
        let command = |id: &str, state: &str, result: Value| {
            json!({"id": id, "node": "nd_1", "nodeName": "node-1", "kind": "acme.paint",
                "lane": "paint", "state": state, "createdAt": "2026-01-01T00:00:00.000Z",
                "sent": 1, "createdBy": "token/ada", "key": "acme:1", "result": result})
        };
        let all = [
            command("cm_01", "pending", Value::Null),
            command("cm_02", "succeeded", json!({"code": "", "message": "", "data": {"coats": 2}})),
            command("cm_03", "failed", json!({"code": "NO_PAINT", "message": "it is dry"})),
        ];
        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        insta::assert_snapshot!(Commands::table_at(&all, true, now).render(), @r#"
        ID     NODE    KIND        LANE   STATE      AGE  RESULT               SENT  BY         KEY
        cm_01  node-1  acme.paint  paint  pending    30s  -                    1     token/ada  acme:1
        cm_02  node-1  acme.paint  paint  succeeded  30s  {"coats":2}          1     token/ada  acme:1
        cm_03  node-1  acme.paint  paint  failed     30s  NO_PAINT: it is dry  1     token/ada  acme:1
        "#);
    }
}
