//! The agent gateway: joining, renewing, and sessions.

use std::{sync::atomic::Ordering, time::Duration};

use futures::StreamExt;
use palisade_contract::{
    NodeId, SessionId,
    method::ByteStream,
    node::{NodePhase, NodeSession},
    node_spec::{NODE_SPECS, NodeSpecRecord},
};
use palisade_proto::agent::{
    Hello, Inventory, JoinRequest, LogChunk, RenewRequest, down::Msg, up::Msg as UpMsg,
};
use palisade_state::{
    Fence, ReplicaId, Runtime, Store, Tx,
    limits::SESSION_MS,
    memory::MemoryStore,
    port::{MemberStatus, timeout},
};
use tonic::Code;

use crate::support::{
    Options, TestStore, World,
    agent::{self, Node, Session},
    authority, beat,
    nodes::{NODES, PHASES, TOKEN, instance},
    runtime, until, world, world_of, world_with,
};

fn write(world: &World, build: impl FnOnce(&mut Tx)) {
    let mut tx = Tx::new(world.store.memory.view());
    build(&mut tx);
    assert!(world.store.memory.apply(tx.build().unwrap().into()).unwrap().is_applied());
}

/// Lets the node have a session with a replica, whatever that replica knows of it.
pub fn record_session(memory: &MemoryStore, node: &NodeId, replica: u64) {
    let mut tx = Tx::new(memory.view());
    let mut row = tx.get(&NODES, &node.key()).unwrap().unwrap();
    let id = SessionId::mint(&*runtime());
    row.session = Some(NodeSession { id, replica, agent_incarnation: "other".to_owned() });
    row.phase = NodePhase::Ready;
    tx.put(&NODES, &node.key(), &row).unwrap();
    assert!(memory.apply(tx.build().unwrap().into()).unwrap().is_applied());
}

fn put_spec(world: &World, node: &NodeId, generation: u64, fence: u64) {
    let record = NodeSpecRecord {
        generation,
        hash: format!("{generation:02x}"),
        fence: Fence { epoch: 0, term: 1, index: fence },
        ..NodeSpecRecord::default()
    };
    write(world, |tx| tx.put(&NODE_SPECS, &node.key(), &record).unwrap());
}

fn seen(world: &World) -> Option<u32> {
    let row = PHASES.get(&world.store.memory.view(), &instance().key()).unwrap();
    row.map(|found| found.value.restarts)
}

fn session_of(world: &World, node: &Node) -> Option<String> {
    let row = NODES.get(&world.store.memory.view(), &node.id.key()).unwrap()?;
    row.value.session.map(|session| session.id.to_string())
}

fn phase_of(world: &World, node: &Node) -> NodePhase {
    NODES.get(&world.store.memory.view(), &node.id.key()).unwrap().unwrap().value.phase
}

fn proposed(world: &World) -> usize {
    world.store.proposed.load(Ordering::SeqCst)
}

async fn session(world: &World, node: &Node) -> Session {
    agent::open(world, node, Hello::default()).await.unwrap()
}

#[tokio::test]
async fn a_token_becomes_a_certificate_once_however_often_it_is_asked() {
    let world = world().await;
    let key = agent::new_key();
    let first = agent::join(&world, TOKEN, &key).await.unwrap();
    let second = agent::join(&world, TOKEN, &key).await.unwrap();
    assert_eq!(first.node_id, second.node_id);
    assert_eq!((first.node_name.as_str(), first.lineage.as_str()), ("n1", "lin"));
    assert_eq!(first.servers, [world.server.local_addr().to_string()]);
    assert_eq!(first.ca_der, [world.authority.cert_der().to_vec()]);
    let peer = palisade_api::pki::peer_of(&first.chain_der[0]).unwrap();
    assert_eq!(peer.uri, format!("palisade://lin/node/{}", first.node_id));
}

