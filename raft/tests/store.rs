//! The Store service, as a gateway finds it.

use std::time::{Duration, Instant};

use futures::StreamExt;
use palisade_raft::peer::{
    GatewayStore,
    wire::{
        Changes, ProposeRequest, ReadRequest, Refusal, Rows, WatchManyReply, WatchManyRequest,
        WatchReply, WatchRequest, propose_reply::Result as Proposed,
        read_reply::Result as Answered, refusal::Why, watch_many_reply::Result as Many,
        watch_reply::Event,
    },
};
use palisade_state::{
    Command, Outcome, Store, Txn,
    command::{Enqueue, Finish, Kind, Tick, Write},
    limits::VALUE_BYTES_MAX,
};
use prost::Message;

use crate::support::{Cluster, eventually, put, snapshot_up_to, tuning};

fn request(id: u64, command: &Command) -> ProposeRequest {
    ProposeRequest { id, command: command.encode_to_vec().into() }
}

async fn propose(store: &mut GatewayStore, command: &Command) -> Result<Outcome, Refusal> {
    let reply = store.propose(request(7, command)).await.unwrap().into_inner();
    assert_eq!(reply.id, 7);
    match reply.result.unwrap() {
        Proposed::Outcome(bytes) => Ok(Outcome::decode(bytes).unwrap()),
        Proposed::Refusal(refusal) => Err(refusal),
    }
}

async fn read(store: &mut GatewayStore, request: ReadRequest) -> Result<Rows, Refusal> {
    match store.read(request).await.unwrap().into_inner().result.unwrap() {
        Answered::Rows(rows) => Ok(rows),
        Answered::Refusal(refusal) => Err(refusal),
    }
}

fn key(key: &str) -> ReadRequest {
    ReadRequest { table: "t".into(), start: key.to_owned().into(), ..ReadRequest::default() }
}

fn range(start: &str, end: &str) -> ReadRequest {
    ReadRequest { end: Some(end.to_owned().into()), ..key(start) }
}

fn keys(rows: &Rows) -> Vec<String> {
    rows.rows.iter().map(|row| String::from_utf8(row.key.to_vec()).unwrap()).collect()
}

/// Three replicas, and connections to the leader and to a follower.
async fn connected() -> (Cluster, GatewayStore, GatewayStore) {
    let cluster = Cluster::formed(tuning()).await;
    let leader = cluster.gateway(cluster.leader().await).await;
    let follower = cluster.gateway(cluster.follower().await).await;
    (cluster, leader, follower)
}

#[tokio::test]
async fn what_the_leader_took_is_read_on_a_follower() {
    let (_cluster, mut leader, mut follower) = connected().await;
    for n in 0..20 {
        let name = format!("k{n:02}");
        let outcome = propose(&mut leader, &put(&name, name.as_bytes())).await.unwrap();
        let rows = read(&mut follower, key(&name)).await.unwrap();
        assert_eq!((keys(&rows), rows.more), (vec![name.clone()], false));
        assert_eq!(rows.rows[0].value, name);
        assert_eq!(rows.rows[0].modified_rev, outcome.revision);
        assert!(rows.revision >= outcome.revision);
    }
    let rows = read(&mut follower, ReadRequest { limit: 3, ..range("k05", "k10") }).await.unwrap();
    assert_eq!((keys(&rows), rows.more), (vec!["k05".into(), "k06".into(), "k07".into()], true));
    let rows = read(&mut follower, range("k18", "")).await.unwrap();
    assert_eq!((keys(&rows), rows.more), (vec!["k18".into(), "k19".into()], false));
    let rows = read(&mut follower, key("none")).await.unwrap();
    assert!(rows.rows.is_empty());
}

#[tokio::test]
async fn a_revision_is_waited_for_and_local_reads_wait_for_nothing() {
    let (_cluster, mut leader, mut follower) = connected().await;
    let revision = propose(&mut leader, &put("k", b"v")).await.unwrap().revision;
    let at = ReadRequest { at_revision: revision, ..key("k") };
    assert_eq!(keys(&read(&mut follower, at).await.unwrap()), ["k"]);
    let local = ReadRequest { local: true, ..key("k") };
    assert_eq!(keys(&read(&mut follower, local).await.unwrap()), ["k"]);
}

