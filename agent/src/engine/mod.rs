//! The engine: one task that observes, plans, acts and reports, with or without a control plane.
//!
//! Decisions are in [`crate::converge`], [`crate::spec`] and [`crate::health`]; this task feeds
//! them and performs what they say through the [`Driver`](crate::driver::Driver) trait.
//!
//! # Invariants
//! - `I4` A spec is durable before the first action under its fence.
//! - `ENG-1` One instance has at most one action under way.
//! - `ENG-2` Nothing that a session does (or does not) keeps the engine from converging.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::{Either, select};
use palisade_proto::agent::{
    Condition, InstanceSpec, NodeSpec, Secret, SpecRefused, Status, Up, up,
};
use palisade_state::planted::{self, Defect};
use tokio::sync::{mpsc, oneshot};

use crate::{
    converge::{Action, Observed, Policy, plan},
    driver::{Instance, Problem, Process, SharedDriver},
    fence::Fence,
    health::{Monitor, Probe, Prober},
    port::{Rt, timeout},
    spec::{self, SpecError, SpecStore, Verdict},
};

mod act;
mod pace;
mod report;
mod secrets;

use pace::Pace;
use report::Reporter;
use secrets::Secrets;

const INPUTS_MAX: usize = 1024;
/// A full look at everything, should a notice have been missed.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const STORE_AGAIN: Duration = Duration::from_secs(5);

/// Drivers by name.
pub type Drivers = Arc<BTreeMap<String, SharedDriver>>;

/// What the engine is made of.
pub struct Parts {
    /// Time and tasks.
    pub rt: Rt,
    /// What runs instances.
    pub drivers: Drivers,
    /// Where the spec is kept.
    pub store: Arc<dyn SpecStore>,
    /// What probes instances.
    pub prober: Arc<dyn Prober>,
    /// The node's name, for the instances' environment.
    pub node: String,
}

enum Input {
    Spec(NodeSpec),
    Attach(mpsc::Sender<Up>),
    Secret(Secret),
    Snapshot(oneshot::Sender<Snapshot>),
    Done(String, Option<Problem>),
    Looked(String, String, Option<Instance>),
    Probed(String, u32, Result<(), String>),
}

/// What a session tells first.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Of the spec that is converged to.
    pub generation: u64,
    /// Of the spec that is converged to.
    pub hash: Vec<u8>,
    /// The highest one on disk.
    pub fence: Fence,
    /// All instances.
    pub status: Status,
}

/// A way to the engine.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::Sender<Input>,
}

impl Handle {
    /// Offers a spec; a refusal goes up the attached session.
    pub async fn offer(&self, spec: NodeSpec) {
        let _ = self.inputs.send(Input::Spec(spec)).await;
    }

    /// From now on reports go there, until it is closed or another one is attached.
    pub async fn attach(&self, up: mpsc::Sender<Up>) {
        let _ = self.inputs.send(Input::Attach(up)).await;
    }

    /// Brings what a secret holds, or why not.
    pub async fn secret(&self, secret: Secret) {
        let _ = self.inputs.send(Input::Secret(secret)).await;
    }

    /// The state of things; empty when the engine has ended.
    pub async fn snapshot(&self) -> Snapshot {
        let (answer, wait) = oneshot::channel();
        let _ = self.inputs.send(Input::Snapshot(answer)).await;
        wait.await.unwrap_or_default()
    }
}

/// See the module documentation.
pub struct Engine {
    parts: Parts,
    inputs: mpsc::Receiver<Input>,
    to_self: mpsc::Sender<Input>,
    spec: Option<NodeSpec>,
    /// Accepted, but the disk has refused it so far.
    unstored: Option<(NodeSpec, Duration)>,
    observed: Observed,
    driver_of: BTreeMap<String, String>,
    monitors: BTreeMap<String, Monitor>,
    /// Runs whose end is waited for.
    watched: BTreeSet<(String, u32)>,
    conditions: BTreeMap<String, Condition>,
    reporter: Reporter,
    secrets: Secrets,
    looked_at: Duration,
}

