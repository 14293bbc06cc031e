//! The history port of a process that runs a replica: what has left memory, from the replica's own store.

use std::sync::Arc;

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Error, Problem, Result, When,
    past::{History, Life, Lives, Reach, Wanted},
    time::rfc3339,
};
use palisade_raft::{
    Replica,
    history::{self, HistoryError, OldRow},
};
use palisade_state::{
    Record, View,
    audit::AuditRecord,
    key::KeyBytes,
    outbox::Event,
    past::{Kept, PastRow},
};
use tokio::sync::Semaphore;

/// Reads of history at once: each may look at much, and what is served from memory does not wait for them.
const AT_ONCE: usize = 2;

/// Reads this replica's history.
#[derive(Clone)]
pub(crate) struct ReplicaHistory {
    history: history::History,
    turns: Arc<Semaphore>,
}

impl ReplicaHistory {
    pub(crate) fn of(replica: &Replica) -> Self {
        Self { history: replica.history().clone(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Reads in turn.
    fn read<T, F>(
        &self,
        work: impl FnOnce(history::History) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        let this = self.clone();
        Box::pin(async move {
            let _turn = this.turns.acquire().await.map_err(Error::internal)?;
            work(this.history).await
        })
    }
}

const ELSEWHERE: &str = "another replica may know more, and is asked with --addr; `palisade doctor` says what is wrong \
                         with a history, and docs/audit.md how long it is kept";

fn not_yet(message: String) -> Error {
    Error::invalid(vec![Problem { pointer: "/at".to_owned(), message }])
}

/// Not here, and that will not change.
fn elsewhere(message: String) -> Error {
    let mut error = Error::new(Code::Unavailable, message).hint(ELSEWHERE);
    error.retryable = false;
    error
}

fn error(error: HistoryError) -> Error {
    match error {
        HistoryError::NotReached { revision, current } => {
            not_yet(format!("revision {revision} is still to come: the newest is {current}"))
        }
        HistoryError::NotYet { now_ms } => not_yet(format!(
            "that time is not over by the cluster's clock, which is at {}",
            rfc3339(now_ms)
        )),
        HistoryError::TooEarly { from_ms: Some(from_ms) } => elsewhere(format!(
            "that is before this replica's history of records begins, at {}",
            rfc3339(from_ms)
        )),
        gone @ (HistoryError::TooOld { .. }
        | HistoryError::Missing { .. }
        | HistoryError::NoVersions
        | HistoryError::TooEarly { .. }) => elsewhere(gone.to_string()),
        passing => Error::new(Code::Unavailable, passing.to_string()).hint(ELSEWHERE),
    }
}

fn past_row(row: OldRow) -> PastRow {
    PastRow { key: KeyBytes::from_slice(&row.key), record: Record::new(row.stamp, &row.value) }
}

async fn view_at(history: history::History, when: When, tables: Vec<Kept>) -> Result<View> {
    let (revision, noted) = match when {
        When::Revision(revision) => (revision, None),
        When::Time(at_ms) => {
            let moment = history.moment_at(at_ms).await.map_err(error)?;
            (moment.revision, Some(moment.clock))
        }
    };
    let names = tables.iter().map(Kept::table).collect();
    let then = history.then(revision, names).await.map_err(error)?;
    let ended = then.ended.into_iter().map(|rows| rows.into_iter().map(past_row).collect());
    let tables: Vec<_> = tables.into_iter().zip(ended).collect();
    Ok(then.view.as_of(revision, noted.unwrap_or(then.moment.clock), &tables)?)
}

async fn lives(history: history::History, table: &'static str, wanted: Wanted) -> Result<Lives> {
    let found = history.lives(table, wanted).await.map_err(error)?;
    let life = |(key, past): (Vec<u8>, history::Past)| Life {
        key,
        stamp: past.stamp,
        value: past.value,
        ended_rev: past.ended_rev,
    };
    Ok(Lives {
        lives: found.lives.into_iter().map(life).collect(),
        view: found.view,
        from_revision: found.from_revision,
        gaps: found.gaps.into_iter().map(|gap| (gap.from, gap.to)).collect(),
    })
}

impl History for ReplicaHistory {
    fn reach(&self) -> Reach {
        let status = self.history.status();
        Reach { audit: status.audit, events: status.events }
    }

    fn audit(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<AuditRecord>>> {
        self.read(move |history| async move {
            Ok(history.audit(from, limit).await.map_err(error)?.items)
        })
    }

    fn events(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<(u64, Event)>>> {
        self.read(move |history| async move {
            Ok(history.events(from, limit).await.map_err(error)?.items)
        })
    }

    fn view_at(&self, when: When, tables: Vec<Kept>) -> BoxFuture<'static, Result<View>> {
        self.read(move |history| view_at(history, when, tables))
    }

    fn lives(&self, table: &'static str, wanted: Wanted) -> BoxFuture<'static, Result<Lives>> {
        self.read(move |history| lives(history, table, wanted))
    }

    fn times(&self, revisions: Vec<u64>) -> BoxFuture<'static, Result<Vec<Option<u64>>>> {
        self.read(move |history| async move { history.times(revisions).await.map_err(error) })
    }
}
