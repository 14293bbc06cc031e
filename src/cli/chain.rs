//! The hash of an audit record, from its JSON: what the cluster computes, computed again here.

use palisade_state::{audit::AuditRecord, command::AuditDraft};
use prost::Message;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::output::{number, text};

/// The hash, hex, or `None` when something is missing.
pub(super) fn hash(record: &Value) -> Option<String> {
    let at = text(record, "/at")?.parse::<jiff::Timestamp>().ok()?;
    let get = |pointer: &str| text(record, pointer).unwrap_or_default().to_owned();
    let prev_hash = hex::decode(get("/prevHash")).ok()?;
    let body = AuditDraft {
        actor: get("/actor"),
        method: get("/method"),
        resource: get("/resource"),
        tenant: get("/tenant"),
        outcome: get("/outcome"),
        request_id: get("/requestId"),
    };
    // AUDIT-1: the canonical bytes are the record's without its hashes.
    let canonical = AuditRecord {
        seq: number(record, "/seq"),
        revision: number(record, "/revision"),
        at_ms: u64::try_from(at.as_millisecond()).ok()?,
        body: Some(body),
        prev_hash: vec![],
        hash: vec![],
    };
    let mut hasher = Sha256::new();
    hasher.update(prev_hash);
    hasher.update(canonical.encode_to_vec());
    Some(hex::encode(hasher.finalize()))
}
