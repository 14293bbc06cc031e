//! What is known to be missing: a sorted list of disjoint ranges for each part.

use super::rows::{Gap, Part};

/// Ranges remembered for each part; the oldest two become one when there are more.
const GAPS_MAX: usize = 128;

impl Gap {
    pub(super) fn new(part: Part, from: u64, to: u64) -> Self {
        Self { part: part.into(), from, to }
    }

    fn is_of(&self, part: Part) -> bool {
        self.part == i32::from(part)
    }
}

/// The gaps of one part that touch `from` to `to`.
pub(super) fn within(
    gaps: &[Gap],
    part: Part,
    from: u64,
    to: u64,
) -> impl Iterator<Item = &Gap> + '_ {
    gaps.iter().filter(move |gap| gap.is_of(part) && gap.from <= to && gap.to >= from)
}

/// Whether all of `from` to `to` is known to be missing. Nothing is, always.
pub(super) fn cover(gaps: &[Gap], part: Part, from: u64, to: u64) -> bool {
    let mut next = from;
    for gap in gaps.iter().filter(|gap| gap.is_of(part)) {
        if next > to || gap.from > next {
            break;
        }
        next = next.max(gap.to.saturating_add(1));
    }
    next > to
}

/// Adds one behind all others of its part.
pub(super) fn add(gaps: &mut Vec<Gap>, part: Part, from: u64, to: u64) {
    if from > to {
        return;
    }
    if let Some(last) = gaps.iter_mut().rev().find(|gap| gap.is_of(part))
        && last.to.saturating_add(1) >= from
    {
        last.to = last.to.max(to);
        return;
    }
    gaps.push(Gap::new(part, from, to));
    let mut of_part: Vec<usize> =
        (0..gaps.len()).filter(|at| gaps.get(*at).is_some_and(|gap| gap.is_of(part))).collect();
    if of_part.len() > GAPS_MAX {
        // What lies between the two is then read as if it might be missing.
        let second = of_part.remove(1);
        let merged = gaps.remove(second);
        if let Some(first) = of_part.first().and_then(|at| gaps.get_mut(*at)) {
            first.to = merged.to;
        }
    }
}

/// Forgets those that lie wholly before `first`.
pub(super) fn forget(gaps: &mut Vec<Gap>, part: Part, first: u64) {
    gaps.retain(|gap| !gap.is_of(part) || gap.to >= first);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_covered() {
        let mut gaps = vec![];
        add(&mut gaps, Part::Audit, 3, 5);
        add(&mut gaps, Part::Events, 1, 100);
        add(&mut gaps, Part::Audit, 6, 7);
        add(&mut gaps, Part::Audit, 10, 12);
        assert_eq!(gaps.len(), 3, "adjoining ones are one");
        assert!(cover(&gaps, Part::Audit, 3, 7));
        assert!(cover(&gaps, Part::Audit, 4, 5));
        assert!(cover(&gaps, Part::Audit, 11, 10), "nothing");
        assert!(!cover(&gaps, Part::Audit, 2, 4));
        assert!(!cover(&gaps, Part::Audit, 3, 10));
        assert_eq!(within(&gaps, Part::Audit, 7, 10).count(), 2);
        forget(&mut gaps, Part::Audit, 8);
        assert_eq!(within(&gaps, Part::Audit, 0, 100).count(), 1);
        assert_eq!(within(&gaps, Part::Events, 0, 100).count(), 1);
    }

    #[test]
    fn there_are_never_too_many() {
        let mut gaps = vec![];
        for n in 0..1000 {
            add(&mut gaps, Part::Versions, n * 10, n * 10 + 1);
        }
        assert_eq!(gaps.len(), GAPS_MAX);
        assert!(cover(&gaps, Part::Versions, 0, 1), "none is forgotten");
        assert!(cover(&gaps, Part::Versions, 9990, 9991));
    }
}
