//! History: audit records and events that have left memory, and the versions that records had.
//!
//! Each replica writes its own copy, on a thread of its own, from what it has applied; nothing that it serves needs it.
//! Audit records and events are read from the window that state keeps, so that a writer that lags only has more to
//! read; versions come from apply through a bounded queue. The store is sled, which is trusted for nothing: everything
//! is numbered, chained or listed, so that what it drops is missed. A store that is damaged is set aside and a new one
//! begins with what the window has; ranges that this replica was not there for are known gaps.
//!
//! Invariants `HIST-1` and `HIST-2` are kept in `sled_shelf.rs`, `HIST-3` to `HIST-5` in `book.rs`, `HIST-6` in
//! `feed.rs`.

mod asking;
mod book;
mod feed;
mod gaps;
mod keeper;
mod keys;
mod place;
mod reading;
mod resolve;
mod rows;
mod scrub;
mod shelf;
mod sled_shelf;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use palisade_state::{Published, Rt, View, audit::AuditRecord, outbox::Event};
use tokio::sync::{Notify, oneshot};

pub(crate) use self::feed::{Applied, Batch, Feed, Feeder};
pub use self::{
    asking::{Lives, Then, Wanted},
    book::{Moment, Retention},
    reading::{OldRow, Page, Past, RangeOf, Versions},
    rows::{Gap, Part},
};
use self::{
    keeper::{Keeper, Parts},
    place::Place,
    reading::{Reader, Unknown},
    shelf::{ShelfError, Shelved},
};
use crate::{Disk, Identity};

/// How long a reader waits until history has what state has.
const CATCH_UP: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// How much is kept, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistorySizes {
    /// For how long.
    pub retention: Retention,
    /// How long what was applied may wait to be written; it is written in batches.
    pub linger: Duration,
    /// What may wait for the writer; beyond it versions are left out, which makes a gap.
    pub queue_bytes: usize,
}

impl Default for HistorySizes {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            linger: Duration::from_millis(500),
            queue_bytes: 64 << 20,
        }
    }
}

/// Why history did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// There is none here, or not now.
    #[error("this replica has no history to read: {0}")]
    Unavailable(String),
    /// What was found is damaged; the store is set aside and begun anew.
    #[error("this replica's history is damaged: {0}; ask another replica")]
    Damaged(String),
    /// This replica keeps no versions of records.
    #[error("this replica keeps no versions of records: `versionsDays` in its replica.toml is 0")]
    NoVersions,
    /// It reaches only so far back.
    #[error("revision {revision} is too old: this replica's history begins at revision {from}")]
    TooOld {
        /// What was asked for.
        revision: u64,
        /// The first revision that can be read.
        from: u64,
    },
    /// Something between then and now is missing.
    #[error(
        "revision {revision} cannot be read here: what log entries {from} to {to} replaced is not known to this \
         replica; ask another replica"
    )]
    Missing {
        /// What was asked for.
        revision: u64,
        /// The first log entry that is missing.
        from: u64,
        /// The last one.
        to: u64,
    },
    /// It does not reach that far back.
    #[error("what was then is not known here: it was before this replica's history begins")]
    TooEarly {
        /// The first moment that it knows, Unix milliseconds.
        from_ms: Option<u64>,
    },
    /// That time is not over: what happens in it is not all known.
    #[error("that is still to come, by the cluster's clock")]
    NotYet {
        /// The cluster's clock, Unix milliseconds.
        now_ms: u64,
    },
    /// That is still to come.
    #[error("revision {revision} is not reached yet; this replica is at {current}")]
    NotReached {
        /// What was asked for.
        revision: u64,
        /// Where it is.
        current: u64,
    },
}

/// How far a replica's history reaches, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryStatus {
    /// The first audit record that is kept and the last one, `None` while history is not open.
    pub audit: Option<(u64, u64)>,
    /// The first event that is kept and the last one.
    pub events: Option<(u64, u64)>,
    /// The first revision that can be read and the last log entry whose replaced versions are kept.
    pub versions: Option<(u64, u64)>,
    /// What is known to be missing.
    pub gaps: Vec<Gap>,
    /// What an operator should know.
    pub findings: Vec<String>,
}

/// What is durable in history; 0: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// The last audit record.
    pub audit: u64,
    /// The last event.
    pub events: u64,
}

