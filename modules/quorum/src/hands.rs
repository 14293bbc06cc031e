//! Who is distinct from whom, and who of those that approved counts.
//!
//! Two principals are of one hand when they are the same, or when one made the other or a token of its, or chose a key of
//! its, directly or through others: whoever makes somebody can act as him. All tokens of a principal are that principal. Two
//! whom a third made are distinct. Who was of one hand when he asked or approved is so until the end, whatever is removed.

use std::collections::BTreeSet;

use palisade_contract::{
    Code, Resource, Result,
    ports::{Access, TOO_MANY_MAKERS},
};
use palisade_state::Tx;

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

/// The largest number of distinct operators among those who could approve what some hand asks for, as far as is simply
/// found: those who made nobody among them first.
pub(crate) fn reachable(
    access: &dyn Access,
    tx: &mut Tx,
    able: &[String],
    creator: Option<&Hand>,
) -> Result<usize> {
    let mut by_depth = vec![];
    for name in able {
        let hand = Hand::now(access, tx, name)?;
        if creator.is_none_or(|creator| hand.same(creator).is_none()) {
            by_depth.push(hand);
        }
    }
    by_depth.sort_by(|one, other| {
        (other.makers.len(), &other.name).cmp(&(one.makers.len(), &one.name))
    });
    let mut chosen: Vec<Hand> = vec![];
    for hand in by_depth {
        if chosen.iter().all(|other| hand.same(other).is_none()) {
            chosen.push(hand);
        }
    }
    Ok(chosen.len())
}
