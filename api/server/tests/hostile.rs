//! Bad input over the real port: what it is answered, that nothing changes, and that others are answered meanwhile.

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use palisade_api::{Limits, pki::Identity};
use palisade_state::{Runtime, Store};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Options, World, client, widgets::WIDGETS, world, world_with};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A certificate of an operator that was issued at that time, for a minute.
fn operator(world: &World, at_ms: u64) -> Identity {
    let ada = world.authority.issue_operator("ada", Duration::from_secs(60), at_ms).unwrap();
    Identity::try_from(&ada).unwrap()
}

/// What is answered on a connection with this certificate: the status, and the detail of a problem.
async fn answered(world: &World, identity: &Identity, path: &str) -> (u16, String) {
    let config = client::tls(&world.authority, Some(identity));
    let stream = client::connect(world, config).await.unwrap();
    let request = http::Request::get(path).header("authorization", "Bearer pal_admin");
    let request = request.header("host", "palisade").body(Default::default()).unwrap();
    let answer = client::send(stream, &*world.rt, request).await.unwrap();
    let problem: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    (answer.status.as_u16(), problem["detail"].as_str().unwrap_or_default().to_owned())
}

/// `PKI-7`: whatever is asked for, and although there is a good token beside it.
#[tokio::test]
async fn a_certificate_counts_only_in_its_time() {
    let world = world().await;
    let now = world.rt.wall_ms();
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/api/compute/widgets"] {
        assert_eq!(answered(&world, &operator(&world, now), path).await.0, 200, "{path}");
        let (status, detail) = answered(&world, &operator(&world, now - DAY_MS), path).await;
        assert!(status == 401 && detail.contains("ended at"), "{path}: {status} {detail}");
        let (status, detail) = answered(&world, &operator(&world, now + DAY_MS), path).await;
        assert!(status == 401 && detail.contains("valid only from"), "{path}: {status} {detail}");
    }
}

#[tokio::test]
async fn half_open_handshakes_are_cut_off_and_keep_nobody_out() {
    let limits = Limits { handshake_timeout: Duration::from_secs(1), ..Limits::default() };
    let world = world_with(Options { limits, ..Options::default() }).await;
    let mut open = vec![];
    for _ in 0..100 {
        let mut tcp = tokio::net::TcpStream::connect(world.server.local_addr()).await.unwrap();
        // The head of a handshake record whose rest never comes.
        tcp.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await.unwrap();
        open.push(tcp);
    }
    assert_eq!(world.api("GET", "/widgets").send().await.status, 200);
    let closed = join_all(open.iter_mut().map(|tcp| async {
        let mut byte = [0; 1];
        let limit = Duration::from_secs(30);
        let read = palisade_state::port::timeout(&*world.rt, limit, tcp.read(&mut byte)).await;
        read.is_some_and(|read| read.unwrap_or(0) == 0)
    }));
    assert!(closed.await.into_iter().all(|closed| closed));
}

#[tokio::test]
async fn a_flood_of_headers_is_refused() {
    let world = world().await;
    let mut call = world.api("GET", "/widgets");
    for n in 0..100 {
        call = call.header(&format!("x-{n}"), "y");
    }
    assert_eq!(call.send().await.status, 431);
    assert_eq!(world.api("GET", "/widgets").send().await.status, 200);
}

/// Nothing was written, and nothing that came in got into a sentence as it was.
fn assert_unmoved(world: &World, what: &str, refused: &client::Answer) {
    assert!(refused.status.is_client_error(), "{what}: {} {:?}", refused.status, refused.body);
    assert!(WIDGETS.all(&world.store.memory.view()).unwrap().is_empty(), "{what}");
    let detail = refused.json()["detail"].as_str().unwrap_or_default().to_owned();
    let wild =
        |c: char| c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}');
    assert!(!detail.contains(wild), "{what}: {detail:?}");
    assert!(detail.len() < 4096, "{what}: {} bytes", detail.len());
}