/// What the writer and readers share.
#[derive(Default)]
struct Shared {
    reader: Mutex<Option<Reader>>,
    durable: Mutex<Option<Durable>>,
    findings: Mutex<BTreeMap<&'static str, String>>,
    damage: Mutex<Option<String>>,
    changed: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn publish(&self, reader: Reader) {
        let Reader { progress, .. } = &reader;
        let durable = Durable { audit: progress.audit_last, events: progress.event_last };
        *lock(&self.durable) = Some(durable);
        *lock(&self.reader) = Some(reader);
        self.changed.notify_waiters();
    }

    /// Nothing can be read any more; the reader goes, and the store with it.
    fn withdraw(&self) {
        let reader = lock(&self.reader).take();
        drop(reader);
    }

    /// What was durable is so no longer.
    fn lose(&self) {
        *lock(&self.durable) = Some(Durable::default());
    }

    fn find(&self, key: &'static str, what: String) {
        lock(&self.findings).insert(key, what);
    }

    fn lost(&self, key: &'static str) {
        lock(&self.findings).remove(key);
    }

    fn take_damage(&self) -> Option<String> {
        lock(&self.damage).take()
    }
}

/// A replica's history, to be read.
#[derive(Clone)]
pub struct History {
    shared: Arc<Shared>,
    feed: Arc<Feed>,
    published: Arc<Published>,
    rt: Rt,
    disk: Disk,
    /// Whether versions are kept at all.
    keeps_versions: bool,
}

/// The writer, where it has a thread.
pub(crate) struct Running {
    ended: oneshot::Receiver<()>,
}

impl Running {
    /// Waits until everything is written and the store is closed.
    pub(crate) async fn ended(self) {
        // Dropped without a word: the thread has panicked, which ends it too.
        let _ = self.ended.await;
    }
}

/// What history is started with.
pub(crate) struct StartHistory {
    pub(crate) rt: Rt,
    pub(crate) disk: Disk,
    pub(crate) data: PathBuf,
    pub(crate) identity: Arc<Identity>,
    pub(crate) published: Arc<Published>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) sizes: HistorySizes,
    pub(crate) reserve_bytes: u64,
}

/// Below whatever serves: sled's own threads inherit it.
fn give_way() {
    const NICE: i32 = 5;
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(error = %error, "history runs at the priority of everything else");
    }
}

/// Starts the writer. History opens by itself, in its own time.
pub(crate) fn start(options: StartHistory) -> (History, Option<Running>) {
    let StartHistory { rt, disk, data, identity, published, feed, sizes, reserve_bytes } = options;
    let shared = Arc::new(Shared::default());
    let keeper = Keeper::new(Parts {
        feed: feed.clone(),
        shared: shared.clone(),
        published: published.clone(),
        rt: rt.clone(),
        disk: disk.clone(),
        place: disk.real.then(|| Place::new(data, identity)),
        sizes,
        reserve_bytes,
    });
    let running = if disk.real {
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("history".to_owned()).spawn(move || {
            give_way();
            keeper.run();
            let _ = end.send(());
        });
        if let Err(error) = thread {
            shared.find("off", format!("no history is kept: no thread for it: {error}"));
        }
        Some(Running { ended })
    } else {
        rt.spawn("history", Box::pin(keeper.run_in_place()));
        None
    };
    let keeps_versions = !sizes.retention.versions.is_zero();
    (History { shared, feed, published, rt, disk, keeps_versions }, running)
}

impl History {
    /// What is durable; `None` while it has not been opened, and nobody knows.
    #[must_use]
    pub fn durable(&self) -> Option<Durable> {
        *lock(&self.shared.durable)
    }

    /// How far it reaches.
    #[must_use]
    pub fn status(&self) -> HistoryStatus {
        let findings: Vec<String> = lock(&self.shared.findings).values().cloned().collect();
        let Some(reader) = lock(&self.shared.reader).clone() else {
            return HistoryStatus { findings, ..HistoryStatus::default() };
        };
        let progress = reader.progress;
        HistoryStatus {
            audit: Some((progress.audit_first, progress.audit_last)),
            events: Some((progress.event_first, progress.event_last)),
            versions: Some((progress.versions_from, progress.through)),
            gaps: progress.gaps,
            findings,
        }
    }

