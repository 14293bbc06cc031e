//! The worker: one session of one role on one replica, running the reconcilers whose leases it
//! holds.
//!
//! # Invariants
//! - `Q2` A key is run by the holder of its lease only, one run at a time, and what the run commits
//!   is fenced by that lease.
//! - `WORK-1` Under a lease that is being handed over no run begins; once none runs it is released.
//! - `WORK-2` No run begins under a fence of an earlier term: after an election the worker beats
//!   first.

mod leases;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    channel::mpsc::{Receiver, Sender, channel},
    future::BoxFuture,
    select_biased,
};
use palisade_contract::{Context, Reconciler, Registry, ShardBy};
use palisade_state::{
    Fence, Name, Role, View, WatchEvent,
    command::{FenceCheck, Finish},
    lease::singleton_lease,
    limits::SESSION_MS,
    port::jittered,
    shard::{Shard, shard_of},
};

use crate::{
    resync::Resync,
    run::{self, Ended, WorkId},
};

/// How a worker behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time between two beats.
    pub beat: Duration,
    /// Runs at a time.
    pub runs_max: usize,
    /// How long runs may take to end once the worker stops.
    pub drain_max: Duration,
    /// Time between two resyncs; up to as much again is added at random.
    pub resync: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(3),
            runs_max: 64,
            drain_max: Duration::from_secs(5),
            resync: Duration::from_secs(300),
        }
    }
}

const _: () = assert!(SESSION_MS > 3 * 3_000, "a session must survive two lost beats");

/// A worker before it runs.
pub struct Worker {
    context: Context,
    role: Role,
    name: String,
    incarnation: u64,
    reconcilers: BTreeMap<&'static str, Arc<dyn Reconciler>>,
    /// The names of the role's shard leases, by shard.
    shard_leases: Vec<Name>,
    options: Options,
}

/// A dirty key that this worker is to run.
#[derive(Clone, Copy, Debug)]
struct Dirty {
    generation: u64,
    due_ms: u64,
    attempts: u32,
}

/// A lease that this worker holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    fence: Fence,
    leaving: bool,
    runs: usize,
}

enum Event {
    Ended(Ended),
    BeatSent { applied: bool },
    Released,
}

impl Worker {
    /// A worker of `role` for this replica. Its incarnation grows with each start, since it begins
    /// with the wall clock.
    #[must_use]
    pub fn new(context: Context, registry: &Registry, role: Role, options: Options) -> Self {
        let incarnation = (context.rt.wall_ms() << 16) | (context.rt.random() & 0xffff);
        let name = context.store.replica().to_string();
        let reconcilers = registry
            .reconcilers()
            .into_iter()
            .filter(|reconciler| reconciler.role() == role)
            .map(|reconciler| (reconciler.name(), reconciler))
            .collect();
        let shard_leases =
            (0..=u8::MAX).map(|shard| role.shard_lease(Shard(shard)).into()).collect();
        Self { context, role, name, incarnation, reconcilers, shard_leases, options }
    }

    /// Runs until `stop` ends, then drains: runs end, leases go to others at once.
    pub async fn run(self, stop: BoxFuture<'static, ()>) {
        if self.reconcilers.is_empty() {
            return stop.await;
        }
        let (sender, receiver) = channel(1024);
        let resync = Resync::new(&self.context, self.options.resync);
        let state = Loop {
            worker: self,
            sender,
            held: BTreeMap::new(),
            dirty: BTreeMap::new(),
            due: BTreeSet::new(),
            running: BTreeMap::new(),
            resync,
            stopping: false,
            beating: false,
            releasing: BTreeSet::new(),
            held_back: BTreeMap::new(),
        };
        state.run(stop, receiver).await;
    }
}

struct Loop {
    worker: Worker,
    sender: Sender<Event>,
    held: BTreeMap<Name, Held>,
    dirty: BTreeMap<WorkId, Dirty>,
    due: BTreeSet<(u64, WorkId)>,
    running: BTreeMap<WorkId, (Name, palisade_contract::Cancelled)>,
    resync: Resync,
    stopping: bool,
    beating: bool,
    /// Leases whose release was proposed and is not seen yet.
    releasing: BTreeSet<(Name, Fence)>,
    /// Keys that wait for something that is not in their rows.
    held_back: BTreeMap<WorkId, HeldBack>,
}

