//! When the certificate is renewed: at a point between 50 and 67 % of its life, which is another
//! one for each node, so that a fleet that joined at once does not renew at once.

use std::time::Duration;

use crate::{
    identity::{Identity, Validity},
    port::Runtime,
};

const AGAIN: Duration = Duration::from_secs(60);
/// Within so much time all nodes renew when another CA issues.
const SOON_MS: u64 = 30_000;
const LOOK_MAX: Duration = Duration::from_secs(600);

/// The next renewal.
#[derive(Clone, Debug)]
pub(super) struct Renewal {
    /// Unix milliseconds. The one decision by the wall clock: certificates know no other.
    at_ms: u64,
    /// After a failure: monotonic time.
    not_before: Duration,
    /// Names the certificate that is renewed, so that a lost answer is asked for with the same key.
    purpose: String,
}

impl Renewal {
    pub(super) fn new(identity: &Identity, rt: &dyn Runtime) -> Self {
        let validity = identity.validity().unwrap_or(Validity { not_before_s: 0, not_after_s: 0 });
        let permille = 500 + rt.random() % 170;
        let ms = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
        let (from, to) = (ms(validity.not_before_s), ms(validity.not_after_s));
        let life = to.saturating_sub(from);
        Self {
            at_ms: from.saturating_add(life / 1000 * permille),
            not_before: Duration::ZERO,
            purpose: format!("{}/{}", identity.node_id, validity.not_after_s),
        }
    }

    /// Another CA issues by now: it is due within half a minute, at a point that is another one for each node.
    pub(super) fn soon(&mut self, rt: &dyn Runtime) {
        self.at_ms = self.at_ms.min(rt.wall_ms() + rt.random() % SOON_MS);
    }

    pub(super) fn due(&self, rt: &dyn Runtime) -> bool {
        rt.wall_ms() >= self.at_ms && rt.now() >= self.not_before
    }

    pub(super) fn failed(&mut self, rt: &dyn Runtime) {
        self.not_before = rt.now() + AGAIN;
    }

    /// How long it is certainly not due. The wall clock may jump, so never very long.
    pub(super) fn wait(&self, rt: &dyn Runtime) -> Duration {
        let wall = Duration::from_millis(self.at_ms.saturating_sub(rt.wall_ms()));
        wall.max(self.not_before.saturating_sub(rt.now())).min(LOOK_MAX)
    }

    /// For what the new key is made.
    pub(super) fn purpose(&self) -> &str {
        &self.purpose
    }
}
