//! A cluster without sockets, threads or files: the seams that a simulation uses.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use palisade_raft::{
    Change, Disk, Identity, Member, Neighbours, Replica, ReplicaOptions, TokioRuntime, Tuning,
    Wires,
    disk::MemFiles,
    peer::{Answer, Answers, PeerApi, PeerError, Probe, Purpose, Transport, wire},
};
use palisade_state::{ReplicaId, Rt, Runtime, Store, StoreError, snapshot};

use crate::support::{CLUSTER, LINEAGE, eventually, holds, tuning, write};

/// What gets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Through {
    #[default]
    All,
    /// Votes and heartbeats, and no entries on new streams.
    NoEntries,
    Nothing,
}

#[derive(Default)]
struct Ends {
    ends: BTreeMap<u64, Arc<dyn PeerApi>>,
    through: Through,
    /// After so many bytes a stream of a snapshot breaks.
    snapshot_cut: Option<u64>,
    /// Where each stream of a snapshot began, and how many bytes it brought.
    snapshots: Vec<(u64, u64)>,
    /// Nobody else is heard when it asks for votes.
    candidate: Option<u64>,
    /// Requests for votes arrive as they were when the log was empty, and how many have.
    votes_from_the_past: Option<u64>,
}

/// Wires that lead straight to the other replica.
#[derive(Clone, Default)]
pub struct Direct(Arc<Mutex<Ends>>);

impl Direct {
    pub fn let_through(&self, through: Through) {
        self.0.lock().unwrap().through = through;
    }

    /// Lets nobody else ask for votes.
    fn only_candidate(&self, id: u64) {
        self.0.lock().unwrap().candidate = Some(id);
    }

    /// Requests for votes say what they would have said long ago, or what they say.
    pub fn votes_from_the_past(&self, are_late: bool) {
        self.0.lock().unwrap().votes_from_the_past = are_late.then_some(0);
    }

    pub fn late_votes(&self) -> u64 {
        self.0.lock().unwrap().votes_from_the_past.unwrap_or(0)
    }

    /// What a replica answers to its peers.
    fn end(&self, id: u64) -> Arc<dyn PeerApi> {
        self.0.lock().unwrap().ends[&id].clone()
    }

    pub fn cut_snapshots_after(&self, bytes: Option<u64>) {
        self.0.lock().unwrap().snapshot_cut = bytes;
    }

    /// Where each stream of a snapshot began, and how many bytes it brought.
    pub fn snapshots(&self) -> Vec<(u64, u64)> {
        self.0.lock().unwrap().snapshots.clone()
    }

    /// Notes a chunk; false when the stream breaks before it.
    fn passes(&self, nth: usize, chunk: &wire::SnapshotChunk) -> bool {
        let mut wires = self.0.lock().unwrap();
        if wires.snapshots.len() == nth {
            wires.snapshots.push((chunk.offset, 0));
        }
        let bytes = wires.snapshots[nth].1 + chunk.data.len() as u64;
        let passes = wires.snapshot_cut.is_none_or(|limit| bytes <= limit);
        if passes {
            wires.snapshots[nth].1 = bytes;
        }
        passes
    }

    pub fn remove(&self, id: u64) {
        self.0.lock().unwrap().ends.remove(&id);
    }
}

/// The real clock, which a test can put forward.
struct Clock {
    inner: TokioRuntime,
    ahead_ms: Arc<AtomicU64>,
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        self.inner.now() + Duration::from_millis(self.ahead_ms.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        self.inner.wall_ms()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.inner.spawn(name, task);
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }
}

/// One end of a wire, looked up at each call: its replica may be away.
struct End {
    wires: Direct,
    to: u64,
}

impl End {
    fn there(&self, call: &str) -> Option<Arc<dyn PeerApi>> {
        let wires = self.wires.0.lock().unwrap();
        let passes = match wires.through {
            Through::All => true,
            Through::NoEntries => call != "append",
            Through::Nothing => false,
        };
        wires.ends.get(&self.to).filter(|_| passes).cloned()
    }

