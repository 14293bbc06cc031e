//! `palisade workload`.

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Session,
    apply::Apply,
    approval::is_held,
    diff::Diff,
    instance::Instances,
    logs::{LogFlags, print_logs},
    node::print_change,
    session::{Narrow, Read, Whose},
    wait::{Goal, Watch, instances, wait},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, Client, segment},
    output::{self, Format, Outcome, Table, View, cell, human, number, text},
};

/// Flags of `workload`.
#[derive(Debug, clap::Args)]
pub struct Workload {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make workloads as their specs say
    Apply(Apply),
    /// Say what specs would change, and what that does to instances
    Diff(Diff),
    /// List workloads
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
    /// Show one workload and its instances
    #[command(visible_alias = "get")]
    Show {
        /// Name or id
        workload: String,
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        read: Read,
    },
    /// Print what its instances wrote
    #[command(visible_alias = "log")]
    Logs {
        /// Name or id
        workload: String,
        /// Only this instance
        #[arg(long, value_name = "NAME")]
        instance: Option<String>,
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        flags: LogFlags,
    },
    /// Change how many instances there are
    Scale {
        /// Name or id
        workload: String,
        /// How many
        count: u64,
        #[command(flatten)]
        change: Change,
    },
    /// Run again what was stopped
    Start(Action),
    /// Stop all instances and keep the workload
    Stop(Action),
    /// Replace all instances by new ones
    Restart(Action),
    /// Stop all instances and forget the workload
    #[command(visible_aliases = ["remove", "delete"])]
    Rm(Action),
}

#[derive(Clone, Debug, clap::Args)]
struct Change {
    #[command(flatten)]
    whose: Whose,
    /// Do not wait until it is so
    #[arg(long)]
    no_wait: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Action {
    /// Names or ids
    #[arg(required = true, value_name = "WORKLOAD")]
    workloads: Vec<String>,
    #[command(flatten)]
    change: Change,
}

impl Workload {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Apply(apply) => apply.run(session).await,
            Verb::Diff(diff) => diff.run(session).await,
            Verb::Ls { whose, read, narrow, flag } => {
                let call = whose.say(narrow.say(read.get(format!("{BASE}/workloads"))));
                if flag.watch {
                    return watch::<Workloads>(session, call).await;
                }
                let workloads = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Workloads>(session.format(), &workloads)
            }
            Verb::Show { workload, whose, read } => show(session, &workload, &whose, &read).await,
            Verb::Logs { workload, instance, whose, flags } => {
                logs(session, (&workload, &whose), instance.as_deref(), &flags).await
            }
            Verb::Scale { workload, count, change } => {
                let call = Call::post(format!("{}/scale", path(&workload)))
                    .json(json!({ "count": count }));
                let client = session.client()?;
                change.make(session, &client, &workload, call, &format!("scaled to {count}")).await
            }
            Verb::Start(action) => action.each(session, "start", "started").await,
            Verb::Stop(action) => action.each(session, "stop", "stopped").await,
            Verb::Restart(action) => action.each(session, "restart", "restarted").await,
            Verb::Rm(action) => action.each(session, "", "removed").await,
        }
    }
}

impl Action {
    async fn each(self, session: &Session, action: &str, done: &str) -> Outcome {
        let client = session.client()?;
        for workload in &self.workloads {
            let call = match action {
                "" => Call::delete(path(workload)),
                action => Call::post(format!("{}/{action}", path(workload))),
            };
            self.change.make(session, &client, workload, call, done).await?;
        }
        Ok(())
    }
}

impl Change {
    async fn make(
        &self,
        session: &Session,
        client: &Client,
        name: &str,
        call: Call,
        done: &str,
    ) -> Outcome {
        let removing = done == "removed";
        let waiting = !self.dry_run && !self.no_wait;
        let before = match done {
            "restarted" if waiting => instances(client, name, &self.whose).await?,
            _ => vec![],
        };
        let call = self.whose.say(call);
        let answer = client.call(call.dry_run(self.dry_run)).await?;
        if is_held(session, &answer)? {
            return Ok(());
        }
        let mut record = answer.body;
        if waiting {
            let watch = match Goal::of(&record) {
                _ if removing => Watch::new(name, Goal::Gone),
                Goal::Healthy => Watch::restarted(name, &before),
                goal => Watch::new(name, goal),
            };
            wait(client, vec![watch.of(&record)], session.wait_limit()).await?;
            let as_record = matches!(session.format(), Format::Json | Format::Yaml);
            if !removing && as_record {
                record = workload(client, name, &self.whose).await?;
            }
        }
        print_change::<Workloads>(session, &record, name, done, self.dry_run)
    }
}

fn path(workload: &str) -> String {
    format!("{BASE}/workloads/{}", segment(workload))
}

/// One workload's record.
pub(super) async fn workload(client: &Client, name: &str, whose: &Whose) -> Outcome<Value> {
    Ok(client.call(whose.say(Call::get(path(name)))).await?.body)
}

async fn show(session: &Session, name: &str, whose: &Whose, read: &Read) -> Outcome {
    let client = session.client()?;
    let answer = client.call(whose.say(read.get(path(name)))).await?;
    read.tell(&answer);
    let record = answer.body;
    if !matches!(session.format(), Format::Table | Format::Wide) {
        return output::print_one::<Workloads>(session.format(), &record);
    }
    let call = read.get(format!("{BASE}/instances")).query("workload", name);
    let instances = output::by_name(client.list(whose.say(call)).await?);
    let wide = session.format() == Format::Wide;
    output::data(page(&record, &instances, wide)?.as_bytes())
}

