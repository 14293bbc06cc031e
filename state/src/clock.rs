//! The clock: logical milliseconds that only log entries advance.
//!
//! # Invariants
//! - `CLOCK-1` Logical time never goes back and one entry adds at most
//!   [`CLOCK_STEP_MS_MAX`](crate::limits::CLOCK_STEP_MS_MAX).
//! - `CLOCK-2` An entry whose proposer led in another term than the entry's adds nothing.

use crate::limits::CLOCK_STEP_MS_MAX;

/// Logical and human time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Clock {
    /// Milliseconds of leadership since the cluster was formed. Decisions use this.
    pub now_ms: u64,
    /// The leader's wall clock, Unix milliseconds, clamped never to go back. People read this.
    pub wall_ms: u64,
}

impl Clock {
    pub(crate) fn advance(&mut self, delta_ms: u64, wall_ms: u64) {
        let before = *self;
        self.now_ms = self.now_ms.saturating_add(delta_ms.min(CLOCK_STEP_MS_MAX));
        self.wall_ms = self.wall_ms.max(wall_ms);
        debug_assert!(
            self.now_ms >= before.now_ms && self.now_ms - before.now_ms <= CLOCK_STEP_MS_MAX,
            "CLOCK-1"
        );
    }
}
