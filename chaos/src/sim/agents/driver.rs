//! What an agent has beneath it: a driver over the machine's process table, and the machine's disk.
//!
//! What an agent does here is checked as it does it: `A1`, `A2` (the agent's half) and `I4`.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use palisade_agent::{
    Identity, IdentityError, IdentityStore,
    commands::{Journal, JournalError, JournalStore},
    driver::{Driver, Instance, Problem, SignalName, Start, StopAsked, Usage, log},
    fence::Fence,
    spec::{SpecError, SpecStore},
};
use palisade_proto::agent::{InstanceSpec, NodeSpec, Wanted};
use rcgen::KeyPair;

use super::{
    super::{
        nodes::{Life, now},
        runtime::world_sleep,
    },
    Fleet,
    machine::{Machine, Proc},
};

/// An agent knows of a process that has run for so long.
const SETTLED: Duration = Duration::from_secs(3);

/// One life's hold on its machine.
#[derive(Clone)]
pub(crate) struct Rig {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) life: Life,
}

impl Rig {
    pub(super) fn is_gone(&self) -> bool {
        self.fleet.nodes.is_gone(self.life)
    }

    /// Between 0.2 ms and `most` ms of the machine's time.
    fn takes(&self, most: u64) -> Duration {
        Duration::from_micros(self.machine.state().random.within(200, most * 1000))
    }

    pub(super) fn breach(&self, check: &'static str, message: String) {
        // What an agent does after the place where it was to end is seen by nobody.
        if !self.is_gone() {
            let name = &self.machine.name;
            self.fleet.eyes.breach(check, format!("{name}: {message}"));
        }
    }

    fn stored(&self, id: &str) -> Option<InstanceSpec> {
        let state = self.machine.state();
        let spec = state.spec.as_ref()?;
        spec.instances.iter().find(|instance| instance.id == id).cloned()
    }

    fn check_start(&self, start: &Start) {
        let id = &start.spec.id;
        if self.stored(id).as_ref() != Some(&start.spec) {
            self.breach("I4", format!("{id} is started from a spec that is not on the disk"));
        }
        let procs = self.machine.state().procs.clone();
        if let Some(proc) = procs.get(id).filter(|proc| proc.runs()) {
            let (run, other) = (proc.run, start.run);
            self.breach("A1", format!("run {other} of {id} is started while run {run} goes on"));
        }
        for (other, proc) in procs.iter().filter(|(_, proc)| proc.runs() && !proc.is_leaving) {
            let is_old = now() >= proc.since + SETTLED;
            if is_old && self.stored(other).is_none() {
                let message = format!("{id} is started before {other}, which the spec has no more");
                self.breach("A1", format!("{message}, is stopped"));
            }
        }
        for other in self.fleet.machines().filter(|other| other.number != self.machine.number) {
            if other.state().procs.get(id).is_some_and(Proc::runs) {
                let name = &other.name;
                self.breach("A1", format!("{id} is started while it runs on {name}"));
            }
        }
    }

    /// Nothing is stopped without a reason in the spec that is on the disk.
    fn check_stop(&self, id: &str) {
        let Some(proc) = self.machine.state().procs.get(id).cloned().filter(Proc::runs) else {
            return;
        };
        let is_wanted = self.stored(id).is_some_and(|spec| {
            spec.wanted() != Wanted::Offline
                && spec.spec_version == proc.spec_version
                && Fence::of(spec.fence.as_ref()) == proc.fence
        });
        if is_wanted && proc.stop_asked.is_none() {
            self.breach(
                "A2",
                format!("{id} is stopped although the node's spec wants it as it is"),
            );
        }
        if self.machine.state().spec.is_none() {
            self.breach("A2", format!("{id} is stopped by an agent that was told nothing"));
        }
        self.fleet.check_steady(&self.machine, id, &proc);
        if let Some(proc) = self.machine.state().procs.get_mut(id) {
            proc.is_leaving = true;
        }
    }