impl Engine {
    /// Reads the stored spec and looks at what runs.
    ///
    /// # Errors
    /// When the stored spec is damaged: then nothing may be done.
    pub async fn open(parts: Parts) -> Result<(Self, Handle), SpecError> {
        let spec = parts.store.load().await?;
        let (to_self, inputs) = mpsc::channel(INPUTS_MAX);
        let handle = Handle { inputs: to_self.clone() };
        let mut engine = Self {
            parts,
            inputs,
            to_self,
            spec,
            unstored: None,
            observed: Observed::new(),
            driver_of: BTreeMap::new(),
            monitors: BTreeMap::new(),
            watched: BTreeSet::new(),
            conditions: BTreeMap::new(),
            reporter: Reporter::new(Pace::default()),
            secrets: Secrets::default(),
            looked_at: Duration::ZERO,
        };
        engine.follow_spec();
        if !planted::is(Defect::NoAdoption) {
            engine.look_at_all().await;
        }
        Ok((engine, handle))
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        loop {
            let now = self.parts.rt.now();
            self.store_again(now).await;
            self.ask_for_secrets(now);
            self.act(now);
            self.probe(now);
            self.report(now).await;
            let wake = self.wake(now);
            self.wait(wake).await;
            let now = self.parts.rt.now();
            if now >= self.looked_at + LOOK_EVERY {
                self.look_at_all().await;
            }
        }
    }

    async fn wait(&mut self, wake: Duration) {
        let mut next = {
            let input = std::pin::pin!(self.inputs.recv());
            match select(input, self.parts.rt.sleep(wake)).await {
                Either::Left((input, _)) => input,
                Either::Right(_) => None,
            }
        };
        while let Some(input) = next {
            self.take(input).await;
            next = self.inputs.try_recv().ok();
        }
    }

    async fn take(&mut self, input: Input) {
        let now = self.parts.rt.now();
        match input {
            Input::Spec(spec) => self.judge(spec).await,
            Input::Attach(up) => {
                self.reporter.attach(up);
                self.secrets.ask_anew();
            }
            Input::Secret(secret) => self.secrets.take(secret),
            Input::Snapshot(answer) => {
                let snapshot = self.snapshot(now).await;
                let _ = answer.send(snapshot);
            }
            Input::Done(id, problem) => self.done(&id, problem, now).await,
            Input::Looked(driver, id, instance) => {
                self.watched.retain(|(watched, _)| *watched != id);
                self.saw(&driver, id, instance, now);
            }
            Input::Probed(id, run, result) => {
                if let Some(monitor) = self.monitors.get_mut(&id)
                    && monitor.run() == run
                {
                    monitor.finish(result, now);
                }
            }
        }
    }

    async fn judge(&mut self, new: NodeSpec) {
        let held = self.unstored.as_ref().map(|(spec, _)| spec).or(self.spec.as_ref());
        match spec::judge(held, &new) {
            Ok(Verdict::Same) => self.reporter.changed(),
            Ok(Verdict::New) => self.accept(new).await,
            Err(problem) => {
                let held = held.cloned().unwrap_or_default();
                tracing::warn!(
                    generation = new.generation,
                    code = %problem.code,
                    reason = %problem.message,
                    "spec refused"
                );
                self.reporter.send(up::Msg::SpecRefused(SpecRefused {
                    generation: new.generation,
                    fence: new.fence,
                    code: problem.code,
                    message: problem.message,
                    highest_fence: held.fence,
                    highest_generation: held.generation,
                }));
            }
        }
    }

    /// Durable first, then in effect.
    async fn accept(&mut self, new: NodeSpec) {
        let now = self.parts.rt.now();
        let stored = match planted::is(Defect::SpecNotStored) {
            true => Ok(()),
            false => self.parts.store.save(&new).await,
        };
        match stored {
            Ok(()) => {
                self.parts.rt.crash_point("agent_spec_stored").await;
                tracing::debug!(
                    generation = new.generation,
                    fence = %Fence::of(new.fence.as_ref()),
                    instances = new.instances.len(),
                    "spec accepted"
                );
                self.spec = Some(new);
                self.unstored = None;
                self.conditions.remove("SPEC_NOT_STORED");
                self.follow_spec();
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(error = %error, cause, "spec not stored, so not acted on");
                let message = format!("{error}: {}", cause.unwrap_or_default());
                self.conditions.insert(
                    "SPEC_NOT_STORED".to_owned(),
                    Condition {
                        code: "SPEC_NOT_STORED".to_owned(),
                        message,
                        next_try_in_ms: u64::try_from(STORE_AGAIN.as_millis()).unwrap_or(0),
                    },
                );
                self.unstored = Some((new, now + STORE_AGAIN));
            }
        }
        self.reporter.changed();
    }

