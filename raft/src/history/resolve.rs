//! Which versions ended in a batch: what its transactions wrote, against what was there before it.

use std::{collections::BTreeMap, sync::Arc};

use palisade_state::{
    Stamp,
    command::{Kind, Write},
};

use super::{
    book::{Ended, Moment, Range},
    feed::Batch,
};

type RowId = (Arc<str>, Vec<u8>);

/// The rows that a batch has written so far; `None`: deleted.
type Written = BTreeMap<RowId, Option<(Stamp, Vec<u8>)>>;

/// Index rows are not kept: they follow from the records.
fn is_kept(table: &str) -> bool {
    !table.contains('#')
}

fn write(
    row: Write,
    index: u64,
    at_ms: u64,
    batch: &Batch,
    written: &mut Written,
    out: &mut Range,
) {
    if !is_kept(&row.table) {
        return;
    }
    let id: RowId = (row.table.into(), row.key);
    let before = match written.remove(&id) {
        Some(before) => before,
        None => {
            let record = batch.before.row(&id.0, &id.1);
            record.map(|record| (record.stamp(), record.value().to_vec()))
        }
    };
    let after = row.value.map(|value| {
        let (created_rev, version) =
            before.as_ref().map_or((index, 1), |(old, _)| (old.created_rev, old.version + 1));
        (Stamp { created_rev, modified_rev: index, version }, value)
    });
    // One that was written and replaced in one revision was never seen.
    if let Some((stamp, value)) = before
        && stamp.modified_rev < index
    {
        let (table, key) = id.clone();
        out.versions.push(Ended { table, key, stamp, value, ended_rev: index, ended_ms: at_ms });
    }
    written.insert(id, after);
}

/// The versions that ended in a batch.
pub(super) fn resolve(mut batch: Batch) -> Range {
    let mut at = batch.before.clock();
    let mut out = Range { first: batch.first, last: batch.last, ..Range::default() };
    let mut written = Written::new();
    for entry in std::mem::take(&mut batch.entries) {
        let Ok(decoded) = entry.payload.decode() else {
            // Apply has read it; that this cannot is a gap in nothing but a machine that is failing.
            tracing::error!(index = entry.index, "an applied entry cannot be read for history");
            continue;
        };
        at = entry.clock;
        out.moments.push(Moment { revision: entry.index, clock: at });
        for (command, applied) in decoded.commands.into_iter().zip(entry.applied) {
            if let (Some(Kind::Txn(txn)), true) = (command.kind, applied) {
                for row in txn.writes {
                    write(row, entry.index, at.wall_ms, &batch, &mut written, &mut out);
                }
            }
        }
    }
    // Entries behind the last one that changed rows are as good as it.
    out.moments.push(Moment { revision: batch.last, clock: at });
    out
}
