//! `palisade workload diff`: what a spec would change, asked of the server, which changes nothing.

use std::path::PathBuf;

use palisade_contract::changes::differences;
use serde_json::{Value, json};

use super::{
    Session,
    apply::{calls, send},
    history::Changes,
    session::Whose,
    workload::workload,
};
use crate::output::{self, Exit, Failure, Format, Outcome, Table, View, cell, text};

/// Flags of `workload diff`.
#[derive(Debug, clap::Args)]
pub struct Diff {
    /// A spec (YAML, JSON or TOML), a directory of them, or - for standard input
    #[arg(short, long, required = true, value_name = "FILE|DIR|-")]
    file: PathBuf,
    /// Whose they are, for specs that do not say so
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// End with 1 if anything differs
    #[arg(long)]
    exit_code: bool,
}

impl Diff {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let calls = calls(&self.file, self.tenant.as_deref())?;
        let client = session.client()?;
        let mut found = vec![];
        for (name, origin, call) in calls {
            let after = send(&client, &origin, call.dry_run(true)).await?.body;
            let before = match (text(&after, "/change"), text(&after, "/id")) {
                (Some("created"), _) | (_, None) => Value::Null,
                // By its id: another tenant's may have its name.
                (_, Some(id)) => workload(&client, id, &Whose::default()).await?,
            };
            found.push(compared(&name, &before, &after));
        }
        match session.format() {
            Format::Table | Format::Wide => output::data(page(&found).as_bytes())?,
            format => output::print_list::<Diffs>(format, &found)?,
        }
        let changed = found.iter().filter(|one| text(one, "/change") != Some("unchanged")).count();
        if self.exit_code && changed > 0 {
            let detail = format!("{changed} of {} specs would change something", found.len());
            return Err(Failure::new(Exit::Error, detail));
        }
        Ok(())
    }
}

/// What a spec would change of a workload, and of its instances.
fn compared(name: &str, before: &Value, after: &Value) -> Value {
    let spec = |of: &Value| of.get("spec").cloned().unwrap_or(Value::Null);
    let differences = match before {
        Value::Null => vec![],
        before => differences(&spec(before), &spec(after)),
    };
    json!({
        "name": name, "tenant": after.get("tenant"), "change": after.get("change"),
        "differences": differences, "plan": after.get("plan"),
    })
}

fn page(found: &[Value]) -> String {
    let mut page = String::new();
    for one in found {
        page.push_str(&format!("workload/{} {}\n", cell(one, "/name"), would(one)));
        for difference in one.get("differences").and_then(Value::as_array).into_iter().flatten() {
            page.push_str(&format!("  {}\n", Changes::difference(difference)));
        }
        if text(one, "/change") != Some("unchanged") {
            page.push_str(&format!("  instances: {}\n", plan(one)));
        }
    }
    output::visible(&page).into_owned()
}

fn would(one: &Value) -> &'static str {
    match text(one, "/change") {
        Some("created") => "would be made",
        Some("unchanged") => "is like that",
        _ => "would be changed",
    }
}

/// How many instances would become of which.
fn plan(one: &Value) -> String {
    let count = |field: &str| {
        let all = one.pointer(&format!("/plan/{field}")).and_then(Value::as_array);
        (all.map_or(0, Vec::len), field.to_owned())
    };
    let words: Vec<String> = ["stay", "restart", "halt", "resume", "start", "replace", "stop"]
        .map(count)
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// What differs, as records.
struct Diffs;

impl View for Diffs {
    const KIND: &'static str = "workload";

    fn table(_: &[Value], _: bool) -> Table {
        Table::new(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_by_their_places_and_counted_by_instances() {
        let of = |spec: Value, change: &str, plan: Value| json!({"tenant": "", "spec": spec, "change": change, "plan": plan});
        let before = of(json!({"count": 2, "task": {"env": {"A": "1"}}}), "", json!({}));
        let plan = json!({"stay": ["web-1", "web-2"], "start": [{"instance": "web-3", "node": "n"}], "stop": []});
        let after =
            of(json!({"count": 3, "task": {"env": {"A": {"secret": "db"}}}}), "updated", plan);
        let same =
            compared("api", &before, &json!({"change": "unchanged", "spec": before["spec"]}));
        let new = compared(
            "new",
            &Value::Null,
            &of(json!({"count": 1}), "created", json!({"start": [1]})),
        );
        insta::assert_snapshot!(page(&[compared("web", &before, &after), same, new]), @r#"
        workload/web would be changed
          /count: 2 → 3
          /task/env/A: 1 → {"secret":"db"}
          instances: 2 stay, 1 start
        workload/api is like that
        workload/new would be made
          instances: 1 start
        "#);
    }
}
