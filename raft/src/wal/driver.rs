//! The log's one writer: gathers what waits, writes and syncs it once, and calls back in order.
//!
//! * W7 A callback that reports success comes only after the sync that covers its records, and after the
//!   callbacks of everything queued before it.
//!
//! What needs no sync does not wake the writer's thread: it goes with the next thing that does, or after a short while.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures::future::{Either, select};
use palisade_state::{
    ReplicaId, Rt,
    planted::{self, Defect},
    port::Shortage,
};

use super::core::Wal;
use super::error::WalError;
use super::record;
use super::space::Space;
use super::types::Record;
use crate::fault::chain;

/// Called once with the outcome of an append, from the log's thread; it must not block.
pub type Done = Box<dyn FnOnce(Result<(), WalError>) + Send>;

/// How long the log must be idle before it settles.
const IDLE: Duration = Duration::from_millis(20);

struct Item {
    records: Vec<Record>,
    bytes: usize,
    sync: bool,
    done: Done,
}

/// A group that is written and, if that was asked for, not yet durable.
struct Written {
    batch: Vec<Item>,
    outcomes: Vec<Result<(), WalError>>,
    sync: bool,
    flushed: Result<(), WalError>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// How many of them are to be synced.
    urgent: usize,
    bytes: usize,
    closed: bool,
    ended: bool,
    failure: Option<WalError>,
    waiting: Vec<Waker>,
    driver: Option<Waker>,
    /// The driver's thread looks by itself after a while.
    timed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    space: Arc<Space>,
    queue_bytes: usize,
    bytes: AtomicU64,
    syncs: AtomicU64,
    batches: AtomicU64,
    items: AtomicU64,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when something waits, or when it is closed and nothing does, and says which.
    fn poll_work(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut queue = self.queue();
        if !queue.items.is_empty() || queue.closed {
            return Poll::Ready(queue.items.is_empty());
        }
        queue.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        let wakers: Vec<_> = queue.waiting.drain(..).collect();
        let driver = queue.driver.take();
        drop(queue);
        self.ready.notify_all();
        wakers.into_iter().chain(driver).for_each(Waker::wake);
    }
}

/// What the log has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes written.
    pub bytes: u64,
    /// Syncs of segments.
    pub syncs: u64,
    /// Groups written.
    pub batches: u64,
    /// Appends in all groups.
    pub items: u64,
}

/// Closes the log when the last handle goes.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The way to append to a log that a [`Driver`] owns. Clones lead to the same log; when the last one goes,
/// the driver finishes what is queued and ends.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    _guard: Arc<Guard>,
}

impl Handle {
    /// Queues records and returns at once; `done` is called in the order of the appends.
    ///
    /// With `needs_sync`, success means that the records are durable; without, only that they were written.
    /// The queue always takes them: await [`Handle::room`] first to be held back.
    pub fn append(&self, records: Vec<Record>, needs_sync: bool, done: Done) {
        let bytes = records.iter().map(size_of).sum();
        let mut queue = self.shared.queue();
        if queue.ended {
            let error = queue.failure.clone().unwrap_or(WalError::Closed);
            drop(queue);
            done(Err(error));
            return;
        }
        // The first that waits arms the timer, and the first that cannot wait ends it.
        let wakes = if needs_sync { queue.urgent == 0 } else { queue.items.is_empty() };
        queue.items.push_back(Item { records, bytes, sync: needs_sync, done });
        queue.urgent += usize::from(needs_sync);
        queue.bytes += bytes;
        let wakes = wakes && (needs_sync || !queue.timed);
        let driver = queue.driver.take();
        drop(queue);
        if wakes {
            self.shared.ready.notify_one();
        }
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Waits until the queue has room. It needs no particular runtime.
    pub async fn room(&self) {
        poll_fn(|cx| self.poll_room(cx)).await;
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.shared.queue();
        if queue.bytes < self.shared.queue_bytes || queue.closed || queue.ended {
            return Poll::Ready(());
        }
        if !queue.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            queue.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Whether a failure has stopped the log for good.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.shared.queue().failure.is_some()
    }

    /// The failure that stopped the log.
    #[must_use]
    pub fn failure(&self) -> Option<WalError> {
        self.shared.queue().failure.clone()
    }

    /// Whether less than the reserve is free, so that proposals should be refused; looks each time.
    ///
    /// Appends are still taken while segments have room, so that what is in flight goes through.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.shared.space.is_low()
    }

