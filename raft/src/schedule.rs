//! When the next snapshot is due: when the log has outgrown the last one, and again with growing pauses after one was
//! put off.

use std::time::Duration;

/// The first pause, in looks.
const PAUSE: u32 = 8;
/// So many times the least log is the most that a restart has to read, however large snapshots are.
const LOG_MAX: u64 = 4;
/// How often the pause doubles at most.
const DOUBLINGS: u32 = 5;

/// When snapshots are due.
#[derive(Debug)]
pub(crate) struct Schedule {
    least: u64,
    every: Duration,
    /// What was written when the last one was begun.
    since: u64,
    /// What was written when the last one that was taken was begun.
    covered: u64,
    taken: u64,
    put_off: u64,
    failures: u32,
    not_before: Duration,
}

impl Schedule {
    /// One snapshot for as much log as the last one has bytes, `least` or more, looked at `every` so often.
    pub(crate) fn new(least: u64, every: Duration) -> Self {
        Self {
            least,
            every,
            since: 0,
            covered: 0,
            taken: 0,
            put_off: 0,
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// Whether one is due, after so many bytes of log and so many snapshots taken and put off since the start; the
    /// last one has `bytes`.
    pub(crate) fn is_due(
        &mut self,
        now: Duration,
        written: u64,
        (taken, put_off): (u64, u64),
        bytes: u64,
    ) -> bool {
        if taken > self.taken {
            self.taken = taken;
            self.covered = self.since;
            self.failures = 0;
        }
        if put_off > self.put_off {
            self.put_off = put_off;
            self.since = self.covered;
            self.not_before = now + self.every * PAUSE * 2_u32.pow(self.failures.min(DOUBLINGS));
            self.failures += 1;
        }
        let limit = bytes.clamp(self.least, self.least.saturating_mul(LOG_MAX));
        now >= self.not_before && written.saturating_sub(self.since) >= limit
    }

    /// Notes that one is being taken.
    pub(crate) fn begun(&mut self, written: u64) {
        self.since = written;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 100;

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn one_is_due_for_each_limit_of_log() {
        let mut schedule = Schedule::new(LIMIT, at(1));
        assert!(!schedule.is_due(at(1), 99, (0, 0), 0));
        assert!(schedule.is_due(at(2), 120, (0, 0), 0));
        schedule.begun(120);
        assert!(!schedule.is_due(at(3), 219, (1, 0), 0));
        assert!(schedule.is_due(at(4), 220, (1, 0), 0));
    }

    #[test]
    fn one_that_was_put_off_is_due_again_after_growing_pauses() {
        let mut schedule = Schedule::new(LIMIT, at(1));
        let mut now = 1;
        let mut pauses = vec![];
        for put_off in 0..8 {
            let begun = now;
            while !schedule.is_due(at(now), 120, (0, put_off), 0) {
                now += 1;
            }
            pauses.push(now - begun);
            schedule.begun(120);
        }
        assert_eq!(pauses, [0, 8, 16, 32, 64, 128, 256, 256]);
        assert!(!schedule.is_due(at(now + 1), 130, (1, 7), 0), "it was taken");
        assert!(schedule.is_due(at(now + 2), 220, (1, 7), 0));
    }

    #[test]
    fn a_large_snapshot_is_taken_less_often_and_not_for_ever() {
        let mut schedule = Schedule::new(LIMIT, at(1));
        for (bytes, limit) in [(99, 100), (250, 250), (10_000, 400)] {
            assert!(!schedule.is_due(at(1), limit - 1, (0, 0), bytes));
            assert!(schedule.is_due(at(1), limit, (0, 0), bytes));
        }
    }
}
