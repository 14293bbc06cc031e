//! REST: statuses, problems, idempotency, conditions.

use std::sync::atomic::Ordering;

use palisade_api::{
    envelope::{CallOptions, Caller, Reply},
    pki::Identity,
};
use palisade_contract::Principal;
use palisade_state::Store;
use serde_json::json;

use crate::support::{self, World, widgets::WIDGETS, world};

fn widget() -> serde_json::Value {
    json!({"sizeLimit": 3})
}

async fn put(world: &World, name: &str) -> support::client::Answer {
    world.api("PUT", &format!("/widgets/{name}")).json(&widget()).send().await
}

fn audited(world: &World) -> Vec<(String, String)> {
    let view = world.store.memory.view();
    let bodies = view.audit(0).map(|record| record.body.clone().unwrap());
    bodies.map(|body| (body.method, body.outcome)).collect()
}

#[tokio::test]
async fn a_record_is_answered_with_its_revision_as_entity_tag() {
    let world = world().await;
    let made = put(&world, "a").await;
    assert_eq!(made.status, 200, "{:?}", made.body);
    let revision = made.json()["revision"].as_u64().unwrap();
    assert_eq!(made.header("etag"), format!("\"{revision}\""));
    assert_eq!(made.header("palisade-revision"), revision.to_string());
    let read = world.api("GET", "/widgets/a").send().await;
    assert_eq!(read.json(), json!({"name": "a", "sizeLimit": 3, "revision": revision}));
    assert_eq!(read.header("etag"), made.header("etag"));
    assert!(read.header("x-request-id").starts_with("req_"));
    let again = world.api("GET", "/widgets/a").header("if-none-match", read.header("etag")).send();
    assert_eq!(again.await.status, 304);
}

