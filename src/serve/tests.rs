//! How a replica is put together and taken apart: what is refused before anything opens, and who is stopped.
#![allow(clippy::disallowed_methods, reason = "a real replica on the runtime of the test")]

use std::{net::TcpListener, sync::Mutex};

use futures::future::{BoxFuture, ready};
use palisade_contract::{Code, Error, Module, Result};

use super::*;
use crate::init::{HEARTBEAT_MS, InitOptions, NODE_LOST_MS, init};

type Log = Arc<Mutex<Vec<String>>>;

/// A plugin that writes down what is asked of it.
struct Recording {
    name: &'static str,
    starts: bool,
    log: Log,
}

impl Module for Recording {
    fn name(&self) -> &'static str {
        self.name
    }

    fn plugin(&self) -> Option<&'static str> {
        Some(self.name)
    }

    fn start<'a>(&'a self, _: &'a Context) -> BoxFuture<'a, Result<()>> {
        self.log.lock().unwrap().push(format!("start {}", self.name));
        let refused =
            || Error::new(Code::Conflict, "its port is taken").hint("choose another port");
        Box::pin(ready(if self.starts { Ok(()) } else { Err(refused()) }))
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        self.log.lock().unwrap().push(format!("stop {}", self.name));
        Box::pin(ready(Ok(())))
    }
}

/// Plugins of these names, of which one does not start.
fn plugins(names: &[&'static str], lame: &str) -> (Builder, Log) {
    let log = Log::default();
    let add = |builder: Builder, name: &&'static str| {
        builder.plugin(Recording { name, starts: *name != lame, log: log.clone() })
    };
    (names.iter().fold(Builder::new(), add), log)
}

/// A cluster of one, whose API is to listen on `api_port`.
fn replica(dir: &Path, api_port: u16) -> PathBuf {
    let peer_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let replica = NewReplica { id: 1, host: "127.0.0.1".into(), peer_port, api_port };
    let made = init(&InitOptions {
        dir: dir.join("cluster"),
        replicas: vec![replica],
        context: "test".into(),
        heartbeat_ms: HEARTBEAT_MS,
        node_lost_ms: NODE_LOST_MS,
    });
    made.unwrap().replicas.remove(0)
}

fn told(log: &Log) -> Vec<String> {
    log.lock().unwrap().clone()
}

/// Runs the replica with these modules; it must end by itself.
async fn fails(dir: PathBuf, builder: Builder) -> Failure {
    let options = ServeOptions { dir, builder, advertise: None };
    run(options, std::future::pending()).await.unwrap_err()
}

/// Every file below a directory, with its length.
fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        let of = entry.metadata().unwrap();
        if of.is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push((entry.path(), of.len()));
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_that_do_not_fit_are_refused_before_anything_opens() {
    let place = tempfile::tempdir().unwrap();
    let dir = replica(place.path(), 1);
    let before = files(&dir);
    let (builder, log) = plugins(&["twin", "twin"], "");
    let failure = fails(dir.clone(), builder).await;
    assert_eq!(failure.exit, Exit::Usage, "INVALID_CONFIG");
    assert_eq!(failure.detail, "cannot put the modules together: module twin: is registered twice");
    assert_eq!(files(&dir), before, "neither a lock nor a log");
    assert_eq!(told(&log), [""; 0], "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_does_not_start_stops_those_before_it_and_is_told_whole() {
    let place = tempfile::tempdir().unwrap();
    let dir = replica(place.path(), 1);
    let (builder, log) = plugins(&["one", "two", "three", "four"], "three");
    let failure = fails(dir, builder).await;
    assert_eq!(told(&log), ["start one", "start two", "start three", "stop two", "stop one"]);
    assert_eq!(failure.exit, Exit::Conflict);
    assert_eq!(
        failure.detail,
        "cannot start the modules: module three did not start: its port is taken"
    );
    assert_eq!(failure.hint.as_deref(), Some("choose another port"));
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_that_started_are_stopped_when_the_api_cannot_listen() {
    let place = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = replica(place.path(), taken.local_addr().unwrap().port());
    let (builder, log) = plugins(&["one", "two"], "");
    let failure = fails(dir, builder).await;
    assert!(failure.detail.contains("is in use by another process"), "{}", failure.detail);
    assert_eq!(told(&log), ["start one", "start two", "stop two", "stop one"], "MOD-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_are_stopped_in_reverse_when_the_replica_is_told_to_stop() {
    let place = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dir = replica(place.path(), port);
    let (builder, log) = plugins(&["one", "two"], "");
    let options = ServeOptions { dir, builder, advertise: None };
    run(options, std::future::ready(())).await.unwrap();
    assert_eq!(told(&log), ["start one", "start two", "stop two", "stop one"], "MOD-1");
}
