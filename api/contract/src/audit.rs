//! Audit records as they leave the cluster: who takes them.

use std::sync::Arc;

use futures::future::BoxFuture;
use palisade_state::audit::AuditRecord;

use crate::{context::Context, error::Result};

/// Some of the records of an audit chain, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditBatch {
    /// The life of the cluster whose chain it is: a cluster that was restored under another id goes on with the numbers.
    pub cluster: String,
    /// What is left out before the first record, first and last number: the replica that sends does not know it any more. The chain
    /// of hashes has a gap there.
    pub missing: Option<(u64, u64)>,
    /// The records, as they are in the chain; none, if all that was to be sent is missing.
    pub records: Vec<AuditRecord>,
}

impl AuditBatch {
    /// The last number that it tells of; 0: none.
    #[must_use]
    pub fn last(&self) -> u64 {
        let missing = self.missing.map_or(0, |(_, last)| last);
        self.records.last().map_or(missing, |record| record.seq)
    }
}

/// Takes audit records elsewhere: the code of an extension of kind `audit-sink`.
pub trait AuditSink: Send + Sync {
    /// Takes some records. They come in order, from the oldest that is known when the sink is there for the first time, each at least
    /// once: those that were not said to be taken come again, perhaps with others. An error holds back all that follow, and it is
    /// tried again. It has 30 seconds.
    fn deliver<'a>(&'a self, cx: &'a Context, batch: &'a AuditBatch) -> BoxFuture<'a, Result<()>>;
}

/// A sink with the name that it is registered under.
#[derive(Clone)]
pub struct RegisteredAuditSink {
    /// The id of its extension.
    pub id: &'static str,
    /// The version of its extension.
    pub version: &'static str,
    /// Its code.
    pub sink: Arc<dyn AuditSink>,
}

impl RegisteredAuditSink {
    /// `<id>@<version>`. Another version is another sink, which begins with the oldest record.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}@{}", self.id, self.version)
    }
}
