//! What a worker tells the kernel: that it lives, and which leases it gives back.

use palisade_contract::ShardBy;
use palisade_state::{
    Fence, Name,
    command::{HeldLease, Kind, LeaseRelease, WorkerBeat},
    roster,
};

use super::{Event, Loop};

impl Loop {
    /// Tells the kernel that this worker lives, and which leases it can hold.
    pub(super) fn beat(&mut self) {
        if self.beating || self.stopping {
            return;
        }
        self.beating = true;
        let reconcilers = self.worker.reconcilers.values();
        let singletons = reconcilers
            .clone()
            .filter(|reconciler| reconciler.shard_by() == ShardBy::None)
            .map(|reconciler| reconciler.name().to_owned())
            .collect();
        let beat = WorkerBeat {
            worker: self.worker.name.clone(),
            incarnation: self.worker.incarnation,
            role: self.worker.role.into(),
            singletons,
            draining: roster::is_drained(&self.view(), self.worker.context.store.replica()),
            sharded: reconcilers.clone().any(|reconciler| reconciler.shard_by() != ShardBy::None),
        };
        self.propose("beat", Kind::WorkerBeat(beat), |applied| Event::BeatSent { applied });
    }

    /// Gives leases back; with `leave` the session ends.
    pub(super) fn release_command(&self, leases: Vec<HeldLease>, leave: bool) -> Kind {
        Kind::LeaseRelease(LeaseRelease {
            worker: self.worker.name.clone(),
            incarnation: self.worker.incarnation,
            leases,
            role: self.worker.role.into(),
            leave,
        })
    }

    /// Gives back what is being handed over and has no run any more (`WORK-1`).
    pub(super) fn release_idle(&mut self) {
        self.releasing
            .retain(|(name, fence)| self.held.get(name).is_some_and(|held| held.fence == *fence));
        let idle: Vec<(Name, Fence)> = self
            .held
            .iter()
            .filter(|(_, held)| held.leaving && held.runs == 0)
            .map(|(name, held)| (name.clone(), held.fence))
            .filter(|id| !self.releasing.contains(id))
            .collect();
        if idle.is_empty() {
            return;
        }
        self.releasing.extend(idle.iter().cloned());
        let leases = idle
            .into_iter()
            .map(|(lease, fence)| HeldLease { lease: lease.to_string(), fence: Some(fence.into()) })
            .collect();
        let release = self.release_command(leases, false);
        self.propose("release", release, |_| Event::Released);
    }

    /// Proposes in a task of its own; the loop goes on.
    pub(super) fn propose(
        &self,
        what: &'static str,
        kind: Kind,
        then: impl FnOnce(bool) -> Event + Send + 'static,
    ) {
        let context = self.worker.context.clone();
        let mut sender = self.sender.clone();
        let role = self.worker.role;
        let task = async move {
            let applied = match context.store.propose(kind.into()).await {
                Ok(outcome) if outcome.is_applied() => true,
                Ok(outcome) => {
                    tracing::warn!(?role, what, ?outcome, "the kernel refused a worker's command");
                    false
                }
                Err(error) => {
                    tracing::debug!(?role, what, %error, "a worker's command was not applied");
                    false
                }
            };
            // Nobody listens when the worker has stopped.
            let _ = futures::SinkExt::send(&mut sender, then(applied)).await;
        };
        self.worker.context.rt.spawn(what, Box::pin(task));
    }
}
