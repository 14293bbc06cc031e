//! The two runtimes that the product asks for, over one simulated executor.

use std::{
    fmt,
    future::Future,
    ops::{Add, AddAssign, Sub, SubAssign},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use openraft::{AsyncRuntime, OptionalSend, async_runtime::Instant};
use openraft_rt_sim::{Elapsed, SimRuntime, SimSleep, SimTimeout};
use palisade_state::Runtime;
use tokio::sync::oneshot;

use super::nodes::{Life, Nodes, context, current, now};

/// Wall time at the beginning of each run: 2026-01-01.
const WALL_MS: u64 = 1_767_225_600_000;

/// A moment on the clock of the node that asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeInstant(Duration);

impl fmt::Debug for NodeInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Add<Duration> for NodeInstant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for NodeInstant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub<Duration> for NodeInstant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl SubAssign<Duration> for NodeInstant {
    fn sub_assign(&mut self, time: Duration) {
        *self = *self - time;
    }
}

impl Sub for NodeInstant {
    type Output = Duration;

    fn sub(self, other: Self) -> Duration {
        self.0.saturating_sub(other.0)
    }
}

/// What the clock of a life shows.
pub(crate) fn local_now(life: Life) -> Duration {
    context().map_or(Duration::ZERO, |nodes| nodes.clock(life).local(now()))
}

/// How long the world must wait until that clock shows `local`.
fn until(life: Life, local: Duration) -> Duration {
    let at = context().map_or(local, |nodes| nodes.clock(life).global(local));
    at.saturating_sub(now())
}

impl Instant for NodeInstant {
    fn now() -> Self {
        Self(local_now(current()))
    }
}

/// Why a task has no result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task ended without a result")
    }
}

/// The result of a task, when it has one.
pub(crate) struct Join<T>(oneshot::Receiver<T>);

impl<T> Future for Join<T> {
    type Output = Result<T, Ended>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_unpin(cx).map_err(|_| Ended)
    }
}

/// openraft's runtime: tasks belong to the node that spawns them.
pub(crate) struct NodesRt(SimRuntime);

impl fmt::Debug for NodesRt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodesRt")
    }
}

impl NodesRt {
    /// A runtime whose random numbers come from `seed`.
    pub(crate) fn with_seed(seed: u64) -> Self {
        Self(SimRuntime::with_seed(seed))
    }
}

impl AsyncRuntime for NodesRt {
    type JoinError = Ended;
    type JoinHandle<T: OptionalSend + 'static> = Join<T>;
    type Sleep = SimSleep;
    type Instant = NodeInstant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = SimTimeout<T>;
    type ThreadLocalRng = <SimRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <SimRuntime as AsyncRuntime>::Mpsc;
    type Watch = <SimRuntime as AsyncRuntime>::Watch;
    type Oneshot = <SimRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <SimRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let (result, joined) = oneshot::channel();
        if let Some(nodes) = context() {
            let work = async move {
                let _ = result.send(future.await);
            };
            nodes.spawn(current(), Box::pin(work));
        }
        Join(joined)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Self::sleep_until(NodeInstant::now() + duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        SimRuntime::sleep(until(current(), deadline.0))
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Self::timeout_at(NodeInstant::now() + duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        SimRuntime::timeout(until(current(), deadline.0), future)
    }

    fn is_panic(_: &Self::JoinError) -> bool {
        false
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        SimRuntime::thread_rng()
    }

    fn new(_: usize) -> Self {
        Self::with_seed(0)
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }
}

/// Sleeps on the world's clock.
pub(crate) fn world_sleep(time: Duration) -> SimSleep {
    SimRuntime::sleep(time)
}

/// The product's runtime port, for one life of a node.
pub(crate) struct NodePort {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) life: Life,
    pub(crate) eyes: Arc<super::eyes::Eyes>,
}

impl Runtime for NodePort {
    fn now(&self) -> Duration {
        self.nodes.clock(self.life).local(now())
    }

    fn wall_ms(&self) -> u64 {
        let passed = u64::try_from(now().as_millis()).unwrap_or(u64::MAX);
        (WALL_MS + passed).saturating_add_signed(self.nodes.clock(self.life).wall_off_ms)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration.is_zero() && self.nodes.spins(self.life) {
            let node = self.nodes.state().lives.get(&self.life).map_or(0, |life| life.node);
            self.eyes.breach("spin", format!("node {node} goes round and round without rest"));
            self.nodes.doom(self.life, "spin");
        }
        let at = self.nodes.clock(self.life).local(now()) + duration;
        Box::pin(SimRuntime::sleep(until(self.life, at)))
    }

    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        self.nodes.spawn(self.life, task);
    }

    fn random(&self) -> u64 {
        self.nodes.random()
    }

    fn crash_point(&self, name: &'static str) -> BoxFuture<'static, ()> {
        self.nodes.pass(self.life, name);
        let disk = self.nodes.state().lives.get(&self.life).and_then(|life| life.disk.clone());
        let nodes = self.nodes.clone();
        let life = self.life;
        Box::pin(async move {
            if name == "wal.sync"
                && let Some(disk) = disk
            {
                world_sleep(disk.sync_takes()).await;
            }
            if nodes.is_gone(life) {
                std::future::pending::<()>().await;
            }
        })
    }

    fn reach(&self, point: &'static str) {
        self.nodes.pass(self.life, point);
    }

    fn trace(&self, event: &[u64]) {
        let node = self.nodes.state().lives.get(&self.life).map_or(0, |life| life.node);
        if !self.nodes.is_gone(self.life) {
            self.eyes.saw(node, event);
        }
    }
}