    fn voter(&self, request: &wire::VoteRequest) -> Option<Arc<dyn PeerApi>> {
        let candidate = self.wires.0.lock().unwrap().candidate;
        let is_heard = candidate.is_none() || candidate == request.vote.map(|vote| vote.node);
        self.there("vote").filter(|_| is_heard)
    }

    fn on_time_or_late(&self, mut request: wire::VoteRequest) -> wire::VoteRequest {
        if let Some(late) = &mut self.wires.0.lock().unwrap().votes_from_the_past {
            *late += 1;
            request.last = None;
        }
        request
    }
}

fn away<T: Send + 'static>() -> Answer<T> {
    std::future::ready(Err(PeerError::Unreachable("away".into()))).boxed()
}

macro_rules! through {
    ($($name:ident($($arg:ident: $of:ty)?) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $of)?) -> Answer<$answer> {
            match self.there(stringify!($name)) {
                Some(peer) => peer.$name($($arg)?),
                None => away(),
            }
        }
    )*};
}

type Stream<T> = futures::stream::BoxStream<'static, T>;

impl PeerApi for End {
    fn snapshot(
        &self,
        chunks: Stream<Result<wire::SnapshotChunk, PeerError>>,
    ) -> Answer<wire::SnapshotReply> {
        let Some(peer) = self.there("snapshot") else {
            return away();
        };
        let wires = self.wires.clone();
        let nth = wires.snapshots().len();
        peer.snapshot(
            chunks
                .map(move |chunk| match chunk {
                    Ok(chunk) if !wires.passes(nth, &chunk) => {
                        Err(PeerError::Failed("the stream breaks".into()))
                    }
                    other => other,
                })
                .boxed(),
        )
    }

    fn vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        let request = self.on_time_or_late(request);
        self.voter(&request).map_or_else(away, |peer| peer.vote(request))
    }

    fn pre_vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        let request = self.on_time_or_late(request);
        self.voter(&request).map_or_else(away, |peer| peer.pre_vote(request))
    }

    through! {
        append(requests: Stream<wire::AppendRequest>) -> Answers<wire::AppendReply>;
        heartbeat(request: wire::AppendRequest) -> wire::AppendReply;
        transfer(request: wire::TransferRequest) -> wire::TransferReply;
        snapshot_have(head: wire::SnapshotHead) -> wire::SnapshotOffset;
        propose(request: wire::ProposeRequest) -> wire::ProposeReply;
        propose_stream(requests: Stream<wire::ProposeRequest>) -> Answers<wire::ProposeReply>;
        read_index() -> wire::ReadIndexReply;
    }
}

impl Transport for Direct {
    fn peer(&self, peer: u64, _: &str, _: Purpose) -> Arc<dyn PeerApi> {
        Arc::new(End { wires: self.clone(), to: peer })
    }

    fn probe(&self, _: &str) -> BoxFuture<'static, Probe> {
        std::future::ready(Probe::Unclear).boxed()
    }
}

pub async fn start(id: u64, wires: &Direct, files: MemFiles, tuning: Tuning) -> Arc<Replica> {
    start_at(id, wires, files, tuning, Arc::default()).await
}

async fn start_at(
    id: u64,
    wires: &Direct,
    files: MemFiles,
    tuning: Tuning,
    ahead_ms: Arc<AtomicU64>,
) -> Arc<Replica> {
    let inner = TokioRuntime::current().unwrap();
    let rt: Rt = Arc::new(Clock { inner, ahead_ms });
    let replica = Replica::start(ReplicaOptions {
        dir: PathBuf::from("/data"),
        disk: Disk::simulated(Arc::new(files)),
        identity: Identity {
            cluster: CLUSTER.into(),
            lineage: LINEAGE.into(),
            epoch: 0,
            replica: ReplicaId(id),
        },
        wires: Wires::Custom(Arc::new(wires.clone())),
        tuning,
        rt,
        neighbours: Neighbours::default(),
    })
    .await
    .unwrap();
    wires.0.lock().unwrap().ends.insert(id, replica.peer_api());
    replica
}

pub struct Simulated {
    pub wires: Direct,
    pub disks: Vec<MemFiles>,
    pub replicas: Vec<Arc<Replica>>,
    /// How far all their clocks are put forward.
    ahead_ms: Arc<AtomicU64>,
}

