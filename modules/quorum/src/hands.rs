//! Who is distinct from whom, and who of those that approved counts.
//!
//! Two principals are of one hand when they are the same, or when one made the other or a token of its, or chose a key of
//! its, directly or through others: whoever makes somebody can act as him. All tokens of a principal are that principal. Two
//! whom a third made are distinct. Who was of one hand when he asked or approved is so until the end, whatever is removed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use palisade_contract::{
    Code, Resource, Result,
    ports::{Access, TOO_MANY_MAKERS},
};
use palisade_state::{Tx, View};

use crate::{APPROVE, records::BatchRow};

/// Somebody, and who made him: now, and when he did what is looked at.
pub(crate) struct Hand {
    name: String,
    makers: BTreeSet<String>,
}

impl Hand {
    /// As it is now.
    pub fn now(access: &dyn Access, tx: &mut Tx, name: &str) -> Result<Self> {
        Self::since(access, tx, name, &BTreeSet::new())
    }

    /// As it has been since it had these makers: what was removed or taken back by now has been its hand.
    pub fn since(
        access: &dyn Access,
        tx: &mut Tx,
        name: &str,
        then: &BTreeSet<String>,
    ) -> Result<Self> {
        let mut makers = access.makers(tx, name)?;
        makers.extend(then.iter().cloned());
        Ok(Self { name: name.to_owned(), makers })
    }

    /// Who made a batch.
    pub fn creator(access: &dyn Access, tx: &mut Tx, row: &BatchRow) -> Result<Self> {
        Self::since(access, tx, &row.created_by, &row.makers)
    }

    /// Why it is not distinct from another; `None`: it is.
    pub fn same(&self, other: &Self) -> Option<String> {
        if self.name == other.name {
            return Some(format!("{} is the same", self.name));
        }
        for (one, other) in [(self, other), (other, self)] {
            if one.makers.contains(&other.name) {
                return Some(format!("{} made {}, or a token or key of it", other.name, one.name));
            }
            if one.makers.contains(TOO_MANY_MAKERS) {
                return Some(format!("too many have made {} to say that it is distinct", one.name));
            }
        }
        None
    }
}

/// The names of those who may approve what is a tenant's.
pub(crate) fn able(access: &dyn Access, view: &View, tenant: &str) -> Result<Vec<String>> {
    access.able(view, APPROVE, &Resource::of_tenant("approval", "", tenant))
}

/// The thing that somebody approves, for authorization.
pub(crate) fn resource(row: &BatchRow) -> Resource {
    Resource::of_tenant("approval", &row.id, &row.tenant)
}

/// Of each approval of a batch, in order, why it does not count now; `None`: it does. `QUO-1`
pub(crate) fn counted(
    access: &dyn Access,
    tx: &mut Tx,
    row: &BatchRow,
) -> Result<Vec<Option<String>>> {
    let creator = Hand::creator(access, tx, row)?;
    let (mut all, mut counting): (Vec<Option<String>>, Vec<Hand>) = (vec![], vec![]);
    for approval in &row.approvals {
        let hand = Hand::since(access, tx, &approval.principal, &approval.makers)?;
        let why = if approval.digest != row.digest {
            Some("the batch was another then".to_owned())
        } else if let Some(why) =
            [&creator].into_iter().chain(&counting).find_map(|other| hand.same(other))
        {
            Some(why)
        } else {
            may_not(access, tx, row, &hand.name)?
        };
        if why.is_none() {
            counting.push(hand);
        }
        all.push(why);
    }
    Ok(all)
}

/// Why somebody may not approve a batch now; `None`: he may.
fn may_not(access: &dyn Access, tx: &mut Tx, row: &BatchRow, who: &str) -> Result<Option<String>> {
    let may = access
        .standing(tx, who)
        .and_then(|who| access.authorize(tx.view(), &who, APPROVE, &resource(row)));
    match may {
        Ok(()) => Ok(None),
        Err(why) if matches!(why.code, Code::Unauthenticated | Code::AccessDenied) => {
            Ok(Some(why.detail))
        }
        Err(error) => Err(error),
    }
}

/// The largest number of distinct operators among those who could approve what some hand asks for.
pub(crate) fn reachable(
    access: &dyn Access,
    tx: &mut Tx,
    able: &[String],
    creator: Option<&Hand>,
) -> Result<usize> {
    let mut hands = vec![];
    for name in able {
        let hand = Hand::now(access, tx, name)?;
        if creator.is_none_or(|creator| hand.same(creator).is_none()) {
            hands.push(hand);
        }
    }
    Ok(most_distinct(&hands))
}