/// Why a key that is due is not run yet.
#[derive(Clone, Copy, Debug, Default)]
struct HeldBack {
    /// Its last run committed this, and the view does not have it yet: the row that is seen may be
    /// one that is finished.
    until_rev: u64,
    /// Its last run failed and could not even put its row off.
    until: Duration,
    failures: u32,
}

/// First pause of a key whose row could not be put off; doubles up to the longest.
const HOLD_FIRST: Duration = Duration::from_millis(200);
const HOLD_MAX: Duration = Duration::from_secs(5);

impl Loop {
    async fn run(mut self, stop: BoxFuture<'static, ()>, mut events: Receiver<Event>) {
        let rt = self.worker.context.rt.clone();
        let mut watch = self.worker.context.store.watch().fuse();
        let mut stop = stop.fuse();
        let mut next_beat = rt.sleep(Duration::ZERO).fuse();
        self.rescan();
        loop {
            select_biased! {
                () = stop => break,
                () = next_beat => self.beat(),
                event = events.next() => match event {
                    Some(Event::Ended(ended)) => self.ended(ended),
                    Some(Event::BeatSent { applied }) => {
                        self.beating = false;
                        // A release that was lost on its way is repeated.
                        self.releasing.clear();
                        next_beat = rt.sleep(self.beat_pause(applied)).fuse();
                    }
                    Some(Event::Released) => {}
                    None => break,
                },
                event = watch.next() => match event {
                    Some(event) => {
                        self.changed(event);
                        // One dispatch for all that waits: each looks at every key that is due.
                        while let Some(event) = watch.get_mut().try_next() {
                            self.changed(event);
                        }
                    }
                    None => return,
                },
            }
            self.dispatch();
        }
        self.drain(events).await;
    }

    /// Ends what runs, then leaves, so that others get the leases at once.
    async fn drain(mut self, mut events: Receiver<Event>) {
        self.stopping = true;
        let rt = self.worker.context.rt.clone();
        for (_, cancelled) in self.running.values() {
            cancelled.cancel();
        }
        let mut late = rt.sleep(self.worker.options.drain_max).fuse();
        while !self.running.is_empty() {
            select_biased! {
                event = events.next() => match event {
                    Some(Event::Ended(ended)) => self.ended(ended),
                    Some(_) => {}
                    None => break,
                },
                () = late => {
                    tracing::warn!(runs = self.running.len(), "runs did not end in time; their fences stop them");
                    break;
                }
            }
        }
        let release = self.release_command(vec![], true);
        let left = palisade_state::port::timeout(
            &*rt,
            self.worker.options.drain_max,
            self.worker.context.store.propose(release.into()),
        )
        .await;
        if !matches!(left, Some(Ok(_))) {
            tracing::warn!(role = ?self.worker.role, "could not leave; the leases move when the session expires");
        }
    }

    /// A beat that was not applied is repeated soon.
    fn beat_pause(&self, applied: bool) -> Duration {
        let rt = &*self.worker.context.rt;
        let pause = jittered(rt, self.worker.options.beat).min(self.worker.options.beat);
        if applied { pause } else { pause / 12 }
    }

    fn view(&self) -> View {
        self.worker.context.store.view()
    }

    fn lease_of(&self, id: &WorkId) -> Option<Name> {
        let reconciler = self.worker.reconcilers.get(id.0.as_ref())?;
        match reconciler.shard_by() {
            ShardBy::None => Some(singleton_lease(&id.0).into()),
            ShardBy::Node | ShardBy::Pool | ShardBy::Key => {
                self.worker.shard_leases.get(usize::from(shard_of(&id.1).0)).cloned()
            }
        }
    }

    fn rescan(&mut self) {
        let view = self.view();
        let names: Vec<Name> = view.leases().map(|(name, _)| name.clone()).collect();
        let lost: Vec<Name> =
            self.held.keys().filter(|name| view.lease(name).is_none()).cloned().collect();
        for name in names.iter().chain(&lost) {
            self.lease_changed(&view, name);
        }
        self.rescan_work(&view);
        self.resync.rescan();
    }

