//! `palisade doctor`: what is wrong, seen from here and by the cluster itself.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use super::{Session, session};
use crate::{
    client::{Address, BASE, Call, Client, ClientError},
    output::{self, Exit, Failure, Format, Outcome, Table, cell, failure::chain, text},
};

/// Enough for the answer of a replica without a quorum, which takes 5 s.
const BUDGET: Duration = Duration::from_secs(8);

/// Flags of `doctor`.
#[derive(Debug, clap::Args)]
pub struct Doctor {}

impl Doctor {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let mut findings = Vec::new();
        match session.resolve().and_then(|resolved| session::client(resolved, BUDGET)) {
            Ok(client) => {
                findings.extend(
                    join_all(client.addresses().iter().map(|address| replica(&client, address)))
                        .await,
                );
                findings.extend(cluster(&client).await);
            }
            Err(failure) => findings.push(finding(
                "context",
                "error",
                &failure.detail,
                failure.hint.as_deref().unwrap_or(""),
            )),
        }
        print(session, &findings)
    }
}

fn finding(check: &str, severity: &str, message: &str, fix: &str) -> Value {
    json!({"check": check, "severity": severity, "message": message, "fix": fix})
}

async fn replica(client: &Client, address: &Address) -> Value {
    let check = format!("replica {}", address.host_port());
    match client.ask(address, "/readyz").await {
        Ok((200, _)) => finding(&check, "ok", "answers and is ready", ""),
        Ok((status, body)) => {
            let detail = serde_json::from_str::<Value>(&body)
                .ok()
                .and_then(|body| {
                    text(&body, "/reason").or_else(|| text(&body, "/detail")).map(str::to_owned)
                })
                .unwrap_or_else(|| body.chars().take(200).collect());
            let message = format!("answers but is not ready (HTTP {status}): {}", detail.trim());
            finding(
                &check,
                "warning",
                &message,
                "most replicas must run and reach each other; its log says more",
            )
        }
        Err(error @ ClientError::Untrusted { .. }) => finding(
            &check,
            "error",
            &chain(&error),
            "the CA in the context is not this server's: compare `palisade context show` with the replica's pki/ca.pem",
        ),
        Err(error) => finding(&check, "error", &chain(&error), "start it, or look at its log"),
    }
}

/// What the cluster finds itself.
async fn cluster(client: &Client) -> Vec<Value> {
    let call = Call::get(format!("{BASE}/self-check"));
    match client.call(call).await {
        Ok(answer) => match answer.body.get("findings") {
            Some(Value::Array(findings)) if findings.is_empty() => {
                vec![finding("cluster", "ok", "finds nothing wrong with itself", "")]
            }
            Some(Value::Array(findings)) => findings.clone(),
            _ => vec![finding(
                "cluster",
                "warning",
                "answered its self-check with something unknown",
                "",
            )],
        },
        Err(error) => {
            let failure = Failure::from(error);
            let hint = failure.hint.as_deref().unwrap_or("");
            vec![finding("cluster", "error", &failure.detail, hint)]
        }
    }
}

fn print(session: &Session, findings: &[Value]) -> Outcome {
    match session.format() {
        Format::Json | Format::Yaml => {
            let value = Value::Array(findings.to_vec());
            output::data(output::render_value(session.format(), &value)?.as_bytes())?;
        }
        Format::Name => {
            let names: String =
                findings.iter().map(|one| format!("check/{}\n", cell(one, "/check"))).collect();
            output::data(names.as_bytes())?;
        }
        Format::Table | Format::Wide => output::data(table(findings).render().as_bytes())?,
    }
    let wrong = findings.iter().filter(|one| is_error(one)).count();
    if wrong == 0 {
        return Ok(());
    }
    Err(Failure::new(Exit::Error, format!("{wrong} of {} checks failed", findings.len())))
}

fn is_error(finding: &Value) -> bool {
    matches!(text(finding, "/severity"), Some("error" | "critical"))
}

fn table(findings: &[Value]) -> Table {
    let mut table = Table::new(&["SEVERITY", "CHECK", "MESSAGE", "FIX"]);
    for finding in findings {
        table.row(
            ["/severity", "/check", "/message", "/fix"]
                .map(|pointer| cell(finding, pointer))
                .to_vec(),
        );
    }
    table
}
