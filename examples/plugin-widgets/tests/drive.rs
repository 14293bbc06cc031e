//! The plugin, stepped by hand, and in a cluster of real processes over REST.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test that drives real processes from outside"
)]

use std::{
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use palisade_contract::{Context, Handler, MethodContext, Module, Principal, Sweep};
use palisade_state::Tx;
use palisade_testing::Bench;
use plugin_widgets::AcmeWidgets;
use serde_json::{Value, json};

/// Calls a method of the module as somebody who may.
fn call(bench: &Bench, name: &str, input: Value) -> palisade_contract::Result<Value> {
    let methods = AcmeWidgets.methods();
    let method = methods.iter().find(|method| method.name == name).expect("a method");
    (method.validate)(&input)?;
    let context: Context = bench.context.clone();
    let principal = Principal { name: "user/ada".to_owned(), roles: vec![], tenant: String::new() };
    let cx = MethodContext {
        context,
        principal,
        request_id: String::new(),
        dry_run: false,
        if_match: None,
    };
    match &method.handler {
        Handler::Query(run) => run(&cx, &bench.view(), input),
        Handler::Mutation(run) => {
            let mut answer = Value::Null;
            bench.commit(|tx| {
                answer = run(&cx, tx, input.clone())?;
                Ok(())
            });
            Ok(answer)
        }
        _ => panic!("{name} is neither"),
    }
}

fn put(bench: &Bench, tenant: &str, widget: &str, ttl_seconds: u64) {
    let input =
        json!({"widget": widget, "tenant": tenant, "colour": "red", "ttlSeconds": ttl_seconds});
    call(bench, "put", input).unwrap();
}

fn ids(bench: &Bench) -> Vec<String> {
    let all = call(bench, "list", json!({})).unwrap();
    all.as_array().unwrap().iter().map(|w| w["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn widgets_expire_when_their_time_is_over_and_say_so() {
    let bench = Bench::new(&[&AcmeWidgets]);
    put(&bench, "acme", "short", 5);
    put(&bench, "acme", "long", 60);
    let jobs = bench.jobs("acme.widgets");
    assert_eq!(jobs.tick(), 1);
    assert_eq!(jobs.tick(), 0, "it comes back after a second");
    assert_eq!(ids(&bench), ["acme/long", "acme/short"]);
    bench.advance(5_000);
    assert_eq!(jobs.tick(), 1);
    assert_eq!(ids(&bench), ["acme/long"]);
    let kinds: Vec<String> =
        bench.view().events(0).map(|(_, event)| event.kind.to_string()).collect();
    assert_eq!(kinds, ["acme.widget.put", "acme.widget.put", "acme.widget.expired"]);
}

#[test]
fn a_wrong_widget_is_refused_by_every_pointer() {
    let bench = Bench::new(&[&AcmeWidgets]);
    let wrong = json!({"widget": "A B", "colour": "red", "ttlSeconds": 0, "color": 1});
    let refused = call(&bench, "put", wrong).unwrap_err();
    let pointers: Vec<&str> = refused.problems.iter().map(|p| p.pointer.as_str()).collect();
    assert!(pointers.contains(&"/color"), "{refused:?}");
    let wrong = json!({"widget": "A B", "colour": "red", "ttlSeconds": 0});
    let refused = call(&bench, "put", wrong).unwrap_err();
    let pointers: Vec<&str> = refused.problems.iter().map(|p| p.pointer.as_str()).collect();
    assert_eq!(pointers, ["/widget", "/ttlSeconds"]);
}

#[test]
fn a_deleted_tenant_loses_its_widgets_by_and_by_and_others_keep_theirs() {
    let bench = Bench::new(&[&AcmeWidgets]);
    for number in 0..250 {
        put(&bench, "gone", &format!("w{number}"), 60);
    }
    put(&bench, "stays", "w", 60);
    let mut left = vec![];
    for _ in 0..3 {
        let mut sweep = Sweep::Again;
        bench.commit(|tx: &mut Tx| {
            sweep = AcmeWidgets.tenant_deleted(&bench.context, tx, "gone")?;
            Ok(())
        });
        left.push((ids(&bench).len(), sweep));
    }
    assert_eq!(left, [(151, Sweep::Again), (51, Sweep::Again), (1, Sweep::Done)]);
}

#[test]
fn the_plugin_keeps_every_rule_of_registration() {
    palisade::Builder::new().plugin(AcmeWidgets).check().unwrap();
    let refused = palisade::Builder::new().module(AcmeWidgets).check().unwrap_err();
    assert!(refused.detail.contains("was not added as a plugin"), "{refused:?}");
}

#[test]
fn the_page_about_modules_has_this_example() {
    let page = include_str!("../../../docs/modules.md");
    assert!(page.contains(include_str!("../src/lib.rs")), "docs/modules.md has another lib.rs");
    assert!(page.contains(include_str!("../src/main.rs")), "docs/modules.md has another main.rs");
}

/// A cluster of this binary, which is stopped when it is dropped.
struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    fn palisade(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_plugin-widgets"))
            .args(args)
            .env("PALISADE_CONTEXT_FILE", self.context())
            .output()
            .expect("the binary runs")
    }

    fn context(&self) -> std::path::PathBuf {
        self.dir.path().join("contexts.toml")
    }

    fn dev(&self, args: &[&str]) -> Output {
        let dir = self.dir.path().join("dev");
        let dir = dir.to_str().expect("a path");
        let mut all = vec!["dev"];
        all.extend_from_slice(args);
        all.extend_from_slice(&["--dir", dir]);
        self.palisade(&all)
    }

    fn start() -> Self {
        let cluster = Self { dir: tempfile::tempdir().expect("a directory") };
        let started = cluster.dev(&["--detach"]);
        assert!(started.status.success(), "{started:?}");
        cluster
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let stopped = self.dev(&["stop"]);
        if !stopped.status.success() && !std::thread::panicking() {
            panic!("the cluster does not stop: {stopped:?}");
        }
    }
}

/// The API, as the cluster's admin.
struct Api {
    client: reqwest::Client,
    base: String,
    token: String,
}

impl Api {
    fn of(context: &Path) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let text = std::fs::read_to_string(context).expect("a context file");
        let file: toml::Table = text.parse().expect("TOML");
        let context = &file["context"].as_array().expect("contexts")[0];
        let text = |name: &str| context[name].as_str().expect("a text").to_owned();
        let ca = reqwest::Certificate::from_pem(text("ca_pem").as_bytes()).expect("a CA");
        let client = reqwest::Client::builder().tls_certs_only([ca]).build().expect("a client");
        let base = context["addrs"][0].as_str().expect("an address").to_owned();
        Self { client, base, token: text("token") }
    }

    async fn call(&self, verb: reqwest::Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let url = format!("{}/api/compute{path}", self.base);
        let mut request = self.client.request(verb, url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }
}

#[tokio::test]
async fn a_cluster_with_the_plugin_serves_it_over_rest() {
    let cluster = Cluster::start();
    let api = Api::of(&cluster.context());
    let body = json!({"colour": "blue", "ttlSeconds": 3600});
    let path = "/plugins/acme/widgets/w1?tenant=acme";
    let (status, made) = api.call(reqwest::Method::PUT, path, Some(body)).await;
    assert_eq!((status, &made["id"]), (200, &json!("acme/w1")), "{made}");
    let (status, read) = api.call(reqwest::Method::GET, path, None).await;
    assert_eq!((status, &read), (200, &made));
    let list = "/plugins/acme/widgets?filter=colour%20%3D%20blue";
    let (_, listed) = api.call(reqwest::Method::GET, list, None).await;
    assert_eq!(listed["items"], json!([made]));
    let wrong = json!({"colour": "blue", "ttlSeconds": 0});
    let (status, problem) = api.call(reqwest::Method::PUT, path, Some(wrong)).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (400, &json!("/ttlSeconds")));
    let (_, events) = api.call(reqwest::Method::GET, "/events?from=0&limit=1000", None).await;
    let kinds = events["items"].as_array().expect("events").iter();
    assert!(kinds.into_iter().any(|event| event["kind"] == "acme.widget.put"), "{events}");
    let short = json!({"colour": "blue", "ttlSeconds": 1});
    let path = "/plugins/acme/widgets/w2?tenant=acme";
    api.call(reqwest::Method::PUT, path, Some(short)).await;
    let begun = Instant::now();
    while api.call(reqwest::Method::GET, path, None).await.0 != 404 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the reconciler never comes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let doctor = cluster.palisade(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!said.contains("catalog.undeclared"), "{said}");
}