    async fn store_again(&mut self, now: Duration) {
        if self.unstored.as_ref().is_some_and(|(_, at)| *at <= now)
            && let Some((spec, _)) = self.unstored.take()
        {
            self.accept(spec).await;
        }
    }

    /// Histories belong to revisions.
    fn follow_spec(&mut self) {
        let Some(spec) = &self.spec else { return };
        self.secrets.follow(spec);
        for instance in &spec.instances {
            let seen = self.observed.entry(instance.id.clone()).or_default();
            seen.track.follow(instance.spec_version);
            self.driver_of.entry(instance.id.clone()).or_insert_with(|| driver_name(instance));
        }
        for (id, seen) in &mut self.observed {
            if spec::instance(spec, id).is_none() {
                seen.track.leave();
            }
        }
        // What is not wanted is not probed: a probe that is due and never made would leave the engine no rest.
        self.monitors.retain(|id, _| spec::instance(spec, id).is_some());
    }

    fn instance_spec(&self, id: &str) -> Option<&InstanceSpec> {
        spec::instance(self.spec.as_ref()?, id)
    }

    fn driver(&self, id: &str) -> Option<SharedDriver> {
        self.parts.drivers.get(self.driver_of.get(id)?).cloned()
    }

    async fn look_at_all(&mut self) {
        let now = self.parts.rt.now();
        self.looked_at = now;
        for (name, driver) in self.parts.drivers.clone().iter() {
            match driver.list().await {
                Ok(list) => {
                    let here: BTreeSet<String> = list.iter().map(|one| one.id.clone()).collect();
                    for instance in list {
                        self.saw(name, instance.id.clone(), Some(instance), now);
                    }
                    let gone: Vec<String> = self
                        .observed
                        .iter()
                        .filter(|(id, seen)| {
                            seen.instance.is_some()
                                && !here.contains(*id)
                                && self.driver_of.get(*id) == Some(name)
                        })
                        .map(|(id, _)| id.clone())
                        .collect();
                    for id in gone {
                        self.saw(name, id, None, now);
                    }
                }
                Err(problem) => tracing::error!(driver = %name, %problem, "cannot list instances"),
            }
        }
    }

    /// Takes what a driver saw. Instances with an action under way are seen when it is done.
    fn saw(&mut self, driver: &str, id: String, instance: Option<Instance>, now: Duration) {
        let busy = self.observed.get(&id).is_some_and(|seen| seen.track.busy);
        if busy {
            return;
        }
        let policy = Policy::of(&self.instance_spec(&id).cloned().unwrap_or_default());
        let wanted = self.instance_spec(&id).is_some();
        let Some(instance) = instance else {
            if let Some(seen) = self.observed.get_mut(&id) {
                seen.instance = None;
            }
            if !wanted {
                self.observed.remove(&id);
                self.driver_of.remove(&id);
            }
            self.monitors.remove(&id);
            self.reporter.changed();
            return;
        };
        self.driver_of.insert(id.clone(), driver.to_owned());
        let seen = self.observed.entry(id.clone()).or_default();
        if seen.instance.as_ref().is_some_and(|known| known.run > instance.run) {
            // A look from before the run that is known.
            return;
        }
        seen.track.saw(&instance, &policy, now);
        let running = matches!(instance.process, Process::Running { .. });
        let run = instance.run;
        // Its age is another one at each look, which is no news.
        let ran_for = instance.ran_for;
        let known = seen.instance.clone().map(|known| Instance { ran_for, ..known });
        if known.as_ref() != Some(&instance) {
            seen.instance = Some(instance);
            self.reporter.changed();
        }
        if running {
            self.watch(&id, run);
        } else {
            self.monitors.remove(&id);
        }
    }