    async fn starts(self, start: Start) -> Result<(), Problem> {
        let (id, run) = (start.spec.id.clone(), start.run);
        world_sleep(self.takes(20)).await;
        if self.is_gone() {
            return std::future::pending().await;
        }
        // Unless this run was started before.
        if self.machine.state().procs.get(&id).is_some_and(|proc| proc.run >= run && proc.runs()) {
            return Ok(());
        }
        self.machine.prepare(&id, Proc::new(&start.spec, run, start.restarts));
        world_sleep(self.takes(30)).await;
        if self.is_gone() {
            return std::future::pending().await;
        }
        self.machine.begin(&id, run);
        let name = &self.machine.name;
        self.fleet.nodes.tell(|| format!("{name}: run {run} of {id} begins"));
        self.fleet.nodes.note(&[10, self.machine.number, u64::from(run)]);
        Ok(())
    }

    async fn stops(self, id: String, grace: Duration, by_force: bool) -> Result<(), Problem> {
        world_sleep(self.takes(10)).await;
        if self.is_gone() {
            return std::future::pending().await;
        }
        let (run, takes) = {
            let mut state = self.machine.state();
            let late = state.random.below(8) == 0;
            let takes = state.random.within(1, 700);
            let Some(proc) = state.procs.get_mut(&id).filter(|proc| proc.runs()) else {
                return Ok(());
            };
            if !by_force {
                proc.stop_asked.get_or_insert(StopAsked { grace });
            }
            // One in eight does not listen.
            let takes = if by_force { Some(1) } else { (!late).then_some(takes) };
            (proc.run, takes)
        };
        let name = &self.machine.name;
        let how = if by_force { "killed" } else { "asked to stop" };
        self.fleet.nodes.tell(|| format!("{name}: run {run} of {id} is {how}"));
        self.fleet.nodes.note(&[11, self.machine.number, u64::from(run)]);
        if let Some(millis) = takes {
            let machine = self.machine.clone();
            let ends = async move {
                world_sleep(Duration::from_millis(millis)).await;
                machine.end(&id, run, if by_force { 9 } else { 15 });
            };
            self.fleet.nodes.spawn(0, ends.boxed());
        }
        Ok(())
    }

    /// A signal that is no stop. What it ends is started again.
    async fn signals(self, id: String, signal: SignalName) -> Result<bool, Problem> {
        world_sleep(self.takes(20)).await;
        if self.is_gone() {
            return std::future::pending().await;
        }
        let name = told(signal);
        let run = {
            let mut state = self.machine.state();
            let Some(run) = state.procs.get(&id).filter(|proc| proc.runs()).map(|proc| proc.run)
            else {
                return Ok(false);
            };
            *state.signals.entry((id.clone(), name.to_owned())).or_default() += 1;
            run
        };
        let machine = &self.machine.name;
        self.fleet.nodes.tell(|| format!("{machine}: {name} comes to run {run} of {id}"));
        self.fleet.nodes.note(&[16, self.machine.number, u64::from(run)]);
        if signal == SignalName::Kill {
            self.machine.end(&id, run, 9);
        }
        Ok(true)
    }

    async fn removes(self, id: String) -> Result<(), Problem> {
        world_sleep(self.takes(10)).await;
        if self.is_gone() {
            return std::future::pending().await;
        }
        let mut state = self.machine.state();
        if state.procs.get(&id).is_some_and(Proc::runs) {
            return Err(Problem::new("RUNNING", "it runs"));
        }
        state.procs.remove(&id);
        Ok(())
    }
}

/// The name of a signal that users send.
fn told(signal: SignalName) -> &'static str {
    match signal {
        SignalName::Kill => "KILL",
        SignalName::Hup => "HUP",
        _ => "another",
    }
}