#[tokio::test]
async fn a_refused_join_is_told_and_a_replayed_token_is_noted() {
    let world = world().await;
    let wrong = agent::join(&world, "palj1.x.y", &agent::new_key()).await.unwrap_err();
    assert_eq!((wrong.code(), wrong.message()), (Code::Unauthenticated, "the token is wrong"));
    assert_eq!(world.store.memory.view().last_event(), 0);
    agent::join(&world, "palj1.used.y", &agent::new_key()).await.unwrap_err();
    let view = world.store.memory.view();
    assert_eq!(&*view.events(1).next().unwrap().1.kind, "join.token.replayed");
}

#[tokio::test]
async fn a_removed_node_is_not_certified_again_by_its_old_join() {
    let world = world().await;
    let key = agent::new_key();
    let joined = agent::join(&world, TOKEN, &key).await.unwrap();
    write(&world, |tx| tx.delete(&NODES, &joined.node_id).unwrap());
    let refused = agent::join(&world, TOKEN, &key).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_session_needs_the_certificate_of_a_living_node() {
    let world = world().await;
    let mut stranger = agent::gateway(&world, None).await;
    let refused = stranger.session(futures::stream::empty()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let node = agent::joined(&world).await;
    write(&world, |tx| tx.delete(&NODES, &node.id.key()).unwrap());
    let refused = agent::open(&world, &node, Hello::default()).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_spec_is_pushed_when_it_is_newer_than_what_the_agent_has() {
    let world = world().await;
    let node = agent::joined(&world).await;
    put_spec(&world, &node.id, 3, 10);
    let fence = palisade_proto::agent::Fence { epoch: 0, term: 1, index: 10 };
    let hello = Hello { generation: 3, hash: vec![3], fence: Some(fence), ..Hello::default() };
    let mut session = agent::open(&world, &node, hello).await.unwrap();
    assert_eq!(session.beat(1).await, [], "the agent has it already");
    put_spec(&world, &node.id, 4, 10);
    let Some(Msg::NodeSpec(spec)) = session.next().await else { panic!("no spec") };
    assert_eq!((spec.generation, spec.hash.as_slice()), (4, &[4][..]));
    put_spec(&world, &node.id, 4, 11);
    let Some(Msg::NodeSpec(spec)) = session.next().await else { panic!("no spec") };
    assert_eq!(spec.fence.unwrap().index, 11, "a newer fence is news too");
    put_spec(&world, &node.id, 4, 11);
    assert_eq!(session.beat(2).await, []);
}

#[tokio::test]
async fn a_status_is_written_once_and_a_heartbeat_never() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    session.report(1).await;
    until("the status is written", || seen(&world) == Some(1)).await;
    session.beat(1).await;
    let before = proposed(&world);
    for seq in 2..20 {
        session.report(1).await;
        session.beat(seq).await;
    }
    assert_eq!(proposed(&world), before, "GATE-2");
    session.report(2).await;
    until("the change is written", || seen(&world) == Some(2)).await;
}

#[tokio::test]
async fn a_status_that_could_not_be_written_is_written_later() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    world.store.quorum_lost.store(true, Ordering::SeqCst);
    session.report(7).await;
    session.beat(1).await;
    assert_eq!(seen(&world), None);
    world.store.quorum_lost.store(false, Ordering::SeqCst);
    until("the status is written", || seen(&world) == Some(7)).await;
}

#[tokio::test]
async fn a_report_of_a_session_that_was_just_replaced_is_not_written() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    let id = node.id.clone();
    *world.store.before_next.lock().unwrap() = Some(Box::new(move |memory| {
        record_session(memory, &id, 2);
    }));
    session.report(1).await;
    let Some(Msg::Goodbye(_)) = session.next().await else { panic!("no goodbye") };
    assert_eq!(session.next().await, None);
    assert_eq!(seen(&world), None, "an old report took the place of a newer one");
}

#[tokio::test]
async fn a_session_that_a_replica_had_before_it_restarted_is_taken_away() {
    let (before, authority) = (TestStore::new(), authority());
    let world = world_of(before.clone(), authority.clone(), Options::default()).await;
    let (here, there) = (agent::joined(&world).await, agent::joined(&world).await);
    world.server.shutdown(Duration::ZERO).await;
    record_session(&before.memory, &here.id, 1);
    record_session(&before.memory, &there.id, 2);
    let store = TestStore::replica_of(before.memory.clone(), 1);
    let world = world_of(store, authority, Options::default()).await;
    until("GATE-4", || session_of(&world, &here).is_none()).await;
    assert!(session_of(&world, &there).is_some(), "another replica's");
    assert_eq!(proposed(&world), 1);
}

