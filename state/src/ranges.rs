//! Range checks: whether a row entered, left or changed in what a transaction scanned, since its view.
//!
//! # Invariants
//! - `RANGE-1` The answer is that of reading all rows of all ranges and all remembered deletions. What is remembered of
//!   recent changes only spares that reading; and no row is read twice, however many ranges lie over it.

use crate::{command::RangeCheck, key::KeyBytes, recent::Recent, state::State, view::range_of};

/// A part of a table; without an end, it goes to the table's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span<'a> {
    pub(crate) table: &'a str,
    pub(crate) start: &'a [u8],
    pub(crate) end: Option<&'a [u8]>,
}

impl<'a> From<&'a RangeCheck> for Span<'a> {
    fn from(range: &'a RangeCheck) -> Self {
        let RangeCheck { table, start, end } = range;
        Self { table, start, end: end.as_deref() }
    }
}

/// The spans in order, each key in one of them at most. An empty one holds nothing and is left out.
pub(crate) fn merged<'a>(spans: impl Iterator<Item = Span<'a>>) -> Vec<Span<'a>> {
    let mut spans: Vec<Span<'a>> =
        spans.filter(|span| span.end.is_none_or(|end| span.start < end)).collect();
    spans.sort_unstable();
    let mut merged: Vec<Span<'a>> = Vec::with_capacity(spans.len());
    for span in spans {
        match merged.last_mut() {
            Some(last)
                if last.table == span.table && last.end.is_none_or(|end| span.start < end) =>
            {
                last.end = last.end.zip(span.end).map(|(one, other)| one.max(other));
            }
            _ => merged.push(span),
        }
    }
    merged
}

/// Which of the merged spans holds a key.
fn over(spans: &[Span<'_>], table: &str, key: &[u8]) -> Option<usize> {
    let after = spans.partition_point(|span| (span.table, span.start) <= (table, key));
    let at = after.checked_sub(1)?;
    let span = spans.get(at)?;
    (span.table == table && span.end.is_none_or(|end| key < end)).then_some(at)
}

/// The first of the merged spans in which something is not as it was in the view.
pub(crate) fn first_changed<'a>(
    state: &State,
    recent: &Recent,
    spans: &[Span<'a>],
    view_rev: u64,
) -> Option<Span<'a>> {
    let first = spans.first()?;
    if view_rev < state.deletions.floor {
        return Some(*first);
    }
    let (mut changed, mut reads_deletions, mut begin) = (None, false, 0);
    for of_table in spans.chunk_by(|one, other| one.table == other.table) {
        let table = of_table.first()?.table;
        let at = match recent.since(table, view_rev) {
            Some(mut keys) => first_over(of_table, table, &mut keys),
            None => {
                reads_deletions = true;
                of_table.iter().position(|span| is_any_newer(state, span, view_rev))
            }
        };
        if let Some(at) = at {
            changed = Some(begin + at);
            break;
        }
        begin += of_table.len();
    }
    let gone = reads_deletions.then(|| {
        let deleted = state.deletions.since(view_rev);
        deleted.filter_map(|(table, key)| over(spans, table, key)).min()
    });
    let at = changed.into_iter().chain(gone.flatten()).min();
    debug_assert!(
        is_long(state, spans) || at.is_some() == is_changed(state, spans, view_rev),
        "RANGE-1: not what a scan answers"
    );
    spans.get(at?).copied()
}

/// Too long for every check to be made a second time, as a scan.
fn is_long(state: &State, spans: &[Span<'_>]) -> bool {
    let rows = |span: &Span<'_>| state.tables.get(span.table).map_or(0, |table| table.rows.len());
    spans.iter().map(rows).sum::<usize>() + state.deletions.by_row.len() > 512
}

/// The answer, from all rows and all remembered deletions.
fn is_changed(state: &State, spans: &[Span<'_>], view_rev: u64) -> bool {
    let mut gone = state.deletions.since(view_rev);
    let is_there = |span: &Span<'_>| {
        state.tables.get(span.table).is_some_and(|table| {
            range_of(&table.rows, span.start, span.end)
                .any(|(_, record)| record.stamp().modified_rev > view_rev)
        })
    };
    spans.iter().any(is_there) || gone.any(|(table, key)| over(spans, table, key).is_some())
}

fn first_over(
    spans: &[Span<'_>],
    table: &str,
    keys: &mut dyn Iterator<Item = &KeyBytes>,
) -> Option<usize> {
    keys.filter_map(|key| over(spans, table, key)).min()
}

/// Whether a row that is there was put after the view.
fn is_any_newer(state: &State, span: &Span<'_>, view_rev: u64) -> bool {
    state.tables.get(span.table).is_some_and(|table| {
        table.changed_rev > view_rev
            && range_of(&table.rows, span.start, span.end)
                .any(|(_, record)| record.stamp().modified_rev > view_rev)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span<'a>(table: &'a str, start: &'a str, end: Option<&'a str>) -> Span<'a> {
        Span { table, start: start.as_bytes(), end: end.map(str::as_bytes) }
    }

    #[test]
    fn ranges_that_overlap_are_one_and_others_stay_apart() {
        let ranges = [
            span("t", "a", Some("c")),
            span("t", "b", Some("b2")),
            span("t", "c", Some("d")),
            span("t", "b", Some("b")),
            span("s", "a", Some("b")),
            span("s", "a", None),
            span("s", "x", Some("y")),
        ];
        let expected = [span("s", "a", None), span("t", "a", Some("c")), span("t", "c", Some("d"))];
        assert_eq!(merged(ranges.into_iter()), expected);
    }

    #[test]
    fn a_key_is_found_in_the_one_span_that_holds_it() {
        let spans = [span("s", "b", Some("d")), span("t", "a", Some("b")), span("t", "x", None)];
        let at = |table, key: &str| over(&spans, table, key.as_bytes());
        assert_eq!(
            (at("s", "a"), at("s", "b"), at("s", "cz"), at("s", "d")),
            (None, Some(0), Some(0), None)
        );
        assert_eq!(
            (at("t", "a"), at("t", "b"), at("t", "zz"), at("u", "x")),
            (Some(1), None, Some(2), None)
        );
    }
}
