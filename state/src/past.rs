//! The state as it was: a view whose tables have the rows of an earlier revision.
//!
//! # Invariants
//! - `PAST-1` A view of the past has the rows that its tables had then, with their index rows, and nothing of the present:
//!   no other table, no lease, session or work, no event and no audit record.

use std::{fmt, sync::Arc};

use crate::{
    clock::Clock,
    key::KeyBytes,
    record::Record,
    state::{Position, State, TableRows},
    table::Corrupt,
    view::View,
};

/// The index rows of a record: the index's table and the key in it.
type IndexRows = Vec<(String, KeyBytes)>;
type IndexFn = dyn Fn(&[u8], &[u8]) -> Result<IndexRows, Corrupt> + Send + Sync;

/// A table that can be read as it was: its name, and how a row of it becomes index rows again.
#[derive(Clone)]
pub struct Kept {
    table: &'static str,
    index: Arc<IndexFn>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.table).finish()
    }
}

impl Kept {
    pub(crate) fn new(
        table: &'static str,
        index: impl Fn(&[u8], &[u8]) -> Result<IndexRows, Corrupt> + Send + Sync + 'static,
    ) -> Self {
        Self { table, index: Arc::new(index) }
    }

    /// The table's name.
    #[must_use]
    pub fn table(&self) -> &'static str {
        self.table
    }
}

/// A row as it was, where it is another one now or is not there.
#[derive(Clone, Debug)]
pub struct PastRow {
    /// Its key.
    pub key: KeyBytes,
    /// What it was.
    pub record: Record,
}

/// A table and the rows of it that have changed since.
pub type PastTable = (Kept, Vec<PastRow>);

impl View {
    /// The view that was at `revision`, of these tables alone: what has not changed since is taken from this view, which is
    /// not older, and what has from what is given with each table.
    ///
    /// # Errors
    /// A row cannot be read.
    pub fn as_of(
        &self,
        revision: u64,
        clock: Clock,
        tables: &[PastTable],
    ) -> Result<Self, Corrupt> {
        let mut past = State {
            formation: self.state().formation.clone(),
            applied: Position { term: 0, index: revision },
            revision,
            clock,
            ..State::default()
        };
        for (kept, ended) in tables {
            self.table_as_of(&mut past, revision, kept, ended)?;
        }
        Ok(Self::new(Arc::new(past)))
    }

    fn table_as_of(
        &self,
        past: &mut State,
        revision: u64,
        kept: &Kept,
        ended: &[PastRow],
    ) -> Result<(), Corrupt> {
        let present = &self.state().tables;
        let index_prefix = format!("{}#", kept.table);
        for (name, table) in present.iter() {
            if name.as_ref() == kept.table || name.starts_with(&index_prefix) {
                past.tables.insert(name.clone(), table.clone());
            }
        }
        let later: Vec<(KeyBytes, Record)> = present.get(kept.table).map_or(vec![], |table| {
            let changed =
                |(_, record): &(&KeyBytes, &Record)| record.stamp().modified_rev > revision;
            let rows = table.rows.iter().filter(changed);
            rows.map(|(key, record)| (key.clone(), record.clone())).collect()
        });
        for (key, record) in &later {
            remove(past, kept.table, key);
            for (table, row) in (kept.index)(key, record.value())? {
                remove(past, &table, &row);
            }
        }
        for PastRow { key, record } in ended {
            insert(past, kept.table, key, record.clone());
            for (table, row) in (kept.index)(key, record.value())? {
                insert(past, &table, &row, Record::new(record.stamp(), &[]));
            }
        }
        Ok(())
    }
}

fn remove(past: &mut State, table: &str, key: &KeyBytes) {
    if let Some(table) = past.tables.get_mut(table) {
        table.rows.remove(key.as_slice());
    }
}

fn insert(past: &mut State, table: &str, key: &KeyBytes, record: Record) {
    let name = past.table_name(table);
    let table: &mut TableRows = past.table_mut(&name);
    table.changed_rev = table.changed_rev.max(record.stamp().modified_rev);
    table.rows.insert(key.clone(), record);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::executor::block_on;
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::{Index, Table, memory::MemoryStore, port::Store, tx::Tx};

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Pet {
        name: String,
    }

    const PETS: Table<String, Pet> =
        Table::new("pets", &[Index { name: "name", keys: |pet: &Pet| vec![pet.name.clone()] }]);
    const OTHER: Table<String, u64> = Table::new("other", &[]);

    type Shot = (BTreeMap<String, (Pet, u64)>, BTreeMap<String, Vec<String>>);

    /// The rows, and what the index says for each name.
    fn shot(view: &View) -> Shot {
        let all = PETS.all(view).unwrap();
        let names = ["a", "b", "c"].map(|name| {
            let found = PETS.by_index(view, "name", name).unwrap();
            (name.to_owned(), found.into_iter().map(|(key, _)| key).collect())
        });
        let rows = all.into_iter().map(|(key, row)| (key, (row.value, row.stamp.modified_rev)));
        (rows.collect(), names.into_iter().collect())
    }

    fn put(store: &MemoryStore, build: impl FnOnce(&mut Tx)) -> View {
        let mut tx = Tx::new(store.view());
        build(&mut tx);
        let built = tx.build().unwrap();
        assert!(block_on(store.propose(built.into())).unwrap().is_applied());
        store.view()
    }

    proptest! {
        #[test]
        fn any_revision_is_as_it_was(steps in prop::collection::vec((0..4_u8, 0..4_u8), 1..40)) {
            let store = MemoryStore::default();
            let mut was: Vec<View> = vec![];
            for (key, name) in steps {
                let view = put(&store, |tx| {
                    let key = key.to_string();
                    tx.put(&OTHER, &key, &u64::from(name)).unwrap();
                    match ["a", "b", "c"].get(usize::from(name)) {
                        Some(name) => tx.put(&PETS, &key, &Pet { name: (*name).to_owned() }).unwrap(),
                        None => tx.delete(&PETS, &key).unwrap(),
                    }
                });
                was.push(view);
            }
            let now = store.view();
            for then in &was {
                let revision = then.revision();
                // What history has: every row of then that is another one now.
                let changed = then.rows("pets", &[], None).filter(|(key, record)| {
                    now.row("pets", key).is_none_or(|row| row.stamp() != record.stamp())
                });
                let ended = changed.map(|(key, record)| PastRow { key: key.clone(), record: record.clone() });
                let past = now.as_of(revision, then.clock(), &[(PETS.kept(), ended.collect())]).unwrap();
                prop_assert_eq!(shot(&past), shot(then), "at {}", revision);
                prop_assert_eq!((past.revision(), past.clock()), (revision, then.clock()));
                prop_assert_eq!(past.count("other"), 0, "PAST-1");
                prop_assert_eq!(past.last_audit(), 0, "PAST-1");
            }
        }
    }
}
