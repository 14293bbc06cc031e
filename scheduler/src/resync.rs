//! Resync and seeding: the level-trigger's safety net, which heals a wake-up that was missed.

use std::time::Duration;

use palisade_contract::Context;
use palisade_state::port::Runtime;

use crate::run::WorkId;

/// Wake-ups of one transaction.
const BATCH: usize = 1000;

/// When the next resync is, and whether periodic keys may lack a row.
pub struct Resync {
    every: Duration,
    next: Duration,
    seed: bool,
}

impl Resync {
    /// The first resync comes after a share of the time, so that workers do not resync together.
    #[must_use]
    pub fn new(context: &Context, every: Duration) -> Self {
        let next = context.rt.now() + spread(&*context.rt, every);
        Self { every, next, seed: true }
    }

    /// Everything was read again: rows may be missing.
    pub fn rescan(&mut self) {
        self.seed = true;
    }

    /// A lease came or went.
    pub fn lease_moved(&mut self) {
        self.seed = true;
    }

    /// Whether periodic keys are to be looked at now.
    pub fn take_seeding(&mut self) -> bool {
        std::mem::take(&mut self.seed)
    }

    /// Whether all keys are to be woken now; says so once each time.
    pub fn is_due(&mut self, context: &Context) -> bool {
        let now = context.rt.now();
        let due = now >= self.next;
        if due {
            self.next = now + self.every + spread(&*context.rt, self.every);
            self.seed = true;
        }
        due
    }

    /// Wakes keys, in a task of its own.
    pub fn enqueue(&self, context: &Context, keys: Vec<WorkId>) {
        if keys.is_empty() {
            return;
        }
        let task_context = context.clone();
        let task = async move {
            for batch in keys.chunks(BATCH) {
                let woken = task_context
                    .commit(|tx| {
                        batch.iter().try_for_each(|(kind, key)| Ok(tx.enqueue(kind, key)?))
                    })
                    .await;
                if let Err(error) = woken {
                    tracing::warn!(%error, "keys were not woken; the next resync tries again");
                    return;
                }
            }
        };
        context.rt.spawn("resync", Box::pin(task));
    }
}

fn spread(rt: &dyn Runtime, every: Duration) -> Duration {
    let permille = u32::try_from(rt.random() % 1001).unwrap_or(0);
    every.saturating_mul(permille) / 1000
}
