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

/// Changes on their way into messages.
struct Open {
    before: u64,
    changes: wire::Changes,
    bytes: usize,
    full: Vec<Bytes>,
}

impl Open {
    /// Makes room for one more change of this size: a message that is full is closed.
    fn take(&mut self, bytes: usize) -> &mut wire::Changes {
        if self.bytes > 0 && self.bytes + bytes > MESSAGE_BYTES_MAX {
            let part = wire::Changes { revision: self.before, ..std::mem::take(&mut self.changes) };
            self.full.push(encoded(Event::Changes(part)));
            self.bytes = 0;
        }
        self.bytes += bytes;
        &mut self.changes
    }

    /// All messages; the last one names the revision.
    fn close(mut self, revision: u64) -> Vec<Bytes> {
        let last = wire::Changes { revision, ..self.changes };
        self.full.push(encoded(Event::Changes(last)));
        self.full
    }
}

/// What changed, as it is in `view`; `before` is what the message before had told.
pub(super) fn changes(topic: &Topic, gathered: &Gathered, view: &View, before: u64) -> Vec<Bytes> {
    let mut open = Open { before, changes: wire::Changes::default(), bytes: 0, full: vec![] };
    match topic {
        Topic::Rows { table, .. } => {
            for key in &gathered.rows {
                let row = row(view, table, key);
                let bytes = row.key.len() + row.value.as_ref().map_or(0, Bytes::len) + 16;
                open.take(bytes).rows.push(row);
            }
        }
        Topic::Work { kind } => {
            for key in &gathered.work {
                let generation = view.work(kind, key).map_or(0, |row| row.generation);
                let change = wire::WorkChange { key: key.to_string(), generation };
                open.take(key.len() + 16).work.push(change);
            }
        }
    }
    open.close(view.revision())
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

#[cfg(test)]
mod tests {
    use palisade_state::Machine;

    use super::*;

    #[test]
    fn much_work_is_told_in_several_messages_of_which_the_last_names_the_revision() {
        let view = Machine::default().published().view();
        let names = (0..10_000).map(|n| format!("{n:0512}").into());
        let gathered = Gathered { work: names.collect(), ..Gathered::default() };
        let topic = Topic::Work { kind: "k".to_owned() };
        let messages = changes(&topic, &gathered, &view, 7);
        assert!(messages.iter().all(|message| message.len() <= MESSAGE_BYTES_MAX + 1024));
        let told: Vec<wire::Changes> = messages
            .into_iter()
            .map(|message| match wire::WatchReply::decode(message).unwrap().event.unwrap() {
                Event::Changes(changes) => changes,
                Event::Reset(reset) => panic!("{reset:?}"),
            })
            .collect();
        let (last, others) = told.split_last().unwrap();
        assert!(others.len() >= 4 && others.iter().all(|part| part.revision == 7));
        assert_eq!(last.revision, view.revision());
        let keys: Vec<&String> =
            told.iter().flat_map(|part| &part.work).map(|change| &change.key).collect();
        assert!(keys.len() == 10_000 && keys.is_sorted());
        let nothing = changes(&topic, &Gathered::default(), &view, 7);
        assert_eq!(nothing.len(), 1, "it says where it begins");
    }
}