#[tokio::test]
async fn a_session_without_a_task_is_taken_away_while_the_others_cost_nothing() {
    let world = world().await;
    let (held, lost) = (agent::joined(&world).await, agent::joined(&world).await);
    let mut session = session(&world, &held).await;
    let id = session_of(&world, &held);
    let before = proposed(&world);
    record_session(&world.store.memory, &lost.id, 1);
    until("GATE-4", || session_of(&world, &lost).is_none()).await;
    session.beat(1).await;
    assert_eq!(session_of(&world, &held), id);
    assert_eq!(proposed(&world), before + 1);
}

#[tokio::test]
async fn a_session_that_was_opened_without_an_answer_is_closed() {
    let world = world().await;
    let node = agent::joined(&world).await;
    world.store.lose_answers.store(1, Ordering::SeqCst);
    let mut session = agent::try_open(&world, &node, Hello::default()).await.unwrap();
    // No sweep is to do what the session itself must.
    world.open.store(false, Ordering::SeqCst);
    let goodbye = session.next().await;
    let Some(Msg::Goodbye(_)) = goodbye else { panic!("no goodbye: {goodbye:?}") };
    until("the session is closed", || phase_of(&world, &node) == NodePhase::Unhealthy).await;
    assert_eq!(session_of(&world, &node), None);
}

/// Lets the sessions of workers lapse.
fn lapse(world: &World) {
    world.store.memory.advance(SESSION_MS);
    assert!(!world.store.memory.view().worker_lives("1"));
}

#[tokio::test]
async fn a_replica_without_a_worker_takes_no_session() {
    let world = world().await;
    let node = agent::joined(&world).await;
    lapse(&world);
    let refused = agent::try_open(&world, &node, Hello::default()).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(session_of(&world, &node), None);
}

#[tokio::test]
async fn a_session_waits_for_a_worker_that_comes() {
    let world = world().await;
    let node = agent::joined(&world).await;
    lapse(&world);
    let comes = async {
        runtime().sleep(Duration::from_millis(200)).await;
        beat(&world.store);
    };
    let (mut session, ()) = futures::join!(session(&world, &node), comes);
    session.beat(1).await;
}

#[tokio::test]
async fn a_drain_sends_agents_elsewhere_while_the_rest_goes_on() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    world.server.drain_agents(Duration::ZERO).await;
    let Some(Msg::Goodbye(_)) = session.next().await else { panic!("no goodbye") };
    assert_eq!(session.next().await, None);
    let refused = agent::try_open(&world, &node, Hello::default()).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unavailable);
    agent::joined(&world).await;
    until("the session is closed", || session_of(&world, &node).is_none()).await;
}

#[tokio::test]
async fn joins_beyond_the_limit_are_refused_at_once() {
    let world = world().await;
    world.store.reads_stalled.store(true, Ordering::SeqCst);
    let key = agent::new_key();
    let client = agent::gateway(&world, None).await;
    let request = JoinRequest {
        token: TOKEN.to_owned(),
        csr_der: agent::signing_request(&key),
        name: "n1".to_owned(),
        ..JoinRequest::default()
    };
    let joins = (0..64).map(|_| {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.join(request).await }
    });
    let beyond = async {
        until("64 joins wait", || world.store.reads_waiting.load(Ordering::SeqCst) >= 64).await;
        let (mut client, rt) = (client.clone(), runtime());
        let answer = timeout(&*rt, Duration::from_secs(5), client.join(request.clone())).await;
        world.store.reads_stalled.store(false, Ordering::SeqCst);
        answer.expect("it waits with the others").unwrap_err()
    };
    let (answers, refused) = futures::join!(futures::future::join_all(joins), beyond);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    agent::joined(&world).await;
}