#[tokio::test]
async fn a_list_is_framed_filtered_and_cut() {
    let world = world().await;
    for name in ["a", "b", "c"] {
        put(&world, name).await;
    }
    let first = world.api("GET", "/widgets?limit=2&atLeast=2").send().await.json();
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    let cursor = first["nextCursor"].as_str().unwrap();
    let rest = world.api("GET", &format!("/widgets?cursor={cursor}")).send().await.json();
    assert_eq!(rest["items"], json!([{"name": "c", "sizeLimit": 3}]));
    assert_eq!(rest["nextCursor"], json!(null));
    assert!(rest["revision"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn every_problem_of_an_input_is_told_with_its_pointer() {
    let world = world().await;
    let body = json!({"sizeLimt": 3, "name": 7});
    let refused = world.api("PUT", "/widgets/a").json(&body).send().await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    let problem = refused.json();
    assert_eq!(problem["code"], "INVALID_INPUT");
    assert_eq!(problem["type"], "urn:palisade:problem:INVALID_INPUT");
    assert_eq!(problem["instance"], "/api/compute/widgets/a");
    let errors = problem["errors"].as_array().unwrap();
    let unknown = errors.iter().find(|e| e["pointer"] == "/sizeLimt").unwrap();
    assert!(unknown["message"].as_str().unwrap().contains("sizeLimit"), "{unknown}");
    for pointer in ["/name", "/sizeLimit"] {
        assert!(errors.iter().any(|e| e["pointer"] == pointer), "{errors:?}");
    }
    assert!(audited(&world).is_empty(), "what is not understood is not audited");
}

#[tokio::test]
async fn a_retry_under_one_key_is_answered_and_not_applied_again() {
    let world = world().await;
    let create = || {
        world
            .api("POST", "/widgets")
            .header("idempotency-key", "\"k-1\"")
            .json(&json!({"name": "a"}))
    };
    let first = create().send().await;
    assert_eq!(first.status, 200, "{:?}", first.body);
    let second = create().send().await;
    assert_eq!(second.status, 200, "a retry is no conflict: {:?}", second.body);
    assert_eq!(second.json(), first.json());
    assert_eq!(second.header("idempotency-replayed"), "true");
    let bare =
        world.api("POST", "/widgets").header("idempotency-key", "k-1").json(&json!({"name": "b"}));
    let other = bare.send().await;
    assert_eq!((other.status.as_u16(), other.code().as_str()), (422, "IDEMPOTENCY_MISMATCH"));
    let fresh = world.api("POST", "/widgets").json(&json!({"name": "a"})).send().await;
    assert_eq!((fresh.status.as_u16(), fresh.code().as_str()), (409, "CONFLICT"));
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_the_write_applied_once() {
    let world = world().await;
    world.store.lose_answers.store(2, Ordering::SeqCst);
    let made = world.api("POST", "/widgets").json(&json!({"name": "a"})).send().await;
    assert_eq!(made.status, 200, "{:?}", made.body);
    let row = WIDGETS.get(&world.store.memory.view(), &"a".to_owned()).unwrap().unwrap();
    assert_eq!(row.stamp.version, 1);
    assert_eq!(made.json()["revision"], row.stamp.modified_rev);
    assert_eq!(audited(&world).len(), 1);
}

#[tokio::test]
async fn a_write_is_guarded_by_if_match() {
    let world = world().await;
    let tag = put(&world, "a").await.header("etag").to_owned();
    let guarded =
        |tag: &str| world.api("PUT", "/widgets/a").header("if-match", tag).json(&widget());
    assert_eq!(guarded(&tag).send().await.status, 200);
    let refused = guarded(&tag).send().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (412, "PRECONDITION_FAILED"));
}

#[tokio::test]
async fn a_dry_run_answers_and_changes_nothing() {
    let world = world().await;
    let before = world.store.proposed.load(Ordering::SeqCst);
    let tried = world.api("PUT", "/widgets/a?dryRun=true").json(&widget()).send().await;
    assert_eq!(tried.status, 200);
    assert_eq!(tried.json()["name"], "a");
    assert_eq!(world.store.proposed.load(Ordering::SeqCst), before);
}

#[tokio::test]
async fn mutations_are_audited_allowed_or_denied() {
    let world = world().await;
    put(&world, "a").await;
    let viewer = "Bearer pal_viewer";
    let denied = world.call("PUT", "/api/compute/widgets/b").header("authorization", viewer);
    let denied = denied.json(&widget()).send().await;
    assert_eq!((denied.status.as_u16(), denied.code().as_str()), (403, "ACCESS_DENIED"));
    world.api("POST", "/widgets").json(&json!({"name": "a"})).send().await;
    let expected =
        [("widgets.put", "ok"), ("widgets.put", "ACCESS_DENIED"), ("widgets.create", "CONFLICT")];
    let expected = expected.map(|(method, outcome)| (method.to_owned(), outcome.to_owned()));
    assert_eq!(audited(&world), expected);
    let chain = world.api("GET", "/audit/verify").send().await.json();
    assert_eq!((&chain["ok"], &chain["records"]), (&json!(true), &json!(3)));
    let records = world.api("GET", "/audit?from=2&limit=1").send().await.json();
    assert_eq!(records["items"][0]["outcome"], "ACCESS_DENIED");
    assert_eq!(records["nextCursor"], "2@memory", "it names its cluster");
    let rest = world.api("GET", "/audit?cursor=2@memory").send().await.json();
    assert_eq!((&rest["items"][0]["seq"], &rest["nextCursor"]), (&json!(3), &json!(null)));
    for cursor in ["2@another", "3", "x@memory"] {
        let refused = world.api("GET", &format!("/audit?cursor={cursor}")).send().await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (400, "INVALID_INPUT"));
        assert_eq!(refused.json()["errors"][0]["pointer"], "/cursor", "{:?}", refused.body);
    }
}

#[tokio::test]
async fn a_path_that_is_not_utf_8_is_refused_and_nothing_is_written() {
    let world = world().await;
    for name in ["%ff", "a%c3", "%c3%28", "%ed%a0%80", "%f", "%zz", "%"] {
        for verb in ["PUT", "GET"] {
            let call = world.api(verb, &format!("/widgets/{name}"));
            let call = if verb == "PUT" { call.json(&widget()) } else { call };
            let refused = call.send().await;
            let got = (refused.status.as_u16(), refused.code());
            assert_eq!(got, (400, "INVALID_INPUT".to_owned()), "{verb} {name}: {:?}", refused.body);
            assert!(refused.json()["detail"].as_str().unwrap().contains("UTF-8"), "{name}");
        }
    }
    assert_eq!(WIDGETS.all(&world.store.memory.view()).unwrap().len(), 0);
    assert_eq!(put(&world, "%C3%BC").await.status, 200, "what is UTF-8 is taken");
    assert!(WIDGETS.get(&world.store.memory.view(), &"ü".to_owned()).unwrap().is_some());
}

#[tokio::test]
async fn who_presents_nothing_or_something_wrong_gets_no_further() {
    let world = world().await;
    let nothing = world.call("GET", "/api/compute/widgets").send().await;
    assert_eq!(nothing.status, 401);
    assert!(nothing.header("www-authenticate").starts_with("Bearer"));
    let wrong = world.call("GET", "/api/compute/widgets").header("authorization", "Bearer pal_x");
    assert_eq!(wrong.send().await.code(), "UNAUTHENTICATED");
    let unknown = world.call("GET", "/api/compute/nothing-here").send().await;
    assert_eq!(unknown.status, 401, "routes are not told to strangers");
}

#[tokio::test]
async fn an_operators_certificate_is_a_credential_and_a_replicas_is_none() {
    let world = world().await;
    let now = palisade_state::Runtime::wall_ms(&*world.rt);
    let ada =
        world.authority.issue_operator("ada", std::time::Duration::from_secs(60), now).unwrap();
    let ada = Identity::try_from(&ada).unwrap();
    let read = world.call("GET", "/api/compute/widgets").send_as(&ada);
    assert_eq!(read.await.status, 200);
    let replica = world.authority.issue_replica(2, &[], now).unwrap();
    let replica = Identity::try_from(&replica).unwrap();
    let read = world.call("GET", "/api/compute/widgets").send_as(&replica).await;
    assert_eq!(read.status, 401);
    let log = "/internal/logs/nd_01arz3ndektsv4rrffq69g5fav/in_01arz3ndektsv4rrffq69g5fav";
    let relayed = world.call("GET", log).send_as(&replica).await;
    assert_eq!(relayed.status, 503, "the node has no session here: {:?}", relayed.body);
    let stranger = world.call("GET", log).header("authorization", "Bearer pal_admin").send().await;
    assert_eq!(stranger.status, 403);
}

#[tokio::test]
async fn a_token_in_the_query_is_refused() {
    let world = world().await;
    for query in ["access_token=x", "token=y", "q=pal_admin"] {
        let refused = world.api("GET", &format!("/widgets?{query}")).send().await;
        assert_eq!(
            (refused.status.as_u16(), refused.code().as_str()),
            (400, "INVALID_INPUT"),
            "{query}"
        );
        assert!(!String::from_utf8_lossy(&refused.body).contains("pal_admin"));
    }
}

#[tokio::test]
async fn a_wrong_verb_is_told_the_right_ones() {
    let world = world().await;
    let refused = world.api("DELETE", "/widgets").send().await;
    assert_eq!(refused.status, 405);
    assert_eq!(refused.header("allow"), "GET, POST, HEAD, OPTIONS");
    let asked = world.api("OPTIONS", "/widgets/a").send().await;
    assert_eq!(
        (asked.status.as_u16(), asked.header("allow")),
        (204, "GET, PUT, DELETE, HEAD, OPTIONS")
    );
    let head = world.api("HEAD", "/widgets").send().await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
}

#[tokio::test]
async fn a_wrong_path_is_told_the_nearest_one() {
    let world = world().await;
    let refused = world.api("GET", "/widget").send().await;
    assert_eq!(refused.status, 404);
    let hint = refused.json()["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains("/api/compute/widgets"), "{hint}");
}

#[tokio::test]
async fn malformed_bodies_are_refused_in_words() {
    let world = world().await;
    let send = |text: String| world.api("PUT", "/widgets/a").text(text).send();
    let deep = send(format!("{{\"a\":{}", "[".repeat(100_000))).await;
    assert_eq!((deep.status.as_u16(), deep.code().as_str()), (400, "INVALID_INPUT"));
    let twice = send("{\"sizeLimit\":1,\"sizeLimit\":2}".to_owned()).await;
    assert_eq!(twice.json()["errors"][0]["pointer"], "/sizeLimit");
    let list = send("[1]".to_owned()).await;
    assert!(list.json()["detail"].as_str().unwrap().contains("object"));
    let differs = send("{\"sizeLimit\":1,\"widget\":\"b\"}".to_owned()).await;
    assert_eq!(differs.json()["errors"][0]["pointer"], "/widget");
    let yaml = world.api("PUT", "/widgets/a").header("content-type", "text/yaml");
    let yaml = yaml.bytes("a: 1").send().await;
    assert_eq!(yaml.status, 415);
}

#[tokio::test]
async fn a_defect_in_a_handler_is_an_internal_error_without_its_words() {
    let world = world().await;
    for path in ["/boom", "/leak"] {
        let refused = world.api("GET", path).header("x-request-id", "mine-1").send().await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (500, "INTERNAL"));
        assert_eq!(refused.header("x-request-id"), "mine-1");
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(!text.contains("42") && !text.contains("defect"), "{text}");
    }
}

#[tokio::test]
async fn without_a_quorum_local_reads_go_on_and_writes_say_why_not() {
    let world = world().await;
    put(&world, "a").await;
    world.store.quorum_lost.store(true, Ordering::SeqCst);
    let local = world.api("GET", "/widgets/a?consistency=local").send().await;
    assert_eq!(local.status, 200);
    let write = put(&world, "a").await;
    assert_eq!((write.status.as_u16(), write.code().as_str()), (503, "NO_QUORUM"));
    assert_eq!(write.header("retry-after"), "1");
    assert_eq!(world.call("GET", "/readyz").send().await.status, 503);
    assert_eq!(world.call("GET", "/healthz").send().await.status, 200);
}

#[tokio::test]
async fn a_read_waits_for_a_revision_and_says_when_there_is_none_such() {
    let world = world().await;
    put(&world, "a").await;
    let revision = world.store.memory.view().applied().index;
    let there = world.api("GET", &format!("/widgets/a?atRevision={revision}")).send().await;
    assert_eq!(there.status, 200);
    let refused = world.api("GET", "/widgets/a?atRevision=1000000").send().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "UNAVAILABLE"));
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    let expected = format!("revision 1000000 is not reached yet; the cluster is at {revision}");
    assert_eq!(detail, expected);
}

