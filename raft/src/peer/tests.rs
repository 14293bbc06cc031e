//! Who may talk to a replica, over real sockets.
#![allow(clippy::disallowed_methods, reason = "real sockets need the real runtime")]

use std::{net::SocketAddr, sync::Arc};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use palisade_state::{ReplicaId, Rt, View};
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::{net::TcpListener, sync::oneshot};

use super::*;
use crate::{
    Addresses, Identity, Metrics, TokioRuntime,
    metrics::{Refused, RefusedLabel},
    proposer::Proposer,
    refusal::Refusal,
    store::{At, Here, Hub, Service},
};

const LINEAGE: &str = "lineage-1";

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), der }
    }

    fn issue(&self, dns: u64, uri: &str) -> PeerTls {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![tls::server_name(dns)]).unwrap();
        params.subject_alt_names.push(SanType::URI(uri.to_owned().try_into().unwrap()));
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        PeerTls {
            ca_der: vec![self.der.clone()],
            chain_der: vec![certificate.der().clone()],
            key_der: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        }
    }

    fn gateway(&self, name: &str) -> PeerTls {
        self.issue(0, &format!("palisade://{LINEAGE}/gateway/{name}"))
    }

    fn replica(&self, id: u64) -> PeerTls {
        self.issue(id, &format!("palisade://{LINEAGE}/replica/{id}"))
    }
}

fn identity(replica: u64) -> Identity {
    Identity {
        cluster: "c1".into(),
        lineage: LINEAGE.into(),
        epoch: 3,
        replica: ReplicaId(replica),
    }
}

struct Anybody;

impl Door for Anybody {
    fn admit(&self, _: u64) -> Result<(), PeerError> {
        Ok(())
    }
}

/// Counts the entries of appends and knows nothing else.
struct Stub;

fn nothing<T: Send + 'static>() -> Answer<T> {
    std::future::ready(Err(PeerError::Failed("not here".into()))).boxed()
}

impl PeerApi for Stub {
    fn append(
        &self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> Answer<Answers<wire::AppendReply>> {
        let replies =
            requests.map(|request| Ok(convert::stopped(format!("{}", request.entries.len()))));
        std::future::ready(Ok(replies.boxed())).boxed()
    }

    fn heartbeat(&self, _: wire::AppendRequest) -> Answer<wire::AppendReply> {
        nothing()
    }

    fn vote(&self, _: wire::VoteRequest) -> Answer<wire::VoteReply> {
        nothing()
    }

    fn pre_vote(&self, _: wire::VoteRequest) -> Answer<wire::VoteReply> {
        nothing()
    }

    fn transfer(&self, _: wire::TransferRequest) -> Answer<wire::TransferReply> {
        nothing()
    }

    fn snapshot(
        &self,
        _: BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>,
    ) -> Answer<wire::SnapshotReply> {
        nothing()
    }

    fn snapshot_have(&self, _: wire::SnapshotHead) -> Answer<wire::SnapshotOffset> {
        nothing()
    }

    fn propose(&self, _: wire::ProposeRequest) -> Answer<wire::ProposeReply> {
        nothing()
    }

    fn propose_stream(
        &self,
        _: BoxStream<'static, wire::ProposeRequest>,
    ) -> Answer<Answers<wire::ProposeReply>> {
        nothing()
    }

    fn read_index(&self) -> Answer<wire::ReadIndexReply> {
        nothing()
    }
}

/// Answers a read with 42 and knows nothing else.
struct StubStore {
    proposer: Proposer,
    hub: Arc<Hub>,
}

impl StubStore {
    fn new(rt: Rt) -> Self {
        let published = palisade_state::Machine::default().published();
        let hub = Hub::new(rt, published, Arc::new(Metrics::default()));
        Self { proposer: Proposer::new().0, hub }
    }
}

impl Here for StubStore {
    fn proposer(&self) -> &Proposer {
        &self.proposer
    }

    fn read_index(&self) -> BoxFuture<'static, Result<u64, Refusal>> {
        std::future::ready(Ok(42)).boxed()
    }

    fn view(&self, _: At) -> BoxFuture<'static, Result<View, Refusal>> {
        std::future::ready(Err(Refusal::NotLeader)).boxed()
    }

    fn leader_addr(&self) -> Option<String> {
        None
    }

    fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }
}

struct Served {
    addr: SocketAddr,
    rt: Rt,
    tls: Arc<TlsState>,
    metrics: Arc<Metrics>,
    _stop: oneshot::Sender<()>,
}

/// Replica 1 of cluster c1, epoch 3.
async fn served(ca: &Ca) -> Served {
    served_at_most(ca, HANDSHAKES_MAX).await
}