    /// Waits for the end of a run in a task of its own.
    fn watch(&mut self, id: &str, run: u32) {
        let Some(driver) = self.driver(id) else { return };
        if !self.watched.insert((id.to_owned(), run)) {
            return;
        }
        let (id, inputs) = (id.to_owned(), self.to_self.clone());
        let task = async move {
            driver.ended(&id).await;
            if let Ok(instance) = driver.inspect(&id).await {
                let _ = inputs.send(Input::Looked(driver.name().to_owned(), id, instance)).await;
            }
        };
        self.parts.rt.spawn("watch an instance", Box::pin(task));
    }

    fn act(&mut self, now: Duration) {
        let nothing = NodeSpec::default();
        let is_lost = planted::is(Defect::AloneStops) && self.reporter.due(now).is_none();
        let spec = if is_lost { Some(&nothing) } else { self.spec.as_ref() };
        for action in plan(spec, &self.observed, now) {
            match self.waits_for_secrets(&action, now) {
                Ok(()) => self.perform(action, now),
                Err(None) => {}
                Err(Some(problem)) => self.refuse(action.id(), &problem),
            }
        }
    }

    /// `SEC-13`
    fn waits_for_secrets(&self, action: &Action, now: Duration) -> Result<(), Option<Problem>> {
        match (action, self.instance_spec(action.id())) {
            (Action::Start { .. }, Some(spec)) => self.secrets.ready(spec, now),
            _ => Ok(()),
        }
    }

    /// Begins the probes that are due.
    fn probe(&mut self, now: Duration) {
        let Some(spec) = &self.spec else { return };
        for instance in &spec.instances {
            let Some(seen) =
                self.observed.get(&instance.id).and_then(|seen| seen.instance.as_ref())
            else {
                continue;
            };
            let goes_on =
                matches!(seen.process, Process::Running { .. }) && seen.stop_asked.is_none();
            if !goes_on || seen.spec_version != instance.spec_version {
                self.monitors.remove(&instance.id);
                continue;
            }
            if self.monitors.get(&instance.id).is_none_or(|monitor| monitor.run() != seen.run) {
                match Monitor::new(instance, seen.run, now) {
                    Some(monitor) => self.monitors.insert(instance.id.clone(), monitor),
                    None => self.monitors.remove(&instance.id),
                };
            }
            let Some(monitor) = self.monitors.get_mut(&instance.id) else { continue };
            let Some(kind) = monitor.begin(now) else { continue };
            let probe = Probe { id: instance.id.clone(), driver: driver_name(instance), kind };
            let (run, limit) = (monitor.run(), monitor.timeout());
            let (rt, inputs) = (self.parts.rt.clone(), self.to_self.clone());
            let work = self.parts.prober.probe(probe.clone());
            let task = async move {
                let result = timeout(rt.as_ref(), limit, work)
                    .await
                    .unwrap_or_else(|| Err(format!("no answer within {} ms", limit.as_millis())));
                let _ = inputs.send(Input::Probed(probe.id, run, result)).await;
            };
            self.parts.rt.spawn("probe an instance", Box::pin(task));
        }
    }

    /// How long nothing will be due.
    fn wake(&self, now: Duration) -> Duration {
        let waits =
            plan(self.spec.as_ref(), &self.observed, now).into_iter().filter_map(|action| {
                match action {
                    Action::Wait { until, .. } => Some(until),
                    _ => None,
                }
            });
        let probes = self.monitors.values().filter_map(Monitor::next_at);
        let settle = self.observed.values().filter_map(|seen| seen.track.settles_at());
        let store = self.unstored.as_ref().map(|(_, at)| *at);
        let reports = self.reporter.due(now);
        waits
            .chain(probes)
            .chain(settle.filter(|at| *at > now))
            .chain(store)
            .chain(reports)
            .chain(self.secrets.due(now))
            .chain([self.looked_at + LOOK_EVERY])
            .map(|at| at.saturating_sub(now))
            .min()
            .unwrap_or(LOOK_EVERY)
    }
}

/// The driver that a spec names, with secrets or without; none means `process`.
fn driver_name(spec: &InstanceSpec) -> String {
    let name = spec.driver.strip_suffix(".secrets").unwrap_or(&spec.driver);
    if name.is_empty() { "process".to_owned() } else { name.to_owned() }
}