#[tokio::test]
async fn a_stream_comes_as_bytes() {
    let world = world().await;
    let streamed = world.api("GET", "/stream").send().await;
    assert_eq!(streamed.body, "one\ntwo\n");
    assert!(streamed.header("content-type").starts_with("text/plain"));
}

#[tokio::test]
async fn the_servers_own_methods_answer() {
    let world = world().await;
    put(&world, "a").await;
    let cluster = world.api("GET", "/cluster").send().await.json();
    assert_eq!(cluster["members"][0]["leader"], true, "{cluster}");
    let trust = world.api("GET", "/cluster/trust").send().await.json();
    assert_eq!(trust["pins"], json!([world.authority.pin()]));
    assert_eq!(world.api("GET", "/version").send().await.json()["version"], "1.2.3");
    let report = world.api("GET", "/self-check").send().await.json();
    assert_eq!(report["ok"], true);
    let undeclared = &report["findings"][0];
    assert_eq!(undeclared["check"], "catalog.undeclared", "{report}");
    assert_eq!((&undeclared["severity"], &undeclared["count"]), (&json!("warning"), &json!(9)));
    let message = undeclared["message"].as_str().unwrap();
    assert!(message.contains("widgets.put") && message.ends_with("of widgets"), "{message}");
    let events = world.api("GET", "/events?from=1").send().await.json();
    assert_eq!(events["items"][0]["kind"], "widget.put");
    assert_eq!(world.api("GET", "/cluster/shards").send().await.json()["total"], 256);
    assert_eq!(world.call("GET", "/readyz").send().await.status, 200);
    let metrics =
        world.call("GET", "/metrics").header("authorization", "Bearer pal_viewer").send().await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(
        text.contains("palisade_api_requests_total{method=\"widgets.put\",code=\"OK\"} 1"),
        "{text}"
    );
}

