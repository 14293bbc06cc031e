//! What goes up: statuses at their pace, and refusals.

use std::{collections::BTreeMap, time::Duration};

use palisade_proto::agent::{InstanceStatus, Status, Up, up};
use tokio::sync::mpsc;

use super::{Engine, Pace, Snapshot};
use crate::{
    converge::node_instances,
    driver::Usage,
    fence::Fence,
    health::{Health, Monitor},
};

/// CPU use is told over at least this time.
const MEASURE_OVER: Duration = Duration::from_secs(1);

/// Sends to the attached session, if there is one.
pub(super) struct Reporter {
    up: Option<mpsc::Sender<Up>>,
    pace: Pace,
    seq: u64,
    dirty: bool,
    /// What was told last, without what changes by itself.
    told: Vec<InstanceStatus>,
    told_usage: BTreeMap<String, (Duration, Usage)>,
}

impl Reporter {
    pub(super) fn new(pace: Pace) -> Self {
        Self { up: None, pace, seq: 0, dirty: false, told: Vec::new(), told_usage: BTreeMap::new() }
    }

    pub(super) fn attach(&mut self, up: mpsc::Sender<Up>) {
        self.up = Some(up);
        self.pace = Pace::default();
        // The session's first message told the state of things; what came since is told again.
        self.told.clear();
        self.dirty = true;
    }

    /// Something may have changed that is worth telling.
    pub(super) fn changed(&mut self) {
        self.dirty = true;
    }

    pub(super) fn due(&self, _now: Duration) -> Option<Duration> {
        self.up.as_ref().map(|_| self.pace.due())
    }

    /// Never waits: a session that does not take it is about to end, and the next one is told all.
    pub(super) fn send(&mut self, message: up::Msg) -> bool {
        let Some(up) = &self.up else { return false };
        match up.try_send(Up { msg: Some(message) }) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => false,
            Err(mpsc::error::TrySendError::Closed(_)) => {
                self.up = None;
                false
            }
        }
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }
}

impl Engine {
    /// Sends a status if one is due.
    pub(super) async fn report(&mut self, now: Duration) {
        if self.reporter.up.is_none() {
            return;
        }
        let mut instances = self.instances(now);
        let plain: Vec<InstanceStatus> = instances
            .iter()
            .map(|one| InstanceStatus { next_try_in_ms: 0, ..one.clone() })
            .collect();
        if self.reporter.dirty || plain != self.reporter.told {
            self.reporter.pace.changed(now);
        }
        if self.reporter.pace.due() > now {
            return;
        }
        self.measure(&mut instances, now).await;
        let status = self.status(instances);
        if self.reporter.send(up::Msg::Status(status)) {
            self.reporter.told = plain;
            self.reporter.dirty = false;
        }
        // Also after a refusal: it is tried again at the same pace.
        self.reporter.pace.sent(now);
    }

    pub(super) async fn snapshot(&mut self, now: Duration) -> Snapshot {
        let mut instances = self.instances(now);
        self.measure(&mut instances, now).await;
        let status = self.status(instances);
        Snapshot {
            generation: status.generation,
            hash: status.hash.clone(),
            fence: Fence::of(self.spec.as_ref().and_then(|spec| spec.fence.as_ref())),
            status,
        }
    }

    fn instances(&self, now: Duration) -> Vec<InstanceStatus> {
        let health: BTreeMap<String, Health> = self
            .monitors
            .iter()
            .map(|(id, monitor)| (id.clone(), Monitor::health(monitor).clone()))
            .collect();
        // An instance with a check is not healthy before its first probe is even begun.
        let mut health = health;
        for instance in self.spec.iter().flat_map(|spec| &spec.instances) {
            if instance.health.as_ref().is_some_and(|check| check.kind.is_some()) {
                health
                    .entry(instance.id.clone())
                    .or_insert(Health::Unknown { last_error: String::new() });
            }
        }
        node_instances(self.spec.as_ref(), &self.observed, &health, now)
    }

    fn status(&mut self, instances: Vec<InstanceStatus>) -> Status {
        Status {
            generation: self.spec.as_ref().map_or(0, |spec| spec.generation),
            hash: self.spec.as_ref().map(|spec| spec.hash.clone()).unwrap_or_default(),
            instances,
            conditions: self.conditions.values().cloned().collect(),
            seq: self.reporter.next_seq(),
        }
    }

    /// Adds what each instance uses, from the last two looks.
    async fn measure(&mut self, instances: &mut [InstanceStatus], now: Duration) {
        for one in instances.iter_mut().filter(|one| one.pid != 0) {
            let Some(driver) = self.driver(&one.id) else { continue };
            let Some(usage) = driver.usage(&one.id).await else { continue };
            one.memory_usage_bytes = usage.memory_bytes;
            match self.reporter.told_usage.get(&one.id) {
                // Too short a time tells nothing.
                Some((at, _)) if now < *at + MEASURE_OVER => {}
                Some((at, before)) => {
                    let used = usage.cpu.saturating_sub(before.cpu).as_millis();
                    let passed = now.saturating_sub(*at).as_millis().max(1);
                    one.cpu_usage_milli = u64::try_from(used * 1000 / passed).unwrap_or(0);
                    self.reporter.told_usage.insert(one.id.clone(), (now, usage));
                }
                None => {
                    self.reporter.told_usage.insert(one.id.clone(), (now, usage));
                }
            }
        }
        self.reporter.told_usage.retain(|id, _| self.observed.contains_key(id));
    }
}
