//! What `palisade serve` puts above consensus, on a simulated replica: the modules, their workers, the envelope and the
//! agent gateway. Left out are what needs an operating system: the listener, and backups.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use palisade_api::{
    GatewayOptions, LocalApi, LocalOptions,
    pki::{Authority, Identity},
};
use palisade_contract::{Context, Error, Running};
use palisade_modules::{Assembled, Settings};
use palisade_scheduler::{
    migrate,
    worker::{Options, Worker},
};
use palisade_state::{
    Command, Outcome, ReplicaId, Role, Rt, SharedStore, Store, StoreError, View, change::Watch,
    memory::MemoryStore, port::ClusterStatus,
};

use super::{
    super::{
        chores,
        nodes::{Life, lock},
        world::Handle,
    },
    Fleet, errands,
};

/// How long a node without a session keeps its instances.
pub(crate) const NODE_LOST: Duration = Duration::from_secs(6);
const HEARTBEAT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(50);
/// Wall time when the simulated certificates were made.
const ISSUED_MS: u64 = 1_767_225_600_000;

/// Certificates of the simulated cluster. Their bytes are of this process and decide nothing.
pub(crate) struct Pki {
    pub(crate) authority: Arc<Authority>,
    identity: Identity,
}

/// The certificates, made once in a process.
pub(crate) fn pki() -> Result<&'static Pki, String> {
    static PKI: OnceLock<Result<Pki, String>> = OnceLock::new();
    let make = || {
        let authority = Authority::create("sim", ISSUED_MS).map_err(|error| error.to_string())?;
        let issued = authority.issue_replica(1, &["127.0.0.1:1".to_owned()], ISSUED_MS);
        let issued = issued.map_err(|error| error.to_string())?;
        let identity = Identity::from_pem("sim", &issued.cert_pem, &issued.key_pem);
        let identity = identity.map_err(|error| error.to_string())?;
        Ok(Pki { authority: Arc::new(authority), identity })
    };
    PKI.get_or_init(make).as_ref().map_err(Clone::clone)
}

/// A replica's store, which can be let go: what modules keep of it must not keep a replica that has ended.
pub(crate) struct Held {
    id: ReplicaId,
    replica: Mutex<Option<Handle>>,
}

impl Held {
    pub(crate) fn new(replica: Handle) -> Arc<Self> {
        Arc::new(Self { id: replica.replica(), replica: Mutex::new(Some(replica)) })
    }

    /// The replica has ended.
    pub(crate) fn let_go(&self) -> Option<Handle> {
        lock(&self.replica).take()
    }

    fn get(&self) -> Option<Handle> {
        lock(&self.replica).clone()
    }
}

const ENDED: &str = "the replica has ended";

/// Asked only by what still runs: a life that has ended asks nothing any more.
impl Store for Held {
    fn view(&self) -> View {
        self.get().map_or_else(|| MemoryStore::default().view(), |replica| replica.view())
    }

    fn linearizable(&self) -> BoxFuture<'_, Result<View, StoreError>> {
        let replica = self.get();
        async move {
            let Some(replica) = replica else { return Err(StoreError::Unavailable(ENDED.into())) };
            replica.linearizable().await
        }
        .boxed()
    }

    fn at_revision(&self, revision: u64) -> BoxFuture<'_, Result<View, StoreError>> {
        let replica = self.get();
        async move {
            let Some(replica) = replica else { return Err(StoreError::Unavailable(ENDED.into())) };
            replica.at_revision(revision).await
        }
        .boxed()
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        let replica = self.get();
        async move {
            let Some(replica) = replica else { return Err(StoreError::Unavailable(ENDED.into())) };
            replica.propose(command).await
        }
        .boxed()
    }

    fn propose_within(
        &self,
        command: Command,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        let replica = self.get();
        async move {
            let Some(replica) = replica else { return Err(StoreError::Unavailable(ENDED.into())) };
            replica.propose_within(command, limit).await
        }
        .boxed()
    }

    fn watch(&self) -> Watch {
        self.get().map_or_else(|| MemoryStore::default().watch(), |replica| replica.watch())
    }

    fn watch_from(&self, revision: u64) -> Watch {
        match self.get() {
            Some(replica) => replica.watch_from(revision),
            None => MemoryStore::default().watch(),
        }
    }

    fn replica(&self) -> ReplicaId {
        self.id
    }

    fn status(&self) -> ClusterStatus {
        self.get().map_or_else(|| MemoryStore::default().status(), |replica| replica.status())
    }
}

/// Puts a replica together as `palisade serve` does, and opens its gateway once the tables are there.
pub(crate) async fn serve(fleet: Arc<Fleet>, id: u64, life: Life, rt: Rt, store: SharedStore) {
    if let Err(error) = serves(&fleet, id, life, rt, store).await {
        fleet.eyes.breach("start", format!("the modules of replica {id} do not start: {error}"));
    }
}

async fn serves(
    fleet: &Arc<Fleet>,
    id: u64,
    life: Life,
    rt: Rt,
    store: SharedStore,
) -> Result<(), Error> {
    let pki = pki().map_err(Error::internal)?;
    let settings = Settings { version: "sim", bootstrap: None, node_lost: NODE_LOST };
    let more = vec![chores::household(rt.clone()), errands::module()];
    let Assembled { registry, server } = palisade_modules::assemble(settings, more)?;
    let context = Context::new(rt.clone(), store).with_tables(&registry);
    let _running = Running::start(&registry, &context).await?;
    while context.store.view().formation().is_none() {
        rt.sleep(RETRY).await;
    }
    loop {
        match migrate::run(&context, &registry).await {
            Ok(()) => break,
            Err(error) if error.retryable => rt.sleep(RETRY).await,
            Err(error) => return Err(error),
        }
    }
    let api = LocalApi::start(LocalOptions {
        authority: pki.authority.clone(),
        identity: pki.identity.clone(),
        registry: registry.clone(),
        server_module: server,
        context: context.clone(),
        gateway: GatewayOptions { heartbeat: HEARTBEAT },
        own_address: format!("replica-{id}:2"),
    });
    fleet.attach(id, life, Arc::new(api.map_err(Error::internal)?));
    // A lost wake-up must show, not be healed by a resync.
    let options = Options { resync: Duration::from_secs(3_600), ..Options::default() };
    for role in [Role::Controllers, Role::Scheduler] {
        let worker = Worker::new(context.clone(), &registry, role, options);
        rt.spawn("worker", worker.run(Box::pin(std::future::pending())).boxed());
    }
    // Modules are held by nobody else.
    let _registry = registry;
    std::future::pending().await
}
