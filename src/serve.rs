//! `palisade serve`: one replica of the control plane, put together and run.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use palisade_api::{
    ApiOptions, ApiServer, GatewayOptions,
    pki::{Authority, Identity as Certificate, Material},
};
use palisade_audit::key::ClusterSeal;
use palisade_contract::{Context, Running};
use palisade_events::http::Https;
use palisade_raft::{
    IdentityError, LogSizes, Member, Neighbours, Replica, ReplicaOptions, StartError, TokioRuntime,
    backup::BackupKey,
    disk::{DirLock, StdFiles},
};
use palisade_scheduler::{migrate, worker};
use palisade_state::{Role, Rt, Store};
use prometheus_client::registry::Registry as Metrics;

use crate::{
    builder::{Assembled, Builder, Settings},
    history_port::ReplicaHistory,
    init::NewReplica,
    join,
    members::ReplicaMembers,
    output::{Exit, Failure, Outcome, failure::chain},
    pki_files,
    recovery::Source,
    replica_dir::{DirError, ReplicaDir},
};

mod certificate;
mod keeper;
#[cfg(debug_assertions)]
mod rehearsal;
#[cfg(test)]
mod tests;

/// How long agents and requests get to go elsewhere when the replica stops.
const GRACE: Duration = Duration::from_secs(2);
/// Pause between attempts to reach a quorum while the cluster starts.
const RETRY: Duration = Duration::from_millis(50);
/// How often a fault of the replica is looked for.
const FAULT_CHECK: Duration = Duration::from_millis(200);

/// What a replica is run with.
pub struct ServeOptions {
    /// Its directory, as `palisade init` made it.
    pub dir: PathBuf,
    /// What the binary is made of.
    pub builder: Builder,
    /// Where it is reached now, if its record is to say so.
    pub advertise: Option<NewReplica>,
}

impl ServeOptions {
    /// A replica of the built-in modules.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, builder: Builder::new(), advertise: None }
    }
}

/// A thread with a runtime of its own. The consensus core runs on one, so that no long poll of the
/// API can keep it from its heartbeats.
struct Island {
    handle: tokio::runtime::Handle,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Island {
    fn start(name: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // An error is the sender's end, which stops the runtime all the same.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread only panics if its runtime does; there is nothing left to do about it.
            let _ = thread.join();
        }
    }
}

/// Runs a replica until `stop` ends or the replica fails.
///
/// # Errors
/// What keeps it from starting, or the fault that made it stop.
pub async fn run(options: ServeOptions, stop: impl Future<Output = ()> + Send) -> Outcome {
    // Before anything opens or is asked of another replica; once more below, with this replica's settings.
    options.builder.check().map_err(|error| refused("cannot put the modules together", &error))?;
    // Before anything is looked at: nobody mends what is being read.
    let only = options.dir.is_dir().then(|| DirLock::acquire(&options.dir)).transpose();
    let _only = only.map_err(|error| failed("cannot start", &error))?;
    let dir = ReplicaDir::read(&options.dir).map_err(|error| cannot_start(&options.dir, &error))?;
    // A disk that is gone is not one that is full.
    dir.check_log().map_err(|error| cannot_start(&dir.path, &error))?;
    palisade_raft::room_for_new(&StdFiles, &dir.data(), &LogSizes::default())
        .map_err(|error| failed("cannot start the replica", &error))?;
    if let Err(error) = BackupKey::load(&dir.pki("backup.key"))
        && !join::lacks_secrets(&dir)
    {
        let error = chain(&error);
        tracing::warn!(
            error,
            "this replica can make no backup: copy pki/backup.key from another replica"
        );
    }
    let island = Island::start("raft").map_err(|error| failed("cannot start a thread", &error))?;
    let rt: Rt = Arc::new(TokioRuntime::current().map_err(|error| failed("no runtime", &error))?);
    let neighbours = join::neighbours(&dir, options.advertise.as_ref())?;
    let mut stop = std::pin::pin!(stop.fuse());
    if join::lacks_secrets(&dir) {
        let mut let_in = Box::pin(join::first_steps(&dir, rt.clone(), &neighbours).fuse());
        futures::select_biased! {
            () = stop => return Ok(()),
            let_in = let_in => let_in?,
        }
    }
    let mut material = load_pki(&dir)?;
    let source = Source::new(&dir, &material.authority);
    let assembled = assemble(&options.builder, &dir, &source)?;
    let replica = start_replica(&dir, &material, &island, neighbours.clone()).await?;
    certificate::keep_current(&dir, &mut material, &replica, &neighbours)?;
    let pki = Pki { material, source, neighbours };
    let result = with_replica(assembled, &dir, pki, rt, replica.clone(), stop).await;
    let stopping = replica.clone();
    let stopped = island.handle.spawn(async move { stopping.shutdown().await }).await;
    if stopped.is_err() {
        tracing::warn!("the replica did not stop cleanly; its log is whole all the same");
    }
    result
}

