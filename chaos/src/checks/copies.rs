//! `S1`: replicas serve the same records of one moment from their own copies.

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
        for (list, ours) in &first.lists {
            let theirs = copy.lists.get(list).cloned().unwrap_or_default();
            let at = ours.at;
            if theirs.at != at {
                let what = format!("S1 cannot tell: replica {id} has {list} of another moment");
                verdict.undecided.push(what);
            } else if theirs.hash != ours.hash {
                let message = format!("replicas {first_id} and {id} have other {list} at {at}");
                verdict.add(ID, message, vec![json(first), json(copy)]);
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Books, Copy, Listed};

    fn copy(at: u64, hash: &str) -> Copy {
        let listed = Listed { at, hash: hash.to_owned() };
        Copy { lists: [("nodes".to_owned(), listed)].into() }
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
        assert_eq!(verdict.violations[0].message, "replicas 1 and 2 have other nodes at 7");
    }

    #[test]
    fn copies_of_other_moments_say_nothing() {
        let verdict = judged([copy(7, "a"), copy(8, "b")]);
        assert_eq!((verdict.violations.len(), verdict.undecided.len()), (0, 1));
    }
}
