//! Cursors: how far a consumer of the outbox has read.
//!
//! A consumer that belongs to the cluster keeps its cursor as a record, in the transaction that does
//! what the events asked for. One outside holds a cursor as text, which names the cluster: sequence
//! numbers go on after a restore, but not with the same events.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    table::Table,
    tx::{Tx, TxError},
    view::View,
};

/// The cursors of consumers that belong to the cluster, by the consumer's name.
pub const CURSORS: Table<String, CursorRow> = Table::new("kernel.cursors", &[]);

/// How far a consumer has read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CursorRow {
    /// The last event that it is done with; 0: none.
    pub seq: u64,
}

/// The last event that `consumer` is done with; 0: none.
///
/// # Errors
/// Its record cannot be read.
pub fn position(tx: &mut Tx, consumer: &str) -> Result<u64, TxError> {
    Ok(tx.get(&CURSORS, &consumer.to_owned())?.map_or(0, |row| row.seq))
}

/// Notes that `consumer` is done with every event up to `seq`. It never goes back.
///
/// # Errors
/// Its record cannot be read, or there is no such event yet.
pub fn advance(tx: &mut Tx, consumer: &str, seq: u64) -> Result<(), TxError> {
    let last = tx.view().last_event();
    if seq > last {
        return Err(TxError::Invalid(format!(
            "{consumer} cannot be done with event {seq}, the last one is {last}"
        )));
    }
    if seq > position(tx, consumer)? {
        tx.put(&CURSORS, &consumer.to_owned(), &CursorRow { seq })?;
    }
    Ok(())
}

/// A cursor that somebody outside holds; its text is `<seq>@<cluster>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The cluster whose events it counts.
    pub cluster: String,
    /// The last event that was read; 0: none.
    pub seq: u64,
}

/// Why a cursor leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CursorError {
    /// Its text is not one.
    #[error("{text:?} is not a cursor, which looks like 1042@cl_…: begin without one")]
    Unreadable {
        /// What was given.
        text: String,
    },
    /// Of another cluster, or of this one before a restore.
    #[error(
        "the cursor is of cluster {theirs}, this is {ours}: read everything again and begin without a cursor"
    )]
    OtherCluster {
        /// The cluster that it names.
        theirs: String,
        /// This one.
        ours: String,
    },
    /// Ahead of the last event.
    #[error(
        "the cursor is at {seq}, the last one here is {last}: ask a replica that is further on"
    )]
    Ahead {
        /// Where it is.
        seq: u64,
        /// The last event or record.
        last: u64,
    },
    /// What follows it has left memory.
    #[error(
        "the cursor is at {seq}, and the oldest in memory is {first}: what is between has left memory, so read everything again and begin at {first}"
    )]
    Behind {
        /// Where it is.
        seq: u64,
        /// The oldest in memory.
        first: u64,
    },
}

impl Cursor {
    /// A cursor behind the event `seq` of a view.
    #[must_use]
    pub fn at(view: &View, seq: u64) -> Self {
        let cluster = view.formation().map(|formation| formation.cluster.clone());
        Self { cluster: cluster.unwrap_or_default(), seq }
    }

    /// The first event to read from a view, one more than the last when there is none yet.
    ///
    /// # Errors
    /// The cursor is of another cluster, ahead of the view, or behind what it still has.
    pub fn next(&self, view: &View) -> Result<u64, CursorError> {
        self.next_among(view, view.first_event(), view.last_event())
    }

    /// The same for other records that a view numbers from 1 on: `first` is the oldest that it has.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn next_among(
        &self,
        view: &View,
        first: Option<u64>,
        last: u64,
    ) -> Result<u64, CursorError> {
        let ours = Self::at(view, 0).cluster;
        if self.cluster != ours {
            let theirs = self.cluster.chars().take(100).collect();
            return Err(CursorError::OtherCluster { theirs, ours });
        }
        let (seq, first) = (self.seq, first.unwrap_or(last + 1));
        if seq > last {
            Err(CursorError::Ahead { seq, last })
        } else if seq + 1 < first {
            Err(CursorError::Behind { seq, first })
        } else {
            Ok(seq + 1)
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.seq, self.cluster)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let parsed = text.split_once('@').filter(|(_, cluster)| !cluster.is_empty());
        let number = |seq: &str| seq.bytes().all(|b| b.is_ascii_digit()).then(|| seq.parse().ok());
        parsed
            .and_then(|(seq, cluster)| {
                Some(Self { cluster: cluster.to_owned(), seq: number(seq).flatten()? })
            })
            .ok_or_else(|| CursorError::Unreadable { text: text.chars().take(100).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_its_text() {
        let cursor = Cursor { cluster: "cl_1".into(), seq: 1042 };
        assert_eq!(cursor.to_string(), "1042@cl_1");
        assert_eq!("1042@cl_1".parse(), Ok(cursor));
        for text in ["", "@", "7", "7@", "@cl", "+7@cl", "-1@cl", "99999999999999999999@cl"] {
            let error = text.parse::<Cursor>().unwrap_err();
            assert!(error.to_string().contains("is not a cursor"), "{error}");
        }
    }
}
