//! `palisade dev kill-leader`: a fail-over to look at.

use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    layout::Layout,
    lock::{Holder, Lock},
    process::ProcessId,
    start::{client, own_context},
};
use crate::{
    cli::cluster,
    client::{BASE, Call, Client, segment},
    context_file::Context,
    edge,
    output::{self, Exit, Failure, Outcome, number, text},
    secret::NewSecret,
};

const BUDGET: Duration = Duration::from_secs(30);
const LOOK_BUDGET: Duration = Duration::from_secs(1);
const WHOLE_EVERY: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Killed {
    /// The replica that led.
    pub replica: u64,
    /// Its process.
    pub pid: u32,
    /// Its term.
    pub term: u64,
    /// The replica that leads now.
    pub new_leader: u64,
    /// Its term.
    pub new_term: u64,
    /// From the kill until a survivor knew of a new leader.
    pub leader_after_ms: f64,
    /// From the kill until a write that was begun right after it was answered.
    pub write_after_ms: f64,
}

/// Kills the leader's process and measures until a write is answered.
///
/// # Errors
/// There is no leader, or it is no child of `dev`, or none follows it.
pub async fn kill_leader(layout: &Layout) -> Outcome<Killed> {
    let context = own_context(layout)?;
    if matches!(Lock::holder(layout), Holder::Nobody) {
        return Err(Failure::new(
            Exit::Unavailable,
            format!("the cluster in {} does not run", layout.root().display()),
        )
        .hint(format!("start it with `{}`", layout.command(""))));
    }
    let all = client(&context, BUDGET)?;
    whole(&all, layout).await?;
    let status = cluster::status(&all, false).await?;
    let Some(replica) = cluster::leader(&status) else {
        return Err(Failure::new(Exit::Unavailable, "there is no leader to kill")
            .hint("`palisade cluster status --local` shows what the replicas know"));
    };
    let process = ProcessId::read(&layout.pid_file(&format!("replica-{replica}")))
        .filter(ProcessId::is_alive)
        .ok_or_else(|| {
            Failure::new(
                Exit::NotFound,
                format!(
                    "replica {replica} leads, and its process is not in {}",
                    layout.root().display()
                ),
            )
        })?;
    let (survivors, look) = survivors(&context, &status, replica).await?;
    let secret = NewSecret::generate();
    let write = Call::post(format!("{BASE}/join-tokens"))
        .json(json!({"secretSha256": secret.sha256(), "ttlSeconds": 60}));
    output::say("killing the leader");
    let began = edge::now();
    if !process.signal(Signal::KILL) {
        return Err(Failure::new(Exit::Error, format!("process {} is gone already", process.pid)));
    }
    let term = number(&status, "/term");
    let watch = async {
        let after = new_leader(&look, term).await;
        (after, began.elapsed())
    };
    let write = async { (survivors.call(write).await, began.elapsed()) };
    let ((after, leader_took), (written, write_took)) = futures::future::join(watch, write).await;
    let written = written?.body;
    if let Some(token) = text(&written, "/id") {
        // It was only made to write something.
        let call = Call::delete(format!("{BASE}/join-tokens/{}", segment(token)));
        let _ = survivors.call(call).await;
    }
    let after = after?;
    Ok(Killed {
        replica,
        pid: process.pid,
        term,
        new_leader: cluster::leader(&after).unwrap_or(0),
        new_term: number(&after, "/term"),
        leader_after_ms: leader_took.as_secs_f64() * 1000.0,
        write_after_ms: write_took.as_secs_f64() * 1000.0,
    })
}

/// Waits until every replica is ready: with one down already, the kill would take the quorum.
async fn whole(client: &Client, layout: &Layout) -> Outcome {
    let began = edge::now();
    loop {
        let asked = client.addresses().iter().map(|address| client.ask(address, "/readyz"));
        let answers = futures::future::join_all(asked).await;
        let ready = answers.iter().filter(|answer| matches!(answer, Ok((200, _)))).count();
        if ready == client.addresses().len() {
            return Ok(());
        }
        if began.elapsed() > BUDGET {
            return Err(Failure::new(
                Exit::Unavailable,
                format!(
                    "only {ready} of {} replicas are ready: killing one more would stop all writes",
                    client.addresses().len()
                ),
            )
            .hint(format!(
                "`{}` shows which run, and where their logs are",
                layout.command("status")
            )));
        }
        edge::sleep(WHOLE_EVERY).await;
    }
}

/// Clients of the replicas that stay, with connections that are open already: what is measured is
/// the cluster and not our TLS handshake.
async fn survivors(context: &Context, status: &Value, leader: u64) -> Outcome<(Client, Client)> {
    let empty = vec![];
    let members = status.get("members").and_then(Value::as_array).unwrap_or(&empty);
    let gone = members
        .iter()
        .find(|member| number(member, "/id") == leader)
        .and_then(|member| text(member, "/apiAddr"))
        .unwrap_or("-")
        .to_owned();
    let mut staying = context.clone();
    staying.addrs.retain(|addr| !addr.ends_with(&gone));
    let (writer, looker) = (client(&staying, BUDGET)?, client(&staying, LOOK_BUDGET)?);
    cluster::status(&writer, true).await?;
    cluster::status(&looker, true).await?;
    Ok((writer, looker))
}

/// Waits for the leader of a later term. On a busy machine that can be the same replica, which runs again by then.
async fn new_leader(client: &Client, term: u64) -> Outcome<Value> {
    let began = edge::now();
    loop {
        if let Ok(status) = cluster::status(client, true).await
            && cluster::leader(&status).is_some()
            && number(&status, "/term") > term
        {
            return Ok(status);
        }
        if began.elapsed() > BUDGET {
            return Err(Failure::new(
                Exit::TimedOut,
                format!("no new leader within {} s", BUDGET.as_secs()),
            ));
        }
        edge::sleep(LOOK_EVERY).await;
    }
}