async fn served_at_most(ca: &Ca, handshakes: usize) -> Served {
    let rt: Rt = Arc::new(TokioRuntime::current().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let tls = Arc::new(TlsState::new(LINEAGE, 1, ca.replica(1)).unwrap());
    let metrics = Arc::<Metrics>::default();
    let options = ServeOptions {
        rt: rt.clone(),
        tls: tls.clone(),
        identity: Arc::new(identity(1)),
        metrics: metrics.clone(),
        api: Arc::new(Stub),
        store: Service(Arc::new(StubStore::new(rt.clone()))),
        door: Arc::new(Anybody),
        hold: std::time::Duration::from_secs(15),
        handshakes,
    };
    let (stop, stopped) = oneshot::channel();
    serve(listener, options, stopped);
    Served { addr, rt, tls, metrics, _stop: stop }
}

impl Served {
    fn client(&self, state: TlsState, caller: &Identity) -> Arc<dyn PeerApi> {
        let transport = TonicTransport::new(self.rt.clone(), Arc::new(state), caller).unwrap();
        transport.peer(1, &self.addr.to_string(), Purpose::Store)
    }

    async fn ask(&self, tls: PeerTls, named: u64, caller: Identity) -> Result<u64, PeerError> {
        let state = TlsState::new(LINEAGE, named, tls).unwrap();
        let reply = self.client(state, &caller).read_index().await?;
        match reply.result {
            Some(wire::read_index_reply::Result::Index(index)) => Ok(index),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_replica_of_the_cluster_is_served() {
    let ca = Ca::new();
    let served = served(&ca).await;
    assert_eq!(served.ask(ca.replica(2), 2, identity(2)).await, Ok(42));
}

#[tokio::test]
async fn a_replica_of_another_ca_is_not_served() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let mut tls = Ca::new().replica(2);
    let refused = served.ask(tls.clone(), 2, identity(2)).await.unwrap_err();
    assert!(matches!(refused, PeerError::Unreachable(_)), "it trusts not our server: {refused}");
    tls.ca_der = vec![ca.der.clone()];
    let refused = served.ask(tls, 2, identity(2)).await.unwrap_err();
    assert!(!matches!(refused, PeerError::Refused(_)), "it is not heard at all: {refused}");
}

#[tokio::test]
async fn a_replica_of_another_cluster_is_told_which() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let other = Identity { cluster: "c2".into(), ..identity(2) };
    let refused = served.ask(ca.replica(2), 2, other).await.unwrap_err().to_string();
    assert!(refused.contains("of cluster c1") && refused.contains("\"c2\""), "{refused}");
}

#[tokio::test]
async fn a_replica_of_an_earlier_life_is_told_which() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let other = Identity { epoch: 2, ..identity(2) };
    let refused = served.ask(ca.replica(2), 2, other).await.unwrap_err().to_string();
    assert!(refused.contains("epoch 3") && refused.contains("epoch \"2\""), "{refused}");
}

#[tokio::test]
async fn a_replica_cannot_speak_for_another() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let refused = served.ask(ca.replica(2), 2, identity(3)).await.unwrap_err().to_string();
    assert!(refused.contains("\"3\"") && refused.contains("names replica 2"), "{refused}");
}

#[tokio::test]
async fn an_agent_and_another_lineage_are_not_served() {
    let ca = Ca::new();
    let served = served(&ca).await;
    for uri in ["palisade://lineage-1/node/7", "palisade://lineage-2/replica/2"] {
        let tls = ca.issue(2, uri);
        let own = TlsState::new(LINEAGE, 2, tls.clone());
        assert!(matches!(own, Err(TlsError::NotMine(_))), "{uri} is refused as one's own, too");
        let state = TlsState::unchecked(LINEAGE, tls);
        let refused = served.client(state, &identity(2)).read_index().await.unwrap_err();
        assert!(!matches!(refused, PeerError::Refused(_)), "{uri} is not heard at all: {refused}");
    }
}

fn gateway(name: &str) -> Gateway {
    Gateway { name: name.into(), cluster: "c1".into(), epoch: 3 }
}

