//! The lines of an export: signed statements, and records.

use palisade_contract::{When, time::rfc3339};
use palisade_state::{audit::AuditRecord, command::AuditDraft};
use serde::{Deserialize, Serialize};

/// One line, JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Line {
    /// What the records behind it are, signed.
    Export {
        /// The signed note.
        note: String,
    },
    /// A record.
    Record(Box<Entry>),
    /// The head of the chain behind the record before it, signed.
    Checkpoint {
        /// The signed note.
        note: String,
    },
}

/// A record of the audit chain, as REST has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Its place in the chain.
    pub seq: u64,
    /// The revision that it describes.
    pub revision: u64,
    /// When, by the cluster's clock.
    pub at: String,
    /// Who.
    pub actor: String,
    /// What.
    pub method: String,
    /// On what.
    pub resource: String,
    /// Whose.
    pub tenant: String,
    /// `ok` or an error's code.
    pub outcome: String,
    /// The request.
    pub request_id: String,
    /// The hash of the record before, hex.
    pub prev_hash: String,
    /// Its hash, hex.
    pub hash: String,
}

impl From<&AuditRecord> for Entry {
    fn from(record: &AuditRecord) -> Self {
        let body = record.body.clone().unwrap_or_default();
        Self {
            seq: record.seq,
            revision: record.revision,
            at: rfc3339(record.at_ms),
            actor: body.actor,
            method: body.method,
            resource: body.resource,
            tenant: body.tenant,
            outcome: body.outcome,
            request_id: body.request_id,
            prev_hash: hex::encode(&record.prev_hash),
            hash: hex::encode(&record.hash),
        }
    }
}

impl Entry {
    /// The record, if every field is one.
    #[must_use]
    pub fn record(&self) -> Option<AuditRecord> {
        let Ok(When::Time(at_ms)) = self.at.parse() else { return None };
        let body = AuditDraft {
            actor: self.actor.clone(),
            method: self.method.clone(),
            resource: self.resource.clone(),
            tenant: self.tenant.clone(),
            outcome: self.outcome.clone(),
            request_id: self.request_id.clone(),
        };
        Some(AuditRecord {
            seq: self.seq,
            revision: self.revision,
            at_ms,
            body: Some(body),
            prev_hash: hex::decode(&self.prev_hash).ok()?,
            hash: hex::decode(&self.hash).ok()?,
        })
    }
}

impl Line {
    /// Its text, with the line feed.
    ///
    /// # Errors
    /// It cannot be written as JSON, which does not happen.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string(self)? + "\n")
    }
}
