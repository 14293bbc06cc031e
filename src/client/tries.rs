//! Which replica is asked next, and when.

use std::time::Duration;

const PAUSE_FIRST: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Walks over the replicas: at once within a round, with a growing pause between rounds.
#[derive(Clone, Debug)]
pub struct Tries {
    count: usize,
    at: usize,
    failed: usize,
}

impl Tries {
    /// Begins at one of `count` replicas.
    #[must_use]
    pub fn new(count: usize, first: usize) -> Self {
        let count = count.max(1);
        Self { count, at: first % count, failed: 0 }
    }

    /// The replica to ask now.
    #[must_use]
    pub fn address(&self) -> usize {
        self.at
    }

    /// How often all were asked in vain.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.failed / self.count
    }

    /// Notes a failure and answers how long to wait before the next try. `after` is what the
    /// replica asked for; `dice` is from 0 to 999.
    pub fn failed(&mut self, after: Option<Duration>, dice: u64) -> Duration {
        self.failed += 1;
        self.at = (self.at + 1) % self.count;
        if !self.failed.is_multiple_of(self.count) {
            return Duration::ZERO;
        }
        let doublings = u32::try_from(self.rounds() - 1).unwrap_or(u32::MAX).min(10);
        let pause = (PAUSE_FIRST * 2_u32.pow(doublings)).min(PAUSE_MAX);
        // Half is fixed and half is dice, so that many clients do not come back at once.
        let jittered = pause / 2 + pause / 2 * u32::try_from(dice).unwrap_or(0) / 1000;
        after.unwrap_or_default().max(jittered)
    }
}

/// How a try failed, as far as it tells whether more tries help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A replica answers and has no quorum.
    NoQuorum,
    /// Nothing is there.
    Unreachable,
    /// Anything else.
    Other,
}

/// So many rounds of the same picture are enough to believe it.
const QUORUMLESS_ROUNDS: usize = 2;

/// Judges whole rounds: one in which some replica has no quorum and the others are not there will
/// look the same until somebody starts them.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    no_quorum: usize,
    unreachable: usize,
    other: usize,
    alike: usize,
}

impl Rounds {
    /// Notes a try.
    pub fn saw(&mut self, seen: Seen) {
        match seen {
            Seen::NoQuorum => self.no_quorum += 1,
            Seen::Unreachable => self.unreachable += 1,
            Seen::Other => self.other += 1,
        }
    }

    /// A round is over; answers whether more of them are in vain.
    pub fn over(&mut self) -> bool {
        let lost = self.no_quorum > 0 && self.unreachable > 0 && self.other == 0;
        let alike = if lost { self.alike + 1 } else { 0 };
        *self = Self { alike, ..Self::default() };
        alike >= QUORUMLESS_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rounds_without_a_quorum_and_without_the_others_are_enough() {
        let mut rounds = Rounds::default();
        let mut round = |seen: &[Seen]| {
            seen.iter().for_each(|one| rounds.saw(*one));
            rounds.over()
        };
        let lost = [Seen::Unreachable, Seen::NoQuorum, Seen::Unreachable];
        assert!(!round(&lost));
        assert!(!round(&[Seen::Unreachable, Seen::NoQuorum, Seen::Other]), "one may be starting");
        assert!(!round(&lost));
        assert!(round(&lost));
        assert!(!round(&[Seen::NoQuorum; 3]), "all are there: they elect");
    }

    #[test]
    fn a_round_is_walked_at_once_and_rounds_are_paused() {
        let mut tries = Tries::new(3, 1);
        let mut walked = vec![];
        let mut pauses = vec![];
        for _ in 0..6 {
            walked.push(tries.address());
            pauses.push(tries.failed(None, 0).as_millis());
        }
        assert_eq!(walked, [1, 2, 0, 1, 2, 0]);
        assert_eq!(pauses, [0, 0, 12, 0, 0, 25]);
    }

    #[test]
    fn the_pause_has_an_end_and_the_server_is_heard() {
        let mut tries = Tries::new(1, 0);
        let last = (0..100).map(|_| tries.failed(None, 999)).last().unwrap();
        assert!(last <= PAUSE_MAX);
        assert_eq!(tries.failed(Some(Duration::from_secs(3)), 0), Duration::from_secs(3));
    }
}
