//! H1: what a replica's history says of an earlier revision is what states of that revision were.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::FutureExt;
use palisade_raft::history::{HistoryError, OldRow, RangeOf};
use palisade_state::View;

use super::{clients::TABLE, eyes::Breach, nodes::lock, world::World};

/// One state in so many is remembered.
const EVERY: u64 = 64;
const ROWS_MAX: usize = 1_000;

/// States that were seen, by their revision; of all replicas, which are alike (`S1`).
#[derive(Default)]
pub(crate) struct Past(Mutex<BTreeMap<u64, View>>);

/// What histories answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recalled {
    /// States that were compared.
    pub(crate) right: u64,
    /// Those that a history does not reach.
    pub(crate) unknown: u64,
}

fn differs(view: &View, rows: &[OldRow]) -> Option<String> {
    let mut answered = rows.iter();
    for (key, record) in view.rows(TABLE, b"", None) {
        let name = String::from_utf8_lossy(key.as_slice()).into_owned();
        match answered.next() {
            Some(row) if row.key.as_slice() != key.as_slice() => {
                let other = String::from_utf8_lossy(&row.key);
                return Some(format!("it has {other} where {name} was"));
            }
            Some(row) if row.stamp != record.stamp() || row.value != record.value() => {
                let (version, was) = (row.stamp.version, record.stamp().version);
                return Some(format!("it has version {version} of {name}, which was at {was}"));
            }
            Some(_) => {}
            None => return Some(format!("it lacks {name}")),
        }
    }
    answered.next().map(|row| format!("it has {}", String::from_utf8_lossy(&row.key)))
}

impl Past {
    /// Remembers a state now and then.
    pub(crate) fn saw(&self, view: &View) {
        if view.applied().index.is_multiple_of(EVERY) {
            lock(&self.0).entry(view.revision()).or_insert_with(|| view.clone());
        }
    }

    /// Asks every history for every state.
    pub(crate) async fn judge(&self, world: &Arc<World>) -> (Recalled, Vec<Breach>) {
        let states = lock(&self.0).clone();
        let (mut recalled, mut breaches) = (Recalled::default(), vec![]);
        for id in world.ids() {
            for (revision, view) in &states {
                let revision = *revision;
                let asked = world.ask(id, move |replica| {
                    async move {
                        let (table, start, end) = (TABLE, b"".as_slice(), None);
                        let range = RangeOf { table, start, end, limit: ROWS_MAX };
                        replica.history().at(revision, range).await
                    }
                    .boxed()
                });
                let why = match asked.await {
                    Some(Ok(rows)) => differs(view, &rows),
                    Some(Err(HistoryError::Damaged(why))) => Some(why),
                    Some(Err(_)) | None => {
                        recalled.unknown += 1;
                        continue;
                    }
                };
                recalled.right += u64::from(why.is_none());
                if let Some(why) = why {
                    let message = format!(
                        "the history of replica {id} is wrong at revision {revision}: {why}"
                    );
                    breaches.push(Breach { check: "H1", message });
                }
            }
        }
        (recalled, breaches)
    }
}

#[cfg(test)]
mod tests {
    use palisade_state::{
        Machine, Position, Txn,
        command::{Entry, Write},
    };

    use super::*;

    fn view() -> View {
        let mut machine = Machine::default();
        for (nth, key) in ["r0", "r1", "r0"].into_iter().enumerate() {
            let (table, key) = (TABLE.to_owned(), key.as_bytes().to_vec());
            let write = Write { table, key, value: Some(vec![nth as u8]) };
            let txn = Txn { writes: vec![write], ..Txn::default() };
            let entry = Entry { proposer_term: 1, commands: vec![txn.into()], ..Entry::default() };
            machine.apply(Position { term: 1, index: nth as u64 + 1 }, entry).unwrap();
        }
        drop(machine.publish());
        machine.published().view()
    }

    fn rows(view: &View) -> Vec<OldRow> {
        let row = |(key, record): (&_, &palisade_state::Record)| OldRow {
            key: palisade_state::key::KeyBytes::as_slice(key).to_vec(),
            stamp: record.stamp(),
            value: record.value().to_vec(),
        };
        view.rows(TABLE, b"", None).map(row).collect()
    }

    #[test]
    fn a_history_that_lacks_a_row_or_has_another_version_of_it_is_found() {
        let view = view();
        let right = rows(&view);
        assert_eq!(differs(&view, &right), None);
        let mut older = right.clone();
        older[0].stamp.version -= 1;
        assert!(differs(&view, &older).unwrap().contains("version 1 of r0, which was at 2"));
        let mut other = right.clone();
        other[1].value = vec![9];
        assert!(differs(&view, &other).is_some());
        assert_eq!(differs(&view, &right[..1]).unwrap(), "it lacks r1");
        assert_eq!(differs(&view, &right[1..]).unwrap(), "it has r1 where r0 was");
        let more =
            [right.clone(), vec![OldRow { key: b"r9".to_vec(), ..right[0].clone() }]].concat();
        assert_eq!(differs(&view, &more).unwrap(), "it has r9");
    }
}