impl Served {
    /// What the gateway `who`, with the certificate of `of`, gets for a read.
    async fn ask_as(&self, who: Gateway, of: PeerTls) -> Result<u64, String> {
        let store = who.connect(1, &self.addr.to_string(), of).await;
        let mut store = store.map_err(|error| error.to_string())?;
        let asked = store.read_index(wire::ReadIndexRequest {});
        match asked.await.map_err(|status| status.message().to_owned())?.into_inner().result {
            Some(wire::read_index_reply::Result::Index(index)) => Ok(index),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_gateway_is_served_by_the_store() {
    let ca = Ca::new();
    let served = served(&ca).await;
    assert_eq!(served.ask_as(gateway("edge-1"), ca.gateway("edge-1")).await, Ok(42));
}

#[tokio::test]
async fn a_gateway_is_refused_by_the_peer_service() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let mut peer =
        gateway("edge-1").peer(1, &served.addr.to_string(), ca.gateway("edge-1")).await.unwrap();
    let vote = peer.vote(wire::VoteRequest::default()).await.unwrap_err();
    assert_eq!(vote.code(), tonic::Code::PermissionDenied);
    assert!(vote.message().contains("gateway edge-1 may use the Store service"), "{vote}");
    let append = peer.append(futures::stream::iter([wire::AppendRequest::default()])).await;
    assert_eq!(append.unwrap_err().code(), tonic::Code::PermissionDenied);
    let snapshot = peer.snapshot(futures::stream::iter([wire::SnapshotChunk::default()])).await;
    assert_eq!(snapshot.unwrap_err().code(), tonic::Code::PermissionDenied);
}

#[tokio::test]
async fn a_gateway_of_another_name_cluster_or_epoch_is_told() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let refused = |who, of| {
        let asked = served.ask_as(who, of);
        async move { asked.await.unwrap_err() }
    };
    let told = refused(gateway("edge-2"), ca.gateway("edge-1")).await;
    assert!(told.contains("\"gateway/edge-2\"") && told.contains("names gateway edge-1"), "{told}");
    let other = Gateway { cluster: "c2".into(), ..gateway("edge-1") };
    let told = refused(other, ca.gateway("edge-1")).await;
    assert!(told.contains("of cluster c1"), "{told}");
    let older = Gateway { epoch: 2, ..gateway("edge-1") };
    let told = refused(older, ca.gateway("edge-1")).await;
    assert!(told.contains("epoch 3"), "{told}");
    let told = refused(gateway("edge-1"), ca.replica(2)).await;
    assert!(told.contains("names replica 2"), "a replica does not pass for a gateway: {told}");
    let told = served.ask(ca.replica(2), 2, identity(2)).await;
    assert_eq!(told, Ok(42), "and is served as itself");
}

#[tokio::test]
async fn a_gateway_without_a_name_or_of_another_ca_is_not_heard() {
    let ca = Ca::new();
    let served = served(&ca).await;
    for tls in [ca.gateway("Edge"), ca.issue(0, "palisade://lineage-2/gateway/edge-1"), {
        let mut other = Ca::new().gateway("edge-1");
        other.ca_der = vec![ca.der.clone()];
        other
    }] {
        let told = served.ask_as(gateway("edge-1"), tls).await.unwrap_err();
        assert!(!told.contains("caller"), "it is not heard at all: {told}");
    }
}

#[tokio::test]
async fn a_watch_of_somebody_unknown_is_refused() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let tls = ca.gateway("edge-1");
    let store = gateway("edge-2").connect(1, &served.addr.to_string(), tls).await;
    let request = wire::WatchRequest { table: "t".into(), ..wire::WatchRequest::default() };
    let refused = store.unwrap().watch(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
}

#[tokio::test]
async fn certificates_are_replaced_while_connections_are_served() {
    let (old, new) = (Ca::new(), Ca::new());
    let served = served(&old).await;
    let mut from_new = new.replica(2);
    from_new.ca_der.push(old.der.clone());
    assert!(served.ask(from_new.clone(), 2, identity(2)).await.is_err(), "not yet");
    let mut both = old.replica(1);
    both.ca_der.push(new.der.clone());
    served.tls.replace(1, both).unwrap();
    assert_eq!(served.ask(from_new, 2, identity(2)).await, Ok(42));
    assert_eq!(served.ask(old.replica(3), 3, identity(3)).await, Ok(42));
}

#[tokio::test]
async fn requests_and_replies_stream_in_order_and_end_together() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let state = TlsState::new(LINEAGE, 2, ca.replica(2)).unwrap();
    let peer = served.client(state, &identity(2));
    let request = |entries| wire::AppendRequest {
        entries: vec![wire::LogEntry::default(); entries],
        ..wire::AppendRequest::default()
    };
    let requests = futures::stream::iter((0..100).map(request)).boxed();
    let replies: Vec<_> = peer.append(requests).await.unwrap().collect().await;
    assert_eq!(replies.len(), 100);
    for (number, reply) in replies.into_iter().enumerate() {
        assert_eq!(reply.unwrap(), convert::stopped(number.to_string()));
    }
}

