//! A cluster without sockets, threads or files: the seams that a simulation uses.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use futures::{FutureExt, future::BoxFuture};
use palisade_raft::{
    Disk, Identity, Member, Replica, ReplicaOptions, TokioRuntime, Wires,
    disk::MemFiles,
    peer::{Answer, Answers, PeerApi, PeerError, Probe, Purpose, Transport, wire},
};
use palisade_state::{ReplicaId, Rt, Store, StoreError, snapshot};

use crate::support::{CLUSTER, LINEAGE, eventually, holds, tuning, write};

/// Wires that lead straight to the other replica.
#[derive(Clone, Default)]
struct Direct(Arc<Mutex<BTreeMap<u64, Arc<dyn PeerApi>>>>);

/// One end of a wire, looked up at each call: its replica may be away.
struct End {
    wires: Direct,
    to: u64,
}

impl End {
    fn there(&self) -> Option<Arc<dyn PeerApi>> {
        self.wires.0.lock().unwrap().get(&self.to).cloned()
    }
}

macro_rules! through {
    ($($name:ident($($arg:ident: $of:ty)?) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $of)?) -> Answer<$answer> {
            match self.there() {
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

async fn start(id: u64, wires: &Direct, files: MemFiles) -> Arc<Replica> {
    let rt: Rt = Arc::new(TokioRuntime::current().unwrap());
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
        tuning: tuning(),
        rt,
    })
    .await
    .unwrap();
    wires.0.lock().unwrap().insert(id, replica.peer_api());
    replica
}

struct Simulated {
    wires: Direct,
    disks: Vec<MemFiles>,
    replicas: Vec<Arc<Replica>>,
}

/// Three replicas that are a cluster.
async fn formed() -> Simulated {
    let wires = Direct::default();
    let disks: Vec<MemFiles> = (0..3).map(|_| MemFiles::new()).collect();
    let mut replicas = vec![];
    for (id, disk) in (1..).zip(&disks) {
        replicas.push(start(id, &wires, disk.clone()).await);
    }
    let members: Vec<Member> = (1..=3)
        .map(|id| Member { id: ReplicaId(id), peer_addr: id.to_string(), api_addr: id.to_string() })
        .collect();
    let forming = replicas.iter().map(|replica| replica.form(&members));
    assert!(futures::future::join_all(forming).await.into_iter().all(|formed| formed.is_ok()));
    Simulated { wires, disks, replicas }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_runs_on_other_wires_and_another_disk() {
    let Simulated { wires, disks, mut replicas } = formed().await;
    for replica in &replicas {
        write(replica.as_ref(), &format!("from-{}", replica.replica()), b"v").await.unwrap();
    }

    // One loses its power and comes back with what its disk had kept.
    let away = replicas.pop().unwrap();
    wires.0.lock().unwrap().remove(&3);
    away.shutdown().await;
    let disk = disks[2].crash(7);
    write(replicas[0].as_ref(), "meanwhile", b"v").await.unwrap();
    replicas.push(start(3, &wires, disk).await);
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
    let Simulated { disks, replicas, .. } = formed().await;
    write(replicas[0].as_ref(), "before", b"v").await.unwrap();
    let leads = eventually("a leader", || replicas.iter().position(|r| r.is_leader())).await;
    disks[leads].fail_sync_in(0);
    let other = &replicas[(leads + 1) % 3];
    let lost = write(other.as_ref(), "during", b"v").await;
    let fault = eventually("a fault", || replicas[leads].fault()).await;
    assert!(fault.contains("/data/log") && fault.contains("check the disk"), "{fault}");
    let refused = write(replicas[leads].as_ref(), "k", b"v").await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    write(other.as_ref(), "after", b"v").await.unwrap();
    let view = other.linearizable().await.unwrap();
    assert!(holds(&view, "before") && holds(&view, "after"));
    let is_there = holds(&view, "during");
    assert!(lost.is_err() || is_there, "acknowledged by a leader whose disk had failed, and lost");
}