    /// Looks for the keys of the leases that are held now.
    fn rescan_work(&mut self, view: &View) {
        self.dirty.clear();
        self.due.clear();
        for ((kind, key), _) in view.all_work() {
            self.work_changed(view, &(kind.clone(), key.clone()));
        }
    }

    fn changed(&mut self, event: WatchEvent) {
        let view = self.view();
        match event {
            WatchEvent::Reset => self.rescan(),
            WatchEvent::Changed(changes) if changes.everything => self.rescan(),
            WatchEvent::Changed(changes) => {
                let mut moved = false;
                for name in &changes.leases {
                    moved |= self.lease_changed(&view, name);
                }
                if moved {
                    self.rescan_work(&view);
                } else {
                    for id in &changes.work {
                        self.work_changed(&view, id);
                    }
                }
            }
        }
        let stale = self.held.values().any(|held| held.fence.term < view.applied().term);
        if stale {
            self.beat();
        }
        self.seed_periodic(&view);
        if self.resync.is_due(&self.worker.context) {
            let keys = self.all_keys(&view);
            self.resync.enqueue(&self.worker.context, keys);
        }
    }

    /// All keys of this worker's leases.
    fn all_keys(&self, view: &View) -> Vec<WorkId> {
        let mut keys: Vec<WorkId> = vec![];
        let sharded = self.worker.reconcilers.iter().filter(|(_, r)| r.shard_by() != ShardBy::None);
        for (name, reconciler) in sharded {
            match reconciler.keys(view) {
                Ok(all) => keys.extend(all.iter().map(|key| ((*name).into(), key.as_str().into()))),
                Err(error) => tracing::error!(kind = name, %error, "cannot list keys to resync"),
            }
        }
        keys.retain(|id| self.lease_of(id).is_some_and(|lease| self.held.contains_key(&lease)));
        keys
    }

    /// Takes note of a lease as it is now; whether it came or went.
    fn lease_changed(&mut self, view: &View, name: &Name) -> bool {
        let mine = view.lease(name).filter(|lease| {
            lease.role == self.worker.role
                && lease.owner.as_ref() == self.worker.name
                && lease.incarnation == self.worker.incarnation
        });
        let Some(lease) = mine else {
            let lost = self.held.remove(name).is_some();
            if lost {
                for (lease, cancelled) in self.running.values() {
                    if lease == name {
                        cancelled.cancel();
                    }
                }
                self.resync.lease_moved();
            }
            return lost;
        };
        let runs = self.running.values().filter(|(of, _)| of == name).count();
        let held = Held { fence: lease.fence, leaving: lease.handoff.is_some(), runs };
        let before = self.held.insert(name.clone(), held);
        if before.is_none_or(|before| before.fence != held.fence) {
            // What was refused under the fence before may be tried at once under this one.
            for waits in self.held_back.values_mut() {
                waits.until = Duration::ZERO;
            }
        }
        if before.is_none() {
            self.resync.lease_moved();
        }
        before.is_none()
    }

    fn work_changed(&mut self, view: &View, id: &WorkId) {
        if let Some(before) = self.dirty.remove(id) {
            self.due.remove(&(before.due_ms, id.clone()));
        }
        // Keys of leases that others hold are looked for when a lease comes.
        if !self.lease_of(id).is_some_and(|lease| self.held.contains_key(&lease)) {
            return;
        }
        if let Some(row) = view.work(&id.0, &id.1) {
            let dirty =
                Dirty { generation: row.generation, due_ms: row.due_ms, attempts: row.attempts };
            self.dirty.insert(id.clone(), dirty);
            self.due.insert((dirty.due_ms, id.clone()));
        }
    }

