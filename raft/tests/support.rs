//! A cluster in one process: each replica on a runtime of its own, so that it can be killed without grace.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use palisade_raft::{
    Disk, Identity, LogSizes, Member, Neighbours, PeerTls, Replica, ReplicaOptions, StartError,
    TokioRuntime, Tuning,
    disk::LockError,
    peer::{Gateway, GatewayStore},
};
use palisade_state::{
    Command, Outcome, ReplicaId, Store, StoreError, Txn, View, command::Write, snapshot,
};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

pub const LINEAGE: &str = "lineage-1";
pub const CLUSTER: &str = "cluster-1";
const LIMIT: Duration = Duration::from_secs(30);

/// Polls until there is a value.
pub async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Asks for snapshots until there is a value; one that is asked for while another is being made comes to nothing.
pub async fn snapshots_until<T>(
    replica: &Replica,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let begun = Instant::now();
    loop {
        replica.take_snapshot().await.unwrap();
        for _ in 0..30 {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        assert!(begun.elapsed() < LIMIT, "never: {what}");
    }
}

/// A certificate authority.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

impl Ca {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), der }
    }

    pub fn issue(&self, id: u64) -> PeerTls {
        let dns = vec![format!("replica-{id}.palisade.internal")];
        self.named(dns, format!("palisade://{LINEAGE}/replica/{id}"))
    }

    pub fn gateway(&self, name: &str) -> PeerTls {
        self.named(vec![], format!("palisade://{LINEAGE}/gateway/{name}"))
    }

    fn named(&self, dns: Vec<String>, uri: String) -> PeerTls {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(dns).unwrap();
        params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        PeerTls {
            ca_der: vec![self.der.clone()],
            chain_der: vec![certificate.der().clone()],
            key_der: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        }
    }
}

pub fn tuning() -> Tuning {
    let log =
        LogSizes { segment_bytes: 2 << 20, first_segment_bytes: 1 << 20, reserve_bytes: 1 << 20 };
    Tuning { log, ..Tuning::default() }
}

/// A replica and the runtime that carries it.
pub struct Running {
    pub replica: Arc<Replica>,
    runtime: Option<Runtime>,
}

impl Drop for Running {
    /// What runs on it ends where it stands.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A place for a replica, running or not.
pub struct Node {
    pub id: u64,
    pub dir: TempDir,
    pub addr: SocketAddr,
    pub neighbours: Neighbours,
    pub running: Option<Running>,
}

pub struct Cluster {
    pub ca: Arc<Ca>,
    /// The cluster's id and epoch.
    pub life: (String, u64),
    pub tuning: Tuning,
    pub nodes: Vec<Node>,
    /// Disks that are not the usual one.
    pub disks: BTreeMap<u64, Disk>,
}

impl Cluster {
    /// Three replicas that run and are not formed.
    pub async fn unformed(tuning: Tuning) -> Self {
        let mut cluster = Self::empty(tuning);
        for id in 1..=3 {
            cluster.place(id);
            cluster.start(id).await;
        }
        cluster
    }

    /// Three replicas that are a cluster, on these disks.
    pub async fn formed_on(tuning: Tuning, disks: BTreeMap<u64, Disk>) -> Self {
        let mut cluster = Self { disks, ..Self::empty(tuning) };
        for id in 1..=3 {
            cluster.place(id);
            cluster.start(id).await;
        }
        cluster.form().await;
        cluster
    }

    /// No replica yet. What replicas log is shown as `RUST_LOG` asks.
    pub fn empty(tuning: Tuning) -> Self {
        // One test of many in a process is the first.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(
                EnvFilter::builder()
                    .with_default_directive(LevelFilter::OFF.into())
                    .from_env_lossy(),
            )
            .with_writer(std::io::stderr)
            .try_init();
        Self {
            ca: Arc::new(Ca::new()),
            life: (CLUSTER.into(), 0),
            tuning,
            nodes: vec![],
            disks: BTreeMap::new(),
        }
    }

    /// Makes a place for a replica.
    pub fn place(&mut self, id: u64) {
        self.add(id, SocketAddr::from(([127, 0, 0, 1], 0)));
    }

    /// Makes a place for a replica that is to listen there.
    pub fn add(&mut self, id: u64, addr: SocketAddr) {
        let dir = tempfile::tempdir().unwrap();
        let vault: palisade_raft::Vault =
            Arc::new(|| Ok(vec![("ca.key".into(), b"secret".into())]));
        let neighbours = Neighbours { vault: Some(vault), ..Neighbours::default() };
        self.nodes.push(Node { id, dir, addr, neighbours, running: None });
    }

    pub fn identity(&self, id: u64) -> Identity {
        let (cluster, epoch) = self.life.clone();
        Identity { cluster, lineage: LINEAGE.into(), epoch, replica: ReplicaId(id) }
    }

    /// Three replicas that are a cluster.
    pub async fn formed(tuning: Tuning) -> Self {
        let cluster = Self::unformed(tuning).await;
        cluster.form().await;
        cluster
    }

