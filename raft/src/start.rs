//! Starting a replica: recover, connect, run.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use openraft::AsyncRuntime;
use palisade_state::{Machine, Published, Rt, command::Form};
use tokio::{net::TcpListener, sync::oneshot};

use crate::{
    Disk, Identity, Neighbours,
    addresses::Addresses,
    detector::{Detector, Watchdog},
    disk_watch::DiskWatch,
    exile::Exile,
    fault::chain,
    forward::Forwarder,
    history::{self, Feed, Feeder, History, StartHistory},
    known::Known,
    leadership::{self, Leadership},
    link::Links,
    log_store::LogStore,
    machine::{Shared, StateMachine},
    membership::{Asking, Doorkeeper, Members},
    metrics::Metrics,
    network::Factory,
    options::{ReplicaOptions, StartError, Tuning, Wires},
    peer::{
        Boot, Door, HANDSHAKES_MAX, PeerApi, ServeOptions, TlsState, TonicTransport, Transport,
        local::Local, receive::Receiving, serve,
    },
    peers::Peers,
    progress::Progress,
    proposer::{self, Leader, Proposer},
    reads::{Reads, Rounds},
    recovery::{Recovery, recover},
    replica::{End, Replica},
    reports::Reporter,
    revoked::at_start,
    schedule::Schedule,
    stop::{Stop, spawn_until},
    store::{Answering, Hub, Service},
    sync_times::SyncTimes,
    types::Raft,
    wal::{Handle, Running},
};

/// Entries kept in memory for followers that are a little behind, and kept at all behind a snapshot, in bytes.
const KEEP_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The wires to the peers, and what serves them.
struct Connected {
    transport: Arc<dyn Transport>,
    serving: Option<(TcpListener, Arc<TlsState>)>,
    listening: Option<SocketAddr>,
}

async fn connect(
    rt: &Rt,
    identity: &Identity,
    wires: Wires,
    exile: &Arc<Exile>,
) -> Result<Connected, StartError> {
    match wires {
        Wires::Custom(transport) => Ok(Connected { transport, serving: None, listening: None }),
        Wires::Tls { listen, tls } => {
            let tls = Arc::new(TlsState::new(&identity.lineage, identity.replica.0, tls)?);
            let listen_error = |source| StartError::Listen { addr: listen, source };
            let listener = TcpListener::bind(listen).await.map_err(listen_error)?;
            let listening = Some(listener.local_addr().map_err(listen_error)?);
            let transport = TonicTransport::new(rt.clone(), tls.clone(), identity)
                .and_then(|transport| transport.booted(&Boot::new(rt), exile.clone()))
                .map_err(|error| StartError::Consensus(error.to_string()))?;
            let serving = Some((listener, tls));
            Ok(Connected { transport: Arc::new(transport), serving, listening })
        }
    }
}

/// Refuses what is known to be revoked, once all that was known to be committed is applied. `PEER-6`
fn refuse(
    neighbours: &Neighbours,
    log: &LogStore,
    published: &Published,
    connected: &Connected,
) -> Result<BTreeSet<String>, StartError> {
    let Some(revoked) = &neighbours.revoked else { return Ok(BTreeSet::new()) };
    let view = published.view();
    let keys = at_start(revoked, &view, log.behind(view.applied().index));
    let keys = keys.map_err(|error| StartError::Revoked(chain(error.as_ref())))?;
    if let Some((_, tls)) = &connected.serving {
        tls.refusals().set_keys(keys.clone());
    }
    Ok(keys)
}

/// What the state machine shares with the rest.
fn share(rt: &Rt, recovery: &Recovery, metrics: Arc<Metrics>, tuning: &Tuning) -> Arc<Shared> {
    let now = u64::try_from(rt.now().as_micros()).unwrap_or(u64::MAX);
    Arc::new(Shared {
        rt: rt.clone(),
        fault: recovery.fault.clone(),
        progress: Arc::new(Progress::default()),
        metrics,
        snapshots: recovery.snapshots.clone(),
        applied_at: AtomicU64::new(now),
        version: tuning.build.version.clone(),
    })
}

