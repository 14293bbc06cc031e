//! What code of a module is given: its ports, and who asked for what.
//!
//! # Invariants
//! - `MOD-2` In a process that serves, no transaction of a module writes a table that no registered module declares.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use palisade_state::{
    Fence, Rt, SharedStore, Tx, View,
    command::{FenceCheck, Finish, Requeue},
    commit::{self, CommitError, Committed},
    shard::Shard,
};

use crate::{
    error::{Error, Result},
    ports::Ports,
    registry::Registry,
};

/// The ports of the process. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Time, randomness and tasks.
    pub rt: Rt,
    /// The way to state.
    pub store: SharedStore,
    /// What modules do for each other.
    pub ports: Arc<Ports>,
    tables: Option<Arc<BTreeSet<&'static str>>>,
}

impl Context {
    /// With ports that nobody has filled yet, and no word about which tables there are.
    #[must_use]
    pub fn new(rt: Rt, store: SharedStore) -> Self {
        Self { rt, store, ports: Arc::default(), tables: None }
    }

    /// From now on, writes only to tables that a module of this registry declares are let through.
    #[must_use]
    pub fn with_tables(mut self, registry: &Registry) -> Self {
        self.tables = Some(registry.tables().clone());
        self
    }

    /// Refuses a transaction that writes a table which no registered module declares. Belongs at
    /// the end of whatever builds a transaction past [`Context::commit`].
    ///
    /// # Errors
    /// `INTERNAL`, with the table's name as its cause: a defect of whichever module wrote it.
    pub fn check_tables(&self, tx: &Tx) -> Result<()> {
        // MOD-2
        let Some(declared) = &self.tables else { return Ok(()) };
        match tx.written_tables().find(|table| !declared.contains(table)) {
            None => Ok(()),
            Some(table) => Err(Error::internal(format!(
                "a transaction writes table {table}, which no registered module declares"
            ))),
        }
    }

    /// Runs a transaction that no lease fences, on this replica's view.
    ///
    /// # Errors
    /// What the builder refused, or why it was not applied.
    pub async fn commit(
        &self,
        mut build: impl FnMut(&mut Tx) -> Result<()> + Send,
    ) -> Result<Committed> {
        let checked = |tx: &mut Tx| {
            build(tx)?;
            self.check_tables(tx)
        };
        Ok(commit::run(&*self.store, &*self.rt, self.store.view(), checked).await?)
    }
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// A stable name, such as `token/tk_…` or `user/ada`.
    pub name: String,
    /// Its roles.
    pub roles: Vec<String>,
    /// The tenant that it is bound to; empty: the cluster.
    pub tenant: String,
}

/// A call of a method.
#[derive(Clone)]
pub struct MethodContext {
    /// The ports.
    pub context: Context,
    /// Who calls.
    pub principal: Principal,
    /// The request's id, for logs and audit.
    pub request_id: String,
    /// Only say what would be done.
    pub dry_run: bool,
    /// The revision that `If-Match` names.
    pub if_match: Option<u64>,
}

impl MethodContext {
    /// Refuses to go on when `If-Match` names another revision than the record's.
    ///
    /// # Errors
    /// `PRECONDITION_FAILED`.
    pub fn check_if_match(&self, revision: u64) -> Result<()> {
        match self.if_match {
            Some(wanted) if wanted != revision => Err(Error::new(
                crate::error::Code::PreconditionFailed,
                format!("the record is at revision {revision}, If-Match names {wanted}"),
            )
            .hint("read it again and repeat the change on what you find")),
            _ => Ok(()),
        }
    }
}

/// Set when a run should end early. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// Asks the run to end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the run should end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// One run of a reconciler. Every transaction that it opens is fenced by its lease.
#[derive(Clone)]
pub struct ReconcileContext {
    /// The ports.
    pub context: Context,
    /// The lease that the run holds.
    pub lease: FenceCheck,
    /// The shard of the key.
    pub shard: Shard,
    /// Whether the run should end early.
    pub cancelled: Cancelled,
    /// The work row that the run is for.
    pub work: Finish,
    /// For a periodic key: milliseconds after which it comes back.
    pub every_ms: Option<u64>,
    finished: Arc<AtomicBool>,
    committed_rev: Arc<AtomicU64>,
}

impl ReconcileContext {
    /// A run.
    #[must_use]
    pub fn new(
        context: Context,
        lease: FenceCheck,
        shard: Shard,
        work: Finish,
        every_ms: Option<u64>,
    ) -> Self {
        Self {
            context,
            lease,
            shard,
            cancelled: Cancelled::default(),
            work,
            every_ms,
            finished: Arc::default(),
            committed_rev: Arc::default(),
        }
    }

    /// This replica's newest view.
    #[must_use]
    pub fn view(&self) -> View {
        self.context.store.view()
    }