#[tokio::test]
async fn who_does_not_say_who_it_is_is_one_of_a_few() {
    let ca = Ca::new();
    let served = served_at_most(&ca, 1).await;
    let silent = tokio::net::TcpStream::connect(served.addr).await.unwrap();
    let mut asking = Box::pin(served.ask(ca.replica(2), 2, identity(2)));
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut asking).await;
    assert!(early.is_err(), "it waits for its turn: {early:?}");
    drop(silent);
    assert_eq!(asking.await, Ok(42));
}

#[tokio::test]
async fn nobody_votes_or_leads_under_another_name() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let state = TlsState::new(LINEAGE, 2, ca.replica(2)).unwrap();
    let peer = served.client(state, &identity(2));
    let vote = |node| Some(wire::Vote { term: 9, node, committed: true });
    let append = |node| wire::AppendRequest { vote: vote(node), ..wire::AppendRequest::default() };
    let ballot = |node| wire::VoteRequest { vote: vote(node), ..wire::VoteRequest::default() };
    let transfer = |node| wire::TransferRequest { from: vote(node), ..Default::default() };
    let head = |node| wire::SnapshotHead { vote: vote(node), ..wire::SnapshotHead::default() };
    for (node, is_refused) in [(2, false), (3, true)] {
        let told = [
            peer.heartbeat(append(node)).await.unwrap_err(),
            peer.vote(ballot(node)).await.unwrap_err(),
            peer.pre_vote(ballot(node)).await.unwrap_err(),
            peer.transfer(transfer(node)).await.unwrap_err(),
            peer.snapshot_have(head(node)).await.unwrap_err(),
        ];
        for told in told {
            let speaks = told.to_string().contains("replica 2 speaks for replica 3");
            assert_eq!(speaks, is_refused, "PEER-4: {told}");
        }
    }
    let requests = futures::stream::iter([append(2), append(3), append(2)]).boxed();
    let replies: Vec<_> = peer.append(requests).await.unwrap().collect().await;
    assert_eq!(replies.len(), 1, "PEER-4: the stream ends there");
}

#[tokio::test]
async fn a_port_is_open_or_refuses() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let state = TlsState::new(LINEAGE, 2, ca.replica(2)).unwrap();
    let transport = TonicTransport::new(served.rt.clone(), Arc::new(state), &identity(2)).unwrap();
    assert_eq!(transport.probe(&served.addr.to_string()).await, Probe::Open);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(transport.probe(&closed.to_string()).await, Probe::Refused);
}

/// It once counted as a call that may have been taken, so that whoever wrote through it was told that nobody knows.
#[tokio::test]
async fn a_call_that_is_kept_waiting_was_certainly_not_taken() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let ask = async |boot: &str| {
        let state = Arc::new(TlsState::new(LINEAGE, 2, ca.replica(2)).unwrap());
        let transport = TonicTransport::new(served.rt.clone(), state, &identity(2)).unwrap();
        let transport = transport.of_process(&boot.parse().unwrap());
        let peer = transport.peer(1, &served.addr.to_string(), Purpose::Store);
        (peer.read_index().await, peer)
    };
    let (first, _stays) = ask("1-1").await;
    first.unwrap();
    let (second, _) = ask("2-2").await;
    assert!(matches!(second, Err(PeerError::Waits(_))), "{second:?}");
}

/// SHA-256 of the public key of a certificate, hex.
fn key_of(tls: &PeerTls) -> String {
    use sha2::{Digest as _, Sha256};
    use x509_parser::prelude::FromDer as _;
    let (_, leaf) = x509_parser::certificate::X509Certificate::from_der(&tls.chain_der[0]).unwrap();
    let digest = Sha256::digest(leaf.public_key().raw);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_key_that_is_revoked_opens_nothing_and_what_it_had_opened_ends() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let stolen = ca.replica(2);
    let state = TlsState::new(LINEAGE, 2, stolen.clone()).unwrap();
    let there = served.client(state, &identity(2));
    there.read_index().await.unwrap();
    served.tls.refusals().set_keys([key_of(&stolen)].into());
    there.read_index().await.expect_err("PEER-5: on the connection that was there");
    served.ask(stolen, 2, identity(2)).await.expect_err("PEER-5: on a new one");
    // Another key of the same replica, and everybody else.
    assert_eq!(served.ask(ca.replica(2), 2, identity(2)).await, Ok(42));
    assert_eq!(served.ask(ca.replica(3), 3, identity(3)).await, Ok(42));
}