impl<R: AsyncRuntime> Replica<R> {
    /// Starts a replica from its data directory. All of it runs where `options.rt` spawns; syncs and snapshots have
    /// threads of their own.
    ///
    /// # Errors
    /// See [`StartError`]: each says what to do.
    pub async fn start(options: ReplicaOptions) -> Result<Arc<Self>, StartError> {
        let (tx, rx) = oneshot::channel();
        let rt = options.rt.clone();
        rt.spawn(
            "start",
            Box::pin(async move {
                let _ = tx.send(Self::start_here(options).await);
            }),
        );
        rx.await.unwrap_or_else(|_| Err(StartError::Consensus("its runtime has ended".to_owned())))
    }

    async fn start_here(options: ReplicaOptions) -> Result<Arc<Self>, StartError> {
        let config = options.tuning.openraft(&options.identity.cluster)?;
        let recovery = recover(&options).await?;
        let ReplicaOptions { dir, disk, identity, wires, tuning, rt, neighbours } = options;
        let identity = Arc::new(identity);
        let marks = disk.real.then(|| dir.clone());
        let (fault, log) = (recovery.fault.clone(), recovery.log.clone());
        let exile = Arc::new(Exile::new(identity.clone(), fault, marks, log));
        let connected = connect(&rt, &identity, wires, &exile).await?;
        let me = identity.replica.0;
        let metrics = Arc::new(Metrics::default());
        let shared = share(&rt, &recovery, metrics.clone(), &tuning);
        let (machine, start) = match recovery.found.state {
            Some((last, membership, state)) => (Machine::new(state), Some((last, membership))),
            None => (Machine::default(), None),
        };
        let machine = machine.reading(tuning.build.format_max);
        let published = machine.published();
        let feed = Arc::new(Feed::new(tuning.history.queue_bytes));
        let feeder = Feeder::new(feed.clone(), !tuning.history.retention.versions.is_zero());
        let machine = StateMachine::new(machine, start, shared.clone(), feeder);
        let addresses = Arc::new(Addresses::of(&neighbours.hints));
        let peers = Arc::new(Peers::new(connected.transport.clone(), addresses, exile));
        let known = Arc::new(Known::new(published.clone()));
        let factory = Factory {
            rt: rt.clone(),
            links: Arc::new(Links::new(rt.clone(), metrics.clone())),
            peers: peers.clone(),
            snapshots: recovery.snapshots.clone(),
            metrics: metrics.clone(),
            known: known.clone(),
        };
        let raft = Raft::<R>::new(me, config, factory, recovery.log.clone(), machine).await;
        let fault = recovery.fault.clone();
        let raft = raft.map_err(|fatal| {
            StartError::Consensus(fault.reason().unwrap_or_else(|| fatal.to_string()))
        })?;
        let revoked = refuse(&neighbours, &recovery.log, &published, &connected)?;
        let (history, writing) = history::start(StartHistory {
            rt: rt.clone(),
            disk: disk.clone(),
            data: dir.clone(),
            identity: identity.clone(),
            published: published.clone(),
            feed,
            sizes: tuning.history,
            reserve_bytes: tuning.log.reserve_bytes,
        });
        let parts = Parts {
            identity,
            tuning,
            rt,
            raft,
            shared,
            published,
            peers,
            neighbours,
            known,
            history: (history, writing),
            disk: (disk, dir, recovery.times),
            revoked,
        };
        let logged = Logged {
            wal: recovery.handle,
            running: recovery.running,
            log: recovery.log,
            bytes: recovery.log_bytes,
        };
        Ok(parts.assemble(connected, logged))
    }
}

/// The log, and what it held at the start.
struct Logged {
    wal: Handle,
    running: Option<Running>,
    log: LogStore,
    bytes: u64,
}

