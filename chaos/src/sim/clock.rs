//! A node's clock: its own beginning, its own pace.

use std::time::Duration;

const MILLION: i128 = 1_000_000;

/// Local time as a line over the world's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeClock {
    /// Where it was set last: the world's nanoseconds and its own.
    global: i128,
    local: i128,
    /// How much faster than the world's, in millionths.
    ppm: i128,
    /// How far wall time is off, in milliseconds.
    pub(crate) wall_off_ms: i64,
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

fn duration(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

impl NodeClock {
    /// A clock that shows `local` at `now`.
    pub(crate) fn new(now: Duration, local: Duration, ppm: i64, wall_off_ms: i64) -> Self {
        Self { global: nanos(now), local: nanos(local), ppm: ppm.into(), wall_off_ms }
    }

    /// What it shows at `now`.
    pub(crate) fn local(&self, now: Duration) -> Duration {
        let passed = nanos(now) - self.global;
        duration(self.local + passed * (MILLION + self.ppm) / MILLION)
    }

    /// When it will show `local`: never a moment too early.
    pub(crate) fn global(&self, local: Duration) -> Duration {
        let left = nanos(local) - self.local;
        let pace = MILLION + self.ppm;
        duration(self.global + (left * MILLION + pace - 1) / pace)
    }

    /// Goes on at another pace from `now`.
    pub(crate) fn set_pace(&mut self, now: Duration, ppm: i64) {
        *self = Self::new(now, self.local(now), ppm, self.wall_off_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_slow_shows_less_and_its_timers_come_later() {
        let at = Duration::from_secs;
        let mut clock = NodeClock::new(at(10), at(70), -50_000, 0);
        assert_eq!(clock.local(at(20)), Duration::from_millis(79_500));
        assert_eq!(clock.global(Duration::from_millis(79_500)), at(20));
        clock.set_pace(at(20), 0);
        assert_eq!(clock.local(at(21)), Duration::from_millis(80_500), "no jump");
    }

    #[test]
    fn a_timer_is_never_early() {
        for ppm in [-70_000, -1, 0, 3, 49_999] {
            let clock = NodeClock::new(Duration::from_nanos(7), Duration::from_secs(3), ppm, 0);
            for step in [1, 999, 1_000_003] {
                let due = Duration::from_secs(3) + Duration::from_nanos(step);
                assert!(clock.local(clock.global(due)) >= due, "{ppm} {step}");
            }
        }
    }
}
