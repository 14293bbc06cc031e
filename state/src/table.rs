//! Typed tables over the kernel's rows.
//!
//! Records are self-describing (JSON): a reader of the previous or the next minor version skips
//! fields that it does not know and defaults those that are missing.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    key::{Key, KeyBytes, after_prefix, joined},
    lenient,
    past::Kept,
    record::{Record, Stamp},
    view::View,
};

/// A record that cannot be read as what its table holds.
#[derive(Debug, thiserror::Error)]
#[error("row {key} of table {table} cannot be read")]
pub struct Corrupt {
    /// The table.
    pub table: String,
    /// The key, lossily.
    pub key: String,
    /// Why; absent: the key is not one of this table's.
    #[source]
    pub source: Option<serde_json::Error>,
}

/// A secondary index: an ordered set of (index key, primary key) rows in a table of its own.
#[derive(Debug)]
pub struct Index<V> {
    /// Its name within the table.
    pub name: &'static str,
    /// The index keys of a record; they may hold no zero byte.
    pub keys: fn(&V) -> Vec<String>,
}

/// A typed table.
#[derive(Debug)]
pub struct Table<K, V: 'static> {
    name: &'static str,
    indexes: &'static [Index<V>],
    types: PhantomData<fn() -> (K, V)>,
}

/// Reads the row of a table by its key and value, and writes its record again.
type Read = fn(&'static str, &[u8], &[u8]) -> Result<Vec<u8>, Corrupt>;

/// A table without its types: its name, and whether rows are of it.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    name: &'static str,
    read: Read,
}

impl Declared {
    /// The table's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The record of a row as this release would write it.
    ///
    /// # Errors
    /// The key or the value is none of this table.
    pub fn read(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Corrupt> {
        (self.read)(self.name, key, value)
    }
}

/// A record with the stamp of its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<V> {
    /// The record.
    pub value: V,
    /// When it was written.
    pub stamp: Stamp,
}

impl<K: Key, V: Serialize + DeserializeOwned> Table<K, V> {
    /// A table with its secondary indexes.
    #[must_use]
    pub const fn new(name: &'static str, indexes: &'static [Index<V>]) -> Self {
        Self { name, indexes, types: PhantomData }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The table without its types, as a module declares it.
    #[must_use]
    pub const fn declared(&self) -> Declared {
        Declared {
            name: self.name,
            read: |name, key, value| {
                let table = Self::new(name, &[]);
                table.read_key(key)?;
                let value = table.read_value(key, value)?;
                serde_json::to_vec(&value).map_err(|source| table.corrupt(key, Some(source)))
            },
        }
    }

    /// What it takes to read the table as it was.
    #[must_use]
    pub fn kept(&self) -> Kept
    where
        K: 'static,
    {
        let (table, indexes) = (self.name, self.indexes);
        Kept::new(table, move |key, value| {
            let read = Self::new(table, indexes).read_value(key, value)?;
            let rows = |index: &Index<V>| {
                let name = format!("{table}#{}", index.name);
                let keys = (index.keys)(&read).into_iter();
                keys.map(|text| (name.clone(), joined(&[text.as_bytes(), key]))).collect::<Vec<_>>()
            };
            Ok(indexes.iter().flat_map(rows).collect())
        })
    }

    pub(crate) fn indexes(&self) -> &'static [Index<V>] {
        self.indexes
    }

    pub(crate) fn index_table(&self, index: &str) -> String {
        format!("{}#{index}", self.name)
    }

    pub(crate) fn read(&self, key: &[u8], record: &Record) -> Result<Versioned<V>, Corrupt> {
        Ok(Versioned { value: self.read_value(key, record.value())?, stamp: record.stamp() })
    }