/// The size of the largest set in which all are distinct.
///
/// Who made whom, also through others, is an order, once those who made each other are one. So it is the number of them less
/// that of the pairs in a largest matching of them with who made them (Dilworth). To pick one after the other would find
/// fewer where somebody who was picked has several makers, and what is found decides how many must approve.
fn most_distinct(hands: &[Hand]) -> usize {
    let known = |hand: &&Hand| !hand.makers.contains(TOO_MANY_MAKERS);
    let all: BTreeMap<&str, &Hand> =
        hands.iter().filter(known).map(|hand| (&*hand.name, hand)).collect();
    let is_of_one = |hand: &Hand, other: &str| {
        all.get(other).is_some_and(|other| other.makers.contains(&hand.name))
    };
    // Of those who made each other the first stands for all.
    let stands =
        |hand: &Hand| !hand.makers.iter().any(|maker| *maker < hand.name && is_of_one(hand, maker));
    let standing: BTreeMap<&str, &Hand> =
        all.iter().filter(|(_, hand)| stands(hand)).map(|(name, hand)| (*name, *hand)).collect();
    let makers = |hand: &Hand| {
        let found = hand.makers.iter().filter_map(|maker| standing.get_key_value(&**maker));
        found.map(|(maker, _)| *maker).collect()
    };
    let made = standing.iter().map(|(name, hand)| (*name, makers(hand))).collect();
    // Of whom it is not known who made them nobody is distinct.
    standing.len().saturating_sub(matched(&made)).max(usize::from(!hands.is_empty()))
}

/// How many of those who were made can have one maker each of their own: paths that make it one more are looked for, by
/// breadth, from each of them.
fn matched(made: &BTreeMap<&str, Vec<&str>>) -> usize {
    let (mut of_made, mut of_maker) = (BTreeMap::new(), BTreeMap::new());
    for root in made.keys() {
        let (mut from, mut next) = (BTreeMap::new(), VecDeque::from([*root]));
        let mut free = None;
        while let (None, Some(one)) = (free, next.pop_front()) {
            for maker in made.get(one).into_iter().flatten() {
                if from.contains_key(maker) {
                    continue;
                }
                from.insert(*maker, one);
                match of_maker.get(maker) {
                    Some(other) => next.push_back(*other),
                    None => free = Some(*maker),
                }
            }
        }
        while let Some((maker, one)) = free.and_then(|maker| from.get_key_value(maker)) {
            of_maker.insert(*maker, *one);
            free = of_made.insert(*one, *maker);
        }
    }
    of_maker.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand(name: &str, makers: &[&str]) -> Hand {
        let makers = makers.iter().copied().map(str::to_owned).collect();
        Hand { name: name.to_owned(), makers }
    }

    #[test]
    fn as_many_are_found_as_can_be_distinct() {
        let of_both = hand("c", &["a", "b", "init"]);
        let (a, b) = (hand("a", &["init"]), hand("b", &["init"]));
        assert_eq!(most_distinct(&[of_both, a, b]), 2, "not the one whom both made");
        let each_other = [hand("a", &["b", "c"]), hand("b", &["a", "c"]), hand("c", &["a", "b"])];
        assert_eq!(most_distinct(&each_other), 1);
        let lost = || hand("x", &[TOO_MANY_MAKERS]);
        assert_eq!(most_distinct(&[lost(), hand("a", &[]), hand("b", &[])]), 2);
        assert_eq!(most_distinct(&[lost()]), 1);
        assert_eq!(most_distinct(&[]), 0);
    }

    /// The largest set by trying all.
    fn tried(hands: &[Hand]) -> usize {
        let is_set = |set: usize| {
            let chosen: Vec<&Hand> = hands
                .iter()
                .enumerate()
                .filter(|(at, _)| set >> at & 1 == 1)
                .map(|(_, h)| h)
                .collect();
            chosen
                .iter()
                .enumerate()
                .all(|(at, one)| chosen.iter().skip(at + 1).all(|other| one.same(other).is_none()))
        };
        let sets = (0..1_usize << hands.len()).filter(|set| is_set(*set));
        sets.map(|set| set.count_ones() as usize).max().unwrap_or(0)
    }

    #[test]
    fn it_is_the_number_that_trying_all_sets_finds() {
        let mut dice = 1_u64;
        let mut rolled = |n: u64| {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % n
        };
        for _ in 0..300 {
            let (count, dense) = (2 + rolled(7) as usize, 2 + rolled(6));
            let mut made = vec![vec![false; count]; count];
            for (one, other) in (0..count).flat_map(|one| (0..count).map(move |other| (one, other)))
            {
                made[one][other] = rolled(dense + 2) == 0;
            }
            for (by, one, other) in (0..count).flat_map(|by| {
                (0..count).flat_map(move |one| (0..count).map(move |other| (by, one, other)))
            }) {
                made[one][other] |= made[one][by] && made[by][other];
            }
            let name = |one: usize| format!("p{one}");
            let makers = |one: usize| {
                (0..count).filter(|other| *other != one && made[one][*other]).map(name).collect()
            };
            let hands: Vec<Hand> =
                (0..count).map(|one| Hand { name: name(one), makers: makers(one) }).collect();
            assert_eq!(most_distinct(&hands), tried(&hands), "{made:?}");
        }
    }
}
