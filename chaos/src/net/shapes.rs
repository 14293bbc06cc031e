//! Shapes of partitions: which pairs are cut.

use std::collections::BTreeSet;

use super::{Host, Pair};

/// What is cut, and how that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) pairs: BTreeSet<Pair>,
    pub(crate) shape: String,
}

fn both(pairs: &mut BTreeSet<Pair>, one: Host, other: Host) {
    pairs.insert((one, other));
    pairs.insert((other, one));
}

/// Cuts both ways, in one of four shapes, around the replica `focus` among those at `places`;
/// agents are on either side as `pick` says.
pub(crate) fn partition(places: &[usize], focus: usize, agents: usize, pick: u64) -> Cut {
    let others: Vec<usize> = places.iter().copied().filter(|place| *place != focus).collect();
    let mut pairs = BTreeSet::new();
    let other = |pick: u64| {
        let index = usize::try_from(pick).unwrap_or(0) % others.len().max(1);
        others.get(index).copied()
    };
    let split = |side: &BTreeSet<usize>, pairs: &mut BTreeSet<Pair>| {
        for one in places.iter().filter(|place| side.contains(place)) {
            for other in places.iter().filter(|place| !side.contains(place)) {
                both(pairs, Host::Replica(*one), Host::Replica(*other));
            }
        }
        for agent in 0..agents {
            let with_focus = pick >> (16 + agent) & 1 == 1;
            for place in places.iter().filter(|place| side.contains(place) != with_focus) {
                both(pairs, Host::Agent(agent), Host::Replica(*place));
            }
        }
    };
    let shape = match pick % 4 {
        0 => {
            split(&BTreeSet::from([focus]), &mut pairs);
            "alone"
        }
        1 => {
            // As many as are a minority together, or one less than all.
            let count = if others.len() > 2 { others.len() / 2 } else { 2 };
            let side: BTreeSet<usize> =
                std::iter::once(focus).chain(others.iter().copied().take(count - 1)).collect();
            split(&side, &mut pairs);
            "two sides"
        }
        2 => {
            for one in &others {
                for other in others.iter().filter(|other| *other > one) {
                    both(&mut pairs, Host::Replica(*one), Host::Replica(*other));
                }
            }
            "only through one"
        }
        _ => {
            if let Some(other) = other(pick >> 8) {
                both(&mut pairs, Host::Replica(focus), Host::Replica(other));
            }
            "one link"
        }
    };
    Cut { pairs, shape: shape.to_owned() }
}

/// Cuts one way: from `focus`, to it, or on one link.
pub(crate) fn one_way(places: &[usize], focus: usize, pick: u64) -> Cut {
    let me = Host::Replica(focus);
    let others: Vec<Host> =
        places.iter().filter(|place| **place != focus).map(|place| Host::Replica(*place)).collect();
    let (pairs, shape) = match pick % 3 {
        0 => (others.iter().map(|other| (me, *other)).collect(), "nothing from it"),
        1 => (others.iter().map(|other| (*other, me)).collect(), "nothing to it"),
        _ => {
            let index = usize::try_from(pick >> 8).unwrap_or(0) % others.len().max(1);
            let one: BTreeSet<Pair> =
                others.get(index).map(|other| (me, *other)).into_iter().collect();
            (one, "one link, one way")
        }
    };
    Cut { pairs, shape: shape.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: [usize; 5] = [0, 1, 2, 3, 4];

    #[test]
    fn every_shape_cuts_something_and_never_all() {
        for places in [&FIVE[..3], &FIVE[..]] {
            let all = places.len() * (places.len() - 1);
            for pick in 0..12 {
                let replicas = |cut: Cut| {
                    let is_replica = |host: &Host| matches!(host, Host::Replica(_));
                    cut.pairs.iter().filter(|(a, b)| is_replica(a) && is_replica(b)).count()
                };
                let cut = replicas(partition(places, 1, 2, pick));
                assert!(cut > 0 && cut < all, "{pick}: {cut} of {all}");
                let cut = replicas(one_way(places, 1, pick));
                assert!(cut > 0 && cut < all, "{pick}: {cut} of {all}");
            }
        }
    }

    #[test]
    fn a_partition_is_cut_both_ways_and_one_way_is_not() {
        for pick in 0..12 {
            let Cut { pairs, .. } = partition(&FIVE, 2, 3, pick);
            assert!(pairs.iter().all(|(from, to)| pairs.contains(&(*to, *from))));
            let Cut { pairs, .. } = one_way(&FIVE, 2, pick);
            assert!(pairs.iter().all(|(from, to)| !pairs.contains(&(*to, *from))));
        }
    }

    #[test]
    fn an_agent_is_on_one_side() {
        let Cut { pairs, .. } = partition(&[0, 1, 2], 0, 1, 0);
        let cut_from: Vec<&Host> =
            pairs.iter().filter(|(from, _)| *from == Host::Agent(0)).map(|(_, to)| to).collect();
        assert_eq!(cut_from, [&Host::Replica(0)]);
    }
}
