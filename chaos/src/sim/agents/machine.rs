//! A machine with an agent: its disk, and its process table, which outlives the agent and dies with the machine.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use palisade_agent::{
    Identity,
    commands::Journal,
    driver::{Cause, End, Instance, Process, SignalName, StopAsked},
    fence::Fence,
};
use palisade_proto::agent::{Command, InstanceSpec, Inventory, NodeSpec};
use tokio::sync::Notify;

use super::{
    super::nodes::{Life, lock, now},
    errands::Done,
};
use crate::random::Random;

/// One instance in the process table.
#[derive(Clone, Debug)]
pub(crate) struct Proc {
    pub(crate) workload: String,
    pub(crate) run: u32,
    pub(crate) spec_version: u64,
    pub(crate) fence: Fence,
    pub(crate) process: Process,
    pub(crate) stop_asked: Option<StopAsked>,
    /// An agent has called for its stop.
    pub(crate) is_leaving: bool,
    /// When this run's process was there.
    pub(crate) since: Duration,
    signal: SignalName,
    grace: Duration,
    restarts: u32,
}

impl Proc {
    pub(crate) fn new(spec: &InstanceSpec, run: u32, restarts: u32) -> Self {
        Self {
            workload: spec.workload.clone(),
            run,
            spec_version: spec.spec_version,
            fence: Fence::of(spec.fence.as_ref()),
            process: Process::Prepared,
            stop_asked: None,
            is_leaving: false,
            since: now(),
            signal: SignalName::parse(&spec.stop_signal).unwrap_or_default(),
            grace: Duration::from_millis(spec.stop_grace_ms),
            restarts,
        }
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.process, Process::Running { .. })
    }

    fn end(&mut self, cause: Cause, signal: i32) {
        self.process = Process::Ended(End {
            cause,
            code: if signal == 0 { 0 } else { -1 },
            signal,
            at_ms: 0,
            out_of_memory: false,
            ran_for: now().saturating_sub(self.since),
        });
    }

    fn seen(&self, id: &str) -> Instance {
        let ran_for = if self.runs() { now().saturating_sub(self.since) } else { Duration::ZERO };
        Instance {
            id: id.to_owned(),
            run: self.run,
            spec_version: self.spec_version,
            fence: self.fence,
            stop_signal: self.signal,
            stop_grace: self.grace,
            process: self.process.clone(),
            ran_for,
            restarts: self.restarts,
            stop_asked: self.stop_asked,
        }
    }
}

/// What changes of a machine.
pub(crate) struct State {
    /// Which start of the machine; 0: it is off.
    pub(crate) boot: u64,
    boots: u64,
    /// The agent's present life; 0: none runs.
    pub(crate) life: Life,
    /// When the agent is started again.
    pub(crate) start_at: Option<Duration>,
    pub(crate) identity: Option<Identity>,
    /// The agent's spec, as it is on the disk.
    pub(crate) spec: Option<NodeSpec>,
    /// The agent's journal of commands, as it is on the disk.
    pub(crate) journal: Journal,
    pub(crate) procs: BTreeMap<String, Proc>,
    /// What was done of errands, by their names.
    pub(crate) errands: BTreeMap<String, Done>,
    /// How often each signal came to each instance.
    pub(crate) signals: BTreeMap<(String, String), u64>,
    /// What came down in earlier sessions.
    pub(crate) heard: Vec<NodeSpec>,
    pub(crate) commands: Vec<Command>,
    pub(crate) is_full: bool,
    pub(crate) ppm: i64,
    pub(crate) random: Random,
    next_pid: u32,
}

/// See the module.
pub(crate) struct Machine {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
    state: Mutex<State>,
    pub(crate) changed: Notify,
}

impl Machine {
    pub(crate) fn new(seed: u64, nth: u64, number: u64) -> Self {
        let mut random = Random::part(seed, &format!("machine-{nth}"));
        let state = State {
            boot: 0,
            boots: 0,
            life: 0,
            start_at: Some(Duration::from_millis(random.below(3_000))),
            identity: None,
            spec: None,
            journal: Journal::default(),
            procs: BTreeMap::new(),
            errands: BTreeMap::new(),
            signals: BTreeMap::new(),
            heard: vec![],
            commands: vec![],
            is_full: false,
            ppm: 0,
            random: random.clone(),
            next_pid: 100,
        };
        Self {
            number,
            name: format!("machine-{nth}"),
            cpu_milli: 1000 * random.within(1, 4),
            memory_bytes: random.within(1, 4) << 30,
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The machine's id, once it has joined.
    pub(crate) fn node_id(&self) -> Option<String> {
        self.state().identity.as_ref().map(|identity| identity.node_id.clone())
    }

    /// The key that it proves to hold.
    pub(crate) fn key(&self) -> String {
        format!("{:064x}", self.number)
    }

    pub(crate) fn inventory(&self) -> Inventory {
        Inventory {
            hostname: self.name.clone(),
            os: "simulated".to_owned(),
            boot_id: format!("{}-boot-{}", self.name, self.state().boot),
            threads: u32::try_from(self.cpu_milli / 1000).unwrap_or(1),
            memory_bytes: self.memory_bytes * 2,
            drivers: vec!["process".to_owned()],
            port_first: 20_000,
            port_last: 20_100,
            address: format!("{}.sim", self.name),
            offered_memory_bytes: self.memory_bytes,
            ..Inventory::default()
        }
    }

    /// The power is there.
    pub(crate) fn power_on(&self) {
        let mut state = self.state();
        if state.boot == 0 {
            state.boots += 1;
            state.boot = state.boots;
        }
    }

    /// The power is gone, and with it all processes.
    pub(crate) fn power_off(&self) {
        let mut state = self.state();
        state.boot = 0;
        for proc in state.procs.values_mut().filter(|proc| proc.runs()) {
            proc.end(Cause::Rebooted, 0);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// The driver made an instance's directory.
    pub(crate) fn prepare(&self, id: &str, proc: Proc) {
        let mut state = self.state();
        state.procs.insert(id.to_owned(), proc);
        drop(state);
        self.changed.notify_waiters();
    }

    /// The driver started the run, unless the power went meanwhile.
    pub(crate) fn begin(&self, id: &str, run: u32) {
        let mut state = self.state();
        state.next_pid += 1;
        let pid = state.next_pid;
        let is_on = state.boot > 0;
        if let Some(proc) = state.procs.get_mut(id).filter(|proc| proc.run == run && is_on) {
            proc.process = Process::Running { pid, started_at_ms: 0 };
            proc.since = now();
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// A run's process ends, if it still goes on.
    pub(crate) fn end(&self, id: &str, run: u32, signal: i32) {
        let mut state = self.state();
        if let Some(proc) = state.procs.get_mut(id).filter(|proc| proc.run == run && proc.runs()) {
            proc.end(Cause::Exited, signal);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn seen(&self, id: &str) -> Option<Instance> {
        self.state().procs.get(id).map(|proc| proc.seen(id))
    }

    pub(crate) fn all_seen(&self) -> Vec<Instance> {
        self.state().procs.iter().map(|(id, proc)| proc.seen(id)).collect()
    }

    /// Ends when the run that goes on now has ended.
    pub(crate) async fn ended(&self, id: &str) {
        let run = match self.state().procs.get(id) {
            Some(proc) if proc.runs() => proc.run,
            _ => return,
        };
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.state().procs.get(id).is_some_and(|proc| proc.run == run && proc.runs()) {
                return;
            }
            changed.await;
        }
    }
}
