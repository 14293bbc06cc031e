//! The nodes of a simulation: tasks that belong to one, can be frozen and killed with it, and see its clock.
//!
//! # Invariants
//! - `SIM-1` Everything that happens in a run is decided by its seed: no thread, no clock and no random number of the
//!   machine is used, and nothing depends on an address in memory.
//! - `SIM-2` After a kill no task of the node is polled again, and what it did after the place where it was to die is
//!   seen by nobody.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::future::BoxFuture;
use openraft_rt_sim::SimInstant;

use super::{clock::NodeClock, disk::SimDisk, points::Armed};
use crate::random::Random;

/// One life of a node, from a start to its end; 0 is the world around the nodes.
pub(crate) type Life = u32;

/// So often may a life wait for no time at all.
const SPINS_MAX: u64 = 50_000;

/// Locks what no panic can leave half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static CONTEXT: RefCell<Option<Arc<Nodes>>> = const { RefCell::new(None) };
    static CURRENT: Cell<Life> = const { Cell::new(0) };
}

/// The life whose task is being polled.
pub(crate) fn current() -> Life {
    CURRENT.get()
}

/// The nodes of the simulation that runs on this thread.
pub(crate) fn context() -> Option<Arc<Nodes>> {
    CONTEXT.with(|context| context.borrow().clone())
}

/// Makes `nodes` those of this thread until it is dropped.
pub(crate) struct Entered(());

