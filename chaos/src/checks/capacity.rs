//! `C1`: what nodes hold never exceeds what they have, and their books equal their instances.

use super::{Verdict, json};
use crate::history::History;

/// Its id.
pub(super) const ID: &str = "C1";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let at_the_end = history.books.iter().flat_map(|books| &books.held);
    for held in history.held.iter().chain(at_the_end) {
        verdict.subjects += 1;
        if held.capacity.is_some_and(|capacity| held.used > capacity + 1e-9) {
            let message = format!(
                "node {} holds {} of {}, and has {}",
                held.node,
                held.used,
                held.resource,
                held.capacity.unwrap_or_default()
            );
            verdict.add(ID, message, vec![json(held)]);
        }
    }
    for places in history.books.iter().flat_map(|books| &books.places) {
        verdict.subjects += 1;
        if !places.agree() {
            let message = format!(
                "the books of node {} have {} instances, and {} are on it",
                places.node, places.allocations, places.instances
            );
            verdict.add(ID, message, vec![json(places)]);
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{BookSeen, Books, PlacesSeen};

    fn judged(used: f64, allocations: u64) -> usize {
        let held =
            BookSeen { node: "n".into(), resource: "cpumem.cpu".into(), used, capacity: Some(2.0) };
        let places = PlacesSeen { node: "n".into(), allocations, instances: 2 };
        let books = Books { held: vec![held], places: vec![places], ..Books::default() };
        judge(&History { books: Some(books), ..History::default() }).violations.len()
    }

    #[test]
    fn a_node_that_is_full_passes() {
        assert_eq!(judged(2.0, 2), 0);
    }

    #[test]
    fn a_node_that_holds_more_than_it_has_is_found() {
        assert_eq!(judged(2.1, 2), 1);
    }

    #[test]
    fn books_that_do_not_equal_the_instances_are_found() {
        assert_eq!(judged(1.0, 3), 1);
        assert_eq!(judged(1.0, 1), 1);
    }
}
