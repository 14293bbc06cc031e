//! `E1`: events come in commit order with no gap; the audit chain verifies.

use super::{Verdict, json};
use crate::history::History;

/// Its id.
pub(super) const ID: &str = "E1";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let Some(books) = &history.books else { return verdict };
    verdict.subjects = (books.events.len() + books.audit.len()) as u64;
    for pair in books.events.windows(2) {
        let [one, next] = pair else { continue };
        if next.seq != one.seq + 1 {
            let message = format!("event {} is followed by event {}", one.seq, next.seq);
            verdict.add(ID, message, vec![json(one), json(next)]);
        }
        if next.revision < one.revision {
            let message = format!(
                "event {} of revision {} comes after one of revision {}",
                next.seq, next.revision, one.revision
            );
            verdict.add(ID, message, vec![json(one), json(next)]);
        }
    }
    for pair in books.audit.windows(2) {
        let [one, next] = pair else { continue };
        if next.seq != one.seq + 1 || next.prev_hash != one.hash {
            let message = format!("audit record {} does not follow {}", next.seq, one.seq);
            verdict.add(ID, message, vec![json(one), json(next)]);
        }
        if next.revision < one.revision {
            let message = format!("audit record {} is of an older revision", next.seq);
            verdict.add(ID, message, vec![json(one), json(next)]);
        }
    }
    if books.audit_verifies == Some(false) {
        verdict.add(ID, "the cluster says that its audit chain does not verify", vec![]);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{AuditSeen, Books, EventSeen};

    fn good() -> Books {
        let event = |seq| EventSeen { seq, revision: seq / 2 };
        let record = |seq: u64| AuditSeen {
            seq,
            revision: seq,
            prev_hash: (seq - 1).to_string(),
            hash: seq.to_string(),
        };
        Books {
            events: (5..9).map(event).collect(),
            audit: (1..5).map(record).collect(),
            audit_verifies: Some(true),
            ..Books::default()
        }
    }

    fn violations(change: impl Fn(&mut Books)) -> usize {
        let mut books = good();
        change(&mut books);
        judge(&History { books: Some(books), ..History::default() }).violations.len()
    }

    #[test]
    fn events_and_a_chain_without_a_gap_pass() {
        assert_eq!(violations(|_| {}), 0);
    }

    #[test]
    fn an_event_that_is_missing_or_doubled_is_found() {
        assert_eq!(
            violations(|books| {
                let _ = books.events.remove(1);
            }),
            1
        );
        assert_eq!(violations(|books| books.events[2] = books.events[1].clone()), 2);
    }

    #[test]
    fn an_event_out_of_commit_order_is_found() {
        assert_eq!(violations(|books| books.events[3].revision = 1), 1);
    }

    #[test]
    fn an_audit_record_that_was_altered_or_taken_out_is_found() {
        assert_eq!(violations(|books| books.audit[1].hash = "x".into()), 1);
        assert_eq!(violations(|books| drop(books.audit.remove(1))), 1);
        assert_eq!(violations(|books| books.audit_verifies = Some(false)), 1);
    }
}
