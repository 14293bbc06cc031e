//! A server with a tiny module, its certificates, and clients for it.

pub mod agent;
pub mod ailing;
pub mod client;
pub mod nodes;
pub mod watcher;
pub mod widgets;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use palisade_api::{
    ApiOptions, ApiServer, GatewayOptions, Limits, ServerModule,
    pki::{Authority, Identity},
};
use palisade_contract::{
    Code, Context, Error, Module, Principal, Registry, Resource, Result,
    ports::{Access, Credential},
};
use palisade_state::{
    Command, Outcome, ReplicaId, Role, Runtime, Store, StoreError, View, Watch,
    command::{Kind, WorkerBeat},
    memory::MemoryStore,
    port::{ClusterStatus, MemberStatus},
};

/// The runtime port over tokio.
pub struct TestRuntime(Instant);

#[expect(clippy::disallowed_methods, reason = "the runtime port of the tests")]
impl Runtime for TestRuntime {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(since.as_millis()).unwrap()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}

#[expect(clippy::disallowed_methods, reason = "the runtime port of the tests")]
pub fn runtime() -> Arc<TestRuntime> {
    Arc::new(TestRuntime(Instant::now()))
}

/// A store that applies what it is told to lose the answer of.
pub struct TestStore {
    pub memory: Arc<MemoryStore>,
    pub replica: ReplicaId,
    pub members: Mutex<Vec<MemberStatus>>,
    /// So many of the next proposals are applied and answered with `Unknown`.
    pub lose_answers: AtomicUsize,
    pub proposed: AtomicUsize,
    pub quorum_lost: std::sync::atomic::AtomicBool,
    /// Linearizable reads wait as long as it is set; so many do.
    pub reads_stalled: std::sync::atomic::AtomicBool,
    pub reads_waiting: AtomicUsize,
    /// Happens once, before the next proposal is applied.
    pub before_next: Mutex<Option<Interference>>,
}

/// What another replica does at a bad moment.
pub type Interference = Box<dyn FnOnce(&MemoryStore) + Send>;

impl TestStore {
    pub fn new() -> Arc<Self> {
        Self::replica_of(Arc::default(), 1)
    }

    /// Another replica with the same state.
    pub fn replica_of(memory: Arc<MemoryStore>, replica: u64) -> Arc<Self> {
        Arc::new(Self {
            memory,
            replica: ReplicaId(replica),
            members: Mutex::default(),
            lose_answers: AtomicUsize::new(0),
            proposed: AtomicUsize::new(0),
            quorum_lost: false.into(),
            reads_stalled: false.into(),
            reads_waiting: AtomicUsize::new(0),
            before_next: Mutex::default(),
        })
    }

    fn no_quorum(&self) -> bool {
        self.quorum_lost.load(Ordering::SeqCst)
    }
}

const LOST: StoreError = StoreError::NoQuorum { waited_ms: 1 };

impl Store for TestStore {
    fn view(&self) -> View {
        self.memory.view()
    }

    fn linearizable(&self) -> BoxFuture<'_, Result<View, StoreError>> {
        if self.no_quorum() {
            return Box::pin(std::future::ready(Err(LOST)));
        }
        Box::pin(async move {
            self.reads_waiting.fetch_add(1, Ordering::SeqCst);
            while self.reads_stalled.load(Ordering::SeqCst) {
                runtime().sleep(Duration::from_millis(5)).await;
            }
            self.reads_waiting.fetch_sub(1, Ordering::SeqCst);
            self.memory.linearizable().await
        })
    }

    fn at_revision(&self, revision: u64) -> BoxFuture<'_, Result<View, StoreError>> {
        self.memory.at_revision(revision)
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        if self.no_quorum() {
            return Box::pin(std::future::ready(Err(LOST)));
        }
        self.proposed.fetch_add(1, Ordering::SeqCst);
        if let Some(interfere) = self.before_next.lock().unwrap().take() {
            interfere(&self.memory);
        }
        let lose = self
            .lose_answers
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        Box::pin(async move {
            let outcome = self.memory.propose(command).await?;
            if lose { Err(StoreError::Unknown) } else { Ok(outcome) }
        })
    }

    fn watch(&self) -> Watch {
        self.memory.watch()
    }

    fn watch_from(&self, revision: u64) -> Watch {
        self.memory.watch_from(revision)
    }

    fn replica(&self) -> ReplicaId {
        self.replica
    }

    fn status(&self) -> ClusterStatus {
        let mut status = self.memory.status();
        let members = self.members.lock().unwrap().clone();
        if !members.is_empty() {
            status.members = members;
        }
        status
    }
}

/// `pal_admin` may everything, `pal_viewer` may read, and so may `pal_fleeting` while there is a widget of that name;
/// certificates of users are admins. `pal_acme` may read what is of tenant acme.
pub struct TestAccess;