/// The members of such a cluster.
pub fn members() -> Vec<Member> {
    (1..=3)
        .map(|id| Member { id: ReplicaId(id), peer_addr: id.to_string(), api_addr: id.to_string() })
        .collect()
}

/// Three replicas that are a cluster.
pub async fn formed(tuning: Tuning) -> Simulated {
    let ahead_ms = Arc::<AtomicU64>::default();
    let wires = Direct::default();
    let disks: Vec<MemFiles> = (0..3).map(|_| MemFiles::new()).collect();
    let mut replicas = vec![];
    for (id, disk) in (1..).zip(&disks) {
        let (disk, tuning) = (disk.clone(), tuning.clone());
        replicas.push(start_at(id, &wires, disk, tuning, ahead_ms.clone()).await);
    }
    let members = members();
    let forming = replicas.iter().map(|replica| replica.form(&members));
    assert!(futures::future::join_all(forming).await.into_iter().all(|formed| formed.is_ok()));
    Simulated { wires, disks, replicas, ahead_ms }
}

pub async fn leads(replicas: &[Arc<Replica>]) -> usize {
    eventually("a leader", || replicas.iter().position(|replica| replica.is_leader())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_runs_on_other_wires_and_another_disk() {
    let Simulated { wires, disks, mut replicas, .. } = formed(tuning()).await;
    for replica in &replicas {
        write(replica.as_ref(), &format!("from-{}", replica.replica()), b"v").await.unwrap();
    }

    // One loses its power and comes back with what its disk had kept.
    let away = replicas.pop().unwrap();
    wires.remove(3);
    away.shutdown().await;
    let disk = disks[2].crash(7);
    write(replicas[0].as_ref(), "meanwhile", b"v").await.unwrap();
    replicas.push(start(3, &wires, disk, tuning()).await);
    let view = replicas[2].linearizable().await.unwrap();
    assert!(["from-1", "from-2", "from-3", "meanwhile"].iter().all(|key| holds(&view, key)));
    let views = eventually("one applied index", || {
        let views: Vec<_> = replicas.iter().map(|replica| replica.view()).collect();
        views.iter().all(|view| view.applied() == views[0].applied()).then_some(views)
    })
    .await;
    assert!(views.iter().all(|view| snapshot::hash(view) == snapshot::hash(&views[0])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_stops_its_replica_and_not_the_cluster() {
    let Simulated { disks, replicas, .. } = formed(tuning()).await;
    write(replicas[0].as_ref(), "before", b"v").await.unwrap();
    let leads = leads(&replicas).await;
    disks[leads].fail_sync_in(0);
    let other = &replicas[(leads + 1) % 3];
    let lost = write(other.as_ref(), "during", b"v").await;
    let fault = eventually("a fault", || replicas[leads].fault()).await;
    assert!(fault.contains("/data/log") && fault.contains("check the disk"), "{fault}");
    let refused = write(replicas[leads].as_ref(), "k", b"v").await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    // Until it knows of another leader it forwards to the stopped one, whose answer may be that nobody knows.
    let stopped = replicas[leads].replica();
    eventually("another leader", || other.status().leader.filter(|leader| *leader != stopped))
        .await;
    write(other.as_ref(), "after", b"v").await.unwrap();
    let view = other.linearizable().await.unwrap();
    assert!(holds(&view, "before") && holds(&view, "after"));
    let is_there = holds(&view, "during");
    assert!(lost.is_err() || is_there, "acknowledged by a leader whose disk had failed, and lost");
}

fn entries_proposed(replica: &Replica) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    replica.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let name = "palisade_raft_entries_proposed_total ";
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_without_a_leader_is_not_charged_to_anybody() {
    let Simulated { wires, mut replicas, ahead_ms, .. } = formed(tuning()).await;
    write(replicas[0].as_ref(), "before", b"v").await.unwrap();
    let left = replicas.remove(leads(&replicas).await);
    wires.let_through(Through::Nothing);
    left.shutdown().await;
    wires.remove(left.replica().0);
    let before = replicas.iter().map(|replica| replica.view().clock().now_ms).max().unwrap();

    ahead_ms.store(60_000, Ordering::Relaxed);
    wires.let_through(Through::NoEntries);
    let leader = replicas[leads(&replicas).await].clone();
    eventually("its own entry is in its log", || {
        let status = leader.status();
        (status.last_index > status.committed_index).then_some(())
    })
    .await;
    let proposed = entries_proposed(&leader);
    let writing = {
        let leader = leader.clone();
        async move { write(leader.as_ref(), "first", b"v").await }
    };
    let writing = tokio::spawn(writing);
    eventually("it is proposed before the leader's own entry is applied", || {
        (entries_proposed(&leader) > proposed).then_some(())
    })
    .await;
    wires.let_through(Through::All);
    writing.await.unwrap().unwrap();
    let passed = leader.view().clock().now_ms - before;
    assert!(passed < 8_000, "{passed} ms passed, and a session lives for 10 s");
}

fn asks(from: u64, change: wire::manage_request::Change) -> wire::ManageRequest {
    wire::ManageRequest { from, dry_run: false, change: Some(change) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_nobody_takes_does_not_end_leadership() {
    let quick = Tuning { handover: Duration::from_millis(300), ..tuning() };
    let Simulated { wires, replicas, .. } = formed(quick).await;
    let leader = replicas[leads(&replicas).await].clone();
    write(leader.as_ref(), "before", b"v").await.unwrap();
    let term = leader.status().term;
    wires.only_candidate(leader.replica().0);
    let to = replicas.iter().find(|other| other.replica() != leader.replica()).unwrap();
    let asked = Change::TransferLeader { to: Some(to.replica()) };
    let refused = leader.manage(asked, false).await.unwrap_err();
    assert!(refused.detail.contains("did not take leadership in time"), "{refused}");
    eventually("it leads again", || {
        (leader.is_leader() && leader.status().term > term).then_some(())
    })
    .await;
    write(leader.as_ref(), "after", b"v").await.unwrap();
    let view = to.linearizable().await.unwrap();
    assert!(holds(&view, "before") && holds(&view, "after"));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_changed_by_members_and_bid_farewell_by_voters() {
    use wire::manage_request::Change as Asked;
    let Simulated { wires, replicas, .. } = formed(tuning()).await;
    let leader = replicas[leads(&replicas).await].clone();
    let enrol = Change::Enrol {
        key: "k4".into(),
        peer_addr: "4".into(),
        api_addr: "api-4:1".into(),
        replaces: None,
    };
    // It has a certificate, and is no member yet.
    let stranger = leader.manage(enrol, false).await.unwrap().replica.0;
    let ask = |to: u64, from: u64, asked: Asked| wires.end(to).manage(asks(from, asked));
    let (me, other) = (leader.replica().0, if leader.replica().0 == 1 { 2 } else { 1 });
    let changes = [
        Asked::Remove(wire::RemoveReplica { replica: other, force: true }),
        Asked::Drain(wire::DrainReplica { replica: other, undo: false }),
        Asked::TransferLeader(wire::TransferLeader { to: other }),
        Asked::Enrol(wire::EnrolReplica::default()),
    ];
    for asked in changes {
        let refused = ask(me, stranger, asked.clone()).await.unwrap_err().to_string();
        assert!(refused.contains("is no member"), "MEMBER-7: {asked:?}: {refused}");
    }
    let farewell = || Asked::Farewell(wire::Farewell { why: "lies".into() });
    for to in [me, other] {
        let refused = ask(to, stranger, farewell()).await.unwrap_err().to_string();
        assert!(refused.contains("does not vote"), "MEMBER-7: {refused}");
    }
    assert!(replicas.iter().all(|replica| replica.fault().is_none()));
    let drain = Asked::Drain(wire::DrainReplica { replica: other, undo: false });
    ask(me, other, drain).await.unwrap();
    ask(me, stranger, Asked::Hello(wire::Hello::default())).await.unwrap();
    ask(other, me, farewell()).await.unwrap();
    assert!(replicas.iter().any(|replica| replica.is_barred()), "it is the leader's word");
}