    /// A record from its bytes.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read_value(&self, key: &[u8], value: &[u8]) -> Result<V, Corrupt> {
        let strictly = match serde_json::from_slice(value) {
            Ok(read) => return Ok(read),
            Err(error) => error,
        };
        // Seldom: the next release has written it. What is wrong in another way stays so.
        let is_newer = strictly.is_data() && strictly.to_string().starts_with("unknown field");
        let later = is_newer.then(|| serde_json::from_slice(value).ok()).flatten();
        let later = later.and_then(|later| lenient::read(&later).ok());
        later.ok_or_else(|| self.corrupt(key, Some(strictly)))
    }

    pub(crate) fn read_key(&self, key: &[u8]) -> Result<K, Corrupt> {
        K::decode(key).ok_or_else(|| self.corrupt(key, None))
    }

    fn corrupt(&self, key: &[u8], source: Option<serde_json::Error>) -> Corrupt {
        Corrupt {
            table: self.name.to_owned(),
            key: String::from_utf8_lossy(key).into_owned(),
            source,
        }
    }

    /// One record.
    ///
    /// # Errors
    /// The row cannot be read.
    pub fn get(&self, view: &View, key: &K) -> Result<Option<Versioned<V>>, Corrupt> {
        let key = key.to_key();
        view.row(self.name, &key).map(|record| self.read(&key, record)).transpose()
    }

    /// All records in key order.
    ///
    /// # Errors
    /// A row cannot be read.
    pub fn all(&self, view: &View) -> Result<Vec<(K, Versioned<V>)>, Corrupt> {
        self.page(view, &[], None).collect()
    }

    /// The records whose keys begin with `prefix`.
    ///
    /// # Errors
    /// A row cannot be read.
    pub fn with_prefix(
        &self,
        view: &View,
        prefix: &[u8],
    ) -> Result<Vec<(K, Versioned<V>)>, Corrupt> {
        let end = after_prefix(prefix);
        self.page(view, prefix, end.as_deref()).collect()
    }

    /// The records from `start` to before `end`, lazily.
    pub fn page<'a>(
        &'a self,
        view: &'a View,
        start: &'a [u8],
        end: Option<&'a [u8]>,
    ) -> impl Iterator<Item = Result<(K, Versioned<V>), Corrupt>> + 'a {
        view.rows(self.name, start, end)
            .map(|(key, record)| Ok((self.read_key(key)?, self.read(key, record)?)))
    }

    /// The primary keys that an index has under exactly `index_key`: none under one that no record
    /// can have.
    pub(crate) fn index_range(index_key: &str) -> (KeyBytes, Option<KeyBytes>) {
        if index_key.contains('\0') {
            return (KeyBytes::new(), Some(KeyBytes::new()));
        }
        let start = joined(&[index_key.as_bytes(), &[]]);
        let end = after_prefix(&start);
        (start, end)
    }

    /// The records whose keys come behind `key`, lazily and in key order; behind an empty one: all.
    pub fn behind<'a>(
        &'a self,
        view: &'a View,
        key: &str,
    ) -> impl Iterator<Item = Result<(K, Versioned<V>), Corrupt>> + use<'a, K, V> {
        let mut start = key.as_bytes().to_vec();
        if !start.is_empty() {
            // The least key that is greater.
            start.push(0);
        }
        view.rows_from(self.name, start)
            .map(|(key, record)| Ok((self.read_key(key)?, self.read(key, record)?)))
    }

    /// The records that an index has under exactly `index_key`, by primary key.
    ///
    /// # Errors
    /// A row cannot be read.
    pub fn by_index(
        &self,
        view: &View,
        index: &str,
        index_key: &str,
    ) -> Result<Vec<(K, Versioned<V>)>, Corrupt> {
        self.by_index_behind(view, index, index_key, "").collect()
    }

    /// The records that an index has under exactly `index_key`, whose primary keys come behind `key`, lazily and in
    /// their order; behind an empty one: all.
    pub fn by_index_behind<'a>(
        &'a self,
        view: &'a View,
        index: &str,
        index_key: &str,
        key: &str,
    ) -> impl Iterator<Item = Result<(K, Versioned<V>), Corrupt>> + use<'a, K, V> {
        let (prefix, end) = Self::index_range(index_key);
        let mut start = prefix.to_vec();
        if !key.is_empty() {
            start.extend_from_slice(key.as_bytes());
            start.push(0);
        }
        let table = self.index_table(index);
        view.rows_from(&table, start)
            .take_while(move |(row, _)| end.as_ref().is_none_or(|end| row < &end))
            .filter_map(move |(row, _)| {
                let key = row.get(prefix.len()..)?;
                let record = view.row(self.name, key)?;
                Some(self.read(key, record).and_then(|value| Ok((self.read_key(key)?, value))))
            })
    }

    /// All records in the order of an index of which each has one key, lazily, behind an index key; behind an empty one: from
    /// the first.
    pub fn in_order_of<'a>(
        &'a self,
        view: &'a View,
        index: &str,
        after: &str,
    ) -> impl Iterator<Item = Result<(K, Versioned<V>), Corrupt>> + use<'a, K, V> {
        let start = match after {
            "" => KeyBytes::new(),
            // What comes behind all rows of that index key; of a key that cannot be, nothing.
            after => Self::index_range(after).1.unwrap_or_default(),
        };
        view.rows_from(&self.index_table(index), start.to_vec()).filter_map(move |(row, _)| {
            let at = row.iter().position(|byte| *byte == 0)?;
            let key = row.get(at + 1..)?;
            let record = view.row(self.name, key)?;
            Some(self.read(key, record).and_then(|value| Ok((self.read_key(key)?, value))))
        })
    }
}
