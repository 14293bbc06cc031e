//! Which keys a replica refuses from its start on, before it has heard of the others.
//!
//! # Invariants
//! - `PEER-6` A replica that starts refuses what its own snapshot and log revoke before it serves anybody. What is at the
//!   log's end and may not be committed counts too: whoever revoked it may have been answered.

use std::{collections::BTreeSet, error::Error, sync::Arc};

use palisade_state::{Machine, Position, View};

use crate::types::{Entry, EntryPayload, term_of};

/// Says which keys a state refuses: SHA-256 of the SPKI, hex.
pub type RevokedKeys =
    Arc<dyn Fn(&View) -> Result<BTreeSet<String>, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// The state that `entries`, which follow `view`, lead to.
fn ahead(view: &View, entries: Vec<Entry>) -> View {
    let mut machine = Machine::beside(view);
    for entry in entries {
        let at = Position { term: term_of(&entry.log_id), index: entry.log_id.index };
        let applied = match &entry.payload {
            EntryPayload::Normal(payload) => match payload.decode() {
                Ok(decoded) => {
                    machine.apply(at, decoded).map(drop).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            },
            _ if at.index == 0 => Ok(()),
            _ => machine.pass(at).map_err(|error| error.to_string()),
        };
        // Once it is committed it stops the replica, and what it revokes is not known before either.
        if let Err(error) = applied {
            tracing::warn!(index = at.index, error, "what follows in the log cannot be read ahead");
            break;
        }
    }
    machine.publish();
    machine.published().view()
}

/// What is refused by what was applied, and by what follows it in the log.
pub(crate) fn at_start(
    revoked: &RevokedKeys,
    view: &View,
    entries: Vec<Entry>,
) -> Result<BTreeSet<String>, Box<dyn Error + Send + Sync>> {
    let mut keys = revoked(view)?;
    if !entries.is_empty() {
        keys.extend(revoked(&ahead(view, entries))?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use palisade_state::command::{Entry as KernelEntry, Txn, Write};

    use super::*;
    use crate::types::{CommittedLeaderId, LogId, Payload};

    fn entry(index: u64, payload: EntryPayload) -> Entry {
        Entry { log_id: LogId { leader_id: CommittedLeaderId::from(1), index }, payload }
    }

    fn writes(index: u64, key: &str) -> Entry {
        let write = Write { table: "revoked".into(), key: key.into(), value: Some(vec![1]) };
        let commands = vec![Txn { writes: vec![write], ..Txn::default() }.into()];
        let kernel =
            KernelEntry { format: 1, proposer_term: 1, commands, ..KernelEntry::default() };
        entry(index, EntryPayload::Normal(Payload::new(kernel)))
    }

    fn keys() -> RevokedKeys {
        Arc::new(|view: &View| {
            let rows = ["a", "b", "c"].into_iter();
            let there = rows.filter(|key| view.row("revoked", key.as_bytes()).is_some());
            Ok(there.map(str::to_owned).collect())
        })
    }

    #[test]
    fn what_the_end_of_the_log_revokes_is_refused_whether_it_is_committed_or_not() {
        let nothing = Machine::default().published().view();
        let log = vec![entry(1, EntryPayload::Blank), writes(2, "a"), writes(3, "b")];
        let refused = at_start(&keys(), &nothing, log).unwrap();
        assert_eq!(refused, BTreeSet::from(["a".to_owned(), "b".to_owned()]), "PEER-6");
        assert!(nothing.row("revoked", b"a").is_none(), "nothing was applied by that");
        let applied = ahead(&nothing, vec![writes(1, "c")]);
        let refused = at_start(&keys(), &applied, vec![writes(2, "a")]).unwrap();
        assert_eq!(refused, BTreeSet::from(["a".to_owned(), "c".to_owned()]));
        assert_eq!(at_start(&keys(), &applied, vec![]).unwrap(), BTreeSet::from(["c".to_owned()]));
    }

    #[test]
    fn what_cannot_be_read_is_no_reason_to_refuse_nobody() {
        let nothing = Machine::default().published().view();
        let broken: RevokedKeys = Arc::new(|_: &View| Err("a damaged row".into()));
        assert!(at_start(&broken, &nothing, vec![]).is_err());
        // An entry of a newer format: what is before it counts.
        let newer = KernelEntry { format: u32::MAX, ..KernelEntry::default() };
        let newer = entry(2, EntryPayload::Normal(Payload::new(newer)));
        let refused = at_start(&keys(), &nothing, vec![writes(1, "a"), newer]).unwrap();
        assert_eq!(refused, BTreeSet::from(["a".to_owned()]));
    }
}
