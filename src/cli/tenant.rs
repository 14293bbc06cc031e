//! `palisade tenant`: who shares the cluster, and what each may have.

use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    Session,
    approval::is_held,
    node::print_change,
    session::{Narrow, Read},
    size,
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, Client, segment},
    edge,
    output::{self, Exit, Failure, Format, Outcome, Progress, Table, View, cell, human, text},
};

const POLL: Duration = Duration::from_millis(250);

/// Flags of `tenant`.
#[derive(Debug, clap::Args)]
pub struct Tenant {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List tenants
    #[command(visible_alias = "list")]
    Ls {
        /// Only those in this state: active, suspended, deleting or deleted [default: all but deleted]
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one tenant
    #[command(visible_alias = "get")]
    Show {
        /// Its name
        tenant: String,
        #[command(flatten)]
        read: Read,
    },
    /// Show what a tenant takes of its quotas
    Usage {
        /// Its name
        tenant: String,
        #[command(flatten)]
        read: Read,
    },
    /// Make a tenant
    Create {
        /// Its name, which no tenant ever had
        tenant: String,
        #[command(flatten)]
        quotas: Quotas,
    },
    /// Change what a tenant may have; quotas that are not named stay
    #[command(visible_alias = "update")]
    SetQuota {
        /// Its name
        tenant: String,
        #[command(flatten)]
        quotas: Quotas,
    },
    /// Keep a tenant's people from changing anything; its instances go on
    Suspend {
        /// Its name
        tenant: String,
        /// Why, which they are told
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Let a suspended tenant's people change things again
    Resume {
        /// Its name
        tenant: String,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete a tenant for good, with all that it has
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Its name
        tenant: String,
        /// Also one that has workloads: they are stopped and removed
        #[arg(long)]
        force: bool,
        /// Do not wait until nothing is left of it
        #[arg(long)]
        no_wait: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Clone, Debug, Default, clap::Args)]
struct Quotas {
    /// Workloads that it may have, or none for no limit
    #[arg(long, value_name = "COUNT", value_parser = count)]
    workloads: Option<Limit<u64>>,
    /// Instances that its workloads may want, or none for no limit
    #[arg(long, value_name = "COUNT", value_parser = count)]
    instances: Option<Limit<u64>>,
    /// Threads that its instances may ask for, such as 8 or 0.5, or none for no limit
    #[arg(long, value_name = "THREADS", value_parser = threads)]
    cpu: Option<Limit<f64>>,
    /// Memory that its instances may ask for, such as 32GiB, or none for no limit
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<Limit<u64>>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// A quota, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limit<T>(Option<T>);

fn limit<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Limit<T>, String> {
    if text == "none" { Ok(Limit(None)) } else { read(text).map(|value| Limit(Some(value))) }
}

fn count(text: &str) -> Result<Limit<u64>, String> {
    limit(text, |text| text.parse().map_err(|_| "it must be a whole number, or none".to_owned()))
}

fn threads(text: &str) -> Result<Limit<f64>, String> {
    let read = |text: &str| text.parse().ok().filter(|cpu: &f64| cpu.is_finite() && *cpu >= 0.0);
    limit(text, |text| read(text).ok_or_else(|| "it must be a number, or none".to_owned()))
}

fn memory(text: &str) -> Result<Limit<u64>, String> {
    limit(text, size)
}

impl Quotas {
    /// What is said of them.
    fn body(&self) -> Value {
        let mut all = Map::new();
        let numbers =
            [("workloads", self.workloads), ("instances", self.instances), ("memory", self.memory)];
        for (name, given) in numbers {
            if let Some(Limit(value)) = given {
                all.insert(name.to_owned(), json!(value));
            }
        }
        if let Some(Limit(value)) = self.cpu {
            all.insert("cpu".to_owned(), json!(value));
        }
        Value::Object(all)
    }
}

fn path(tenant: &str) -> String {
    format!("{BASE}/tenants/{}", segment(tenant))
}

impl Tenant {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let change = async |call: Call, tenant: &str, done: &str, dry_run: bool| {
            let record = session.client()?.call(call.dry_run(dry_run)).await?.body;
            print_change::<Tenants>(session, &record, tenant, done, dry_run)
        };
        match self.verb {
            Verb::Ls { state, read, narrow, flag } => {
                let call = read.get(format!("{BASE}/tenants")).query_some("state", state);
                let call = narrow.say(call);
                if flag.watch {
                    return watch::<Tenants>(session, call).await;
                }
                let tenants = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Tenants>(session.format(), &tenants)
            }
            Verb::Show { tenant, read } => {
                let record = session.client()?.call(read.get(path(&tenant))).await?.body;
                output::print_one::<Tenants>(session.format(), &record)
            }
            Verb::Usage { tenant, read } => {
                let call = read.get(format!("{}/usage", path(&tenant)));
                usage(session, &session.client()?.call(call).await?.body)
            }
            Verb::Create { tenant, quotas } => {
                let call = Call::post(format!("{BASE}/tenants"))
                    .json(json!({ "name": tenant, "quotas": quotas.body() }));
                change(call, &tenant, "created", quotas.dry_run).await
            }
            Verb::SetQuota { tenant, quotas } => {
                let new = quotas.body();
                if new == json!({}) {
                    return Err(Failure::usage("no quota is named").hint(
                        "name at least one of --workloads, --instances, --cpu and --memory",
                    ));
                }
                let call = Call::patch(path(&tenant)).json(json!({ "quotas": new }));
                change(call, &tenant, "updated", quotas.dry_run).await
            }
            Verb::Suspend { tenant, reason, dry_run } => {
                let call = Call::post(format!("{}/suspend", path(&tenant)))
                    .json(json!({ "reason": reason }));
                change(call, &tenant, "suspended", dry_run).await
            }
            Verb::Resume { tenant, dry_run } => {
                let call = Call::post(format!("{}/resume", path(&tenant)));
                change(call, &tenant, "resumed", dry_run).await
            }
            Verb::Rm { tenant, force, no_wait, dry_run } => {
                let client = session.client()?;
                let call = Call::delete(path(&tenant)).query_some("force", force.then_some("true"));
                let answer = client.call(call.dry_run(dry_run)).await?;
                if is_held(session, &answer)? {
                    return Ok(());
                }
                let mut record = answer.body;
                if !no_wait && !dry_run {
                    record = torn_down(session, &client, &tenant).await?;
                }
                let done = if no_wait { "is being deleted" } else { "deleted" };
                print_change::<Tenants>(session, &record, &tenant, done, dry_run)
            }
        }
    }
}

/// What a teardown waits for, as far as that is known: of one that has just begun it is not.
fn torn(tenant: &str, record: &Value) -> String {
    match words(record, "/deleted/waiting").as_str() {
        "-" => format!("{tenant} is being torn down"),
        left => format!("{tenant} is being torn down, something is left: {left}"),
    }
}

/// The record of a tenant once nothing is left of it.
async fn torn_down(session: &Session, client: &Client, tenant: &str) -> Outcome<Value> {
    let (begin, limit) = (edge::now(), session.wait_limit());
    let mut progress = Progress::new();
    loop {
        let record = client.call(Call::get(path(tenant))).await?.body;
        if text(&record, "/state") == Some("deleted") {
            progress.end();
            return Ok(record);
        }
        let state = torn(tenant, &record);
        if begin.elapsed() >= limit {
            progress.end();
            return Err(Failure::new(
                Exit::TimedOut,
                format!("after {}, {state}", human::limit(limit)),
            )
            .hint(format!(
                "it goes on by itself: `palisade tenant show {tenant}` and `palisade doctor` say what it waits for"
            )));
        }
        progress.update(&state);
        edge::sleep(POLL).await;
    }
}

fn words(record: &Value, pointer: &str) -> String {
    let words = record.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let words: Vec<&str> = words.filter_map(Value::as_str).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// What can be had of a tenant, and its pointer in records.
const KINDS: [&str; 4] = ["workloads", "instances", "cpu", "memory"];

/// An amount for people.
fn amount(kind: &str, value: Option<&Value>) -> String {
    match (kind, value) {
        (_, None | Some(Value::Null)) => "-".to_owned(),
        ("memory", Some(value)) => human::bytes(value.as_u64().unwrap_or(0)).replace(' ', ""),
        ("cpu", Some(value)) => human::cpus(value.as_f64().unwrap_or(0.0)),
        (_, Some(value)) => value.to_string(),
    }
}

fn of(record: &Value, part: &str, kind: &str) -> String {
    amount(kind, record.pointer(&format!("/{part}/{kind}")))
}

fn usage(session: &Session, record: &Value) -> Outcome {
    match session.format() {
        Format::Table | Format::Wide => output::data(usage_table(record).render().as_bytes()),
        Format::Name => output::data(format!("tenant/{}\n", cell(record, "/tenant")).as_bytes()),
        format => output::data(output::render_value(format, record)?.as_bytes()),
    }
}

fn usage_table(record: &Value) -> Table {
    let mut table = Table::new(&["QUOTA", "USED", "ALLOWED", "LEFT"]);
    for kind in KINDS {
        let [used, allowed, left] = ["used", "quotas", "left"].map(|part| of(record, part, kind));
        table.row(vec![kind.to_owned(), used, allowed, left]);
    }
    table
}

/// How tenants are shown.
struct Tenants;

impl Tenants {
    fn table_at(tenants: &[Value], wide: bool, now: Timestamp) -> Table {
        let mut header = vec!["NAME", "STATE", "WORKLOADS", "INSTANCES", "CPU", "MEMORY", "AGE"];
        if wide {
            header.extend(["CREATED-BY", "REASON", "LEFT"]);
        }
        let mut table = Table::new(&header);
        for tenant in tenants {
            let mut row = vec![cell(tenant, "/name"), cell(tenant, "/state")];
            row.extend(KINDS.map(|kind| match of(tenant, "quotas", kind).as_str() {
                "-" => of(tenant, "used", kind),
                allowed => format!("{}/{allowed}", of(tenant, "used", kind)),
            }));
            row.push(human::age(text(tenant, "/createdAt"), now));
            if wide {
                row.push(cell(tenant, "/createdBy"));
                row.push(cell(tenant, "/suspended/reason"));
                row.push(words(tenant, "/deleted/waiting"));
            }
            table.row(row);
        }
        table
    }
}

impl View for Tenants {
    const KIND: &'static str = "tenant";

    fn table(tenants: &[Value], wide: bool) -> Table {
        Self::table_at(tenants, wide, Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_teardown_says_what_is_left_once_that_is_known() {
        let told = |waiting: Value| torn("acme", &json!({ "deleted": { "waiting": waiting } }));
        assert_eq!(told(json!([])), "acme is being torn down");
        let left = "acme is being torn down, something is left: workloads, nodes";
        assert_eq!(told(json!(["workloads", "nodes"])), left);
    }

    fn acme() -> Value {
        json!({
            "name": "acme", "tenant": "acme", "state": "active",
            "quotas": {"workloads": null, "instances": 4, "cpu": 2.5, "memory": 1_073_741_824_u64},
            "used": {"workloads": 1, "instances": 3, "cpu": 1.5, "memory": 805_306_368},
            "left": {"workloads": null, "instances": 1, "cpu": 1.0, "memory": 268_435_456},
            "suspended": null, "deleted": null, "createdBy": "token/ops",
            "createdAt": "2026-01-01T00:00:00.000Z", "revision": 7,
        })
    }

    fn gone() -> Value {
        let mut gone = acme();
        gone["name"] = json!("gone");
        gone["state"] = json!("deleting");
        gone["deleted"] = json!({"waiting": ["inventory", "workloads"]});
        gone
    }

    #[test]
    fn tenants_are_a_table() {
        let now = "2026-01-01T00:03:00Z".parse().unwrap();
        insta::assert_snapshot!(Tenants::table_at(&[acme(), gone()], true, now).render(), @r"
        NAME  STATE     WORKLOADS  INSTANCES  CPU      MEMORY       AGE  CREATED-BY  REASON  LEFT
        acme  active    1          3/4        1.5/2.5  768MiB/1GiB  3m   token/ops   -       -
        gone  deleting  1          3/4        1.5/2.5  768MiB/1GiB  3m   token/ops   -       inventory, workloads
        ");
    }

    #[test]
    fn usage_is_a_table() {
        insta::assert_snapshot!(usage_table(&acme()).render(), @r"
        QUOTA      USED    ALLOWED  LEFT
        workloads  1       -        -
        instances  3       4        1
        cpu        1.5     2.5      1
        memory     768MiB  1GiB     256MiB
        ");
    }

    #[test]
    fn a_quota_is_a_number_or_none() {
        assert_eq!(count("3"), Ok(Limit(Some(3))));
        assert_eq!(count("none"), Ok(Limit(None)));
        assert!(count("-1").is_err() && count("many").is_err() && count("").is_err());
        assert_eq!(threads("0.5"), Ok(Limit(Some(0.5))));
        assert!(threads("-1").is_err() && threads("nan").is_err() && threads("inf").is_err());
        assert_eq!(memory("2GiB"), Ok(Limit(Some(2 << 30))));
    }

    #[test]
    fn what_is_not_said_of_quotas_stays() {
        let quotas = Quotas {
            instances: Some(Limit(Some(4))),
            memory: Some(Limit(None)),
            ..Quotas::default()
        };
        assert_eq!(quotas.body(), json!({"instances": 4, "memory": null}));
    }
}
