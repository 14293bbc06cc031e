//! When an instance that ended is started again.

use std::{collections::VecDeque, time::Duration};

use palisade_proto::agent::{InstanceSpec, RestartMode};

use crate::driver::{Cause, End, Instance, Problem, Process};

const BACKOFF_INITIAL_MS: u64 = 200;
const BACKOFF_MAX_MS: u64 = 30_000;
const CRASH_LOOP_THRESHOLD: u32 = 5;
const CRASH_LOOP_WINDOW_MS: u64 = 60_000;
/// How long a process without a health check must have run before it counts as healthy: whoever
/// waits for health is not told of it by a program that ends at once.
pub const SETTLES_AFTER: Duration = Duration::from_secs(1);
/// Longer memories are of no use.
const ENDS_MAX: usize = 64;

/// A restart policy with its defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// When it is started again.
    pub mode: RestartMode,
    /// The first delay.
    pub backoff_initial: Duration,
    /// The longest delay.
    pub backoff_max: Duration,
    /// So many ends within the window are a crash loop.
    pub crash_loop_threshold: u32,
    /// The window; a run that lasted longer clears the count.
    pub crash_loop_window: Duration,
}

impl Policy {
    /// That of a spec.
    #[must_use]
    pub fn of(spec: &InstanceSpec) -> Self {
        let policy = spec.restart.unwrap_or_default();
        let or = |value: u64, default: u64| {
            Duration::from_millis(if value == 0 { default } else { value })
        };
        let initial = or(policy.backoff_initial_ms, BACKOFF_INITIAL_MS);
        let mode = match policy.mode() {
            RestartMode::Unspecified => RestartMode::Always,
            mode => mode,
        };
        Self {
            mode,
            backoff_initial: initial,
            backoff_max: or(policy.backoff_max_ms, BACKOFF_MAX_MS).max(initial),
            crash_loop_threshold: match policy.crash_loop_threshold {
                0 => CRASH_LOOP_THRESHOLD,
                threshold => threshold,
            },
            crash_loop_window: or(policy.crash_loop_window_ms, CRASH_LOOP_WINDOW_MS),
        }
    }

    /// Whether a run follows on such an end. A reboot is not the program's doing: what was
    /// running comes back under every policy.
    #[must_use]
    pub fn restarts(&self, end: &End) -> bool {
        match self.mode {
            _ if end.cause == Cause::Rebooted => true,
            RestartMode::Never => false,
            RestartMode::OnFailure => !end.success(),
            RestartMode::Always | RestartMode::Unspecified => true,
        }
    }
}

/// What the agent remembers of an instance while it runs itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// An action on it is under way.
    pub busy: bool,
    /// Nothing is tried before.
    pub next_try: Option<Duration>,
    /// The grace of its stop ends.
    pub kill_at: Option<Duration>,
    /// Why the last action failed.
    pub problem: Option<Problem>,
    /// It ended too often.
    pub crash_loop: bool,
    failures: u32,
    ends: VecDeque<Duration>,
    counted_run: u32,
    version: u64,
    unwanted: bool,
    /// The run that goes on and when it has settled.
    settles: Option<(u32, Duration)>,
}

impl Track {
    /// Forgets the history of another revision.
    pub fn follow(&mut self, spec_version: u64) {
        if self.version != spec_version {
            let (busy, kill_at) = (self.busy, self.kill_at);
            let (counted_run, settles, version) = (self.counted_run, self.settles, spec_version);
            *self = Self { busy, kill_at, counted_run, settles, version, ..Self::default() };
        }
    }

    /// The spec names it no more: what put a restart off does not put its removal off.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.unwanted, true) {
            self.next_try = None;
            self.failures = 0;
            self.ends.clear();
            self.crash_loop = false;
        }
    }

    /// When the run that goes on has run for [`SETTLES_AFTER`]; `None`: none goes on.
    #[must_use]
    pub fn settles_at(&self) -> Option<Duration> {
        self.settles.map(|(_, at)| at)
    }

    fn settle(&mut self, instance: &Instance, now: Duration) {
        if !matches!(instance.process, Process::Running { .. }) {
            self.settles = None;
        } else if self.settles.is_none_or(|(run, _)| run != instance.run) {
            // The process's own age: an agent that finds it running does not begin anew.
            let left = SETTLES_AFTER.saturating_sub(instance.ran_for);
            self.settles = Some((instance.run, now + left));
        }
    }

    /// Takes note of what was seen; counts each run's end once.
    pub fn saw(&mut self, instance: &Instance, policy: &Policy, now: Duration) {
        self.settle(instance, now);
        match &instance.process {
            Process::Prepared => {}
            Process::Running { .. } => {
                self.problem = None;
                if instance.stop_asked.is_none() {
                    self.kill_at = None;
                    self.next_try = None;
                }
            }
            Process::Ended(end) => {
                self.kill_at = None;
                if instance.run > self.counted_run {
                    self.counted_run = instance.run;
                    self.problem = None;
                    self.ended(instance, end, policy, now);
                }
            }
        }
    }

    fn ended(&mut self, instance: &Instance, end: &End, policy: &Policy, now: Duration) {
        let not_its_fault = instance.stop_asked.is_some() || end.cause == Cause::Rebooted;
        // A run of another revision says nothing about this one.
        if not_its_fault || instance.spec_version != self.version {
            self.failures = 0;
            self.ends.clear();
            self.crash_loop = false;
            self.next_try = None;
            return;
        }
        if end.ran_for >= policy.crash_loop_window {
            self.failures = 0;
            self.ends.clear();
        }
        self.failed(policy, now);
    }

    /// Counts a failure and sets when the next try is due.
    pub fn failed(&mut self, policy: &Policy, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.ends.push_back(now);
        while self.ends.len() > ENDS_MAX
            || self.ends.front().is_some_and(|end| *end + policy.crash_loop_window < now)
        {
            self.ends.pop_front();
        }
        self.crash_loop = self.ends.len() >= policy.crash_loop_threshold as usize;
        let doubled = 1u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        let delay = policy.backoff_initial.saturating_mul(doubled).min(policy.backoff_max);
        self.next_try = Some(now + if self.crash_loop { policy.backoff_max } else { delay });
    }
}