#[tokio::test]
async fn names_that_turn_a_terminal_round_are_told_escaped() {
    let world = world().await;
    for name in ["%00", "%1b%5b2J", "a%0d%0ab", "%e2%80%ae%e2%80%8f", "%7f"] {
        let missing = world.api("GET", &format!("/widgets/{name}")).send().await;
        assert_eq!(missing.code(), "NOT_FOUND", "{name}");
        assert_unmoved(&world, name, &missing);
        let nowhere = world.api("GET", &format!("/nothing/{name}")).send().await;
        assert_eq!(nowhere.code(), "NOT_FOUND", "{name}");
        assert_unmoved(&world, name, &nowhere);
    }
}

#[tokio::test]
async fn names_of_a_megabyte_are_refused() {
    let world = world().await;
    let long = "x".repeat(1_000_000);
    let made = world.api("POST", "/widgets").json(&json!({ "name": long })).send().await;
    assert_unmoved(&world, "in the body", &made);
    let unknown = world.api("PUT", "/widgets/a").json(&json!({ "sizeLimit": 1, (long): 1 })).send();
    assert_eq!(unknown.await.code(), "INVALID_INPUT");
    let path = format!("/widgets/{}", "x".repeat(10_000));
    let put = world.api("PUT", &path).json(&json!({"sizeLimit": 1})).send().await;
    assert_unmoved(&world, "in the path", &put);
    let path = format!("/widgets/{}", "x".repeat(60_000));
    let refused = world.api("GET", &path).send().await.status;
    assert!(matches!(refused.as_u16(), 414 | 431), "{refused}");
}

#[tokio::test]
async fn what_is_recorded_of_a_refusal_is_not_as_long_as_the_sender_likes() {
    let world = world().await;
    let path = format!("/api/compute/widgets/{}", "x".repeat(10_000));
    let call = world.call("PUT", &path).header("authorization", "Bearer pal_viewer");
    assert_eq!(call.json(&json!({"sizeLimit": 1})).send().await.code(), "ACCESS_DENIED");
    let view = world.store.memory.view();
    let record = view.audit(0).next().unwrap().body.clone().unwrap();
    assert!(record.resource.starts_with("widget/xxx") && record.resource.len() < 1024);
}

#[tokio::test]
async fn numbers_out_of_range_and_of_other_kinds_are_refused() {
    let world = world().await;
    let numbers = [
        "-1",
        "101",
        "4294967296",
        "18446744073709551616",
        "1e400",
        "-1e400",
        "1.5",
        "\"1\"",
        "true",
        "null",
        "[1]",
        "NaN",
        "0x1",
        "01",
        "+1",
    ];
    for number in numbers {
        let body = format!("{{\"sizeLimit\":{number}}}");
        let refused = world.api("PUT", "/widgets/a").text(body).send().await;
        assert_eq!(refused.code(), "INVALID_INPUT", "{number}");
        assert_unmoved(&world, number, &refused);
    }
    for number in ["-1", "1.5", "99999999999999999999", "x", ""] {
        for field in ["limit", "atLeast", "atRevision"] {
            let refused = world.api("GET", &format!("/widgets?{field}={number}")).send().await;
            assert_eq!(refused.code(), "INVALID_INPUT", "{field}={number}");
        }
    }
}

#[tokio::test]
async fn bodies_of_other_kinds_are_refused() {
    let world = world().await;
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", ""]
    {
        let call = world.api("PUT", "/widgets/a").header("content-type", kind);
        let refused = call.bytes("{\"sizeLimit\":1}").send().await;
        assert_eq!(
            (refused.status.as_u16(), refused.code().as_str()),
            (415, "UNSUPPORTED"),
            "{kind}"
        );
        assert_unmoved(&world, kind, &refused);
    }
    let not_utf8 = world.api("PUT", "/widgets/a").text(vec![b'"', 0xff, b'"']).send().await;
    assert_eq!(not_utf8.code(), "INVALID_INPUT");
    let utf16: Vec<u8> = "{\"sizeLimit\":1}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(world.api("PUT", "/widgets/a").text(utf16).send().await.code(), "INVALID_INPUT");
    for body in ["{\"sizeLimit\":1} x", "{\"sizeLimit\":1", "{'sizeLimit':1}", "{\"sizeLimit\":1,}"]
    {
        assert_unmoved(&world, body, &world.api("PUT", "/widgets/a").text(body).send().await);
    }
}

