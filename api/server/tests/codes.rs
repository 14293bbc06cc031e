//! Each error code over REST: its status, its document, and that nothing was done.

use palisade_contract::Code;
use palisade_state::Store;
use serde_json::{Value, json};

use crate::support::world;

/// The table of docs/errors.md: code, status, exit code.
fn documented() -> Vec<(String, u16)> {
    let page = include_str!("../../../docs/errors.md");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let code = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        let status = cells.get(2)?.parse().ok().filter(|status| *status >= 400)?;
        Some((code.to_owned(), status))
    });
    rows.collect()
}

#[test]
fn the_page_about_errors_has_every_code_once() {
    let mut codes: Vec<String> = documented().into_iter().map(|(code, _)| code).collect();
    let mut all: Vec<String> = Code::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    codes.sort();
    all.sort();
    assert_eq!(codes, all);
}

#[tokio::test]
async fn each_code_has_its_status_and_a_whole_document_and_leaves_nothing() {
    let world = world().await;
    let body = json!({"sizeLimit": 1});
    world.api("PUT", "/widgets/w").json(&body).header("idempotency-key", "w").send().await;
    let before = world.api("GET", "/widgets/w").send().await;
    let (revision, events) = (before.header("etag").to_owned(), world.store.view().last_event());
    for (code, status) in documented() {
        let answer = world
            .api("POST", "/widgets/w/fail")
            .json(&json!({ "code": code }))
            .header("idempotency-key", &code)
            .send()
            .await;
        assert_eq!(answer.status, status, "{code}: {answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{code}");
        let problem = answer.json();
        let text = |field: &str| problem[field].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("code"), code);
        assert_eq!(problem["status"], status);
        assert_eq!(text("type"), format!("urn:palisade:problem:{code}"));
        assert_eq!(text("instance"), "/api/compute/widgets/w/fail");
        assert!(!text("title").is_empty() && !text("requestId").is_empty(), "{problem}");
        let is_retryable =
            Code::parse(&code).map(|code| palisade_contract::Error::new(code, "").retryable);
        assert_eq!(problem["retryable"].as_bool(), is_retryable, "{code}");
        if code != "INTERNAL" {
            assert_eq!(text("detail"), "it fails as it was told", "{code}");
            assert_eq!(text("hint"), "tell it something else", "{code}");
        }
        let after = world.api("GET", "/widgets/w").send().await;
        assert_eq!(after.header("etag"), revision, "{code} changed the record");
        assert_eq!(after.json(), before.json(), "{code}");
        assert_eq!(world.store.view().last_event(), events, "{code} published");
    }
}

#[tokio::test]
async fn a_known_key_is_not_kept_for_what_failed() {
    let world = world().await;
    let ask = |body: Value| {
        world.api("POST", "/widgets/w/fail").json(&body).header("idempotency-key", "same").send()
    };
    assert_eq!(ask(json!({"code": "NOT_FOUND"})).await.status, 404);
    assert_eq!(ask(json!({"code": "CONFLICT"})).await.status, 409, "nothing was done under it");
}
