//! Who is distinct from whom, and who of those that approved counts.
//!
//! Two principals are of one hand when they are the same, or when one made the other or a token of its, directly or through
//! others: whoever makes somebody can act as him. All tokens of a principal are that principal. Two whom a third made are
//! distinct.

use palisade_contract::{Code, Resource, Result, ports::Access};
use palisade_state::Tx;

use crate::{APPROVE, records::BatchRow};

/// Why somebody is not distinct from another; `None`: he is.
pub(crate) fn same(
    access: &dyn Access,
    tx: &mut Tx,
    one: &str,
    other: &str,
) -> Result<Option<String>> {
    if one == other {
        return Ok(Some(format!("{one} is the same")));
    }
    if access.makers(tx, one)?.contains(other) {
        return Ok(Some(format!("{other} made {one}, or a token of it")));
    }
    if access.makers(tx, other)?.contains(one) {
        return Ok(Some(format!("{one} made {other}, or a token of it")));
    }
    Ok(None)
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
    let (mut all, mut counting): (Vec<Option<String>>, Vec<&str>) = (vec![], vec![]);
    for approval in &row.approvals {
        let who = approval.principal.as_str();
        let why = if approval.digest == row.digest {
            why_not(access, tx, row, who, &counting)?
        } else {
            Some("the batch was another then".to_owned())
        };
        if why.is_none() {
            counting.push(who);
        }
        all.push(why);
    }
    Ok(all)
}

fn why_not(
    access: &dyn Access,
    tx: &mut Tx,
    row: &BatchRow,
    who: &str,
    counting: &[&str],
) -> Result<Option<String>> {
    if let Some(why) = same(access, tx, who, &row.created_by)? {
        return Ok(Some(why));
    }
    for other in counting {
        if let Some(why) = same(access, tx, who, other)? {
            return Ok(Some(why));
        }
    }
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

/// The largest number of distinct operators among those who could approve a batch of somebody, as far as is simply found:
/// those who made nobody among them first.
pub(crate) fn reachable(
    access: &dyn Access,
    tx: &mut Tx,
    able: &[String],
    created_by: &str,
) -> Result<usize> {
    let mut by_depth = vec![];
    for name in able {
        if same(access, tx, name, created_by)?.is_none() {
            by_depth.push((access.makers(tx, name)?.len(), name.as_str()));
        }
    }
    by_depth.sort_by(|one, other| other.cmp(one));
    let mut chosen: Vec<&str> = vec![];
    'next: for (_, name) in by_depth {
        for other in &chosen {
            if same(access, tx, name, other)?.is_some() {
                continue 'next;
            }
        }
        chosen.push(name);
    }
    Ok(chosen.len())
}
