//! The messages of watches, encoded once for everybody who gets them.

use bytes::Bytes;
use palisade_state::View;
use prost::Message;

use super::{batch::Gathered, hub::Topic};
use crate::peer::wire::{self, watch_reply::Event};

/// About how many bytes one message holds, at most; a single row may be larger.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

fn encoded(event: Event) -> Bytes {
    wire::WatchReply { event: Some(event) }.encode_to_vec().into()
}

/// That changes were left out.
pub(super) fn reset(view: &View) -> Bytes {
    encoded(Event::Reset(wire::Reset { revision: view.revision() }))
}

/// What changed, as it is in `view`; `before` is what the message before had told.
pub(super) fn changes(topic: &Topic, gathered: &Gathered, view: &View, before: u64) -> Vec<Bytes> {
    let mut messages = vec![];
    let mut open = wire::Changes { revision: before, ..wire::Changes::default() };
    match topic {
        Topic::Rows { table, .. } => {
            let mut bytes = 0;
            for key in &gathered.rows {
                let row = row(view, table, key);
                bytes += row.key.len() + row.value.as_ref().map_or(0, Bytes::len) + 16;
                if bytes > MESSAGE_BYTES_MAX && !open.rows.is_empty() {
                    let rows = std::mem::take(&mut open.rows);
                    let part = wire::Changes { revision: before, rows, work: vec![] };
                    messages.push(encoded(Event::Changes(part)));
                    bytes = 0;
                }
                open.rows.push(row);
            }
        }
        Topic::Work { kind } => {
            let change = |key: &palisade_state::Name| {
                let generation = view.work(kind, key).map_or(0, |row| row.generation);
                wire::WorkChange { key: key.to_string(), generation }
            };
            open.work = gathered.work.iter().map(change).collect();
        }
    }
    open.revision = view.revision();
    messages.push(encoded(Event::Changes(open)));
    messages
}

fn row(view: &View, table: &str, key: &[u8]) -> wire::Change {
    let record = view.row(table, key);
    wire::Change {
        key: Bytes::copy_from_slice(key),
        value: record.map(|record| Bytes::copy_from_slice(record.value())),
        // What is gone was deleted at some revision up to this one.
        modified_rev: record.map_or(view.revision(), |record| record.stamp().modified_rev),
    }
}
