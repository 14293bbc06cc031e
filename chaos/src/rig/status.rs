//! What one replica knows of the cluster, read from it alone.

use std::time::Duration;

use serde_json::Value;

use crate::http::{BASE, Http, Request, Tried};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) replica: u64,
    pub(crate) term: u64,
    pub(crate) leader: Option<u64>,
    /// The last index that it has applied.
    pub(crate) applied: u64,
}

/// Asks one replica.
pub(crate) async fn ask(http: &Http, index: usize, limit: Duration) -> Option<Status> {
    let request = Request::get(format!("{BASE}/cluster?consistency=local"));
    match http.once(index, &request, limit).await {
        Tried::Done(answer) => parse(&answer.body),
        _ => None,
    }
}

fn parse(body: &Value) -> Option<Status> {
    Some(Status {
        replica: body.get("replica")?.as_u64()?,
        term: body.get("term")?.as_u64()?,
        leader: body.get("leader").and_then(Value::as_u64),
        applied: body.get("appliedIndex")?.as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_replica_without_a_leader_says_so() {
        let status = parse(&json!({"replica": 2, "term": 7, "leader": null, "appliedIndex": 9}));
        assert_eq!(status, Some(Status { replica: 2, term: 7, leader: None, applied: 9 }));
    }
}