/// A running consensus and what goes around it.
struct Parts<R: AsyncRuntime> {
    identity: Arc<Identity>,
    tuning: Tuning,
    rt: Rt,
    raft: Raft<R>,
    shared: Arc<Shared>,
    published: Arc<palisade_state::Published>,
    peers: Arc<Peers>,
    neighbours: Neighbours,
    known: Arc<Known>,
    history: (History, Option<history::Running>),
    disk: (Disk, PathBuf, Arc<SyncTimes>),
    revoked: BTreeSet<String>,
}

impl<R: AsyncRuntime> Parts<R> {
    fn assemble(mut self, connected: Connected, logged: Logged) -> Arc<Replica<R>> {
        let Logged { wal, running, log, bytes } = logged;
        let stop = Arc::new(Stop::default());
        let metrics = self.shared.metrics.clone();
        let leadership = Arc::new(Leadership::default());
        let (proposer, waiting) = Proposer::new();
        let (reads, readers) = Reads::new();
        let forwarder = Arc::new(Forwarder::new(self.rt.clone(), self.peers.clone(), metrics));
        let (detector, ended) = Detector::new(self.rt.clone());
        let asking = self.membership(&stop, &leadership, &proposer, &detector);
        let door = self.door(&leadership);
        let store = self.store(&leadership, &proposer, &reads);
        let api: Arc<dyn PeerApi> = Arc::new(Local {
            raft: self.raft.clone(),
            rt: self.rt.clone(),
            wal: wal.clone(),
            detector: detector.clone(),
            store: store.clone(),
            receiving: Receiving::new(
                self.rt.clone(),
                self.shared.snapshots.clone(),
                self.shared.metrics.clone(),
            ),
            members: asking.members.clone(),
            door: door.clone(),
            known: self.known.clone(),
            exile: self.peers.exile().clone(),
        });
        self.spawn_store(&stop, &wal, &leadership, &proposer, waiting, readers);
        let (tls, serving) = self.serve(connected.serving, api.clone(), store, door);
        self.spawn_reports(&stop, &leadership, &proposer, &forwarder, log.clone());
        let history = self.history.1.take();
        let end = Arc::new(Mutex::new(End { serving, wal: running, history }));
        let follower = leadership::Follower {
            raft: self.raft.clone(),
            leadership: leadership.clone(),
            forwarder: forwarder.clone(),
            shared: self.shared.clone(),
            published: self.published.clone(),
            stop: stop.clone(),
            end: end.clone(),
        };
        spawn_until(&self.rt, stop.clone(), "leadership", follower.run());
        self.spawn_detectors(&stop, detector, ended);
        self.spawn_snapshots(&stop, wal.clone(), log, bytes);
        let times = self.spawn_disk_watch(&stop);
        Arc::new(Replica {
            identity: self.identity,
            rt: self.rt,
            tuning: self.tuning,
            raft: self.raft,
            shared: self.shared,
            published: self.published,
            leadership,
            proposer,
            forwarder,
            reads,
            asking,
            stop,
            wal,
            api,
            tls,
            listening: connected.listening,
            end,
            history: self.history.0,
            times,
            revoked: self.revoked,
        })
    }

    fn serve(
        &self,
        serving: Option<(TcpListener, Arc<TlsState>)>,
        api: Arc<dyn PeerApi>,
        store: Service,
        door: Arc<dyn Door>,
    ) -> (Option<Arc<TlsState>>, Option<oneshot::Sender<()>>) {
        let Some((listener, tls)) = serving else {
            return (None, None);
        };
        let (stop, stopped) = oneshot::channel();
        let options = ServeOptions {
            rt: self.rt.clone(),
            tls: tls.clone(),
            identity: self.identity.clone(),
            metrics: self.shared.metrics.clone(),
            api,
            store,
            door,
            hold: self.tuning.copy_hold,
            handshakes: HANDSHAKES_MAX,
        };
        serve(listener, options, stopped);
        (Some(tls), Some(stop))
    }

