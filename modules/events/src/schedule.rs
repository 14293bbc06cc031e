//! When what failed is tried again: ever later, spread, and not for ever.

use palisade_state::shard::fnv1a_32;

/// Milliseconds before the second attempt.
const FIRST_MS: u64 = 5_000;
/// Milliseconds between two attempts at most, before they are spread.
const LONGEST_MS: u64 = 60 * 60 * 1000;
/// Milliseconds for which an event is tried, from its first attempt on.
pub(crate) const TOTAL_MS: u64 = 72 * 60 * 60 * 1000;
/// Milliseconds between two attempts at a receiver that is down, at most: so soon it is noticed that it is back.
pub(crate) const PROBE_MS_MAX: u64 = 10 * 60 * 1000;
/// What a receiver can ask for at most with `Retry-After`.
pub(crate) const RETRY_AFTER_MS_MAX: u64 = LONGEST_MS;
/// How long dead letters are kept, on the logical clock.
pub(crate) const LETTER_MS: u64 = 14 * 24 * 60 * 60 * 1000;

/// Milliseconds after the failed attempt of this number (the first is 1) until the next: they double from five seconds to an hour, and
/// are spread by up to a fifth, by a digest of what is sent to whom. So whoever runs it, and however often, waits as long.
pub(crate) fn pause_ms(subscription: &str, event: &str, attempt: u32) -> u64 {
    let doubled = FIRST_MS.saturating_mul(1 << attempt.saturating_sub(1).min(20));
    let digest = fnv1a_32(format!("{subscription}\n{event}\n{attempt}").as_bytes());
    let permille = 800 + u64::from(digest % 401);
    doubled.min(LONGEST_MS) * permille / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_are_spread_and_end() {
        let pauses: Vec<u64> = (1..100).map(|n| pause_ms("acme/pager", "cl_1-7", n)).collect();
        for (at, pause) in pauses.iter().enumerate() {
            let base = (FIRST_MS << at.min(20)).min(LONGEST_MS);
            assert!((base * 8 / 10..=base * 12 / 10).contains(pause), "{at}: {pause}");
        }
        assert_eq!(
            pauses,
            (1..100).map(|n| pause_ms("acme/pager", "cl_1-7", n)).collect::<Vec<_>>()
        );
        let others: Vec<u64> = (1..100).map(|n| pause_ms("acme/pager", "cl_1-8", n)).collect();
        assert!(pauses.iter().zip(&others).any(|(one, other)| one != other), "not all at once");
        assert!(pauses.iter().sum::<u64>() > TOTAL_MS, "fewer than a hundred attempts at an event");
        assert!(pause_ms("a", "b", u32::MAX) <= LONGEST_MS * 12 / 10);
    }
}
