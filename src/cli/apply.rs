//! `palisade workload apply`.

use std::path::{Path, PathBuf};

use palisade_contract::id::{NAME_RULE, is_name};
use serde_json::{Value, json};

use super::{
    Session,
    session::Whose,
    spec_file,
    wait::{Goal, Watch, wait},
    workload::{Workloads, workload},
};
use crate::{
    client::{Answer, BASE, Call, Client, segment},
    edge,
    output::{self, Failure, Format, Outcome, cell, number, text},
};

/// Flags of `workload apply`.
#[derive(Debug, clap::Args)]
pub struct Apply {
    /// A spec (YAML, JSON or TOML), a directory of them, or - for standard input
    #[arg(short, long, required = true, value_name = "FILE|DIR|-")]
    file: PathBuf,
    /// Whose it is, for specs that do not say so
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Do not wait until it is healthy
    #[arg(long)]
    no_wait: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Apply {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let calls = calls(&self.file, self.tenant.as_deref())?;
        let client = session.client()?;
        if calls.len() > 1 && !self.dry_run {
            // All are looked at before the first is applied: half of them would be worse than none.
            for (_, origin, call) in &calls {
                let look = call.clone().dry_run(true).idempotency_key(edge::idempotency_key());
                send(&client, origin, look).await?;
            }
        }
        let mut answers = Vec::new();
        for (name, origin, call) in calls {
            let answer = send(&client, &origin, call.dry_run(self.dry_run)).await?;
            announce(session, &name, &answer.body, self.dry_run)?;
            answers.push((name, answer.body));
        }
        if self.dry_run {
            return print(session, answers.into_iter().map(|(_, body)| body).collect());
        }
        if !self.no_wait {
            let watch = |(name, record): &(String, Value)| {
                let watch = Watch::new(name, Goal::of(record)).of(record);
                watch.of_version(number(record, "/version"))
            };
            let watches = answers.iter().map(watch).collect();
            wait(&client, watches, session.wait_limit()).await?;
        }
        let records = if self.no_wait {
            answers.into_iter().map(|(_, body)| body).collect()
        } else {
            reread(&client, session, answers).await?
        };
        print(session, records)
    }
}

/// What applies each spec of a file, with its name and where it is from. Everything is read before anything is sent, so that
/// a typing error sends nothing.
pub(super) fn calls(file: &Path, tenant: Option<&str>) -> Outcome<Vec<(String, String, Call)>> {
    let mut calls = Vec::new();
    for mut spec in spec_file::read(file)? {
        let Some(name) = text(&spec.value, "/name").map(str::to_owned) else {
            return Err(Failure::usage(format!("{}: the spec has no name", spec.origin))
                .hint("a spec begins with `name: …`; see examples/hello.yaml"));
        };
        if !is_name(&name) {
            return Err(Failure::usage(format!(
                "{}: {name:?} is no name: it must be {NAME_RULE}",
                spec.origin
            )));
        }
        own(tenant, &spec.origin, &mut spec.value)?;
        let path = format!("{BASE}/workloads/{}", segment(&name));
        calls.push((name, spec.origin, Call::put(path).json(spec.value)));
    }
    Ok(calls)
}

/// Fills in the tenant that the command line names.
fn own(tenant: Option<&str>, origin: &str, spec: &mut Value) -> Outcome {
    let Some(tenant) = tenant else { return Ok(()) };
    match text(spec, "/tenant") {
        Some(other) if other != tenant => {
            let detail = format!("{origin}: the spec is of tenant {other}, not of {tenant}");
            Err(Failure::usage(detail).hint("leave --tenant out, or name that file alone"))
        }
        _ => {
            spec["tenant"] = json!(tenant);
            Ok(())
        }
    }
}

/// Sends one; an error says whose it is.
pub(super) async fn send(client: &Client, origin: &str, call: Call) -> Outcome<Answer> {
    client.call(call).await.map_err(|error| {
        let failure = Failure::from(error);
        Failure { detail: format!("{origin}: {}", failure.detail), ..failure }
    })
}

/// Says what became of one spec: on stdout where a table is wanted, on stderr otherwise.
fn announce(session: &Session, name: &str, record: &Value, dry: bool) -> Outcome {
    let change = text(record, "/change").unwrap_or("accepted");
    let dry_note = if dry { " (dry run)" } else { "" };
    let line = format!("workload/{name} {change}, version {}{dry_note}", cell(record, "/version"));
    match session.format() {
        Format::Table | Format::Wide => {
            output::data(format!("{line}\n").as_bytes())?;
            if let Some(plan) = record.get("plan").filter(|plan| dry && !plan.is_null()) {
                output::data(output::render_value(Format::Yaml, plan)?.as_bytes())?;
            }
            Ok(())
        }
        _ => {
            output::say(line);
            Ok(())
        }
    }
}

/// The records as they are after the wait, with what apply said of the change.
async fn reread(
    client: &Client,
    session: &Session,
    answers: Vec<(String, Value)>,
) -> Outcome<Vec<Value>> {
    if matches!(session.format(), Format::Table | Format::Wide) {
        return Ok(vec![]);
    }
    let mut records = Vec::new();
    for (name, answer) in answers {
        // By its id: another tenant's may have its name.
        let id = text(&answer, "/id").unwrap_or(&name);
        let mut record = workload(client, id, &Whose::default()).await?;
        if let (Value::Object(record), Some(change)) = (&mut record, answer.get("change")) {
            record.insert("change".to_owned(), change.clone());
        }
        records.push(record);
    }
    Ok(records)
}

fn print(session: &Session, records: Vec<Value>) -> Outcome {
    match (session.format(), records.as_slice()) {
        (Format::Table | Format::Wide, _) => Ok(()),
        (format, [one]) => output::print_one::<Workloads>(format, one),
        (format, many) => output::print_list::<Workloads>(format, many),
    }
}