impl Driver for Rig {
    fn name(&self) -> &'static str {
        "process"
    }

    fn start(&self, start: Start) -> BoxFuture<'static, Result<(), Problem>> {
        self.check_start(&start);
        self.clone().starts(start).boxed()
    }

    fn stop(
        &self,
        id: &str,
        _: SignalName,
        grace: Duration,
    ) -> BoxFuture<'static, Result<(), Problem>> {
        self.check_stop(id);
        self.clone().stops(id.to_owned(), grace, false).boxed()
    }

    fn signal(&self, id: &str, signal: SignalName) -> BoxFuture<'static, Result<bool, Problem>> {
        self.clone().signals(id.to_owned(), signal).boxed()
    }

    fn kill(&self, id: &str) -> BoxFuture<'static, Result<(), Problem>> {
        self.check_stop(id);
        self.clone().stops(id.to_owned(), Duration::ZERO, true).boxed()
    }

    fn inspect(&self, id: &str) -> BoxFuture<'static, Result<Option<Instance>, Problem>> {
        let seen = self.machine.seen(id);
        async move { Ok(seen) }.boxed()
    }

    fn list(&self) -> BoxFuture<'static, Result<Vec<Instance>, Problem>> {
        let seen = self.machine.all_seen();
        async move { Ok(seen) }.boxed()
    }

    fn ended(&self, id: &str) -> BoxFuture<'static, ()> {
        let (machine, id) = (self.machine.clone(), id.to_owned());
        async move { machine.ended(&id).await }.boxed()
    }

    fn usage(&self, _: &str) -> BoxFuture<'static, Option<Usage>> {
        std::future::ready(None).boxed()
    }

    fn logs(&self, _: &str, _: u32) -> Result<log::Reader, Problem> {
        Err(Problem::new("NO_LOG", "a simulated machine keeps no logs"))
    }

    fn remove(&self, id: &str) -> BoxFuture<'static, Result<(), Problem>> {
        self.clone().removes(id.to_owned()).boxed()
    }

    fn exec(&self, id: &str, _: Vec<String>) -> BoxFuture<'static, Result<i32, Problem>> {
        let runs = self.machine.state().procs.get(id).is_some_and(Proc::runs);
        let takes = self.takes(40);
        async move {
            world_sleep(takes).await;
            Ok(i32::from(!runs))
        }
        .boxed()
    }

    fn isolation(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

impl SpecStore for Rig {
    fn load(&self) -> BoxFuture<'static, Result<Option<NodeSpec>, SpecError>> {
        let spec = self.machine.state().spec.clone();
        async move { Ok(spec) }.boxed()
    }

    fn save(&self, spec: &NodeSpec) -> BoxFuture<'static, Result<(), SpecError>> {
        let (rig, spec) = (self.clone(), spec.clone());
        async move {
            world_sleep(rig.takes(8)).await;
            if rig.is_gone() {
                return std::future::pending().await;
            }
            if rig.machine.state().is_full {
                let source = io::Error::from(io::ErrorKind::StorageFull);
                return Err(SpecError::Io { path: PathBuf::from("spec"), source });
            }
            rig.keep(spec);
            world_sleep(rig.takes(4)).await;
            Ok(())
        }
        .boxed()
    }
}

impl JournalStore for Rig {
    fn load(&self) -> BoxFuture<'static, Result<Journal, JournalError>> {
        let journal = self.machine.state().journal.clone();
        async move { Ok(journal) }.boxed()
    }

    fn save(&self, journal: &Journal) -> BoxFuture<'static, Result<(), JournalError>> {
        let (rig, journal) = (self.clone(), journal.clone());
        async move {
            world_sleep(rig.takes(8)).await;
            if rig.is_gone() {
                return std::future::pending().await;
            }
            if rig.machine.state().is_full {
                let source = io::Error::from(io::ErrorKind::StorageFull);
                return Err(JournalError { path: PathBuf::from("commands"), source });
            }
            rig.machine.state().journal = journal;
            Ok(())
        }
        .boxed()
    }
}

impl Rig {
    /// I4: fences and generations on a node's disk never fall.
    fn keep(&self, spec: NodeSpec) {
        let rank = |spec: &NodeSpec| (Fence::of(spec.fence.as_ref()), spec.generation);
        let held = self.machine.state().spec.as_ref().map(rank);
        let new = rank(&spec);
        if let Some(held) = held
            && new < held
        {
            let message = format!(
                "generation {} under fence {} is taken after {} under {}",
                new.1, new.0, held.1, held.0
            );
            self.breach("I4", message);
        }
        let (name, count) = (&self.machine.name, spec.instances.len());
        self.fleet.nodes.tell(|| {
            format!("{name}: generation {} under {}, {count} instances", spec.generation, new.0)
        });
        self.fleet.nodes.note(&[12, self.machine.number, spec.generation]);
        self.machine.state().spec = Some(spec);
    }
}

/// The identity on the machine's disk. Certificates are valid for longer than any run: none is renewed.
impl IdentityStore for Rig {
    fn save(&self, identity: &Identity) -> Result<(), IdentityError> {
        self.machine.state().identity = Some(identity.clone());
        Ok(())
    }

    fn renewal_key(&self, _: &str) -> Result<KeyPair, IdentityError> {
        Err(IdentityError::Answer("a simulated machine renews nothing".to_owned()))
    }

    fn renewed(&self) {}
}
