//! A store whose quorum takes its time, or goes, on a clock that is stepped.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_state::{
    Command, Outcome, ReplicaId, Runtime, Store, StoreError, View, Watch, memory::MemoryStore,
    port::ClusterStatus, step::StepRuntime,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// See the module. Its patience is the kernel's: 5 s for a read, and 5 s for a proposal.
pub struct Ailing {
    pub memory: MemoryStore,
    rt: Arc<StepRuntime>,
    /// How long a linearizable read takes.
    pub read_takes: Mutex<Duration>,
    /// So many proposals are applied; then there is no quorum.
    pub proposals_left: AtomicUsize,
    /// The leader's disk is full.
    pub full: AtomicBool,
    /// What happens before the next proposal is applied.
    pub before_next: Mutex<Option<super::Interference>>,
}

impl Ailing {
    pub fn new(rt: Arc<StepRuntime>) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::default(),
            rt,
            read_takes: Mutex::default(),
            proposals_left: AtomicUsize::new(usize::MAX),
            full: false.into(),
            before_next: Mutex::default(),
        })
    }

    async fn no_quorum<T>(&self, waited: Duration) -> Result<T, StoreError> {
        self.rt.sleep(waited).await;
        Err(StoreError::NoQuorum { waited_ms: u64::try_from(waited.as_millis()).unwrap() })
    }
}

impl Store for Ailing {
    fn view(&self) -> View {
        self.memory.view()
    }

    fn linearizable(&self) -> BoxFuture<'_, Result<View, StoreError>> {
        Box::pin(async move {
            let takes = *self.read_takes.lock().unwrap();
            if takes >= PATIENCE {
                return self.no_quorum(PATIENCE).await;
            }
            self.rt.sleep(takes).await;
            Ok(self.memory.view())
        })
    }

    fn at_revision(&self, revision: u64) -> BoxFuture<'_, Result<View, StoreError>> {
        self.memory.at_revision(revision)
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.propose_within(command, PATIENCE)
    }

    fn propose_within(
        &self,
        command: Command,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(async move {
            if self.full.load(Ordering::SeqCst) {
                return Err(StoreError::NoSpace("full".to_owned()));
            }
            let left = self.proposals_left.load(Ordering::SeqCst);
            if left == 0 {
                return self.no_quorum(limit.min(PATIENCE)).await;
            }
            self.proposals_left.store(left - 1, Ordering::SeqCst);
            let before = self.before_next.lock().unwrap().take();
            if let Some(interfere) = before {
                interfere(&self.memory);
            }
            self.memory.apply(command)
        })
    }

    fn watch(&self) -> Watch {
        self.memory.watch()
    }

    fn watch_from(&self, revision: u64) -> Watch {
        self.memory.watch_from(revision)
    }

    fn replica(&self) -> ReplicaId {
        self.memory.replica()
    }

    fn status(&self) -> ClusterStatus {
        self.memory.status()
    }
}
