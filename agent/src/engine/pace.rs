//! When a status goes up: changes at once after quiet, a few in a row, then one a second.

use std::time::Duration;

/// On average no more than one report in this time.
const EVERY: Duration = Duration::from_secs(1);
/// So many may follow each other after quiet, so that a start is told as it happens.
const BURST: u32 = 4;
/// Changes that come together are told together.
const GATHER: Duration = Duration::from_millis(10);
/// A report even when nothing has changed.
const FULL_EVERY: Duration = Duration::from_secs(300);

/// Decides when to report.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// When the budget is whole again.
    spent_until: Duration,
    sent_at: Option<Duration>,
    changed_at: Option<Duration>,
}

impl Pace {
    /// Something is to be told.
    pub(super) fn changed(&mut self, now: Duration) {
        self.changed_at.get_or_insert(now);
    }

    /// When the next report is due.
    pub(super) fn due(&self) -> Duration {
        let full = self.sent_at.map_or(Duration::ZERO, |at| at + FULL_EVERY);
        match self.changed_at {
            Some(at) => {
                let budget = self.spent_until.saturating_sub(EVERY * (BURST - 1));
                full.min((at + GATHER).max(budget))
            }
            None => full,
        }
    }

    /// A report went up.
    pub(super) fn sent(&mut self, now: Duration) {
        self.spent_until = self.spent_until.max(now) + EVERY;
        self.sent_at = Some(now);
        self.changed_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_first_change_after_quiet_goes_at_once() {
        let mut pace = Pace::default();
        pace.sent(at(0));
        pace.changed(at(60_000));
        assert_eq!(pace.due(), at(60_010));
    }

    #[test]
    fn a_storm_is_told_once_a_second() {
        let mut pace = Pace::default();
        let mut sent = 0;
        let mut now = at(100_000);
        let begin = now;
        while now < begin + at(20_000) {
            pace.changed(now);
            if pace.due() <= now {
                pace.sent(now);
                sent += 1;
            }
            now += at(10);
        }
        assert!((20..=24).contains(&sent), "{sent}");
    }

    #[test]
    fn without_changes_it_is_told_every_five_minutes() {
        let mut pace = Pace::default();
        pace.sent(at(1000));
        assert_eq!(pace.due(), at(301_000));
    }
}
