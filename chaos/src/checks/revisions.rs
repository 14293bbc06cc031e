//! `L3`: revisions that a client sees never go back.
//!
//! Two rules over linearizable answers. Of one client: each answer is at least as new as the one
//! before. Across clients: a read that began after a write was acknowledged is at least as new as
//! that write, which is what a deposed leader that still answers gets wrong.

use std::collections::BTreeMap;

use super::{Verdict, json};
use crate::history::{History, Operation};

/// Its id.
pub(super) const ID: &str = "L3";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut answered: Vec<(&Operation, u64)> = history
        .operations
        .iter()
        .filter_map(|operation| Some((operation, operation.revision()?)))
        .collect();
    let mut verdict = Verdict { subjects: answered.len() as u64, ..Verdict::default() };
    answered.sort_by_key(|(operation, _)| operation.invoked);
    of_each_client(&answered, &mut verdict);
    across_clients(&answered, &mut verdict);
    verdict
}

fn of_each_client<'a>(answered: &[(&'a Operation, u64)], verdict: &mut Verdict) {
    let mut newest: BTreeMap<u32, (&'a Operation, u64)> = BTreeMap::new();
    for (operation, revision) in answered {
        let client = operation.client;
        match newest.get(&client) {
            Some((before, seen)) if seen > revision => {
                let message = format!("client {client} saw revision {seen}, and then {revision}");
                verdict.add(ID, message, vec![json(before), json(operation)]);
            }
            _ => {
                newest.insert(client, (operation, *revision));
            }
        }
    }
}

fn across_clients<'a>(answered: &[(&'a Operation, u64)], verdict: &mut Verdict) {
    let mut writes: Vec<(&'a Operation, u64)> =
        answered.iter().filter(|(operation, _)| !operation.action.is_read()).copied().collect();
    writes.sort_by_key(|(operation, _)| operation.ended);
    let mut writes = writes.into_iter().peekable();
    let mut newest: Option<(&Operation, u64)> = None;
    for (read, revision) in answered {
        if !read.action.is_read() {
            continue;
        }
        while let Some(write) = writes.next_if(|(write, _)| write.ended < read.invoked) {
            newest = newest.filter(|newest| newest.1 >= write.1).or(Some(write));
        }
        if let Some((write, written)) = newest
            && written > *revision
            && write.client != read.client
        {
            let message = format!(
                "client {} read at revision {revision} after revision {written} was acknowledged",
                read.client
            );
            verdict.add(ID, message, vec![json(write), json(read)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn messages(operations: Vec<Operation>) -> Vec<String> {
        let verdict = judge(&history(operations, &[], None));
        verdict.violations.into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn revisions_that_stay_or_rise_pass() {
        let operations = vec![
            operation(1, (0, 1), add("a"), ok(5)),
            operation(1, (2, 3), get(), read(5, 0)),
            operation(1, (4, 5), add("b"), unknown()),
            operation(1, (6, 7), add("c"), ok(9)),
            operation(2, (0, 9), get(), read(2, 0)),
        ];
        assert_eq!(messages(operations), [""; 0]);
    }

    #[test]
    fn a_revision_that_goes_back_is_found() {
        let operations =
            vec![operation(1, (0, 1), add("a"), ok(5)), operation(1, (2, 3), get(), read(4, 0))];
        assert_eq!(messages(operations), ["client 1 saw revision 5, and then 4"]);
    }

    #[test]
    fn one_step_back_is_compared_with_the_newest_before_it() {
        let operations = vec![
            operation(1, (0, 1), get(), read(9, 0)),
            operation(1, (2, 3), get(), read(5, 0)),
            operation(1, (4, 5), get(), read(6, 0)),
        ];
        assert_eq!(messages(operations).len(), 2);
    }

    #[test]
    fn a_stale_read_of_another_client_is_found() {
        let operations =
            vec![operation(1, (0, 1), add("a"), ok(5)), operation(2, (2, 3), get(), read(4, 0))];
        assert_eq!(
            messages(operations),
            ["client 2 read at revision 4 after revision 5 was acknowledged"]
        );
    }

    #[test]
    fn a_read_beside_the_write_may_be_older() {
        let operations =
            vec![operation(1, (0, 9), add("a"), ok(5)), operation(2, (2, 3), get(), read(4, 0))];
        assert_eq!(messages(operations), [""; 0]);
    }
}
