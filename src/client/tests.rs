use std::time::Duration;

use serde_json::json;

use super::{
    Call, ClientError, segment,
    stub::{Stub, client, dead_address},
};

fn problem(code: &str) -> serde_json::Value {
    json!({"code": code, "detail": "no", "requestId": "req_1"})
}

#[tokio::test]
async fn a_dead_replica_is_left_for_another() {
    let stub = Stub::new(vec![(200, json!({"ok": true}))]);
    let client = client(vec![dead_address(), stub.address()], Duration::from_secs(5));
    let answer = client.call(Call::get("/api/compute/nodes")).await.unwrap();
    assert_eq!((answer.body, answer.revision), (json!({"ok": true}), Some(9)));
}

#[tokio::test]
async fn every_try_of_a_write_has_one_idempotency_key() {
    let stub = Stub::new(vec![
        (503, problem("NO_QUORUM")),
        (503, problem("UNAVAILABLE")),
        (200, json!({"id": "x"})),
    ]);
    let client = client(vec![stub.address()], Duration::from_secs(5));
    client.call(Call::post("/api/compute/nodes/n/cordon")).await.unwrap();
    let keys: Vec<_> =
        stub.seen().iter().map(|seen| seen.header("Idempotency-Key").unwrap().to_owned()).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys.windows(2).all(|pair| pair[0] == pair[1]), "{keys:?}");
    assert_eq!(stub.seen()[0].header("Authorization"), Some("Bearer pal_x_y"));
}

#[tokio::test]
async fn what_is_accepted_and_not_done_is_told_from_what_is_done() {
    let stub = Stub::new(vec![(202, json!({"id": "ap_1"})), (200, json!({"id": "ap_1"}))]);
    let client = client(vec![stub.address()], Duration::from_secs(5));
    assert!(client.call(Call::delete("/a")).await.unwrap().held);
    assert!(!client.call(Call::delete("/a")).await.unwrap().held);
}

#[tokio::test]
async fn two_writes_have_two_keys() {
    let stub = Stub::new(vec![(200, json!({}))]);
    let client = client(vec![stub.address()], Duration::from_secs(5));
    client.call(Call::post("/a")).await.unwrap();
    client.call(Call::post("/a")).await.unwrap();
    let seen = stub.seen();
    assert_ne!(seen[0].header("Idempotency-Key"), seen[1].header("Idempotency-Key"));
}

#[tokio::test]
async fn a_refusal_is_final_and_typed() {
    let stub = Stub::new(vec![(404, problem("NOT_FOUND"))]);
    let client = client(vec![stub.address(), stub.address()], Duration::from_secs(5));
    let error = client.call(Call::get("/x")).await.unwrap_err();
    assert!(error.is("NOT_FOUND"), "{error}");
    assert_eq!(stub.seen().len(), 1);
}

#[tokio::test]
async fn what_one_replica_does_not_have_is_asked_of_each_once() {
    let missing = || {
        let problem = json!({"code": "UNAVAILABLE", "detail": "not here", "retryable": false});
        Stub::new(vec![(503, problem)])
    };
    let (first, second) = (missing(), missing());
    let both = vec![first.address(), second.address()];
    let error = client(both, Duration::from_secs(60)).call(Call::get("/x")).await.unwrap_err();
    assert!(error.is("UNAVAILABLE"), "{error}");
    assert_eq!((first.seen().len(), second.seen().len()), (1, 1));
    let has = Stub::new(vec![(200, json!({"ok": true}))]);
    let all = vec![missing().address(), missing().address(), has.address()];
    client(all, Duration::from_secs(60)).call(Call::get("/x")).await.unwrap();
}

#[tokio::test]
async fn the_budget_ends_with_the_last_reason() {
    let client = client(vec![dead_address(), dead_address()], Duration::from_secs(1));
    let error = client.call(Call::get("/x")).await.unwrap_err();
    assert!(matches!(error, ClientError::Spent { replicas: 2, .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn without_a_quorum_and_without_the_others_it_says_so_early() {
    let stub = Stub::new(vec![(503, problem("NO_QUORUM"))]);
    let addresses = vec![stub.address(), dead_address(), dead_address()];
    let client = client(addresses, Duration::from_secs(60));
    let error = client.call(Call::get("/x")).await.unwrap_err();
    assert!(error.is("NO_QUORUM"), "{error}");
    assert_eq!(stub.seen().len(), 2);
    let failure = crate::output::Failure::from(error);
    assert_eq!(failure.exit, crate::output::Exit::Unavailable);
    assert!(failure.detail.contains("NO_QUORUM"), "{failure}");
}

#[tokio::test]
async fn what_a_replica_said_is_shown_though_others_said_nothing_later() {
    let stub = Stub::new(vec![(503, problem("UNAVAILABLE"))]);
    let client = client(vec![stub.address(), dead_address()], Duration::from_secs(1));
    let error = client.call(Call::get("/x")).await.unwrap_err();
    assert!(error.is("UNAVAILABLE"), "{error}");
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let stub = Stub::new(vec![(307, json!({}))]);
    let client = client(vec![stub.address()], Duration::from_secs(5));
    let error = client.call(Call::get("/x")).await.unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.status), Some(307));
    assert_eq!(stub.seen().len(), 1);
}

#[tokio::test]
async fn a_list_is_read_to_its_last_page() {
    let stub = Stub::new(vec![
        (200, json!({"items": [1, 2], "nextCursor": "c"})),
        (200, json!({"items": [3], "nextCursor": null})),
    ]);
    let client = client(vec![stub.address()], Duration::from_secs(5));
    let items = client.list(Call::get("/nodes").query("limit", 2)).await.unwrap();
    assert_eq!(items, [1, 2, 3]);
    assert!(stub.seen()[1].line.contains("limit=2&cursor=c"), "{}", stub.seen()[1].line);
}

#[test]
fn names_cannot_leave_their_path_segment() {
    assert_eq!(segment("web-1.a"), "web-1.a");
    assert_eq!(segment("../x?y"), "..%2Fx%3Fy");
    for (name, sent) in [("..", "%252E%252E"), (".", "%252E"), ("", "%20")] {
        assert_eq!(segment(name), sent);
        let url = reqwest::Url::parse(&format!("https://a:1/workloads/{sent}")).unwrap();
        assert_eq!(url.path(), format!("/workloads/{sent}"), "nothing is taken away");
    }
}

/// The table of docs/errors.md: code, status, exit code.
fn documented() -> Vec<(String, u16, u8)> {
    let page = include_str!("../../docs/errors.md");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let code = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        let status = cells.get(2)?.parse().ok().filter(|status| *status >= 400)?;
        Some((code.to_owned(), status, cells.get(3)?.parse().ok()?))
    });
    rows.collect()
}

#[tokio::test]
async fn each_code_ends_the_program_as_the_page_says_and_says_what_the_replica_said() {
    let codes = documented();
    assert_eq!(codes.len(), palisade_contract::Code::ALL.len());
    for (code, status, exit) in codes {
        let mut body = problem(&code);
        body["hint"] = json!("do it otherwise");
        body["detail"] = json!("it went wrong");
        let stub = Stub::new(vec![(status, body)]);
        let client = client(vec![stub.address()], Duration::from_secs(1));
        let error = client.call(Call::post("/x")).await.unwrap_err();
        let failure = crate::output::Failure::from(error);
        assert_eq!(failure.exit as u8, exit, "{code}");
        let said = failure.to_string();
        for part in ["it went wrong", "do it otherwise", "req_1"] {
            assert!(said.contains(part), "{code}: {said}");
        }
    }
}
