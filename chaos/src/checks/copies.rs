//! `S1`: replicas at one applied index serve the same records from their own copies.

use super::{Verdict, json};
use crate::history::History;

/// Its id.
pub(super) const ID: &str = "S1";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let Some(books) = &history.books else { return verdict };
    let mut copies = books.copies.iter();
    let Some((first_id, first)) = copies.next() else { return verdict };
    verdict.subjects = (books.copies.len() * first.lists.len()) as u64;
    for (id, copy) in copies {
        if copy.applied != first.applied {
            verdict.undecided.push(format!("S1 cannot tell: replica {id} is at another index"));
            continue;
        }
        for (list, hash) in &first.lists {
            if copy.lists.get(list) != Some(hash) {
                let message = format!(
                    "replicas {first_id} and {id} have other {list} at index {}",
                    copy.applied
                );
                verdict.add(ID, message, vec![json(first), json(copy)]);
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Books, Copy};

    fn copy(applied: u64, nodes: &str) -> Copy {
        let lists = [("nodes".to_owned(), nodes.to_owned())].into();
        Copy { applied, lists }
    }

    fn judged(copies: [Copy; 2]) -> Verdict {
        let copies = (1..).zip(copies).collect();
        let books = Books { copies, ..Books::default() };
        judge(&History { books: Some(books), ..History::default() })
    }

    #[test]
    fn copies_that_are_alike_pass() {
        let verdict = judged([copy(7, "a"), copy(7, "a")]);
        assert_eq!((verdict.subjects, verdict.violations.len()), (2, 0));
    }

    #[test]
    fn a_copy_that_differs_is_found() {
        let verdict = judged([copy(7, "a"), copy(7, "b")]);
        assert_eq!(verdict.violations[0].message, "replicas 1 and 2 have other nodes at index 7");
    }

    #[test]
    fn copies_at_other_indexes_say_nothing() {
        let verdict = judged([copy(7, "a"), copy(8, "b")]);
        assert_eq!((verdict.violations.len(), verdict.undecided.len()), (0, 1));
    }
}
