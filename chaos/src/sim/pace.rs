//! CLOCK: logical time never runs ahead of the clock of whoever led, and is the same at an index everywhere.
//!
//! What a deposed leader counted, and what passed while nobody led, is on no entry: each term's entries together add
//! no more than what has passed since its leader was first seen.

use std::{collections::BTreeMap, time::Duration};

use super::eyes::Breach;

/// How much faster than the world a clock can be, in millionths.
const FASTEST_PPM: u128 = 50_000;
/// Stamps are whole milliseconds.
const SLACK_MS: u128 = 5;

/// See the module.
#[derive(Default)]
pub(crate) struct Pace {
    /// Logical time after each entry, and who applied it first.
    after: BTreeMap<u64, (u64, u64)>,
    /// When a leader of each term was first seen.
    led: BTreeMap<u64, Duration>,
    /// Logical time before the first entry of each term.
    before: BTreeMap<u64, u64>,
}

impl Pace {
    /// Somebody leads in this term.
    pub(crate) fn leads(&mut self, term: u64, now: Duration) {
        self.led.entry(term).or_insert(now);
    }

    /// An entry was applied on `node`, and logical time is `ms` behind it.
    pub(crate) fn applied(
        &mut self,
        node: u64,
        (index, term, ms): (u64, u64, u64),
        now: Duration,
    ) -> Option<Breach> {
        let breach = |message| Some(Breach { check: "CLOCK", message });
        let (known, by) = *self.after.entry(index).or_insert((ms, node));
        if known != ms {
            return breach(format!(
                "after entry {index} it is {ms} ms on replica {node} and {known} ms on replica {by}"
            ));
        }
        let begun = index.checked_sub(1).and_then(|index| self.after.get(&index));
        let begun = begun.map_or(0, |(ms, _)| *ms);
        let before = *self.before.entry(term).or_insert(begun);
        let led = *self.led.get(&term)?;
        let added = u128::from(ms.saturating_sub(before));
        let passed = now.saturating_sub(led).as_millis();
        if added <= passed + passed * FASTEST_PPM / 1_000_000 + SLACK_MS {
            return None;
        }
        breach(format!(
            "entries of term {term} up to {index} add {added} ms, and its leader leads since {passed} ms"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_term_adds_no_more_than_what_has_passed_in_it() {
        let mut pace = Pace::default();
        pace.leads(1, at(100));
        assert_eq!(pace.applied(1, (1, 1, 0), at(110)), None);
        assert_eq!(pace.applied(1, (2, 1, 1000), at(1100)), None);
        pace.leads(2, at(5000));
        assert_eq!(pace.applied(1, (3, 2, 1000), at(5010)), None);
        assert_eq!(pace.applied(1, (4, 2, 1105), at(5100)), None, "a fast clock");
        let breach = pace.applied(1, (5, 2, 2500), at(5300)).unwrap();
        assert_eq!(breach.check, "CLOCK");
        assert!(
            breach.message.contains("add 1500 ms, and its leader leads since 300 ms"),
            "{breach:?}"
        );
    }

    #[test]
    fn logical_time_at_an_index_is_one() {
        let mut pace = Pace::default();
        assert_eq!(pace.applied(1, (1, 1, 7), at(110)), None);
        assert!(pace.applied(2, (1, 1, 8), at(111)).is_some());
    }
}
