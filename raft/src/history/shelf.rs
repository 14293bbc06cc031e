//! Where history is kept: one ordered map of bytes, behind a small trait.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// Keys with what they are to hold; without a value the key goes.
pub(crate) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// What is wrong with a shelf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShelfError {
    /// The disk has no room. Not final.
    #[error("the disk has no room for history")]
    Full,
    /// Somebody else has it open. Not final.
    #[error("the history is in use: {0}")]
    Busy(String),
    /// It does not do what it should: nothing in it can be relied upon.
    #[error("{0}")]
    Broken(String),
}

impl ShelfError {
    /// Whether the same may work later.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Full | Self::Busy(_))
    }
}

pub(crate) type Shelved<T> = Result<T, ShelfError>;

/// An ordered map of bytes. It is trusted for nothing: whoever reads checks what it gets.
pub(crate) trait Shelf: Send + Sync {
    /// One value.
    fn get(&self, key: &[u8]) -> Shelved<Option<Vec<u8>>>;

    /// At most `limit` pairs from `from` to before `to`, in order.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Shelved<Vec<Pair>>;

    /// The last pair from `from` to before `to`.
    fn last(&self, from: &[u8], to: &[u8]) -> Shelved<Option<Pair>>;

    /// All of the changes, or none of them.
    fn write(&self, changes: Changes) -> Shelved<()>;

    /// Returns once everything written survives a power cut.
    fn sync(&self) -> Shelved<()>;
}

/// History that ends with its process; for disks that are simulated.
#[derive(Debug, Default)]
pub(crate) struct MemShelf(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

impl MemShelf {
    fn map(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf for MemShelf {
    fn get(&self, key: &[u8]) -> Shelved<Option<Vec<u8>>> {
        Ok(self.map().get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Shelved<Vec<Pair>> {
        if from >= to {
            return Ok(vec![]);
        }
        let map = self.map();
        let found = map.range(from.to_vec()..to.to_vec()).take(limit);
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Shelved<Option<Pair>> {
        if from >= to {
            return Ok(None);
        }
        let map = self.map();
        let found = map.range(from.to_vec()..to.to_vec()).next_back();
        Ok(found.map(|(key, value)| (key.clone(), value.clone())))
    }

    fn write(&self, changes: Changes) -> Shelved<()> {
        let mut map = self.map();
        for (key, value) in changes {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn sync(&self) -> Shelved<()> {
        Ok(())
    }
}