/// One workload as a page: its state, its spec, its instances.
fn page(record: &Value, instances: &[Value], wide: bool) -> Outcome<String> {
    let mut page = String::new();
    for (label, value) in [
        ("Name", cell(record, "/name")),
        ("Id", cell(record, "/id")),
        ("Status", Workloads::status(record)),
        ("Message", cell(record, "/status/message")),
        ("Healthy", Workloads::healthy(record)),
        ("Version", cell(record, "/version")),
        ("Wanted", cell(record, "/wanted")),
        ("Pool", cell(record, "/pool")),
        ("Created", cell(record, "/createdAt")),
        ("Updated", cell(record, "/updatedAt")),
    ] {
        page.push_str(&format!("{label:<9} {value}\n"));
    }
    if let Some(Value::Array(misfits)) = record.pointer("/status/misfits")
        && !misfits.is_empty()
    {
        page.push_str("\nWhy nodes cannot take it:\n");
        for misfit in misfits {
            page.push_str(&format!("  {}: {}\n", cell(misfit, "/node"), cell(misfit, "/reason")));
        }
    }
    if let Some(spec) = record.get("spec") {
        page.push_str("\nSpec:\n");
        for line in output::render_value(Format::Yaml, spec)?.lines() {
            page.push_str(&format!("  {line}\n"));
        }
    }
    if !instances.is_empty() {
        page.push('\n');
        page.push_str(&Instances::table(instances, wide).render());
    }
    Ok(page)
}

async fn logs(
    session: &Session,
    (workload, whose): (&str, &Whose),
    instance: Option<&str>,
    flags: &LogFlags,
) -> Outcome {
    let client = session.client()?;
    let mut instances = instances(&client, workload, whose).await?;
    if let Some(wanted) = instance {
        instances
            .retain(|one| text(one, "/name") == Some(wanted) || text(one, "/id") == Some(wanted));
        if instances.is_empty() {
            return Err(output::Failure::new(
                output::Exit::NotFound,
                format!("workload {workload:?} has no instance {wanted:?}"),
            )
            .hint(format!("`palisade instance ls --workload {workload}` lists them")));
        }
    }
    if instances.is_empty() {
        // Says so when there is no such workload either.
        self::workload(&client, workload, whose).await?;
        output::say(format!("workload {workload} has no instances"));
        return Ok(());
    }
    print_logs(&client, &instances, flags).await
}

/// How workloads are shown.
pub(super) struct Workloads;

impl Workloads {
    fn status(workload: &Value) -> String {
        cell(workload, "/status/phase")
    }

    fn healthy(workload: &Value) -> String {
        format!("{}/{}", number(workload, "/status/healthy"), cell(workload, "/count"))
    }

    fn table_at(workloads: &[Value], wide: bool, now: Timestamp) -> Table {
        let mut header = vec!["NAME", "STATUS", "HEALTHY", "UP-TO-DATE", "VERSION", "AGE"];
        if wide {
            header.extend(["WANTED", "POOL", "TENANT", "ID", "MESSAGE"]);
        }
        let mut table = Table::new(&header);
        for workload in workloads {
            let mut row = vec![
                cell(workload, "/name"),
                Self::status(workload),
                Self::healthy(workload),
                cell(workload, "/status/upToDate"),
                cell(workload, "/version"),
                human::age(text(workload, "/createdAt"), now),
            ];
            if wide {
                row.extend(
                    ["/wanted", "/pool", "/tenant", "/id", "/status/message"]
                        .map(|pointer| cell(workload, pointer)),
                );
            }
            table.row(row);
        }
        table
    }
}

impl View for Workloads {
    const KIND: &'static str = "workload";

    fn table(workloads: &[Value], wide: bool) -> Table {
        Self::table_at(workloads, wide, Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Value {
        json!({
            "id": "wl_01", "name": "hello", "tenant": "", "pool": "default", "version": 2, "wanted": "up",
            "count": 3, "spec": {"name": "hello", "count": 3, "command": ["palisade", "hello"]},
            "createdAt": "2026-01-01T00:00:00.000Z", "updatedAt": "2026-01-01T00:01:00.000Z",
            "status": {"phase": "degraded", "desired": 3, "instances": 3, "healthy": 2, "upToDate": 3,
                "message": "1 instance is pending", "misfits": [{"node": "node-1", "reason": "memory: 1 GiB wanted, 0 B free"}]},
            "revision": 12,
        })
    }

    #[test]
    fn workloads_are_a_table() {
        let now = "2026-01-01T00:03:00Z".parse().unwrap();
        let table = Workloads::table_at(&[sample()], true, now).render();
        insta::assert_snapshot!(table, @r"
        NAME   STATUS    HEALTHY  UP-TO-DATE  VERSION  AGE  WANTED  POOL     TENANT  ID     MESSAGE
        hello  degraded  2/3      3           2        3m   up      default  -       wl_01  1 instance is pending
        ");
    }

    #[test]
    fn one_workload_is_a_page() {
        insta::assert_snapshot!(page(&sample(), &[], false).unwrap(), @r"
        Name      hello
        Id        wl_01
        Status    degraded
        Message   1 instance is pending
        Healthy   2/3
        Version   2
        Wanted    up
        Pool      default
        Created   2026-01-01T00:00:00.000Z
        Updated   2026-01-01T00:01:00.000Z

        Why nodes cannot take it:
          node-1: memory: 1 GiB wanted, 0 B free

        Spec:
          command:
          - palisade
          - hello
          count: 3
          name: hello
        ");
    }
}