/// What the modules refuse, with what a person could do.
fn refused(what: &str, error: &palisade_contract::Error) -> Failure {
    let failure = failed(what, error);
    match &error.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The modules of this replica.
fn assemble(builder: &Builder, dir: &ReplicaDir, source: &Source) -> Outcome<Assembled> {
    let settings = Settings {
        bootstrap: dir.bootstrap.clone().map(Into::into),
        node_lost: Duration::from_millis(dir.config.node_lost_ms),
        backups: Some(source.clone()),
    };
    builder.assemble(settings).map_err(|error| refused("cannot put the modules together", &error))
}

fn failed(what: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::caused(what, error)
}

/// A directory that cannot be used, with the verb that mends it where one does.
fn cannot_start(dir: &Path, error: &DirError) -> Failure {
    let failure = failed("cannot start", error);
    let identity = dir.join("identity.json");
    match error {
        DirError::LogGone { .. } => repairable(dir, failure),
        DirError::Read { path, .. } | DirError::Malformed { path, .. }
            if *path == identity && dir.join("replica.toml").exists() =>
        {
            repairable(dir, failure)
        }
        _ => failure,
    }
}

fn repairable(dir: &Path, failure: Failure) -> Failure {
    failure.hint(format!(
        "`palisade cluster repair {}` says what it would do: the replica joins again under a new id, from the others, \
         and what it had is kept",
        dir.display()
    ))
}

/// What a replica serves with, and what follows when that is replaced.
struct Pki {
    material: Material,
    source: Source,
    neighbours: Neighbours,
}

fn load_pki(dir: &ReplicaDir) -> Outcome<Material> {
    pki_files::settle(dir)?;
    let authority = Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key"))
        .map_err(|error| repairable(&dir.path, failed("cannot use the cluster's CA", &error)))?;
    let certificate = Certificate::load(&dir.pki("replica.pem"), &dir.pki("replica.key"));
    let certificate = certificate.map_err(|error| {
        repairable(&dir.path, failed("cannot use the replica's certificate", &error))
    })?;
    pki_files::beside(dir, Material::new(Arc::new(authority), certificate))
}

async fn start_replica(
    dir: &ReplicaDir,
    material: &Material,
    island: &Island,
    neighbours: Neighbours,
) -> Outcome<Arc<Replica>> {
    dir.member().map_err(|error| failed("cannot start", &error))?;
    let tls = keeper::peer_tls(material);
    let rt: Rt = Arc::new(TokioRuntime::new(island.handle.clone()));
    let mut options =
        ReplicaOptions::new(dir.data(), dir.identity.clone(), dir.config.peer_listen, tls, rt);
    options.neighbours = neighbours;
    options.tuning.history.retention = dir.config.history.into();
    #[cfg(debug_assertions)]
    rehearsal::rehearse(&mut options.tuning)?;
    let started = island.handle.spawn(Replica::start(options)).await;
    let started = started.map_err(|error| failed("the replica's start panicked", &error))?;
    let replica = started.map_err(|error| match error {
        StartError::Removed(told) | StartError::Copy(told) => Failure::new(Exit::Conflict, told),
        StartError::Lost(told) => repairable(&dir.path, Failure::new(Exit::Conflict, told)),
        error @ StartError::Identity(IdentityError::Foreign { .. }) => {
            let failure = failed("cannot start the replica", &error);
            repairable(&dir.path, failure).note(format!(
                "where nobody put two directories together, the other one, {}, is what is damaged: it has no checksum",
                dir.path.join("identity.json").display()
            ))
        }
        error if error.is_damage() => {
            repairable(&dir.path, failed("cannot start the replica", &error))
        }
        error => failed("cannot start the replica", &error),
    })?;
    // It has a log now and has not voted yet: it is told of the other members by `form`, later.
    dir.mark_started().map_err(|error| failed("cannot mark the replica as started", &error))?;
    Ok(replica)
}

/// What sends events to receivers outside.
fn webhooks(dir: &ReplicaDir, rt: &Rt) -> Outcome<Arc<Https>> {
    let wrong = |why| Failure::new(Exit::Usage, format!("[webhooks] in replica.toml: {why}"));
    let options = dir.config.webhooks.options().map_err(wrong)?;
    let https = Https::new(rt.clone(), &options);
    https.map(Arc::new).map_err(|error| failed("cannot read which servers are trusted", &error))
}

/// Runs everything above consensus.
async fn with_replica(
    assembled: Assembled,
    dir: &ReplicaDir,
    pki: Pki,
    rt: Rt,
    replica: Arc<Replica>,
    stop: impl Future<Output = ()> + Send,
) -> Outcome {
    let context = Context::new(rt, replica.clone()).with_tables(&assembled.registry);
    let filled = context.ports.members.fill(Arc::new(ReplicaMembers(replica.clone())));
    let history = Arc::new(ReplicaHistory::of(&replica));
    let filled = filled.and_then(|()| context.ports.history.fill(history));
    let keys = crate::secret_keys::of(dir, &replica);
    let keys = keys.map_err(|error| failed("cannot read the keys of secrets in pki/", &error))?;
    let filled = filled.and_then(|()| context.ports.secret_keys.fill(Arc::new(keys)));
    let authority = &pki.material.authority;
    let seal = ClusterSeal::derive(&authority.key_der(), authority.lineage());
    let seal = seal.map_err(|error| failed("cannot start", &error))?;
    let seal = Arc::new(keeper::LiveSeal::new(seal));
    let filled = filled.and_then(|()| context.ports.seal.fill(seal.clone()));
    let webhooks = webhooks(dir, &context.rt)?;
    let filled = filled.and_then(|()| context.ports.webhooks.fill(webhooks));
    filled.map_err(|error| refused("cannot put the ports together", &error))?;
    let running = Running::start(&assembled.registry, &context).await;
    let running = running.map_err(|error| refused("cannot start the modules", &error))?;
    let result = with_modules(assembled, dir, (pki, seal), context, replica, stop).await;
    // `MOD-1`: however far it came.
    running.stop().await;
    result
}

/// Runs the API and the workers. When it ends, neither uses the modules any more.
async fn with_modules(
    Assembled { registry, server }: Assembled,
    dir: &ReplicaDir,
    (pki, seal): (Pki, Arc<keeper::LiveSeal>),
    context: Context,
    replica: Arc<Replica>,
    stop: impl Future<Output = ()> + Send,
) -> Outcome {
    let rt = context.rt.clone();
    // PKI-3: until it is ready, the view lacks what the log ends with.
    if let Some(certificates) = context.ports.certificates.filled() {
        certificates.presume(replica.revoked_at_start().clone());
    }
    // A replica that was part of a cluster before answers local reads without a quorum.
    let is_current = migrate::is_current(&replica.view(), &registry);
    let open = Arc::new(AtomicBool::new(is_current.unwrap_or(false)));
    let mut metrics = Metrics::default();
    replica.metrics().register(&mut metrics);
    let api = ApiServer::start(ApiOptions {
        listen: dir.config.api_listen.to_string(),
        authority: pki.material.authority.clone(),
        identity: pki.material.identity.clone(),
        registry: registry.clone(),
        server_module: server,
        context: context.clone(),
        metrics,
        limits: dir.config.limits.into(),
        gateway: GatewayOptions {
            heartbeat: Duration::from_millis(dir.config.heartbeat_ms.into()),
        },
        open: open.clone(),
    })
    .await
    .map_err(|error| failed("cannot serve the API", &error))?;
    let live = api.live().clone();
    let unusable = |error| failed("cannot use the replica's certificates", &error);
    live.replace(pki.material).map_err(unusable)?;
    let moving = (pki.neighbours, live);
    let keeper = keeper::Keeper::new(dir, &context, &replica, moving, (seal, pki.source));
    // `JOIN-2`
    let members: Option<Vec<Member>> =
        (!dir.is_joined()).then(|| dir.config.members.iter().map(Into::into).collect());
    let mut stop = std::pin::pin!(stop.fuse());
    let mut fault = std::pin::pin!(fault(&rt, &replica).fuse());
    let mut ready =
        Box::pin(become_ready(&rt, &replica, members.as_deref(), &context, &registry).fuse());
    let started = futures::select_biased! {
        () = stop => None,
        why = fault => Some(Err(why)),
        ready = ready => Some(ready),
    };
    let result = match started {
        None => Ok(()),
        Some(Err(failure)) => Err(failure),
        Some(Ok(())) => {
            tracing::info!(replica = %replica.replica(), "the replica is ready");
            open.store(true, Ordering::Release);
            let workers = Workers::start(&context, &registry);
            let mut keeping = Box::pin(keeper.run().fuse());
            let result = futures::select_biased! {
                () = stop => Ok(()),
                why = fault => Err(why),
                never = keeping => match never {},
            };
            tracing::info!("stopping");
            // Agents first: a replica without workers keeps no session.
            api.drain_agents(GRACE / 2).await;
            workers.stop().await;
            result
        }
    };
    api.shutdown(GRACE).await;
    result
}

/// Ends with the reason once the replica serves no more.
async fn fault(rt: &Rt, replica: &Replica) -> Failure {
    loop {
        if let Some(reason) = replica.fault() {
            if replica.is_barred() {
                return Failure::new(Exit::Conflict, reason);
            }
            return Failure::new(Exit::Error, format!("the replica stopped: {reason}")).hint(
                "the other replicas go on; mend what the message names, then start this one again; if it says then that \
                 its data is damaged, `palisade cluster repair` lets it join again",
            );
        }
        rt.sleep(FAULT_CHECK).await;
    }
}

/// Forms the cluster where that is still to be done, waits for a quorum and migrates the tables.
async fn become_ready(
    rt: &Rt,
    replica: &Arc<Replica>,
    members: Option<&[Member]>,
    context: &Context,
    registry: &palisade_contract::Registry,
) -> Outcome {
    let mut told = false;
    loop {
        let formed = match members {
            Some(members) => replica.form(members).await,
            None => replica.join().await,
        };
        match formed {
            Ok(()) => match migrate::run(context, registry).await {
                Ok(()) => return Ok(()),
                Err(error) if error.retryable => tracing::debug!(%error, "not migrated yet"),
                Err(error) => return Err(refused("cannot bring the tables up to date", &error)),
            },
            Err(error @ palisade_raft::FormError::NotAMember(_)) => {
                return Err(failed("cannot form the cluster", &error));
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::info!(%error, "waiting for a quorum of replicas");
                }
            }
        }
        rt.sleep(RETRY).await;
    }
}

/// The workers of this replica.
struct Workers {
    stops: Vec<tokio::sync::oneshot::Sender<()>>,
    ended: Vec<tokio::sync::oneshot::Receiver<()>>,
}

impl Workers {
    fn start(context: &Context, registry: &palisade_contract::Registry) -> Self {
        let mut workers = Self { stops: vec![], ended: vec![] };
        for role in [Role::Controllers, Role::Scheduler] {
            let (stop, stopped) = tokio::sync::oneshot::channel();
            let (end, ended) = tokio::sync::oneshot::channel();
            let worker =
                worker::Worker::new(context.clone(), registry, role, worker::Options::default());
            let task = async move {
                worker.run(Box::pin(stopped.map(drop))).await;
                // Nobody waits when the process ends without a drain.
                let _ = end.send(());
            };
            context.rt.spawn("worker", Box::pin(task));
            workers.stops.push(stop);
            workers.ended.push(ended);
        }
        workers
    }

    async fn stop(self) {
        drop(self.stops);
        futures::future::join_all(self.ended).await;
    }
}
