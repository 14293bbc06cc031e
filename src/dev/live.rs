//! What a running cluster is doing, in one line.

use std::time::Duration;

use serde_json::Value;

use super::start::{client, ready};
use crate::{
    cli::cluster,
    client::{BASE, Call, Client},
    context_file::Context,
    output::{Outcome, human, number, text},
};

const BUDGET: Duration = Duration::from_millis(900);

/// Asks the replicas, whichever is there.
#[derive(Debug)]
pub(super) struct Live {
    client: Client,
}

impl Live {
    pub fn new(context: &Context) -> Outcome<Self> {
        Ok(Self { client: client(context, BUDGET)? })
    }

    /// The line.
    pub async fn line(&self) -> String {
        match self.look().await {
            Ok(line) => line,
            Err(failure) => format!("no replica answers: {}", failure.detail),
        }
    }

    async fn look(&self) -> Outcome<String> {
        let list = |path: &str| self.client.list(Call::get(format!("{BASE}{path}")).local());
        let (status, nodes, workloads, instances) = futures::future::join4(
            cluster::status(&self.client, true),
            list("/nodes"),
            list("/workloads"),
            list("/instances"),
        )
        .await;
        Ok(describe(&status?, &nodes?, &workloads?, &instances?))
    }
}

fn describe(status: &Value, nodes: &[Value], workloads: &[Value], instances: &[Value]) -> String {
    let leader = match cluster::leader(status) {
        Some(id) => format!("replica {id} leads term {}", number(status, "/term")),
        None => "no leader".to_owned(),
    };
    let healthy =
        instances.iter().filter(|one| text(one, "/status/phase") == Some("healthy")).count();
    format!(
        "{leader} · {} of {} nodes ready · {} · {healthy} of {} instances healthy",
        ready(nodes),
        nodes.len(),
        human::count(workloads.len(), "workload", "workloads"),
        instances.len()
    )
}