#[tokio::test]
async fn changed_facts_are_written() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    let facts = Inventory { kernel: "6.99".to_owned(), ..Inventory::default() };
    session.send(UpMsg::Inventory(facts)).await;
    until("the facts are written", || {
        let row = NODES.get(&world.store.memory.view(), &node.id.key()).unwrap().unwrap();
        row.value.facts.kernel == "6.99"
    })
    .await;
}

#[tokio::test]
async fn an_agent_is_told_of_other_replicas_while_its_session_goes_on() {
    let options = Options { heartbeat: Duration::from_secs(1), ..Options::default() };
    let world = world_with(options).await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    let member = MemberStatus {
        id: ReplicaId(9),
        api_addr: "other:7171".to_owned(),
        ..world.store.memory.status().members[0].clone()
    };
    *world.store.members.lock().unwrap() = vec![member];
    let rt = runtime();
    let mut told = vec![];
    for seq in 1..=1000 {
        let before = session.beat(seq).await;
        told.extend(before.into_iter().filter_map(|msg| match msg {
            Msg::Welcome(welcome) => Some(welcome.servers),
            _ => None,
        }));
        if !told.is_empty() {
            break;
        }
        rt.sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(told, [["other:7171"]]);
}

#[tokio::test]
async fn a_silent_agent_loses_its_session() {
    let options = Options { heartbeat: Duration::from_millis(100), ..Options::default() };
    let world = world_with(options).await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    assert!(session_of(&world, &node).is_some());
    let Some(Msg::Goodbye(goodbye)) = session.next().await else { panic!("no goodbye") };
    assert!(!goodbye.revoked);
    assert_eq!(session.next().await, None);
    until("the session is closed", || session_of(&world, &node).is_none()).await;
    assert_eq!(world.server.agent_sessions(), 0);
}

#[tokio::test]
async fn a_broken_stream_closes_the_session() {
    let world = world().await;
    let node = agent::joined(&world).await;
    drop(session(&world, &node).await);
    until("the session is closed", || session_of(&world, &node).is_none()).await;
}

#[tokio::test]
async fn a_removed_node_loses_its_session_at_once() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    write(&world, |tx| tx.delete(&NODES, &node.id.key()).unwrap());
    let Some(Msg::Goodbye(goodbye)) = session.next().await else { panic!("no goodbye") };
    assert!(goodbye.revoked, "GATE-1");
    assert_eq!(session.next().await, None);
}

#[tokio::test]
async fn a_second_session_takes_the_place_of_the_first() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut first = session(&world, &node).await;
    let mut second = session(&world, &node).await;
    let held = session_of(&world, &node);
    let Some(Msg::Goodbye(goodbye)) = first.next().await else { panic!("no goodbye") };
    assert!(!goodbye.revoked);
    second.beat(1).await;
    assert_eq!(session_of(&world, &node), held, "the first one's end does not end the second");
}

#[tokio::test]
async fn a_renewal_binds_the_new_key_and_its_retry_answers_too() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let key = agent::new_key();
    let request = RenewRequest { csr_der: agent::signing_request(&key) };
    let mut client = agent::gateway(&world, Some(&node.identity)).await;
    let renewed = client.renew(request.clone()).await.unwrap().into_inner();
    let again = client.renew(request).await.unwrap().into_inner();
    assert_eq!(again.chain_der.len(), 2);
    let other = RenewRequest { csr_der: agent::signing_request(&agent::new_key()) };
    let refused = client.renew(other).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "the old key renews no more");
    let id = node.id.clone();
    let node = Node { id, identity: agent::identity(&renewed.chain_der, &key) };
    session(&world, &node).await.beat(1).await;
}

async fn logs(world: &World, node: &Node, follow: bool) -> palisade_contract::Result<ByteStream> {
    let agents = world.ports.agents.get().unwrap();
    agents.logs(world.store.memory.view(), node.id.clone(), instance(), follow, 5).await
}

async fn answer_log(session: &mut Session, data: &str, error: &str) {
    let Some(Msg::LogRequest(request)) = session.next().await else { panic!("no request") };
    assert_eq!((request.instance_id, request.tail_lines), (instance().to_string(), 5));
    let chunk = LogChunk {
        request_id: request.request_id,
        data: data.as_bytes().to_vec(),
        eof: true,
        error: error.to_owned(),
        ..LogChunk::default()
    };
    session.send(UpMsg::LogChunk(chunk)).await;
}