    pub async fn form(&self) {
        let members = self.members();
        let forming: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|node| node.running.as_ref())
            .map(|running| {
                let (replica, members) = (running.replica.clone(), members.clone());
                async move { replica.form(&members).await.unwrap() }
            })
            .collect();
        futures::future::join_all(forming).await;
        // Each has said what it runs: nothing is written now that a test does not write.
        for replica in self.replicas() {
            eventually("all have reported", || {
                (replica.view().replicas().count() == members.len()).then_some(())
            })
            .await;
        }
    }

    /// A gateway's connection to a replica.
    pub async fn gateway(&self, id: u64) -> GatewayStore {
        let gateway = Gateway { name: "edge-1".into(), cluster: CLUSTER.into(), epoch: 0 };
        let addr = self.node(id).addr.to_string();
        gateway.connect(id, &addr, self.ca.gateway("edge-1")).await.unwrap()
    }

    pub fn members(&self) -> Vec<Member> {
        let member = |node: &Node| Member {
            id: ReplicaId(node.id),
            peer_addr: node.addr.to_string(),
            api_addr: format!("api-{}:1", node.id),
        };
        self.nodes.iter().map(member).collect()
    }

    pub fn node(&self, id: u64) -> &Node {
        self.nodes.iter().find(|node| node.id == id).unwrap()
    }

    pub fn issue(&self, id: u64) -> PeerTls {
        self.ca.issue(id)
    }

    pub fn node_mut(&mut self, id: u64) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.id == id).unwrap()
    }

    pub fn replica(&self, id: u64) -> Arc<Replica> {
        self.node(id).running.as_ref().unwrap().replica.clone()
    }

    pub fn replicas(&self) -> impl Iterator<Item = Arc<Replica>> + '_ {
        self.nodes.iter().filter_map(|node| Some(node.running.as_ref()?.replica.clone()))
    }

    pub fn dir(&self, id: u64) -> PathBuf {
        self.node(id).dir.path().to_owned()
    }

    pub async fn try_start(&mut self, id: u64) -> Result<(), StartError> {
        let node = self.nodes.iter().find(|node| node.id == id).unwrap();
        let begun = Instant::now();
        loop {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            let identity = self.identity(id);
            let rt = Arc::new(TokioRuntime::new(runtime.handle().clone()));
            let dir = node.dir.path().to_owned();
            let mut options = ReplicaOptions::new(dir, identity, node.addr, self.ca.issue(id), rt);
            options.tuning = self.tuning.clone();
            options.neighbours = node.neighbours.clone();
            options.disk = self.disks.get(&id).cloned().unwrap_or_else(Disk::real);
            match Replica::start(options).await {
                Ok(replica) => {
                    let node = self.node_mut(id);
                    node.addr = replica.peer_addr().unwrap();
                    node.running = Some(Running { replica, runtime: Some(runtime) });
                    return Ok(());
                }
                // What was killed lets go of its lock and its port a moment later.
                Err(StartError::Lock(LockError::Held { .. }) | StartError::Listen { .. })
                    if begun.elapsed() < LIMIT =>
                {
                    runtime.shutdown_background();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => {
                    runtime.shutdown_background();
                    return Err(error);
                }
            }
        }
    }

    pub async fn start(&mut self, id: u64) {
        self.try_start(id).await.unwrap();
    }

    /// Ends a replica as a kill does: no hand-over, no farewell.
    pub fn kill(&mut self, id: u64) {
        drop(self.node_mut(id).running.take().unwrap());
    }

    /// Stops a replica in good order.
    pub async fn stop(&mut self, id: u64) {
        let running = self.node_mut(id).running.take().unwrap();
        running.replica.shutdown().await;
    }

    /// The leader on which all running replicas agree.
    pub async fn leader(&self) -> u64 {
        eventually("one leader", || {
            let mut seen: Vec<_> = self.replicas().map(|replica| replica.status()).collect();
            seen.dedup_by_key(|status| (status.leader, status.term));
            let leader = seen.first()?.leader?;
            (seen.len() == 1 && self.node(leader.0).running.is_some()).then_some(leader.0)
        })
        .await
    }

    pub async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        self.nodes.iter().find(|node| node.id != leader && node.running.is_some()).unwrap().id
    }

    /// Waits until all running replicas are at one applied index, and compares their states there.
    pub async fn same_state(&self) -> [u8; 32] {
        let views = eventually("one applied index", || {
            let views: Vec<View> = self.replicas().map(|replica| replica.view()).collect();
            let first = views.first()?.applied();
            views.iter().all(|view| view.applied() == first).then_some(views)
        })
        .await;
        let mut hashes: Vec<_> = views.iter().map(snapshot::hash).collect();
        hashes.dedup();
        assert_eq!(hashes.len(), 1, "replicas differ at {:?}", views[0].applied());
        hashes[0]
    }
}

/// Has `replica` take a snapshot that holds at least everything up to `index`.
pub async fn snapshot_up_to(replica: &Replica, index: u64) {
    eventually("as far", || (replica.view().applied().index >= index).then_some(())).await;
    snapshots_until(replica, "the snapshot", || {
        (replica.status().snapshot_index.unwrap_or(0) >= index).then_some(())
    })
    .await;
}

pub fn put(key: &str, value: &[u8]) -> Command {
    let write = Write { table: "t".into(), key: key.into(), value: Some(value.to_vec()) };
    Txn { writes: vec![write], ..Txn::default() }.into()
}

pub async fn write(store: &dyn Store, key: &str, value: &[u8]) -> Result<Outcome, StoreError> {
    store.propose(put(key, value)).await
}

pub fn holds(view: &View, key: &str) -> bool {
    view.row("t", key.as_bytes()).is_some()
}

/// The files under a directory with this extension, in order.
pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    found.sort();
    found
}