    /// The same, with what is free and what must be, for `replica`.
    #[must_use]
    pub fn shortage(&self, replica: u64) -> Option<Shortage> {
        let (path, free_bytes, needed_bytes) = self.shared.space.shortage()?;
        let path = path.display().to_string();
        Some(Shortage { replica: ReplicaId(replica), path, free_bytes, needed_bytes })
    }

    /// What the log has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            syncs: self.shared.syncs.load(Ordering::Relaxed),
            batches: self.shared.batches.load(Ordering::Relaxed),
            items: self.shared.items.load(Ordering::Relaxed),
        }
    }

    /// Lets the driver finish what is queued and end.
    pub fn close(&self) {
        self.shared.close();
    }
}

fn size_of(record: &Record) -> usize {
    match record {
        Record::Append(entries) => {
            entries.iter().map(record::entry_len).sum::<usize>() + record::HEAD
        }
        _ => record::MARK,
    }
}

/// The owner of a log: the only one who writes it.
pub struct Driver {
    wal: Wal,
    shared: Arc<Shared>,
}

enum Wake {
    Work,
    Idle,
    Closed,
}

impl Driver {
    /// A driver for `wal` and the handle to its queue.
    #[must_use]
    pub fn new(wal: Wal) -> (Handle, Self) {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            ready: Condvar::new(),
            space: wal.space(),
            queue_bytes: wal.options().queue_bytes,
            bytes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            items: AtomicU64::new(0),
        });
        let guard = Arc::new(Guard(shared.clone()));
        (Handle { shared: shared.clone(), _guard: guard }, Self { wal, shared })
    }

    /// Takes one group of what waits, makes it durable and calls back; false when nothing waited.
    pub fn step(&mut self) -> bool {
        let Some(written) = self.write() else { return false };
        self.finish(written);
        true
    }

    /// Takes one group of what waits and writes it.
    fn write(&mut self) -> Option<Written> {
        let batch = self.take_batch();
        if batch.is_empty() {
            return None;
        }
        let mut sync = false;
        let mut outcomes = Vec::with_capacity(batch.len());
        for item in &batch {
            sync |= item.sync;
            outcomes.push(self.wal.append(&item.records));
        }
        let flushed = self.wal.commit(false);
        Some(Written { batch, outcomes, sync, flushed })
    }

    /// Makes a group durable that was written, and calls back.
    fn finish(&mut self, written: Written) {
        let Written { batch, outcomes, sync, flushed } = written;
        let sync = sync && !planted::is(Defect::AckBeforeSync);
        let committed = flushed.and_then(|()| if sync { self.wal.commit(true) } else { Ok(()) });
        let fatal = outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err())
            .find(|error| !error.is_refusal());
        self.publish(fatal.or(committed.as_ref().err()));
        self.wal.options().hooks.on_point("wal.before_callback");
        for (item, outcome) in batch.into_iter().zip(outcomes) {
            let outcome = match outcome {
                Ok(()) => committed.clone(),
                refused => refused,
            };
            (item.done)(outcome);
        }
        if !self.wal.is_failed() {
            self.wal.drop_purged();
        }
    }

    fn take_batch(&self) -> Vec<Item> {
        let options = self.wal.options();
        let mut queue = self.shared.queue();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < options.batch_items && (bytes == 0 || bytes < options.batch_bytes) {
            let Some(item) = queue.items.pop_front() else { break };
            bytes += item.bytes;
            queue.urgent -= usize::from(item.sync);
            batch.push(item);
        }
        queue.bytes -= bytes;
        if queue.bytes < self.shared.queue_bytes {
            let wakers: Vec<_> = queue.waiting.drain(..).collect();
            drop(queue);
            wakers.into_iter().for_each(Waker::wake);
        }
        let items = batch.len() as u64;
        self.shared.items.fetch_add(items, Ordering::Relaxed);
        self.shared.batches.fetch_add(u64::from(items > 0), Ordering::Relaxed);
        batch
    }

    fn publish(&self, failure: Option<&WalError>) {
        let (bytes, syncs) = self.wal.counters();
        self.shared.bytes.store(bytes, Ordering::Relaxed);
        self.shared.syncs.store(syncs, Ordering::Relaxed);
        let Some(failure) = failure else { return };
        let mut queue = self.shared.queue();
        if queue.failure.is_none() {
            tracing::error!(error = chain(failure), "the log has stopped");
            queue.failure = Some(failure.clone());
        }
    }

    /// Does what is done when nothing waits.
    pub fn settle(&mut self) {
        if !self.wal.is_failed() {
            let settled = self.wal.settle();
            self.publish(settled.as_ref().err());
        }
    }

    /// Serves the queue until it is closed, on whatever executor polls this. It blocks in the disk; how long a sync
    /// takes is `rt`'s to say, at the point `wal.sync`.
    pub async fn run(mut self, rt: Rt) {
        loop {
            while let Some(written) = self.write() {
                if written.sync {
                    self.wal.options().hooks.on_point("wal.before_sync");
                    rt.crash_point("wal.sync").await;
                }
                self.finish(written);
            }
            let shared = self.shared.clone();
            let mut waiting = pin!(poll_fn(move |cx| shared.poll_work(cx)));
            let settled = self.wal.is_settled() || self.wal.is_failed();
            let idle = if settled { Box::pin(pending()) } else { rt.sleep(IDLE) };
            let closed = match select(&mut waiting, idle).await {
                Either::Left((closed, _)) => closed,
                Either::Right(_) => {
                    self.settle();
                    waiting.await
                }
            };
            if closed {
                self.settle();
                return;
            }
        }
    }

    fn wait(&self) -> Wake {
        let mut queue = self.shared.queue();
        let settled = self.wal.is_settled() || self.wal.is_failed();
        loop {
            if queue.urgent > 0 {
                return Wake::Work;
            }
            if queue.closed {
                return if queue.items.is_empty() { Wake::Closed } else { Wake::Work };
            }
            if settled && queue.items.is_empty() {
                queue = self.shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.timed = true;
            let (guard, timeout) =
                self.shared.ready.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = guard;
            queue.timed = false;
            if timeout.timed_out() && queue.urgent == 0 && !queue.closed {
                return if queue.items.is_empty() { Wake::Idle } else { Wake::Work };
            }
        }
    }

    /// Gives the driver an OS thread of its own, and another that makes segments ahead of their use.
    pub fn spawn(mut self) -> io::Result<Running> {
        self.wal.start_helper()?;
        let shared = self.shared.clone();
        let thread = thread::Builder::new().name("wal".to_owned()).spawn(move || {
            loop {
                match self.wait() {
                    Wake::Work => {
                        self.step();
                    }
                    Wake::Idle => self.settle(),
                    Wake::Closed => break,
                }
            }
            self.settle();
        })?;
        Ok(Running { shared, thread })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.ended = true;
        let left = std::mem::take(&mut queue.items);
        (queue.bytes, queue.urgent) = (0, 0);
        let wakers: Vec<_> = queue.waiting.drain(..).collect();
        drop(queue);
        // Dropped unanswered: their outcome is unknown, as after a crash.
        drop(left);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A driver that runs on its own thread.
pub struct Running {
    shared: Arc<Shared>,
    thread: thread::JoinHandle<()>,
}

impl Running {
    /// Closes the log, and returns when everything queued is durable and the thread has ended.
    pub fn stop(self) {
        self.shared.close();
        if self.thread.join().is_err() {
            tracing::error!("the log's thread panicked");
        }
    }
}
