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

use futures::{FutureExt, future::BoxFuture};
use palisade_raft::{
    Disk, Identity, Member, Neighbours, Replica, ReplicaOptions, TokioRuntime, Tuning, Wires,
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
}

/// Wires that lead straight to the other replica.
#[derive(Clone, Default)]
pub struct Direct(Arc<Mutex<Ends>>);

impl Direct {
    pub fn let_through(&self, through: Through) {
        self.0.lock().unwrap().through = through;
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
}

macro_rules! through {
    ($($name:ident($($arg:ident: $of:ty)?) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $of)?) -> Answer<$answer> {
            match self.there(stringify!($name)) {
                Some(peer) => peer.$name($($arg)?),
                None => std::future::ready(Err(PeerError::Unreachable("away".into()))).boxed(),
            }
        }
    )*};
}

type Stream<T> = futures::stream::BoxStream<'static, T>;

impl PeerApi for End {
    through! {
        append(requests: Stream<wire::AppendRequest>) -> Answers<wire::AppendReply>;
        heartbeat(request: wire::AppendRequest) -> wire::AppendReply;
        vote(request: wire::VoteRequest) -> wire::VoteReply;
        pre_vote(request: wire::VoteRequest) -> wire::VoteReply;
        transfer(request: wire::TransferRequest) -> wire::TransferReply;
        snapshot(chunks: Stream<Result<wire::SnapshotChunk, PeerError>>) -> wire::SnapshotReply;
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
    let members: Vec<Member> = (1..=3)
        .map(|id| Member { id: ReplicaId(id), peer_addr: id.to_string(), api_addr: id.to_string() })
        .collect();
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