    /// The fence that every effect of this run carries.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.lease.fence.map(Fence::from).unwrap_or_default()
    }

    /// Whether [`ReconcileContext::finish`] was applied.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Runs a transaction under the lease. The work row stays.
    ///
    /// # Errors
    /// What the builder refused, or why it was not applied; `FENCED` when the lease moved on.
    pub async fn commit(
        &self,
        mut build: impl FnMut(&mut Tx) -> Result<()> + Send,
    ) -> Result<Committed> {
        self.run(|tx| build(tx)).await
    }

    /// Runs the last transaction of the run: what it builds and the end of the work row commit
    /// together.
    ///
    /// # Errors
    /// As [`ReconcileContext::commit`].
    pub async fn finish(
        &self,
        mut build: impl FnMut(&mut Tx) -> Result<()> + Send,
    ) -> Result<Committed> {
        let committed = self
            .run(|tx| {
                build(tx)?;
                match self.every_ms {
                    None => tx.finish(self.work.clone()),
                    Some(delay_ms) => tx.requeue(self.requeue(delay_ms, String::new())),
                }
                Ok(())
            })
            .await?;
        self.finished.store(true, Ordering::Release);
        Ok(committed)
    }

    /// Runs a transaction of a run that goes on after `delay_ms`: what it builds and the putting off of the work row commit
    /// together. A key that was dirtied meanwhile is run at once.
    ///
    /// # Errors
    /// As [`ReconcileContext::commit`].
    pub async fn go_on(
        &self,
        delay_ms: u64,
        mut build: impl FnMut(&mut Tx) -> Result<()> + Send,
    ) -> Result<Committed> {
        let committed = self
            .run(|tx| {
                build(tx)?;
                tx.requeue(self.requeue(delay_ms, String::new()));
                Ok(())
            })
            .await?;
        self.finished.store(true, Ordering::Release);
        Ok(committed)
    }

    /// Puts the work row off: by `delay_ms`, keeping `error` for operators.
    ///
    /// # Errors
    /// As [`ReconcileContext::commit`].
    pub async fn put_off(&self, delay_ms: u64, error: &str) -> Result<Committed> {
        let committed = self
            .run(|tx| {
                tx.requeue(self.requeue(delay_ms, error.to_owned()));
                Ok(())
            })
            .await?;
        self.finished.store(true, Ordering::Release);
        Ok(committed)
    }

    /// The highest revision that this run committed; 0: none.
    #[must_use]
    pub fn committed_rev(&self) -> u64 {
        self.committed_rev.load(Ordering::Acquire)
    }

    fn requeue(&self, delay_ms: u64, error: String) -> Requeue {
        let Finish { kind, key, generation } = self.work.clone();
        Requeue { kind, key, generation, delay_ms, error }
    }

    async fn run(&self, mut build: impl FnMut(&mut Tx) -> Result<()> + Send) -> Result<Committed> {
        let ended: Result<Committed, CommitError<Error>> =
            commit::run(&*self.context.store, &*self.context.rt, self.view(), |tx| {
                tx.fenced(self.lease.clone());
                tx.for_work(self.work.clone());
                build(tx)?;
                self.context.check_tables(tx)
            })
            .await;
        let committed = ended?;
        self.committed_rev.fetch_max(committed.revision, Ordering::AcqRel);
        Ok(committed)
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use palisade_state::{Declared, Store, Table, memory::MemoryStore, step::StepRuntime};

    use super::*;
    use crate::{error::Code, module::Module};

    const OWN: Table<String, u64> = Table::new("own", &[]);
    const STRAY: Table<String, u64> = Table::new("stray", &[]);

    struct Owner;

    impl Module for Owner {
        fn name(&self) -> &'static str {
            "owner"
        }

        fn tables(&self) -> Vec<Declared> {
            vec![OWN.declared()]
        }
    }

    #[test]
    fn a_table_that_no_module_declares_is_not_written() {
        let registry = Registry::new(vec![Arc::new(Owner)]).unwrap();
        let store = Arc::new(MemoryStore::default());
        let cx = Context::new(StepRuntime::new(1), store.clone()).with_tables(&registry);
        let put = |table: &'static Table<String, u64>| {
            block_on(cx.commit(|tx| {
                tx.put(&OWN, &"k".to_owned(), &1)?;
                Ok(tx.put(table, &"k".to_owned(), &1)?)
            }))
        };
        let refused = put(&STRAY).unwrap_err();
        assert_eq!(refused.code, Code::Internal);
        let cause = refused.source.unwrap().to_string();
        assert_eq!(cause, "a transaction writes table stray, which no registered module declares");
        assert_eq!(OWN.get(&store.view(), &"k".to_owned()).unwrap(), None, "it leaves nothing");
        assert!(put(&OWN).is_ok());
    }
}
