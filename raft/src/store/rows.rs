//! Reading rows for the Store service.

use bytes::Bytes;
use palisade_state::{Record, View};

use super::admit;
use crate::{peer::wire, refusal::Refusal};

/// Rows in one answer, at most.
pub(crate) const ROWS_MAX: usize = 10_000;
/// About how many bytes of rows one answer holds, at most; a single row may be larger.
pub(crate) const ROWS_BYTES_MAX: usize = 1024 * 1024;

/// How fresh the rows must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// Whatever the replica has.
    Now,
    /// At least this revision.
    Revision(u64),
    /// Everything acknowledged before the request.
    Linearizable,
}

/// A range of a table that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) table: String,
    pub(crate) start: Bytes,
    pub(crate) end: End,
}

/// Where a range ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is the one key `start`.
    One,
    /// Before this key.
    Before(Bytes),
    /// With the table.
    Open,
}

impl Range {
    /// Checks a range as it came.
    pub(crate) fn checked(
        table: &Bytes,
        start: Bytes,
        end: Option<Bytes>,
    ) -> Result<Self, Refusal> {
        let table = std::str::from_utf8(table)
            .map_err(|_| Refusal::Invalid("the table's name is not UTF-8 text".to_owned()))?;
        admit::check_table(table)?;
        let end = match end {
            None => End::One,
            Some(end) if end.is_empty() => End::Open,
            Some(end) => End::Before(end),
        };
        let last = if let End::Before(end) = &end { Some(end.as_ref()) } else { None };
        admit::check_range(table, &start, last)?;
        Ok(Self { table: table.to_owned(), start, end })
    }
}

pub(crate) fn freshness(request: &wire::ReadRequest) -> At {
    match request.at_revision {
        0 if request.local => At::Now,
        0 => At::Linearizable,
        revision => At::Revision(revision),
    }
}

fn row(key: &[u8], record: &Record) -> wire::Row {
    let stamp = record.stamp();
    wire::Row {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(record.value()),
        created_rev: stamp.created_rev,
        modified_rev: stamp.modified_rev,
        version: stamp.version,
    }
}

/// The rows of `range` in `view`; `limit` 0 is the most there is in one answer.
pub(crate) fn read(view: &View, range: &Range, limit: u32) -> wire::Rows {
    let revision = view.revision();
    let end = match &range.end {
        End::One => {
            let found = view.row(&range.table, &range.start);
            let rows = found.map(|record| row(&range.start, record)).into_iter().collect();
            return wire::Rows { revision, rows, more: false };
        }
        End::Before(end) => Some(end.as_ref()),
        End::Open => None,
    };
    let limit = match usize::try_from(limit) {
        Ok(limit) if limit > 0 => limit.min(ROWS_MAX),
        _ => ROWS_MAX,
    };
    let mut answer = wire::Rows { revision, ..wire::Rows::default() };
    let mut bytes = 0;
    let found = view.rows(&range.table, &range.start, end);
    for (key, record) in found {
        bytes += key.len() + record.value().len();
        if answer.rows.len() == limit || (bytes > ROWS_BYTES_MAX && !answer.rows.is_empty()) {
            answer.more = true;
            break;
        }
        answer.rows.push(row(key, record));
    }
    answer
}