#[tokio::test]
async fn a_follower_says_who_leads() {
    let (cluster, _, mut follower) = connected().await;
    let refused = propose(&mut follower, &put("k", b"v")).await.unwrap_err();
    assert_eq!(refused.why(), Why::NotLeader);
    let leader = cluster.node(cluster.leader().await);
    assert_eq!(refused.detail, leader.addr.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_nobody_answers_says_so() {
    let mut cluster = Cluster::formed(tuning()).await;
    let leader = cluster.leader().await;
    let store = cluster.gateway(leader).await;
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.kill(id);
    }
    let begun = Instant::now();
    let refused = loop {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "it takes writes and never answers them"
        );
        let mut store = store.clone();
        let command = put("k", b"v");
        // What it took while its lease lasted is not answered.
        let proposed = propose(&mut store, &command);
        if let Ok(answer) = tokio::time::timeout(Duration::from_millis(200), proposed).await {
            break answer.unwrap_err();
        }
    };
    assert_eq!(refused.why(), Why::NoQuorum);
    assert!(refused.detail.parse::<u64>().unwrap() >= 3000, "{}", refused.detail);
}

#[tokio::test]
async fn a_stream_is_pipelined_and_survives_what_is_refused() {
    let (_cluster, mut leader, _) = connected().await;
    let (tx, rx) = tokio::sync::mpsc::unbounded_channel();
    let requests = tokio_stream::wrappers::UnboundedReceiverStream::new(rx);
    let mut replies = leader.propose_stream(requests).await.unwrap().into_inner();
    for id in 0..3000 {
        tx.send(match id {
            100 => ProposeRequest { id, command: vec![0xff; 9].into() },
            200 => request(id, &put("large", &vec![0; VALUE_BYTES_MAX + 1])),
            300 => request(id, &Kind::Tick(Tick {}).into()),
            400 => ProposeRequest { id, command: vec![].into() },
            _ => request(id, &put(&format!("k{id}"), b"v")),
        })
        .unwrap();
    }
    let mut refused = vec![];
    let mut applied = std::collections::BTreeSet::new();
    for _ in 0..3000 {
        let reply = replies.next().await.unwrap().unwrap();
        match reply.result.unwrap() {
            Proposed::Outcome(bytes) => {
                assert!(Outcome::decode(bytes).unwrap().is_applied());
                assert!(applied.insert(reply.id), "{} was answered twice", reply.id);
            }
            Proposed::Refusal(refusal) => refused.push((reply.id, refusal.why())),
        }
    }
    refused.sort_unstable_by_key(|(id, _)| *id);
    let invalid = Why::Invalid;
    assert_eq!(refused, [(100, invalid), (200, Why::TooLarge), (300, invalid), (400, invalid)]);
    assert_eq!(applied.len(), 2996);
    drop(tx);
    assert!(replies.next().await.is_none(), "both ends close together");
}

#[tokio::test]
async fn reads_stream_too() {
    let (_cluster, mut leader, mut follower) = connected().await;
    propose(&mut leader, &put("k", b"v")).await.unwrap();
    let requests: Vec<_> = (0..500)
        .map(|id| if id == 250 { range("b", "a") } else { key("k") })
        .zip(0..)
        .map(|(request, id)| ReadRequest { id, ..request })
        .collect();
    let replies = follower.read_stream(futures::stream::iter(requests)).await.unwrap();
    let mut replies: Vec<_> = replies.into_inner().map(Result::unwrap).collect().await;
    replies.sort_unstable_by_key(|reply| reply.id);
    assert_eq!(replies.len(), 500);
    for reply in replies {
        match reply.result.unwrap() {
            Answered::Rows(rows) => assert_eq!(keys(&rows), ["k"]),
            Answered::Refusal(refusal) => {
                assert_eq!((reply.id, refusal.why()), (250, Why::Invalid));
            }
        }
    }
}

#[tokio::test]
async fn reads_that_make_no_sense_are_refused_exactly() {
    let (_cluster, mut leader, _) = connected().await;
    let text = ReadRequest { table: vec![0xff].into(), ..key("k") };
    let why = read(&mut leader, text).await.unwrap_err();
    assert_eq!(
        (why.why(), why.detail.as_str()),
        (Why::Invalid, "the table's name is not UTF-8 text")
    );
    let why = read(&mut leader, range("b", "a")).await.unwrap_err();
    assert_eq!(why.why(), Why::Invalid);
    let why = read(&mut leader, ReadRequest { table: "".into(), ..key("k") }).await.unwrap_err();
    assert_eq!(why.why(), Why::Invalid);
    let why = read(&mut leader, key(&"k".repeat(1025))).await.unwrap_err();
    assert_eq!(why.why(), Why::TooLarge);
}

async fn watch(store: &mut GatewayStore, request: WatchRequest) -> tonic::Streaming<WatchReply> {
    store.watch(request).await.unwrap().into_inner()
}

fn rows_of(start: &str, end: Option<&str>) -> WatchRequest {
    WatchRequest {
        table: "t".into(),
        start: start.to_owned().into(),
        end: end.map(|end| end.to_owned().into()),
        ..WatchRequest::default()
    }
}

async fn changes(watch: &mut tonic::Streaming<WatchReply>) -> Changes {
    match watch.next().await.unwrap().unwrap().event.unwrap() {
        Event::Changes(changes) => changes,
        Event::Reset(reset) => panic!("{reset:?}"),
    }
}