impl Entered {
    pub(crate) fn new(nodes: Arc<Nodes>) -> Self {
        CONTEXT.with(|context| *context.borrow_mut() = Some(nodes));
        Self(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CONTEXT.with(|context| *context.borrow_mut() = None);
    }
}

/// Virtual time since the run began.
pub(crate) fn now() -> Duration {
    SimInstant::try_now().map_or(Duration::ZERO, SimInstant::elapsed_since_start)
}

type Work = Option<BoxFuture<'static, ()>>;

/// A task's place; whoever takes the work out has ended the task.
#[derive(Default)]
struct Slot {
    work: Mutex<Work>,
    waker: Mutex<Option<Waker>>,
}

/// What is known of one life.
#[derive(Default)]
pub(crate) struct LifeState {
    pub(crate) node: u64,
    pub(crate) clock: NodeClock,
    pub(crate) disk: Option<SimDisk>,
    dead: bool,
    /// Why it ends as soon as its running task pauses.
    dying: Option<&'static str>,
    frozen: bool,
    /// Times it waited for no time at all.
    spins: u64,
    waiting: Vec<Waker>,
}

#[derive(Default)]
pub(crate) struct State {
    next: u64,
    slots: BTreeMap<(Life, u64), Arc<Slot>>,
    pub(crate) lives: BTreeMap<Life, LifeState>,
    pub(crate) armed: Vec<Armed>,
    /// Places at which somebody died.
    pub(crate) died_at: BTreeMap<&'static str, u64>,
    panics: Vec<String>,
    hash: u64,
    events: u64,
    ended: BTreeSet<Life>,
}

/// See the module.
pub(crate) struct Nodes {
    state: Mutex<State>,
    noise: Mutex<Random>,
    random: Mutex<Random>,
    is_told: bool,
}

impl Nodes {
    pub(crate) fn new(seed: u64, is_told: bool) -> Arc<Self> {
        let state = State { hash: 0xcbf2_9ce4_8422_2325, ..State::default() };
        Arc::new(Self {
            state: Mutex::new(state),
            noise: Mutex::new(Random::part(seed, "noise")),
            random: Mutex::new(Random::part(seed, "random")),
            is_told,
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn random(&self) -> u64 {
        lock(&self.random).next()
    }

    /// Adds to the trace's hash.
    pub(crate) fn note(&self, words: &[u64]) {
        let mut state = self.state();
        let at = u64::try_from(now().as_nanos()).unwrap_or(u64::MAX);
        for word in words.iter().chain(&[at]) {
            for byte in word.to_le_bytes() {
                state.hash = (state.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        state.events += 1;
    }

    /// The hash of all that was noted, and how much that was.
    pub(crate) fn hash(&self) -> (u64, u64) {
        let state = self.state();
        (state.hash, state.events)
    }

    /// A line of the trace that a person reads.
    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        if self.is_told {
            let at = now();
            println!("{:>4}.{:06} {}", at.as_secs(), at.subsec_micros(), line());
        }
    }

    /// Begins a life of `node`.
    pub(crate) fn begin(&self, life: Life, node: u64, clock: NodeClock, disk: Option<SimDisk>) {
        let begun = LifeState { node, clock, disk, ..LifeState::default() };
        self.state().lives.insert(life, begun);
    }

    /// Whether nothing that this life does counts any more.
    pub(crate) fn is_gone(&self, life: Life) -> bool {
        let state = self.state();
        state.lives.get(&life).is_some_and(|life| life.dead || life.dying.is_some())
    }

    /// Whether any life has ended.
    pub(crate) fn has_ended(&self) -> bool {
        !self.state().ended.is_empty()
    }

    pub(crate) fn clock(&self, life: Life) -> NodeClock {
        self.state().lives.get(&life).map(|life| life.clock).unwrap_or_default()
    }

    pub(crate) fn panics(&self) -> Vec<String> {
        self.state().panics.clone()
    }

    /// Runs a task of `life`; of one that has ended, never.
    pub(crate) fn spawn(self: &Arc<Self>, life: Life, work: BoxFuture<'static, ()>) {
        let (id, slot) = {
            let mut state = self.state();
            if state.lives.get(&life).is_some_and(|life| life.dead) {
                drop(state);
                drop(work);
                return;
            }
            state.next += 1;
            let id = state.next;
            let slot = Arc::new(Slot { work: Mutex::new(Some(work)), ..Slot::default() });
            state.slots.insert((life, id), slot.clone());
            (id, slot)
        };
        let member = Member { nodes: self.clone(), life, id, slot };
        drop(<openraft_rt_sim::SimRuntime as openraft::AsyncRuntime>::spawn(member));
    }

    /// Ends a life where it stands. Its futures are dropped, and see its clock while they are.
    pub(crate) fn kill(&self, life: Life) {
        let slots: Vec<Arc<Slot>> = {
            let mut state = self.state();
            let Some(known) = state.lives.get_mut(&life) else { return };
            if known.dead {
                return;
            }
            known.dead = true;
            known.waiting.clear();
            state.ended.insert(life);
            let of = (life, 0)..=(life, u64::MAX);
            let ids: Vec<(Life, u64)> = state.slots.range(of).map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| state.slots.remove(id)).collect()
        };
        let before = CURRENT.replace(life);
        for slot in slots {
            let work = lock(&slot.work).take();
            drop(work);
            if let Some(waker) = lock(&slot.waker).take() {
                waker.wake();
            }
        }
        CURRENT.set(before);
    }

    /// Says that a life ends as soon as its running task pauses.
    pub(crate) fn doom(&self, life: Life, why: &'static str) {
        let mut state = self.state();
        if let Some(known) = state.lives.get_mut(&life) {
            known.dying.get_or_insert(why);
        }
        *state.died_at.entry(why).or_default() += 1;
    }

    /// A life waits for no time at all; true when it has done nothing else for too long.
    pub(crate) fn spins(&self, life: Life) -> bool {
        let mut state = self.state();
        let Some(known) = state.lives.get_mut(&life) else { return false };
        known.spins += 1;
        known.spins == SPINS_MAX
    }

    /// Runs `work` as if it were a task of `life`.
    pub(crate) fn within<T>(&self, life: Life, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(life);
        let value = work();
        CURRENT.set(before);
        value
    }

    /// Stops polling a life's tasks, or goes on with it.
    pub(crate) fn freeze(&self, life: Life, is_frozen: bool) {
        let waiting = {
            let mut state = self.state();
            let Some(known) = state.lives.get_mut(&life) else { return };
            known.frozen = is_frozen;
            if is_frozen { vec![] } else { std::mem::take(&mut known.waiting) }
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn holds_back(&self, life: Life, cx: &Context<'_>) -> bool {
        let mut state = self.state();
        match state.lives.get_mut(&life) {
            Some(known) if known.frozen && !known.dead => {
                known.waiting.push(cx.waker().clone());
                true
            }
            _ => false,
        }
    }

    fn panicked(&self, life: Life, payload: &(dyn Any + Send)) {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        let mut state = self.state();
        let node = state.lives.get(&life).map_or(0, |life| life.node);
        state.panics.push(format!("a task of node {node} panicked: {text}"));
    }
}

/// A task of a life.
struct Member {
    nodes: Arc<Nodes>,
    life: Life,
    id: u64,
    slot: Arc<Slot>,
}

impl Member {
    fn run(&self, mut work: BoxFuture<'static, ()>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        let is_dead = {
            let state = self.nodes.state();
            state.lives.get(&self.life).is_some_and(|life| life.dead)
        };
        match polled {
            Err(payload) => {
                self.nodes.panicked(self.life, payload.as_ref());
                drop(work);
                Poll::Ready(())
            }
            Ok(Poll::Ready(())) => Poll::Ready(()),
            // Killed from within: nobody else could drop it.
            Ok(Poll::Pending) if is_dead => Poll::Ready(()),
            Ok(Poll::Pending) => {
                *lock(&self.slot.work) = Some(work);
                let mut waker = lock(&self.slot.waker);
                if !waker.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Future for Member {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.nodes.holds_back(self.life, cx) {
            return Poll::Pending;
        }
        // Another order of what could run at this moment.
        if lock(&self.nodes.noise).next().is_multiple_of(8) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(work) = lock(&self.slot.work).take() else { return Poll::Ready(()) };
        let before = CURRENT.replace(self.life);
        let polled = self.run(work, cx);
        CURRENT.set(before);
        let is_doomed = {
            let state = self.nodes.state();
            state.lives.get(&self.life).is_some_and(|life| life.dying.is_some() && !life.dead)
        };
        if is_doomed {
            self.nodes.kill(self.life);
        }
        if polled.is_ready() {
            self.nodes.state().slots.remove(&(self.life, self.id));
        }
        polled
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let work = lock(&self.slot.work).take();
        drop(work);
    }
}
