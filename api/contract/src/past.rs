//! What is no longer in the state: what has left memory, and what was before.

use std::sync::Arc;

use futures::future::BoxFuture;
use palisade_state::{Stamp, View, audit::AuditRecord, outbox::Event, past::Kept};

use crate::error::Result;

/// A moment of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When this revision was the newest.
    Revision(u64),
    /// By the cluster's clock, Unix milliseconds: the last revision at that time or before it.
    Time(u64),
}

impl std::str::FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Revision).map_err(|_| "is out of range".to_owned());
        }
        let wrong = "must be a revision or a time, such as 4711 or 2026-11-30T02:10:00Z";
        let time: jiff::Timestamp = text.parse().map_err(|_| wrong.to_owned())?;
        // Of a part of a millisecond nothing is known: what was at its beginning was at it.
        let ms = u64::try_from(time.as_millisecond()).map_err(|_| wrong.to_owned())?;
        Ok(Self::Time(ms))
    }
}

/// How far a replica's history reaches: the first number that is kept and the last one, in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Audit records; absent: none are known.
    pub audit: Option<(u64, u64)>,
    /// Events.
    pub events: Option<(u64, u64)>,
}

/// A version that a record had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The record's key.
    pub key: Vec<u8>,
    /// When it began.
    pub stamp: Stamp,
    /// Its bytes.
    pub value: Vec<u8>,
    /// The revision that replaced or deleted it.
    pub ended_rev: u64,
}

/// Versions that have ended.
#[derive(Clone, Debug)]
pub struct Lives {
    /// By key and age.
    pub lives: Vec<Life>,
    /// A view that is not older than any of them.
    pub view: View,
    /// What ended at this revision or later is here.
    pub from_revision: u64,
    /// Ranges of revisions of which it is not known here what ended in them.
    pub gaps: Vec<(u64, u64)>,
}

/// Which versions are wanted, by key and bytes.
pub type Wanted = Arc<dyn Fn(&[u8], &[u8]) -> bool + Send + Sync>;

/// What has left memory, and what was before, as far as this replica keeps it. Each replica keeps its own, which may begin
/// late or lack a range; what is not known for certain is refused.
pub trait History: Send + Sync {
    /// How far it reaches.
    fn reach(&self) -> Reach;

    /// Audit records from a number on, in order. One that is not kept is left out: the numbers tell.
    fn audit(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<AuditRecord>>>;

    /// Events from a number on, in order, with their numbers.
    fn events(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<(u64, Event)>>>;

    /// The view that was, of these tables alone.
    fn view_at(&self, when: When, tables: Vec<Kept>) -> BoxFuture<'static, Result<View>>;

    /// The versions of a table's rows that have ended.
    fn lives(&self, table: &'static str, wanted: Wanted) -> BoxFuture<'static, Result<Lives>>;

    /// When revisions were, Unix milliseconds, as far as that is known.
    fn times(&self, revisions: Vec<u64>) -> BoxFuture<'static, Result<Vec<Option<u64>>>>;
}

/// The key with which the cluster signs what it says of its audit chain (Ed25519). It never leaves the process.
pub trait Seal: Send + Sync {
    /// The public key.
    fn public(&self) -> [u8; 32];

    /// A signature.
    fn sign(&self, message: &[u8]) -> [u8; 64];
}

#[cfg(test)]
mod tests {
    use super::When;

    #[test]
    fn a_moment_is_a_revision_or_a_time() {
        assert_eq!("4711".parse(), Ok(When::Revision(4711)));
        assert_eq!("1970-01-01T00:00:01.0029Z".parse(), Ok(When::Time(1_002)));
        assert_eq!("1970-01-01T01:00:00+01:00".parse(), Ok(When::Time(0)));
        for text in ["", "-1", "yesterday", "2026-11-30", "1969-12-31T23:59:59Z", "1e3"] {
            assert!(text.parse::<When>().is_err(), "{text}");
        }
        assert!("99999999999999999999".parse::<When>().unwrap_err().contains("range"));
    }
}