impl Access for TestAccess {
    fn authenticate(&self, view: &View, credential: &Credential) -> Result<Principal> {
        let is_there = |name: &str| widgets::WIDGETS.get(view, &name.to_owned()).unwrap().is_some();
        let (name, role) = match credential {
            Credential::Token(token) if token == "pal_fleeting" && is_there("fleeting") => {
                ("token/fleeting", "viewer")
            }
            Credential::Token(token) if token == "pal_admin" => ("token/admin", "admin"),
            Credential::Token(token) if token == "pal_viewer" => ("token/viewer", "viewer"),
            Credential::Token(token) if token == "pal_acme" => ("token/acme", "viewer"),
            Credential::Certificate { uri, .. } if uri.ends_with("/user/ada") => {
                ("user/ada", "admin")
            }
            _ => return Err(Error::new(Code::Unauthenticated, "not accepted")),
        };
        let tenant = if name == "token/acme" { "acme" } else { "" }.to_owned();
        Ok(Principal { name: name.to_owned(), roles: vec![role.to_owned()], tenant })
    }

    fn authorize(
        &self,
        _view: &View,
        principal: &Principal,
        action: &str,
        resource: &Resource,
    ) -> Result<()> {
        if !principal.tenant.is_empty() && principal.tenant != resource.tenant {
            return Err(Error::new(Code::AccessDenied, format!("not {}'s", principal.tenant)));
        }
        if principal.roles == ["admin"] || action.ends_with(":read") {
            return Ok(());
        }
        Err(Error::new(Code::AccessDenied, format!("{} may not {action}", principal.name)))
    }

    fn standing(&self, _: &mut palisade_state::Tx, name: &str) -> Result<Principal> {
        Err(Error::new(Code::Unauthenticated, format!("{name} is nobody")))
    }

    fn able(&self, _: &View, _: &str, _: &Resource) -> Result<Vec<String>> {
        Ok(vec![])
    }

    fn makers(
        &self,
        _: &mut palisade_state::Tx,
        _: &str,
    ) -> Result<std::collections::BTreeSet<String>> {
        Ok(std::collections::BTreeSet::new())
    }
}

/// A server and everything that its clients need.
pub struct World {
    pub server: ApiServer,
    pub store: Arc<TestStore>,
    pub authority: Arc<Authority>,
    pub rt: Arc<TestRuntime>,
    pub ports: Arc<palisade_contract::ports::Ports>,
    pub open: Arc<std::sync::atomic::AtomicBool>,
    /// The modules, which the process holds and nobody else.
    _registry: Registry,
}

pub struct Options {
    pub limits: Limits,
    pub heartbeat: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { limits: Limits::default(), heartbeat: Duration::from_secs(5) }
    }
}

pub fn api_options(
    store: Arc<TestStore>,
    authority: Arc<Authority>,
    options: Options,
) -> ApiOptions {
    let rt = runtime();
    let now = rt.wall_ms();
    let issued =
        authority.issue_replica(store.replica.0, &["127.0.0.1:0".to_owned()], now).unwrap();
    let context = Context::new(rt, store);
    context.ports.access.fill(Arc::new(TestAccess)).unwrap();
    context.ports.nodes.fill(Arc::new(nodes::TestNodes)).unwrap();
    let server_module = ServerModule::new("1.2.3");
    let modules: Vec<Arc<dyn Module>> =
        vec![server_module.clone(), Arc::new(widgets::Widgets), Arc::new(nodes::NodesModule)];
    ApiOptions {
        open: Arc::new(std::sync::atomic::AtomicBool::new(true)),
        listen: "127.0.0.1:0".to_owned(),
        identity: Identity::try_from(&issued).unwrap(),
        authority,
        registry: Registry::new(modules).unwrap(),
        server_module,
        context,
        metrics: prometheus_client::registry::Registry::default(),
        limits: options.limits,
        gateway: GatewayOptions { heartbeat: options.heartbeat },
    }
}

pub fn authority() -> Arc<Authority> {
    Arc::new(Authority::create("lin", runtime().wall_ms()).unwrap())
}

pub async fn world_with(options: Options) -> World {
    world_of(TestStore::new(), authority(), options).await
}

pub async fn world_of(store: Arc<TestStore>, authority: Arc<Authority>, options: Options) -> World {
    let options = api_options(store.clone(), authority.clone(), options);
    let (ports, open) = (options.context.ports.clone(), options.open.clone());
    let registry = options.registry.clone();
    let server = ApiServer::start(options).await.unwrap();
    beat(&store);
    World { server, store, authority, rt: runtime(), ports, open, _registry: registry }
}

/// Lets the replica's worker live.
pub fn beat(store: &TestStore) {
    let beat = WorkerBeat {
        worker: store.replica.to_string(),
        incarnation: 1,
        role: Role::Controllers.into(),
        singletons: vec![],
        draining: false,
        sharded: true,
    };
    assert!(store.memory.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied());
}

pub async fn world() -> World {
    world_with(Options::default()).await
}

/// Waits for a condition, at most ten seconds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let rt = runtime();
    for _ in 0..1000 {
        if condition() {
            return;
        }
        rt.sleep(Duration::from_millis(10)).await;
    }
    panic!("never came true: {what}");
}