async fn text(stream: ByteStream) -> String {
    let chunks: Vec<_> = stream.map(|chunk| chunk.unwrap()).collect().await;
    String::from_utf8(chunks.concat()).unwrap()
}

#[tokio::test]
async fn a_log_is_read_through_the_session() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    let (log, ()) =
        futures::join!(logs(&world, &node, false), answer_log(&mut session, "hi\n", ""));
    assert_eq!(text(log.unwrap()).await, "hi\n");
    let (log, ()) =
        futures::join!(logs(&world, &node, false), answer_log(&mut session, "", "no log"));
    assert_eq!(log.err().unwrap().detail, "no log");
}

#[tokio::test]
async fn a_log_that_is_read_no_more_is_cancelled() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    drop(logs(&world, &node, true).await.unwrap());
    let Some(Msg::LogRequest(request)) = session.next().await else { panic!("no request") };
    let Some(Msg::LogCancel(cancel)) = session.next().await else { panic!("no cancel") };
    assert_eq!(cancel.request_id, request.request_id);
}

#[tokio::test]
async fn a_log_of_a_node_without_a_session_says_so() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let refused = logs(&world, &node, false).await.err().unwrap();
    assert_eq!(refused.code, palisade_contract::Code::Unavailable);
    assert!(refused.detail.contains("n1"), "{}", refused.detail);
}

#[tokio::test]
async fn a_log_is_read_through_the_replica_that_has_the_session() {
    let one = world().await;
    let store = TestStore::replica_of(one.store.memory.clone(), 2);
    let two = world_of(store, one.authority.clone(), Options::default()).await;
    let member = |world: &World| MemberStatus {
        id: world.store.replica,
        api_addr: world.server.local_addr().to_string(),
        ..one.store.memory.status().members[0].clone()
    };
    *two.store.members.lock().unwrap() = vec![member(&one), member(&two)];
    assert_eq!(two.store.replica, ReplicaId(2));
    let node = agent::joined(&one).await;
    let mut session = session(&one, &node).await;
    let (log, ()) = futures::join!(logs(&two, &node, false), answer_log(&mut session, "far\n", ""));
    assert_eq!(text(log.unwrap()).await, "far\n");
    let (log, ()) =
        futures::join!(logs(&two, &node, false), answer_log(&mut session, "", "no log"));
    assert_eq!(log.err().unwrap().detail, "no log", "the other replica's refusal is passed on");
}

#[tokio::test]
async fn a_replica_of_another_lineage_gets_no_session_and_no_log() {
    let (one, other) = (world().await, authority());
    let store = TestStore::replica_of(one.store.memory.clone(), 2);
    let two = world_of(store, other, Options::default()).await;
    let member = MemberStatus {
        api_addr: one.server.local_addr().to_string(),
        ..one.store.memory.status().members[0].clone()
    };
    *two.store.members.lock().unwrap() = vec![member];
    let node = agent::joined(&one).await;
    let _session = session(&one, &node).await;
    let refused = logs(&two, &node, false).await.err().unwrap();
    assert!(refused.detail.contains("cannot be reached"), "{}", refused.detail);
}

#[tokio::test]
async fn a_replica_that_stops_sends_its_agents_elsewhere() {
    let world = world().await;
    let node = agent::joined(&world).await;
    let mut session = session(&world, &node).await;
    let memory = world.store.memory.clone();
    let stopped = world.server.shutdown(Duration::from_secs(4));
    let (goodbye, ()) = futures::join!(
        async {
            let goodbye = session.next().await;
            assert_eq!(session.next().await, None);
            goodbye
        },
        stopped
    );
    let Some(Msg::Goodbye(goodbye)) = goodbye else { panic!("no goodbye") };
    assert!(!goodbye.revoked && goodbye.reason.contains("stops"), "{goodbye:?}");
    until("the session is closed", || {
        let row = NODES.get(&memory.view(), &node.id.key()).unwrap().unwrap();
        row.value.session.is_none()
    })
    .await;
}