#[tokio::test]
async fn the_openapi_document_has_every_method() {
    let world = world().await;
    let document = world.call("GET", "/openapi.json").header("authorization", "Bearer pal_viewer");
    let document = document.send().await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let put = &document["paths"]["/api/compute/widgets/{widget}"]["put"];
    assert_eq!(put["operationId"], "widgets.put");
    let body = &put["requestBody"]["content"]["application/json"]["schema"];
    assert!(
        body["properties"]["widget"].is_null() && body["properties"]["sizeLimit"].is_object(),
        "{body}"
    );
    let list = &document["paths"]["/api/compute/widgets"]["get"]["responses"]["200"];
    let schema = &list["content"]["application/json"]["schema"];
    let of = schema["properties"]["items"]["items"]["$ref"].as_str().unwrap();
    assert_eq!(of, "#/components/schemas/Widget");
    assert!(document["components"]["schemas"]["Widget"].is_object());
}

#[tokio::test]
async fn a_call_from_within_passes_the_same_steps() {
    let world = world().await;
    let principal = |role: &str| {
        Caller::Internal(Principal {
            name: "system/test".to_owned(),
            roles: vec![role.to_owned()],
            tenant: String::new(),
        })
    };
    let input = json!({"widget": "a", "sizeLimit": 1});
    let envelope = world.server.envelope();
    let denied =
        envelope.call("widgets.put", input.clone(), principal("viewer"), CallOptions::default());
    assert!(denied.await.is_err());
    let made = envelope
        .call("widgets.put", input, principal("admin"), CallOptions::default())
        .await
        .unwrap();
    let Reply::Json(value) = made.reply else { panic!("not JSON") };
    assert_eq!(value["name"], "a");
    let unknown =
        envelope.call("widgets.putt", json!({}), principal("admin"), CallOptions::default()).await;
    let Err(unknown) = unknown else { panic!("found") };
    assert_eq!(unknown.hint.as_deref(), Some("did you mean widgets.put?"));
}

#[tokio::test]
async fn a_write_that_raced_is_built_again() {
    let world = world().await;
    put(&world, "a").await;
    let (one, other) = futures::join!(put(&world, "a"), put(&world, "a"));
    assert_eq!((one.status.as_u16(), other.status.as_u16()), (200, 200));
    assert_ne!(one.header("etag"), other.header("etag"));
}

#[tokio::test]
async fn whoever_is_bound_to_a_tenant_reads_neither_metrics_nor_the_self_check() {
    let world = world().await;
    let ask =
        |path: &str| world.call("GET", path).header("authorization", "Bearer pal_acme").send();
    for path in ["/metrics", "/api/compute/self-check", "/api/compute/audit/verify"] {
        let refused = ask(path).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code().as_str()),
            (403, "ACCESS_DENIED"),
            "{path}"
        );
    }
    for path in ["/api/compute/events", "/api/compute/audit?tenant=acme", "/openapi.json"] {
        assert_eq!(ask(path).await.status, 200, "{path}");
    }
    assert_eq!(ask("/api/compute/events?tenant=other").await.status, 403);
    assert_eq!(ask("/api/compute/audit?tenant=").await.status, 403);
}