#[tokio::test]
async fn a_ca_that_is_dropped_is_refused_also_on_connections_that_were_there() {
    let (old, new) = (Ca::new(), Ca::new());
    let both = vec![new.der.clone(), old.der.clone()];
    let with = |tls: PeerTls, ca_der: &Vec<_>| PeerTls { ca_der: ca_der.clone(), ..tls };
    let served = served(&old).await;
    served.tls.replace(1, with(new.replica(1), &both)).unwrap();
    let state = TlsState::new(LINEAGE, 2, with(old.replica(2), &both)).unwrap();
    let there = served.client(state, &identity(2));
    there.read_index().await.unwrap();
    served.tls.replace(1, new.replica(1)).unwrap();
    there.read_index().await.expect_err("PEER-5");
    assert_eq!(served.ask(new.replica(3), 3, identity(3)).await, Ok(42));
}

#[tokio::test]
async fn a_server_whose_key_is_revoked_is_not_asked() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let state = TlsState::new(LINEAGE, 2, ca.replica(2)).unwrap();
    let refusals = state.refusals().clone();
    let there = served.client(state, &identity(2));
    there.read_index().await.unwrap();
    refusals.set_issuers(&[Ca::new().der]);
    there.read_index().await.expect_err("PEER-5");
}

/// The runtime of the test, with a clock that stands until it is put on.
struct Stepped {
    inner: TokioRuntime,
    now_ms: std::sync::atomic::AtomicU64,
}

impl Stepped {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: TokioRuntime::current().unwrap(), now_ms: 0.into() })
    }

    fn step(&self) {
        // Longer than the longest pause.
        self.now_ms.fetch_add(10_000, std::sync::atomic::Ordering::Relaxed);
    }
}

impl palisade_state::Runtime for Stepped {
    fn now(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.now_ms.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        self.inner.wall_ms()
    }

    fn sleep(&self, duration: std::time::Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.inner.spawn(name, task);
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }
}

#[tokio::test]
async fn who_is_turned_away_by_who_it_is_calls_again_later_and_not_at_once() {
    let ca = Ca::new();
    let served = served(&ca).await;
    let stolen = ca.replica(2);
    served.tls.refusals().set_keys([key_of(&stolen)].into());
    let refused = || {
        let label = RefusedLabel { why: Refused::Certificate };
        served.metrics.peers_refused.get_or_create(&label).get()
    };
    let clock = Stepped::new();
    let state = Arc::new(TlsState::new(LINEAGE, 2, stolen).unwrap());
    let transport = TonicTransport::new(clock.clone(), state, &identity(2)).unwrap();
    let addresses = Arc::<Addresses>::default();
    addresses.record(1, &served.addr.to_string());
    let [store, election] = [Purpose::Store, Purpose::Election]
        .map(|purpose| transport.peer_at(1, &addresses, purpose));
    for _ in 0..100 {
        store.read_index().await.unwrap_err();
    }
    assert_eq!(refused(), 1, "ADDR-2");
    let told = election.read_index().await.unwrap_err();
    assert!(matches!(&told, PeerError::Unreachable(why) if why.contains("tried again")), "{told}");
    for rounds in 2..5 {
        clock.step();
        for _ in 0..10 {
            store.read_index().await.unwrap_err();
            election.read_index().await.unwrap_err();
        }
        assert_eq!(refused(), rounds, "ADDR-2");
    }
    // It is let in, and that is over.
    served.tls.refusals().set_keys([].into());
    clock.step();
    store.read_index().await.unwrap();
    election.read_index().await.unwrap();
}

#[tokio::test]
async fn where_another_replica_sits_is_not_dialled_again_and_again_and_it_knows_who_hung_up() {
    let ca = Ca::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let server = TlsState::new(LINEAGE, 1, ca.replica(1)).unwrap().server();
    let (tx, mut turned) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let shaken = tokio_rustls::TlsAcceptor::from(server.clone()).accept(tcp).await;
            let _ = tx.send(shaken.map(drop).map_err(|error| server::Turned::by(&error)));
        }
    });
    let clock = Stepped::new();
    let state = Arc::new(TlsState::new(LINEAGE, 3, ca.replica(3)).unwrap());
    let transport = TonicTransport::new(clock.clone(), state, &identity(3)).unwrap();
    let peer = transport.peer(2, &addr, Purpose::Election);
    for _ in 0..3 {
        for _ in 0..100 {
            let told = peer.read_index().await.unwrap_err();
            assert!(matches!(told, PeerError::Unreachable(_)), "{told}");
        }
        assert_eq!(turned.recv().await, Some(Err(server::Turned::ByCaller)));
        assert!(turned.try_recv().is_err(), "ADDR-2");
        clock.step();
    }
}