    fn store(&self, leadership: &Arc<Leadership>, proposer: &Proposer, reads: &Reads) -> Service {
        Service(Arc::new(Answering {
            raft: self.raft.clone(),
            me: self.identity.replica.0,
            rt: self.rt.clone(),
            patience: self.tuning.patience,
            proposer: proposer.clone(),
            reads: reads.clone(),
            leadership: leadership.clone(),
            progress: self.shared.progress.clone(),
            published: self.published.clone(),
            hub: Hub::new(self.rt.clone(), self.published.clone(), self.shared.metrics.clone()),
        }))
    }

    fn door(&self, leadership: &Arc<Leadership>) -> Arc<dyn Door> {
        Arc::new(Doorkeeper {
            identity: self.identity.clone(),
            published: self.published.clone(),
            leadership: leadership.clone(),
        })
    }

    /// Changing the members, and keeping them in order.
    fn membership(
        &self,
        stop: &Arc<Stop>,
        leadership: &Arc<Leadership>,
        proposer: &Proposer,
        detector: &Arc<Detector>,
    ) -> Arc<Asking<R>> {
        let members = Arc::new(Members {
            raft: self.raft.clone(),
            rt: self.rt.clone(),
            identity: self.identity.clone(),
            published: self.published.clone(),
            leadership: leadership.clone(),
            proposer: proposer.clone(),
            peers: self.peers.clone(),
            exile: self.peers.exile().clone(),
            tuning: self.tuning.clone(),
            vault: self.neighbours.vault.clone(),
            changing: tokio::sync::Mutex::default(),
            learners: Mutex::default(),
        });
        let (advertise, detector) = (self.neighbours.advertise.clone(), detector.clone());
        let asking = Arc::new(Asking { members: members.clone(), advertise, detector });
        spawn_until(&self.rt, stop.clone(), "members", members.keep());
        spawn_until(&self.rt, stop.clone(), "introduce", asking.clone().introduce());
        let (raft, fault) = (self.raft.clone(), self.shared.fault.clone());
        let exiled = async move {
            fault.wait().await;
            if fault.is_barred() && raft.shutdown().await.is_err() {
                tracing::warn!("consensus panicked while it stopped");
            }
        };
        spawn_until(&self.rt, stop.clone(), "exile", exiled);
        asking
    }

    /// Proposing, reading, and letting time pass.
    fn spawn_store(
        &self,
        stop: &Arc<Stop>,
        wal: &Handle,
        leadership: &Arc<Leadership>,
        proposer: &Proposer,
        waiting: proposer::Waiting,
        readers: crate::reads::Readers,
    ) {
        let Identity { cluster, lineage, epoch, .. } = self.identity.as_ref().clone();
        let leader = Leader {
            raft: self.raft.clone(),
            rt: self.rt.clone(),
            shared: self.shared.clone(),
            published: self.published.clone(),
            leadership: leadership.clone(),
            me: self.identity.replica.0,
            wal: wal.clone(),
            form: Form { cluster, lineage, epoch },
            pipeline: self.tuning.pipeline,
            lease: self.tuning.election_max,
            build: self.tuning.build.clone(),
        };
        spawn_until(&self.rt, stop.clone(), "proposer", leader.run(waiting));
        let rounds = Rounds {
            raft: self.raft.clone(),
            rt: self.rt.clone(),
            leadership: leadership.clone(),
            peers: self.peers.clone(),
            metrics: self.shared.metrics.clone(),
            me: self.identity.replica.0,
        };
        spawn_until(&self.rt, stop.clone(), "reads", rounds.run(readers));
        let (rt, raft, published) = (self.rt.clone(), self.raft.clone(), self.published.clone());
        let tick = proposer::tick(rt, raft, published, proposer.clone(), self.tuning.tick);
        spawn_until(&self.rt, stop.clone(), "tick", tick);
    }

