//! Who wants to know of which keys: found by key, however many watchers there are.
//!
//! The keys of a table are cut at the ends of all watched ranges; each piece knows the ranges over it. A changed key is
//! looked up once. Ranges that lie over each other cost memory in each piece that they share, which the owner bounds by
//! [`Spans::weight`].

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;

/// A watched range of keys; `end` `None`: to the table's end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
}

impl Span {
    /// The span of one key: up to the first key after it.
    pub(crate) fn one(key: &Bytes) -> Self {
        let after = [key.as_ref(), &[0]].concat();
        Self { start: key.clone(), end: Some(after.into()) }
    }

    /// Whether `key` is in it.
    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        *self.start <= *key && self.end.as_ref().is_none_or(|end| **end > *key)
    }

    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// The spans of one table, by numbers that their owner gave them.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// Where each piece begins, and the spans over it, in order.
    pieces: BTreeMap<Bytes, Vec<u64>>,
    /// Spans in all pieces.
    weight: usize,
}

impl Spans {
    /// The spans that hold `key`.
    pub(crate) fn over(&self, key: &[u8]) -> &[u64] {
        let below = (Bound::Unbounded, Bound::Included(key));
        let piece = self.pieces.range::<[u8], _>(below).next_back();
        piece.map_or(&[], |(_, spans)| spans)
    }

    /// How many times spans lie over pieces: what all this costs.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// By how much a span would add to the weight.
    pub(crate) fn weight_of(&self, span: &Span) -> usize {
        if span.is_empty() {
            return 0;
        }
        let cut = |key: &Bytes| {
            if self.pieces.contains_key(key) { 0 } else { self.over(key).len() }
        };
        let end = span.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let under = self.pieces.range::<[u8], _>((Bound::Included(span.start.as_ref()), end));
        let is_cut = usize::from(!self.pieces.contains_key(&span.start));
        cut(&span.start) + span.end.as_ref().map_or(0, cut) + under.count() + is_cut
    }

    /// Makes a piece begin at `key`.
    fn cut(&mut self, key: &Bytes) {
        if !self.pieces.contains_key(key) {
            let spans = self.over(key).to_vec();
            self.weight += spans.len();
            self.pieces.insert(key.clone(), spans);
        }
    }

    /// Whether the pieces on both sides of `key` are alike; then they are one.
    fn heal(&mut self, key: &Bytes) {
        let below = (Bound::Unbounded, Bound::Excluded(key.as_ref()));
        let before = self.pieces.range::<[u8], _>(below).next_back();
        let before = before.map_or(&[][..], |(_, spans)| spans);
        if self.pieces.get(key).is_some_and(|spans| spans == before)
            && let Some(spans) = self.pieces.remove(key)
        {
            self.weight -= spans.len();
        }
    }

    fn each(&mut self, span: &Span, mut change: impl FnMut(&mut Vec<u64>)) {
        let end = span.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let pieces = self.pieces.range_mut::<[u8], _>((Bound::Included(span.start.as_ref()), end));
        pieces.for_each(|(_, spans)| change(spans));
    }

    /// Adds a span under a number that is not in use.
    pub(crate) fn insert(&mut self, id: u64, span: &Span) {
        if span.is_empty() {
            return;
        }
        self.cut(&span.start);
        if let Some(end) = &span.end {
            self.cut(end);
        }
        let mut added = 0;
        self.each(span, |spans| {
            let at = spans.partition_point(|other| *other < id);
            spans.insert(at, id);
            added += 1;
        });
        self.weight += added;
    }

    /// Removes a span that was added.
    pub(crate) fn remove(&mut self, id: u64, span: &Span) {
        if span.is_empty() {
            return;
        }
        let mut removed = 0;
        self.each(span, |spans| {
            if let Ok(at) = spans.binary_search(&id) {
                spans.remove(at);
                removed += 1;
            }
        });
        self.weight -= removed;
        self.heal(&span.start);
        if let Some(end) = &span.end {
            self.heal(end);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: &str, end: Option<&str>) -> Span {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Span { start: bytes(start), end: end.map(bytes) }
    }

    #[test]
    fn the_span_of_a_key_holds_it_alone() {
        let mut spans = Spans::default();
        spans.insert(1, &Span::one(&Bytes::from_static(b"k")));
        assert_eq!(spans.over(b"k"), [1]);
        assert!(spans.over(b"j").is_empty() && spans.over(b"k\0").is_empty());
    }

    fn key() -> impl Strategy<Value = String> {
        "[a-d]{0,2}"
    }

    proptest! {
        /// As a list of spans, each asked whether it holds the key.
        #[test]
        fn a_key_finds_the_spans_that_hold_it(
            ranges in prop::collection::vec((key(), prop::option::of(key()), any::<bool>()), 0..12),
            asked in prop::collection::vec(key(), 0..12),
        ) {
            let mut spans = Spans::default();
            let mut model = vec![];
            for (id, (start, end, stays)) in ranges.iter().enumerate() {
                let (id, span) = (u64::try_from(id).unwrap(), span(start, end.as_deref()));
                let expected = spans.weight() + spans.weight_of(&span);
                spans.insert(id, &span);
                prop_assert_eq!(spans.weight(), expected);
                prop_assert_eq!(spans.weight(), spans.pieces.values().map(Vec::len).sum::<usize>());
                model.push((id, span, *stays));
            }
            for (id, span, stays) in &model {
                if !stays {
                    spans.remove(*id, span);
                }
            }
            model.retain(|(_, _, stays)| *stays);
            for key in asked {
                let expected: Vec<u64> =
                    model.iter().filter(|(_, span, _)| span.holds(key.as_bytes())).map(|(id, ..)| *id).collect();
                prop_assert_eq!(spans.over(key.as_bytes()), expected);
            }
            for (id, span, _) in &model {
                spans.remove(*id, span);
            }
            prop_assert!(spans.is_empty(), "nothing is left of what was removed");
            prop_assert_eq!(spans.weight(), 0);
        }
    }
}
