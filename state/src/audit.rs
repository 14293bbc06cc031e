//! The audit chain: one record for each mutation, each bound to the one before it.
//!
//! # Invariants
//! - `AUDIT-1` `hash = SHA-256(prev_hash ‖ canonical bytes)` and `prev_hash` is the hash of the
//!   record before; the first record's is 32 zero bytes.
//! - `AUDIT-2` Sequence numbers are dense.

use imbl::OrdMap;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::{
    command::AuditDraft,
    limits::{AUDIT_MAX, TRIM_STEP_MAX},
};

/// One record of the chain. Its canonical bytes are its protobuf encoding without the hashes.
#[derive(Clone, PartialEq, Message)]
pub struct AuditRecord {
    /// 1, 2, 3 …
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// The revision that it describes.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// Wall-clock milliseconds of the leader.
    #[prost(uint64, tag = "3")]
    pub at_ms: u64,
    /// Who, what, on what.
    #[prost(message, optional, tag = "4")]
    pub body: Option<AuditDraft>,
    /// The hash of the record before.
    #[prost(bytes = "vec", tag = "5")]
    pub prev_hash: Vec<u8>,
    /// This record's hash.
    #[prost(bytes = "vec", tag = "6")]
    pub hash: Vec<u8>,
}

/// The newest records and the head of the chain.
#[derive(Clone, Debug, Default)]
pub struct AuditChain {
    pub(crate) records: OrdMap<u64, AuditRecord>,
    pub(crate) last_seq: u64,
    pub(crate) head: [u8; 32],
}

/// Where a chain is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit chain is broken at record {seq}")]
pub struct BrokenChain {
    /// The first record that does not fit.
    pub seq: u64,
}

fn chained(prev: &[u8], record: &AuditRecord) -> [u8; 32] {
    let canonical = AuditRecord { prev_hash: vec![], hash: vec![], ..record.clone() };
    let mut hasher = Sha256::new();
    hasher.update(prev);
    hasher.update(canonical.encode_to_vec());
    hasher.finalize().into()
}

impl AuditRecord {
    /// Whether it is what its hash says; the record before it has the hash in `prev_hash`.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        chained(&self.prev_hash, self).as_slice() == self.hash
    }
}

impl AuditChain {
    pub(crate) fn append(&mut self, body: AuditDraft, revision: u64, at_ms: u64) {
        self.last_seq += 1;
        let mut record = AuditRecord {
            seq: self.last_seq,
            revision,
            at_ms,
            body: Some(body),
            prev_hash: self.head.to_vec(),
            hash: vec![],
        };
        debug_assert!(
            self.records.get_max().is_none_or(|(seq, last)| {
                (seq + 1, last.hash.as_slice()) == (record.seq, record.prev_hash.as_slice())
            }),
            "AUDIT-1, AUDIT-2: record {} does not follow the last one",
            record.seq
        );
        self.head = chained(&self.head, &record);
        record.hash = self.head.to_vec();
        self.records.insert(self.last_seq, record);
    }

    /// Removes at most one step of what is over the window and below `below`.
    pub(crate) fn trim(&mut self, below: u64) {
        for _ in 0..TRIM_STEP_MAX.min(self.records.len().saturating_sub(AUDIT_MAX)) {
            match self.records.get_min().map(|(seq, _)| *seq) {
                Some(oldest) if oldest < below => drop(self.records.remove(&oldest)),
                _ => return,
            }
        }
    }

    /// Checks what is kept, up to the head.
    ///
    /// # Errors
    /// Names the first record that is missing, altered or out of place.
    pub fn verify(&self) -> Result<(), BrokenChain> {
        let mut expected: Option<(u64, Vec<u8>)> = None;
        for (seq, record) in &self.records {
            let fits = expected
                .as_ref()
                .is_none_or(|(next, prev)| seq == next && *prev == record.prev_hash);
            if !fits
                || record.seq != *seq
                || chained(&record.prev_hash, record).as_slice() != record.hash
            {
                return Err(BrokenChain { seq: *seq });
            }
            expected = Some((seq + 1, record.hash.clone()));
        }
        let head_fits = match expected {
            Some((next, hash)) => next == self.last_seq + 1 && hash == self.head,
            None => true,
        };
        if head_fits { Ok(()) } else { Err(BrokenChain { seq: self.last_seq }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> AuditChain {
        let mut chain = AuditChain::default();
        for n in 1..=5_u64 {
            let draft = AuditDraft {
                actor: "ada".into(),
                method: format!("m{n}"),
                ..AuditDraft::default()
            };
            chain.append(draft, n, n * 10);
        }
        chain
    }

    #[test]
    fn an_untouched_chain_verifies() {
        assert_eq!(chain().verify(), Ok(()));
    }

    #[test]
    fn an_altered_record_is_found() {
        let mut chain = chain();
        if let Some(body) = chain.records.get_mut(&3).and_then(|record| record.body.as_mut()) {
            body.actor = "eve".into();
        }
        assert_eq!(chain.verify(), Err(BrokenChain { seq: 3 }));
    }

    #[test]
    fn a_missing_record_is_found() {
        let mut chain = chain();
        chain.records.remove(&2);
        assert_eq!(chain.verify(), Err(BrokenChain { seq: 3 }));
    }

    #[test]
    fn a_missing_tail_is_found() {
        let mut chain = chain();
        chain.records.remove(&5);
        assert_eq!(chain.verify(), Err(BrokenChain { seq: 5 }));
    }
}