    /// What this replica says of itself, and what it does with what others say while it leads.
    fn spawn_reports(
        &self,
        stop: &Arc<Stop>,
        leadership: &Arc<Leadership>,
        proposer: &Proposer,
        forwarder: &Arc<Forwarder>,
        log: LogStore,
    ) {
        let reporter = Reporter {
            raft: self.raft.clone(),
            rt: self.rt.clone(),
            me: self.identity.replica.0,
            published: self.published.clone(),
            leadership: leadership.clone(),
            proposer: proposer.clone(),
            forwarder: forwarder.clone(),
            history: self.history.0.clone(),
            log,
            build: self.tuning.build.clone(),
            every: self.tuning.report,
            patience: self.tuning.patience,
        };
        spawn_until(&self.rt, stop.clone(), "reports", reporter.run());
    }

    /// A leader whose disk hangs hands over.
    fn spawn_disk_watch(&self, stop: &Arc<Stop>) -> Arc<SyncTimes> {
        let (disk, dir, times) = self.disk.clone();
        let watch = DiskWatch {
            raft: self.raft.clone(),
            rt: self.rt.clone(),
            disk,
            dir,
            times: times.clone(),
            published: self.published.clone(),
            metrics: self.shared.metrics.clone(),
            tuning: self.tuning.clone(),
        };
        spawn_until(&self.rt, stop.clone(), "disk-watch", watch.run());
        times
    }

    /// Finding out early that the leader is gone.
    fn spawn_detectors(
        &self,
        stop: &Arc<Stop>,
        detector: Arc<Detector>,
        ended: tokio::sync::mpsc::UnboundedReceiver<u64>,
    ) {
        let watchdog = Watchdog {
            raft: self.raft.clone(),
            detector,
            transport: self.peers.transport().clone(),
            addresses: self.peers.addresses().clone(),
            metrics: self.shared.metrics.clone(),
            tuning: self.tuning.clone(),
            me: self.identity.replica.0,
        };
        spawn_until(&self.rt, stop.clone(), "watch-streams", watchdog.clone().watch_streams(ended));
        spawn_until(
            &self.rt,
            stop.clone(),
            "stand-after-start",
            watchdog.clone().stand_after_start(),
        );
        spawn_until(&self.rt, stop.clone(), "watch-silence", watchdog.watch_silence());
    }

    /// Purges the log in memory, and takes a snapshot when the log has outgrown the last one, and later when the disk has no room for it.
    fn spawn_snapshots(&self, stop: &Arc<Stop>, wal: Handle, log: LogStore, recovered_bytes: u64) {
        let (rt, raft) = (self.rt.clone(), self.raft.clone());
        let every = self.tuning.snapshot_check;
        let mut schedule = Schedule::new(self.tuning.snapshot_log_bytes, every);
        let (metrics, progress) = (self.shared.metrics.clone(), self.shared.progress.clone());
        let snapshots = self.shared.snapshots.clone();
        let task = async move {
            loop {
                rt.sleep(every).await;
                let dropped = log.shorten(KEEP_BYTES_MAX, progress.applied());
                metrics.entries_dropped.inc_by(dropped as u64);
                // openraft counts entries, and entries can be large.
                if let Some(upto) = log.purgeable(KEEP_BYTES_MAX)
                    && raft.trigger().purge_log(upto).await.is_err()
                {
                    return;
                }
                let written = recovered_bytes + wal.stats().bytes;
                let counts = (metrics.snapshots_taken(), metrics.snapshots_put_off());
                let bytes = snapshots.bytes();
                if !schedule.is_due(rt.now(), written, counts, bytes) || wal.is_low() {
                    continue;
                }
                schedule.begun(written);
                if raft.trigger().snapshot().await.is_err() {
                    return;
                }
            }
        };
        spawn_until(&self.rt, stop.clone(), "snapshots", task);
    }
}
