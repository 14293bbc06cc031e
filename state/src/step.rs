//! A runtime whose clock stands still until it is stepped: for tests and for simulations of rooms
//! that need no consensus. One thread, one seed, the same order each time.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures::future::BoxFuture;

use crate::port::Runtime;

/// Polls that one call of [`StepRuntime::settle`] makes at most; more is a busy loop.
const POLLS_MAX: usize = 1_000_000;

/// Wall-clock milliseconds at its beginning.
const EPOCH_MS: u64 = 1_700_000_000_000;

type Timers = BTreeMap<(Duration, u64), Option<Waker>>;

/// See the module.
#[derive(Debug)]
pub struct StepRuntime(Arc<Shared>);

#[derive(Default)]
struct Shared {
    now: Mutex<Duration>,
    seed: Mutex<u64>,
    ids: AtomicU64,
    timers: Mutex<Timers>,
    tasks: Mutex<BTreeMap<u64, BoxFuture<'static, ()>>>,
    ready: Mutex<VecDeque<u64>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The maps are whole after any panic of a task: no lock is held while one is polled.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TaskWaker {
    id: u64,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = lock(&self.shared.ready);
        if !ready.contains(&self.id) {
            ready.push_back(self.id);
        }
    }
}

struct Sleep {
    shared: Arc<Shared>,
    id: (Duration, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if *lock(&self.shared.now) >= self.id.0 {
            return Poll::Ready(());
        }
        lock(&self.shared.timers).insert(self.id, Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        lock(&self.shared.timers).remove(&self.id);
    }
}

impl StepRuntime {
    /// A runtime that draws its random numbers from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        let shared = Shared { seed: Mutex::new(seed), ..Shared::default() };
        Arc::new(Self(Arc::new(shared)))
    }

    /// Polls every task that can go on, until none can. The clock stands still.
    pub fn settle(&self) {
        for _ in 0..POLLS_MAX {
            let Some(id) = lock(&self.0.ready).pop_front() else { return };
            let Some(mut task) = lock(&self.0.tasks).remove(&id) else { continue };
            let waker = Waker::from(Arc::new(TaskWaker { id, shared: self.0.clone() }));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                lock(&self.0.tasks).insert(id, task);
            }
        }
        debug_assert!(false, "a task is busy without end");
    }

    /// Lets `duration` pass, timer by timer, and settles after each.
    pub fn advance(&self, duration: Duration) {
        self.settle();
        let until = *lock(&self.0.now) + duration;
        loop {
            let next =
                lock(&self.0.timers).keys().next().map(|(at, _)| *at).filter(|at| *at <= until);
            *lock(&self.0.now) = next.unwrap_or(until);
            let now = *lock(&self.0.now);
            let due: Vec<Waker> = lock(&self.0.timers)
                .range_mut(..=(now, u64::MAX))
                .filter_map(|(_, w)| w.take())
                .collect();
            lock(&self.0.timers).retain(|(at, _), _| *at > now);
            due.into_iter().for_each(Waker::wake);
            self.settle();
            if next.is_none() {
                return;
            }
        }
    }

    /// Runs one future to its end, settling everything else, without letting time pass. `None`
    /// when it waits for time or for something that nobody does.
    pub fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let answer = Arc::new(Mutex::new(None));
        let slot = answer.clone();
        self.spawn(
            "block_on",
            Box::pin(async move {
                let value = future.await;
                *lock(&slot) = Some(value);
            }),
        );
        self.settle();
        lock(&answer).take()
    }
}

impl Runtime for StepRuntime {
    fn now(&self) -> Duration {
        *lock(&self.0.now)
    }

    fn wall_ms(&self) -> u64 {
        EPOCH_MS + u64::try_from(self.now().as_millis()).unwrap_or(0)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let id = (self.now() + duration, self.0.ids.fetch_add(1, Ordering::Relaxed));
        Box::pin(Sleep { shared: self.0.clone(), id })
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        let id = self.0.ids.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.tasks).insert(id, task);
        lock(&self.0.ready).push_back(id);
    }

    fn random(&self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood 2014).
        let mut seed = lock(&self.0.seed);
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_end_in_their_order() {
        let rt = StepRuntime::new(1);
        let order = Arc::new(Mutex::new(vec![]));
        for ms in [30_u64, 10, 20] {
            let (rt_task, order) = (rt.clone(), order.clone());
            rt.spawn(
                "t",
                Box::pin(async move {
                    rt_task.sleep(Duration::from_millis(ms)).await;
                    lock(&order).push(ms);
                }),
            );
        }
        rt.advance(Duration::from_millis(25));
        assert_eq!(*lock(&order), [10, 20]);
        rt.advance(Duration::from_millis(25));
        assert_eq!(*lock(&order), [10, 20, 30]);
    }
}