    /// Batches of changes whose versions were left out because the writer was too slow.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.feed.left_out()
    }

    /// Ends the writer, after what it has.
    pub(crate) fn close(&self) {
        self.feed.close();
    }

    fn reader(&self) -> Result<Reader, HistoryError> {
        lock(&self.shared.reader).clone().ok_or_else(|| {
            let findings = lock(&self.shared.findings);
            let why = findings.get("off").or_else(|| findings.get("full"));
            HistoryError::Unavailable(why.cloned().unwrap_or_else(|| "it is not open".to_owned()))
        })
    }

    /// Reads off the runtime. What is missing because it was removed by age meanwhile is read again.
    async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&Reader) -> Shelved<T> + Send + 'static,
    ) -> Result<T, HistoryError> {
        let this = self.clone();
        let ran = self.disk.run("history-read", move || {
            loop {
                let reader = this.reader()?;
                let broken = match work(&reader) {
                    Ok(found) => return Ok(found),
                    Err(ShelfError::Broken(what)) => what,
                    Err(passing) => return Err(HistoryError::Unavailable(passing.to_string())),
                };
                if this.reader()?.progress == reader.progress {
                    this.damaged(&broken);
                    return Err(HistoryError::Damaged(broken));
                }
            }
        });
        ran.await.unwrap_or_else(|error| Err(HistoryError::Unavailable(error.to_string())))
    }

    fn damaged(&self, what: &str) {
        *lock(&self.shared.damage) = Some(what.to_owned());
        self.feed.wake();
    }

    /// Audit records from a number on, oldest first, checked against their chain.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub async fn audit(&self, from: u64, limit: usize) -> Result<Page<AuditRecord>, HistoryError> {
        self.read(move |reader| reader.audit(from, limit)).await
    }

    /// Events from a number on, oldest first.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub async fn events(
        &self,
        from: u64,
        limit: usize,
    ) -> Result<Page<(u64, Event)>, HistoryError> {
        self.read(move |reader| reader.events(from, limit)).await
    }

    /// The versions that a record had, oldest first.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub async fn versions(&self, table: &str, key: &[u8]) -> Result<Versions, HistoryError> {
        let (table, key) = (table.to_owned(), key.to_vec());
        self.read(move |reader| reader.versions(&table, &key)).await
    }

    /// The rows of a table as they were at a revision.
    ///
    /// # Errors
    /// See [`HistoryError`]; an answer is whole.
    pub async fn at(&self, revision: u64, range: RangeOf<'_>) -> Result<Vec<OldRow>, HistoryError> {
        let view = self.known_at(revision).await?;
        let (table, start) = (range.table.to_owned(), range.start.to_vec());
        let (end, limit) = (range.end.map(<[u8]>::to_vec), range.limit);
        let read = self.read(move |reader| {
            let (table, start, end) = (table.as_str(), start.as_slice(), end.as_deref());
            reader.at(&RangeOf { table, start, end, limit }, revision, &view)
        });
        let rows = read.await?;
        // Versions may have left by age while they were read.
        self.known_at(revision).await?;
        Ok(rows)
    }

    /// Waits until history has all that state has, and finds out whether a revision can be read.
    async fn known_at(&self, revision: u64) -> Result<View, HistoryError> {
        let view = self.published.view();
        let current = view.revision();
        if revision > current {
            return Err(HistoryError::NotReached { revision, current });
        }
        if !self.keeps_versions {
            return Err(HistoryError::NoVersions);
        }
        let until = self.rt.now() + CATCH_UP;
        loop {
            match self.reader()?.unknown_at(revision, &view) {
                None => return Ok(view),
                Some(Unknown::TooOld { from }) => {
                    return Err(HistoryError::TooOld { revision, from });
                }
                Some(Unknown::Gap(Gap { from, to, .. })) => {
                    return Err(HistoryError::Missing { revision, from, to });
                }
                Some(Unknown::Behind) if self.rt.now() >= until => {
                    let what = "it lags behind what this replica has applied".to_owned();
                    return Err(HistoryError::Unavailable(what));
                }
                Some(Unknown::Behind) => self.rt.sleep(PAUSE).await,
            }
        }
    }

    /// Waits until more is durable.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}
