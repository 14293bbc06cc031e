//! From apply to history: a bounded queue that is never waited for.
//!
//! # Invariants
//! - `HIST-6` Apply never waits for history. What does not fit is left out, and missed by its log index.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use palisade_state::{Clock, View};
use tokio::sync::Notify;

use crate::types::Payload;

/// One log entry that was applied.
pub(crate) struct Applied {
    pub(crate) index: u64,
    /// The cluster's clock after it.
    pub(crate) clock: Clock,
    pub(crate) payload: Payload,
    /// For each of its commands, whether it was applied now.
    pub(crate) applied: Vec<bool>,
    /// The writes of all of them.
    pub(crate) writes: usize,
}

/// What was applied and published together.
pub(crate) struct Batch {
    /// What was published before it.
    pub(crate) before: View,
    /// The first log entry and the last one, those among them that hold nothing of ours.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Those that may have changed rows.
    pub(crate) entries: Vec<Applied>,
}

/// What a write has replaced in the view that its batch holds: a leaf of the tree, its parents and the record.
const REPLACED_BYTES: usize = 2 * 1024;

impl Batch {
    /// The memory that it keeps from being freed, about.
    fn bytes(&self) -> usize {
        let entry = |entry: &Applied| entry.payload.len() + REPLACED_BYTES * entry.writes + 64;
        self.entries.iter().map(entry).sum::<usize>() + 128
    }
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The last log entry that was applied, queued or not.
    seen: u64,
    closed: bool,
    /// The keeper sleeps until something comes.
    asleep: bool,
    /// It is to look, although nothing was queued.
    woken: bool,
}

impl Queue {
    fn is_quiet(&self) -> bool {
        self.batches.is_empty() && !self.closed && !self.woken
    }
}

/// The queue.
pub(crate) struct Feed {
    queue: Mutex<Queue>,
    ready: Condvar,
    notify: Notify,
    bytes_max: usize,
    left_out: AtomicU64,
}

/// What was taken out of the queue.
pub(super) struct Taken {
    pub(super) batches: VecDeque<Batch>,
    /// The last log entry that was applied up to where it was taken, queued or not.
    pub(super) seen: u64,
    /// Nothing is left, and nothing more will come.
    pub(super) closed: bool,
}

impl Feed {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            queue: Mutex::default(),
            ready: Condvar::new(),
            notify: Notify::new(),
            bytes_max,
            left_out: AtomicU64::new(0),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Batches that did not fit.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    fn push(&self, batch: Batch) {
        let bytes = batch.bytes();
        let mut queue = self.queue();
        queue.seen = batch.last;
        if queue.bytes + bytes <= self.bytes_max {
            queue.bytes += bytes;
            queue.batches.push_back(batch);
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        self.rouse(queue);
    }

    fn rouse(&self, mut queue: MutexGuard<'_, Queue>) {
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep {
            self.ready.notify_one();
            self.notify.notify_one();
        }
    }

    /// Lets the keeper look.
    pub(super) fn wake(&self) {
        let mut queue = self.queue();
        queue.woken = true;
        self.rouse(queue);
    }

    /// Ends it, after what waits in it.
    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.ready.notify_all();
        self.notify.notify_one();
    }

    /// Takes what waits, oldest first, until it is more than `bytes`.
    pub(super) fn take(&self, bytes: usize) -> Taken {
        let mut queue = self.queue();
        queue.woken = false;
        let (mut batches, mut taken) = (VecDeque::new(), 0);
        while taken <= bytes
            && let Some(batch) = queue.batches.pop_front()
        {
            taken += batch.bytes();
            batches.push_back(batch);
        }
        queue.bytes -= taken;
        let is_all = queue.batches.is_empty();
        let last = batches.back().map(|batch| batch.last).filter(|_| !is_all);
        Taken { batches, seen: last.unwrap_or(queue.seen), closed: queue.closed && is_all }
    }

    /// Blocks until something waits, it is closed, or `limit` has passed.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        let mut queue = self.queue();
        while queue.is_quiet() {
            queue.asleep = true;
            let Some(limit) = limit else {
                queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.ready.wait_timeout(queue, limit);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        queue.asleep = false;
    }

    /// Blocks for `pause`, or until it is closed: more may gather meanwhile.
    pub(super) fn rest(&self, pause: Duration) {
        let queue = self.queue();
        if !queue.closed {
            let waited =
                self.ready.wait_timeout_while(queue, pause, |queue: &mut Queue| !queue.closed);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// [`Feed::wait`] for a task.
    pub(super) async fn waited(&self) {
        loop {
            {
                let mut queue = self.queue();
                if !queue.is_quiet() {
                    return;
                }
                queue.asleep = true;
            }
            self.notify.notified().await;
        }
    }
}

/// Apply's end of the queue; closes it when it goes.
pub(crate) struct Feeder {
    feed: Arc<Feed>,
    /// Whether versions are kept, so that entries are worth handing over.
    with_versions: bool,
}

impl Feeder {
    pub(crate) fn new(feed: Arc<Feed>, with_versions: bool) -> Self {
        Self { feed, with_versions }
    }

    pub(crate) fn wants_entries(&self) -> bool {
        self.with_versions
    }

    pub(crate) fn push(&self, batch: Batch) {
        self.feed.push(batch);
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.feed.close();
    }
}
