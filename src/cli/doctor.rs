//! `palisade doctor`: what is wrong, seen from here and by the cluster itself.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use super::{
    Session, session,
    survey::{Seen, Survey, survey},
};
use crate::{
    client::{Address, BASE, Call, Client, ClientError},
    output::{self, Exit, Failure, Format, Outcome, Table, cell, failure::chain, number, text},
};

mod members;

/// Checks that are about the replica that answers, and begin with its name.
const OF_ITSELF: [&str; 4] = ["cluster.fault", "cluster.replica", "cluster.no-space", "backup.key"];
/// How long one replica may look at itself.
const OWN_LIMIT: Duration = Duration::from_secs(2);
/// Enough for the answer of a replica without a quorum, which takes 5 s.
const BUDGET: Duration = Duration::from_secs(8);

/// Flags of `doctor`.
#[derive(Debug, clap::Args)]
pub struct Doctor {}

impl Doctor {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let mut findings = Vec::new();
        let resolved = session.resolve();
        let context = resolved.as_ref().ok().and_then(|resolved| resolved.addresses_of.clone());
        let budget = session.timeout().unwrap_or(BUDGET);
        match resolved.and_then(|resolved| session::client(resolved, budget)) {
            Ok(client) => findings.extend(look(&client, budget, context.as_deref()).await),
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

/// What every replica says, what that tells together, and what the cluster finds itself.
pub(super) async fn look(client: &Client, budget: Duration, context: Option<&str>) -> Vec<Value> {
    let seen = survey(client).await;
    let mut findings = join_all(seen.0.iter().map(|one| replica(client, &seen, one))).await;
    let elsewhere = seen.answered_elsewhere();
    let recorded =
        elsewhere.iter().map(|(id, recorded, at)| recorded_address(client, *id, recorded, at));
    findings.extend(join_all(recorded).await.into_iter().flatten());
    findings.extend(members::findings(&seen, context));
    let own = join_all(seen.0.iter().map(|one| of_itself(client, one))).await.concat();
    let best = seen.best().and_then(Seen::status);
    let answers =
        |place: &Address| seen.0.iter().any(|one| one.address == *place && one.status().is_some());
    let leader = best.and_then(super::cluster::leader_address).filter(answers);
    // Whoever knows most says why when nobody leads; one that hangs would say nothing.
    let asked = leader.or_else(|| seen.best().map(|one| one.address.clone()));
    let found = cluster(client, budget, asked).await;
    let found: Vec<Value> = found.into_iter().filter(|one| !is_said(&own, one)).collect();
    findings.extend(own);
    findings.extend(found);
    findings
}

fn finding(check: &str, severity: &str, message: &str, fix: &str) -> Value {
    json!({"check": check, "severity": severity, "message": message, "fix": fix})
}

async fn replica(client: &Client, all: &Survey, one: &Seen) -> Value {
    let address = &one.address;
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
        // Whoever was removed or has moved need not be started.
        Err(error) if members::is_stale(all, one) => {
            finding(&check, "warning", &chain(&error), "no member of the cluster is reached there")
        }
        Err(error) => finding(&check, "error", &chain(&error), "start it, or look at its log"),
    }
}

/// Agents and other clients are told the recorded address, whatever the one is that this client knows.
async fn recorded_address(
    client: &Client,
    id: u64,
    recorded: &Address,
    at: &Address,
) -> Option<Value> {
    let call = Call::get(format!("{BASE}/cluster")).local();
    let why = match client.call_at(recorded, &call, OWN_LIMIT).await {
        Ok(answer) if number(&answer.body, "/replica") == id => return None,
        Ok(answer) => format!("replica {} answers there", number(&answer.body, "/replica")),
        Err(error) => chain(&error),
    };
    let message = format!(
        "replica {id} answers at {}, and is recorded at {}, which agents and clients are told: {why}",
        at.host_port(),
        recorded.host_port()
    );
    let fix = format!(
        "`palisade cluster set-address {id}` records where it is; or mend the way to what is recorded"
    );
    Some(finding("cluster.address", "error", &message, &fix))
}

/// What a replica finds of itself, whoever leads and although there may be no quorum.
async fn of_itself(client: &Client, one: &Seen) -> Vec<Value> {
    if one.status().is_none() {
        return vec![];
    }
    let call = Call::get(format!("{BASE}/self-check")).local();
    let Ok(mut answer) = client.call_at(&one.address, &call, OWN_LIMIT).await else {
        return vec![];
    };
    let Some(Value::Array(findings)) = answer.body.get_mut("findings").map(Value::take) else {
        return vec![];
    };
    findings.into_iter().filter(is_of_itself).collect()
}

fn is_of_itself(finding: &Value) -> bool {
    text(finding, "/check").is_some_and(|check| OF_ITSELF.contains(&check))
}

/// Whether the replica that a finding is about said it itself.
fn is_said(said: &[Value], finding: &Value) -> bool {
    let about = |one: &Value| {
        let name: Vec<&str> = text(one, "/message")?.split_whitespace().take(2).collect();
        let name = name.join(" ").trim_end_matches(':').to_owned();
        Some((text(one, "/check")?.to_owned(), name))
    };
    is_of_itself(finding) && said.iter().any(|one| about(one) == about(finding))
}

/// What the cluster finds itself; the leader alone knows which members are silent.
async fn cluster(client: &Client, budget: Duration, first: Option<Address>) -> Vec<Value> {
    let call = Call::get(format!("{BASE}/self-check"));
    let mut asked = None;
    if let Some(first) = first {
        // What it refuses is its word, unless it only stops leading; others know better when it says nothing.
        let said = client.call_at(&first, &call, budget).await;
        let is_final = said.as_ref().err().is_none_or(|error| {
            error.is("NO_QUORUM") || error.refusal().is_some_and(|refusal| !refusal.retryable)
        });
        asked = is_final.then_some(said);
    }
    let asked = match asked {
        Some(asked) => asked,
        None => client.call(call).await,
    };
    match asked {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_replica_said_itself_is_not_said_again_by_the_cluster() {
        let full = |bytes: u64| {
            let message = format!("replica 2 has {bytes} bytes free");
            finding("cluster.no-space", "error", &message, "")
        };
        let said = [full(10), finding("cluster.replica", "warning", "replica 3: slow", "")];
        assert!(is_said(&said, &full(9)));
        let other = finding("cluster.no-space", "error", "replica 1 has 9 bytes free", "");
        assert!(!is_said(&said, &other));
        let silent = "replica 2 (a:1) does not answer";
        let silent = finding("cluster.member-silent", "warning", silent, "");
        assert!(!is_said(&said, &silent), "the leader's word on another");
    }
}