#[tokio::test]
async fn of_many_writers_with_one_if_match_exactly_one_wins() {
    let world = world().await;
    let put = |size: usize, tag: Option<&str>| {
        let call = world.api("PUT", "/widgets/a").json(&json!({ "sizeLimit": size }));
        match tag {
            Some(tag) => call.header("if-match", tag),
            None => call,
        }
    };
    let tag = put(1, None).send().await.header("etag").to_owned();
    let answers = join_all((10..18).map(|size| put(size, Some(&tag)).send())).await;
    let won: Vec<&client::Answer> = answers.iter().filter(|a| a.status == 200).collect();
    assert_eq!(won.len(), 1);
    for lost in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((lost.status.as_u16(), lost.code().as_str()), (412, "PRECONDITION_FAILED"));
    }
    let row = WIDGETS.get(&world.store.memory.view(), &"a".to_owned()).unwrap().unwrap();
    assert_eq!(
        (row.stamp.version, Value::from(row.value.size_limit)),
        (2, won[0].json()["sizeLimit"].clone())
    );
}

#[tokio::test]
async fn answers_are_measured_by_method_and_class() {
    let world = world().await;
    world.api("PUT", "/widgets/a").json(&json!({"sizeLimit": 1})).send().await;
    world.api("PUT", "/widgets/a").json(&json!({"sizeLimit": 999})).send().await;
    world.call("GET", "/api/compute/widgets").send().await;
    world.call("GET", "/healthz").send().await;
    let metrics = world.call("GET", "/metrics").header("authorization", "Bearer pal_viewer");
    let text = String::from_utf8_lossy(&metrics.send().await.body).into_owned();
    let took = |method: &str, class: &str| {
        let labels = format!("{{method=\"{method}\",class=\"{class}\"}}");
        let count = format!("palisade_api_request_duration_seconds_count{labels} 1");
        assert!(text.contains(&count), "{count} in {text}");
    };
    took("widgets.put", "2xx");
    took("widgets.put", "4xx");
    took("unknown", "4xx");
    assert!(
        text.contains("le=\"0.0005\",method=\"widgets.put\"") || text.contains("le=\"5.0\""),
        "{text}"
    );
}

/// What is logged, line by line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn what_is_logged_for_a_request_has_its_trace() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    // The server runs on this thread.
    let _guard = tracing::subscriber::set_default(subscriber);
    let world = world().await;
    // Another test's thread may have met the places that log for the first time while nobody listened.
    world.api("GET", "/widgets").send().await;
    tracing::callsite::rebuild_interest_cache();
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let call = world.api("GET", "/widgets").header("x-request-id", "mine-7");
    let parent = format!("00-{id}-00f067aa0ba902b7-01");
    assert_eq!(call.header("traceparent", &parent).send().await.status, 200);
    let call = world.api("GET", "/widgets").header("x-request-id", "mine-8");
    call.header("traceparent", "00-nothing-of-the-kind-01").send().await;
    let logged = || String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let line = |of: &str| -> Option<Value> {
        let text = logged();
        let found = text.lines().find(|line| line.contains("\"call\"") && line.contains(of));
        found.map(|line| serde_json::from_str(line).unwrap())
    };
    let both = || line("mine-7").is_some() && line("mine-8").is_some();
    for _ in 0..1000 {
        if both() {
            break;
        }
        world.rt.sleep(Duration::from_millis(10)).await;
    }
    assert!(both(), "{}", logged());
    let span = line("mine-7").unwrap()["span"].clone();
    assert_eq!((&span["trace_id"], &span["parent_id"]), (&json!(id), &json!("00f067aa0ba902b7")));
    assert_eq!(span["span_id"].as_str().unwrap().len(), 16, "{span}");
    let span = line("mine-8").unwrap()["span"].clone();
    assert_eq!((span["trace_id"].as_str().unwrap().len(), &span["parent_id"]), (32, &Value::Null));
    assert!(!logged().contains("nothing-of-the-kind"));
}