#[tokio::test]
async fn watchers_are_told_of_what_is_theirs() {
    let (_cluster, mut leader, mut follower) = connected().await;
    let mut one = watch(&mut follower, rows_of("b", None)).await;
    let mut some = watch(&mut follower, rows_of("b", Some("d"))).await;
    let mut all = watch(&mut leader, rows_of("", Some(""))).await;
    for watch in [&mut one, &mut some, &mut all] {
        assert!(changes(watch).await.rows.is_empty(), "the first message says where it begins");
    }
    let mut told: Vec<(u64, &str, Option<&str>)> = vec![];
    for (key, value) in [("a", Some("1")), ("b", Some("2")), ("c", Some("3")), ("b", None)] {
        let value = value.map(|value| value.as_bytes().to_vec());
        let write = Write { table: "t".into(), key: key.into(), value: value.clone() };
        let txn = Txn { writes: vec![write], ..Txn::default() };
        let revision = propose(&mut leader, &txn.into()).await.unwrap().revision;
        let value = value.map(|_| match key {
            "a" => "1",
            "b" => "2",
            _ => "3",
        });
        told.push((revision, key, value));
    }
    for (watch, of) in [(&mut one, "b"), (&mut some, "bc"), (&mut all, "abc")] {
        for (revision, key, value) in told.iter().filter(|(_, key, _)| of.contains(key)) {
            let changes = changes(watch).await;
            assert_eq!(changes.revision, *revision);
            let [change] = changes.rows.as_slice() else { panic!("{changes:?}") };
            assert_eq!((change.key.as_ref(), change.modified_rev), (key.as_bytes(), *revision));
            assert_eq!(change.value.as_deref(), value.map(str::as_bytes));
        }
    }
}

#[tokio::test]
async fn a_watch_from_a_revision_tells_what_came_after_it() {
    let (_cluster, mut leader, _) = connected().await;
    let first = propose(&mut leader, &put("a", b"1")).await.unwrap().revision;
    let second = propose(&mut leader, &put("b", b"2")).await.unwrap().revision;
    let from = |revision| WatchRequest { from_revision: revision, ..rows_of("", Some("")) };
    let mut current = watch(&mut leader, from(second)).await;
    let begun = changes(&mut current).await;
    assert_eq!((begun.revision, begun.rows.len()), (second, 0));
    let mut older = watch(&mut leader, from(first)).await;
    let missed = changes(&mut older).await;
    assert_eq!((missed.revision, missed.rows.len()), (second, 1));
    assert_eq!(missed.rows[0].key, "b");
    let third = propose(&mut leader, &put("c", b"3")).await.unwrap().revision;
    for watch in [&mut current, &mut older] {
        let told = changes(watch).await;
        assert_eq!((told.revision, told.rows.len()), (third, 1));
    }
}

#[tokio::test]
async fn a_watch_from_before_the_replica_began_is_reset() {
    let (mut cluster, mut leader, _) = connected().await;
    let first = propose(&mut leader, &put("a", b"1")).await.unwrap().revision;
    let id = cluster.follower().await;
    let old = cluster.replica(id);
    eventually("the first", || (old.view().revision() >= first).then_some(())).await;
    snapshot_up_to(&old, old.view().applied().index).await;
    let second = propose(&mut leader, &put("b", b"2")).await.unwrap().revision;
    drop(old);
    cluster.kill(id);
    cluster.start(id).await;
    let mut follower = cluster.gateway(id).await;
    let at = ReadRequest { at_revision: second, ..key("b") };
    assert_eq!(keys(&read(&mut follower, at).await.unwrap()), ["b"]);
    let from = WatchRequest { from_revision: first - 1, ..rows_of("", Some("")) };
    let mut watch = watch(&mut follower, from).await;
    match watch.next().await.unwrap().unwrap().event.unwrap() {
        Event::Reset(reset) => assert!(reset.revision >= second),
        Event::Changes(changes) => panic!("{changes:?}"),
    }
    let third = propose(&mut leader, &put("c", b"3")).await.unwrap().revision;
    assert_eq!(changes(&mut watch).await.revision, third);
}

/// The next message of many watches: whose, and what.
async fn told(replies: &mut tonic::Streaming<WatchManyReply>) -> (u64, Many) {
    let reply = replies.next().await.unwrap().unwrap();
    (reply.id, reply.result.unwrap())
}

