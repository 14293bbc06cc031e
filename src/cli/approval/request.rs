//! `palisade approval request`: several destructive calls at once.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Approvals, progress};
use crate::{
    cli::{Session, duration, node::print_change},
    client::{BASE, Call},
    output::{self, Failure, Outcome, text},
};

/// Flags of `approval request`.
#[derive(Debug, clap::Args)]
pub(super) struct Request {
    /// Workloads to remove; may be repeated
    #[arg(long = "remove-workload", value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// Nodes to remove; may be repeated
    #[arg(long = "remove-node", value_name = "NODE")]
    nodes: Vec<String>,
    /// Secrets to remove; may be repeated
    #[arg(long = "remove-secret", value_name = "SECRET")]
    secrets: Vec<String>,
    /// Another destructive call, such as 'workloads.remove {"workload": "web"}'; may be repeated
    #[arg(long = "call", value_name = "METHOD INPUT", value_parser = call)]
    calls: Vec<Value>,
    /// Whose things they are
    #[arg(long)]
    tenant: Option<String>,
    /// Why, for those who approve
    #[arg(long, default_value_t, hide_default_value = true)]
    reason: String,
    /// How long it waits, at least a minute [default: as the policy says]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    life: Option<Duration>,
    /// Ask for so many approvals, where the policy asks for fewer
    #[arg(long, value_name = "COUNT")]
    required: Option<u32>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Reads `METHOD INPUT`.
fn call(text: &str) -> Result<Value, String> {
    let (method, input) = text.split_once(char::is_whitespace).unwrap_or((text, "{}"));
    let input: Map<String, Value> = serde_json::from_str(input.trim())
        .map_err(|error| format!("the input of {method} is no JSON object: {error}"))?;
    Ok(json!({"method": method, "input": input}))
}

impl Request {
    fn all(&self) -> Vec<Value> {
        let each = |method: &'static str, field: &'static str, names: &[String]| {
            names
                .iter()
                .map(move |name| {
                    let mut input = json!({});
                    input[field] = json!(name);
                    json!({"method": method, "input": input})
                })
                .collect::<Vec<_>>()
        };
        let mut all = each("workloads.remove", "workload", &self.workloads);
        all.extend(each("nodes.remove", "node", &self.nodes));
        all.extend(each("secrets.remove", "secret", &self.secrets));
        all.extend(self.calls.iter().cloned());
        all
    }

    pub(super) async fn run(self, session: &Session) -> Outcome {
        let calls = self.all();
        if calls.is_empty() {
            return Err(Failure::usage("nothing says what is to be done")
                .hint("palisade approval request --remove-workload web --remove-workload db"));
        }
        let mut input = json!({ "calls": calls, "reason": self.reason });
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        if let Some(life) = self.life {
            input["lifeSeconds"] = json!(life.as_secs());
        }
        if let Some(required) = self.required {
            input["required"] = json!(required);
        }
        let call = Call::post(format!("{BASE}/approvals")).json(input).dry_run(self.dry_run);
        let record = session.client()?.call(call).await?.body;
        let is_held = text(&record, "/state") == Some("held");
        let done = if is_held { "held" } else { "released" };
        print_change::<Approvals>(session, &record, "-", done, self.dry_run)?;
        if is_held && !self.dry_run {
            output::say(progress(&record));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_a_method_and_its_input() {
        let read = call(r#"workloads.remove {"workload": "web"}"#).unwrap();
        assert_eq!(read, json!({"method": "workloads.remove", "input": {"workload": "web"}}));
        assert!(call("workloads.remove web").unwrap_err().contains("no JSON object"));
    }
}