    /// Begins what is due, and releases what is to be handed over.
    fn dispatch(&mut self) {
        let view = self.view();
        let (now_ms, applied) = (view.clock().now_ms, view.applied());
        let now = self.worker.context.rt.now();
        self.held_back.retain(|id, waits| {
            waits.until_rev > applied.index || waits.until > now || self.dirty.contains_key(id)
        });
        let room = self.worker.options.runs_max.saturating_sub(self.running.len());
        let ready: Vec<(WorkId, Name)> = self
            .due
            .iter()
            .take_while(|(due_ms, _)| *due_ms <= now_ms)
            .filter(|(_, id)| !self.running.contains_key(id))
            .filter(|(_, id)| {
                let waits = self.held_back.get(id).copied().unwrap_or_default();
                waits.until_rev <= applied.index && waits.until <= now
            })
            .filter_map(|(_, id)| Some((id.clone(), self.lease_of(id)?)))
            .filter(|(_, lease)| {
                self.held
                    .get(lease)
                    .is_some_and(|held| !held.leaving && held.fence.term == applied.term)
            })
            .take(room)
            .collect();
        for (id, lease) in ready {
            self.start(&id, &lease);
        }
        self.release_idle();
    }

    fn start(&mut self, id: &WorkId, lease: &Name) {
        let (Some(dirty), Some(held)) = (self.dirty.get(id).copied(), self.held.get_mut(lease))
        else {
            return;
        };
        let Some(reconciler) = self.worker.reconcilers.get(id.0.as_ref()).cloned() else { return };
        held.runs += 1;
        let check = FenceCheck {
            lease: lease.to_string(),
            worker: self.worker.name.clone(),
            incarnation: self.worker.incarnation,
            fence: Some(held.fence.into()),
        };
        let work =
            Finish { kind: id.0.to_string(), key: id.1.to_string(), generation: dirty.generation };
        let job = run::Job { reconciler, check, work, attempts: dirty.attempts };
        let (cancelled, task) = job.into_task(self.worker.context.clone());
        self.running.insert(id.clone(), (lease.clone(), cancelled));
        let mut sender = self.sender.clone();
        let id = id.clone();
        let task = async move {
            let (outcome, committed_rev) = task.await;
            // The loop is gone when nobody listens; the run's fence has stopped it by then.
            let _ = futures::SinkExt::send(
                &mut sender,
                Event::Ended(Ended { id, outcome, committed_rev }),
            )
            .await;
        };
        self.worker.context.rt.spawn("reconcile", Box::pin(task));
    }

    fn ended(&mut self, ended: Ended) {
        let Some((lease, _)) = self.running.remove(&ended.id) else { return };
        if let Some(held) = self.held.get_mut(&lease) {
            held.runs = held.runs.saturating_sub(1);
        }
        ended.log(&lease);
        let before = self.dirty.get(&ended.id).map(|dirty| (dirty.generation, dirty.due_ms));
        // The row as it is now: the run may have ended before its change set came.
        let view = self.view();
        self.work_changed(&view, &ended.id);
        let after = self.dirty.get(&ended.id).map(|dirty| (dirty.generation, dirty.due_ms));
        let stuck = ended.outcome.is_err() && after.is_some() && before == after;
        let now = self.worker.context.rt.now();
        let waits = self.held_back.entry(ended.id).or_default();
        waits.until_rev = ended.committed_rev;
        if stuck {
            let pause = HOLD_FIRST.saturating_mul(2_u32.saturating_pow(waits.failures.min(16)));
            waits.failures = waits.failures.saturating_add(1);
            waits.until = now + pause.min(HOLD_MAX);
        } else {
            *waits = HeldBack { until_rev: waits.until_rev, ..HeldBack::default() };
        }
    }

    /// Periodic keys that have no row get one: once for ever, since a run puts the row off instead
    /// of ending it.
    fn seed_periodic(&mut self, view: &View) {
        if !self.resync.take_seeding() {
            return;
        }
        let mut missing: Vec<WorkId> = vec![];
        for (name, reconciler) in &self.worker.reconcilers {
            for periodic in reconciler.periodic() {
                let id: WorkId = ((*name).into(), periodic.key.as_str().into());
                let mine = self.lease_of(&id).is_some_and(|lease| self.held.contains_key(&lease));
                if mine && view.work(&id.0, &id.1).is_none() {
                    missing.push(id);
                }
            }
        }
        self.resync.enqueue(&self.worker.context, missing);
    }
}