fn keys_of(told: Many) -> Vec<String> {
    match told {
        Many::Reply(WatchReply { event: Some(Event::Changes(changes)) }) => {
            changes.rows.iter().map(|row| String::from_utf8(row.key.to_vec()).unwrap()).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_watches_share_a_stream() {
    let (_cluster, mut leader, mut follower) = connected().await;
    let (tx, rx) = tokio::sync::mpsc::unbounded_channel();
    let requests = tokio_stream::wrappers::UnboundedReceiverStream::new(rx);
    let begin = |id, watch| tx.send(WatchManyRequest { id, watch: Some(watch) }).unwrap();
    let end = |id| tx.send(WatchManyRequest { id, watch: None }).unwrap();
    begin(1, rows_of("a", None));
    begin(2, rows_of("", Some("")));
    let mut replies = follower.watch_many(requests).await.unwrap().into_inner();
    for _ in 0..2 {
        assert!(keys_of(told(&mut replies).await.1).is_empty(), "it says where it begins");
    }
    propose(&mut leader, &put("a", b"v")).await.unwrap();
    let mut both = [told(&mut replies).await, told(&mut replies).await];
    both.sort_by_key(|(id, _)| *id);
    assert_eq!(
        both.map(|(id, told)| (id, keys_of(told))),
        [(1, vec!["a".to_owned()]), (2, vec!["a".to_owned()])]
    );

    begin(1, rows_of("b", None));
    match told(&mut replies).await {
        (1, Many::Refusal(refusal)) => assert_eq!(refusal.why(), Why::Invalid, "{refusal:?}"),
        other => panic!("{other:?}"),
    }
    end(2);
    begin(3, WatchRequest { work_kind: "no kind".into(), ..WatchRequest::default() });
    match told(&mut replies).await {
        (3, Many::Refusal(refusal)) => assert_eq!(refusal.why(), Why::Invalid, "{refusal:?}"),
        other => panic!("{other:?}"),
    }
    // Requests are taken in order, so the second watch has ended by now.
    propose(&mut leader, &put("b", b"v")).await.unwrap();
    propose(&mut leader, &put("a", b"v")).await.unwrap();
    let (id, last) = told(&mut replies).await;
    assert_eq!((id, keys_of(last)), (1, vec!["a".to_owned()]));
    end(1);
    drop(tx);
    assert!(replies.next().await.is_none(), "nothing is watched any more");
}

#[tokio::test]
async fn a_watch_from_what_has_not_been_here_is_reset() {
    let (_cluster, mut leader, _) = connected().await;
    let first = propose(&mut leader, &put("a", b"1")).await.unwrap().revision;
    // As after a restore from an older backup: whoever watches has seen more than there is.
    let from = WatchRequest { from_revision: first + 1000, ..rows_of("", Some("")) };
    let mut watch = watch(&mut leader, from).await;
    match watch.next().await.unwrap().unwrap().event.unwrap() {
        Event::Reset(reset) => assert!(reset.revision >= first),
        Event::Changes(changes) => panic!("{changes:?}"),
    }
    let second = propose(&mut leader, &put("b", b"2")).await.unwrap().revision;
    assert_eq!(changes(&mut watch).await.revision, second);
}

#[tokio::test]
async fn the_work_of_a_kind_is_watched() {
    let (_cluster, mut leader, _) = connected().await;
    let request = WatchRequest { work_kind: "sweep".into(), ..WatchRequest::default() };
    let mut work = watch(&mut leader, request).await;
    changes(&mut work).await;
    let enqueue = |kind: &str| Enqueue { kind: kind.into(), key: "k".into(), delay_ms: 0 };
    let enqueues = vec![enqueue("sweep"), enqueue("other")];
    let txn = Txn { enqueues, ..Txn::default() };
    let generation = propose(&mut leader, &txn.into()).await.unwrap().revision;
    let told = changes(&mut work).await;
    let [change] = told.work.as_slice() else { panic!("{told:?}") };
    assert_eq!((change.key.as_str(), change.generation), ("k", generation));
    let finish = Finish { kind: "sweep".into(), key: "k".into(), generation };
    let txn = Txn { finishes: vec![finish], ..Txn::default() };
    propose(&mut leader, &txn.into()).await.unwrap();
    assert_eq!(changes(&mut work).await.work[0].generation, 0);
}

#[tokio::test]
async fn watches_that_make_no_sense_are_refused_exactly() {
    let (_cluster, mut leader, _) = connected().await;
    let text = WatchRequest { table: vec![0xff].into(), ..rows_of("", None) };
    let both = WatchRequest { work_kind: "sweep".into(), ..rows_of("", None) };
    let kind = WatchRequest { work_kind: vec![0xff].into(), ..WatchRequest::default() };
    for request in [text, both, kind, rows_of("b", Some("a"))] {
        let refused = leader.watch(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    }
}

#[tokio::test]
async fn watches_end_with_the_replica() {
    let (mut cluster, mut leader, _) = connected().await;
    let id = cluster.leader().await;
    let mut all = watch(&mut leader, rows_of("", Some(""))).await;
    changes(&mut all).await;
    cluster.stop(id).await;
    while let Some(Ok(_)) = all.next().await {}
}
