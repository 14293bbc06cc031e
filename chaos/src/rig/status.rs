//! What one replica knows of the cluster, read from it alone.

use std::time::Duration;

use serde_json::Value;

use crate::http::{BASE, Http, Request, Tried};

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) replica: u64,
    pub(crate) term: u64,
    pub(crate) leader: Option<u64>,
    /// The last index that it has applied.
    pub(crate) applied: u64,
    /// Who votes.
    pub(crate) voters: Vec<u64>,
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
        voters: voters(body),
    })
}

/// The ids of the voters in what a replica says of the cluster, in order.
pub(crate) fn voters(body: &Value) -> Vec<u64> {
    let members = body.get("members").and_then(Value::as_array);
    let mut voters: Vec<u64> = members
        .into_iter()
        .flatten()
        .filter(|member| member.get("voter").and_then(Value::as_bool) == Some(true))
        .filter_map(|member| member.get("id")?.as_u64())
        .collect();
    voters.sort_unstable();
    voters
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_replica_without_a_leader_says_so() {
        let members =
            json!([{"id": 5, "voter": true}, {"id": 2, "voter": true}, {"id": 6, "voter": false}]);
        let status = parse(&json!({
            "replica": 2, "term": 7, "leader": null, "appliedIndex": 9, "members": members
        }));
        let voters = vec![2, 5];
        assert_eq!(status, Some(Status { replica: 2, term: 7, leader: None, applied: 9, voters }));
    }
}
