//! The kernel by itself: a `Store` without consensus or disk, for tests and simulation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, ready};

use crate::{
    change::Watch,
    command::{Command, Entry, FORMAT, Form, Kind, Outcome, Tick},
    machine::{Machine, Published},
    port::{ClusterStatus, MemberStatus, ReplicaId, Store, StoreError},
    state::Position,
    view::View,
};

/// A single-member cluster in memory. Time and elections are the caller's.
#[derive(Debug)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
    published: Arc<Published>,
}

#[derive(Debug)]
struct Inner {
    machine: Machine,
    term: u64,
    delta_ms: u64,
    voters: Vec<ReplicaId>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let machine = Machine::default();
        let published = machine.published();
        let inner = Inner { machine, term: 1, delta_ms: 0, voters: vec![ReplicaId(1)] };
        let store = Self { inner: Mutex::new(inner), published };
        let form = Form { cluster: "memory".into(), lineage: "memory".into(), epoch: 0 };
        let formed = store.apply(Kind::Form(form).into());
        debug_assert!(formed.is_ok_and(|outcome| outcome.is_applied()));
        store
    }
}

impl MemoryStore {
    /// Lets `ms` pass and applies a tick.
    pub fn advance(&self, ms: u64) {
        let mut left = ms;
        loop {
            let step = left.min(crate::limits::CLOCK_STEP_MS_MAX);
            self.lock().delta_ms += step;
            let ticked = self.apply(Kind::Tick(Tick {}).into());
            debug_assert!(ticked.is_ok());
            left -= step;
            if left == 0 {
                return;
            }
        }
    }

    /// Says that these are the cluster's voters, although there is one of them here.
    pub fn set_voters(&self, ids: &[u64]) {
        self.lock().voters = ids.iter().copied().map(ReplicaId).collect();
    }

    /// Begins a new term.
    pub fn elect(&self) {
        let mut inner = self.lock();
        inner.term += 1;
        let at = Position { term: inner.term, index: inner.machine.applied().index + 1 };
        let passed = inner.machine.pass(at);
        debug_assert!(passed.is_ok());
        inner.machine.publish();
    }

    /// Applies a command now.
    ///
    /// # Errors
    /// The kernel does not know the command.
    pub fn apply(&self, command: Command) -> Result<Outcome, StoreError> {
        let mut inner = self.lock();
        let at = Position { term: inner.term, index: inner.machine.applied().index + 1 };
        let delta_ms = std::mem::take(&mut inner.delta_ms);
        let wall_ms = 1_700_000_000_000 + self.published.view().clock().now_ms + delta_ms;
        let entry = Entry {
            format: FORMAT,
            proposer_term: inner.term,
            delta_ms,
            wall_ms,
            commands: vec![command],
        };
        let outcomes = inner
            .machine
            .apply(at, entry)
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        inner.machine.publish();
        outcomes.into_iter().next().ok_or_else(|| StoreError::Unavailable("no outcome".to_owned()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn view(&self) -> View {
        self.published.view()
    }

    fn linearizable(&self) -> BoxFuture<'_, Result<View, StoreError>> {
        Box::pin(ready(Ok(self.view())))
    }

    fn at_revision(&self, revision: u64) -> BoxFuture<'_, Result<View, StoreError>> {
        let view = self.view();
        let reached = view.applied().index >= revision;
        let current = view.applied().index;
        let refused = Err(StoreError::NotReached { revision, current });
        Box::pin(ready(if reached { Ok(view) } else { refused }))
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(ready(self.apply(command)))
    }

    fn watch(&self) -> Watch {
        self.published.watch()
    }

    fn watch_from(&self, revision: u64) -> Watch {
        self.published.watch_from(revision)
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(1)
    }

    fn status(&self) -> ClusterStatus {
        let view = self.view();
        let applied = view.applied();
        let member = |id: ReplicaId| MemberStatus {
            id,
            peer_addr: String::new(),
            api_addr: String::new(),
            voter: true,
            leader: id == ReplicaId(1),
            matched_index: Some(applied.index),
            lag: Some(0),
            last_ack_ms: Some(0),
            drained: crate::roster::is_drained(&view, id),
            phase: None,
            version: None,
            format_max: None,
        };
        ClusterStatus {
            cluster: "memory".into(),
            lineage: "memory".into(),
            epoch: 0,
            replica: ReplicaId(1),
            leader: Some(ReplicaId(1)),
            term: applied.term,
            last_index: applied.index,
            committed_index: applied.index,
            applied_index: applied.index,
            snapshot_index: None,
            state: "leader".into(),
            members: self.lock().voters.iter().copied().map(member).collect(),
            fault: None,
            format: view.format(),
            warnings: vec![],
            no_space: None,
            pending: vec![],
            change: None,
        }
    }
}
