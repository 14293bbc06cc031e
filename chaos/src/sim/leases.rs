//! I1 to I3 over all replicas of a run: who held each lease under which fence, and who acted under it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use palisade_state::{Fence, View, lease::Lease};

use super::{eyes::Breach, nodes::lock};

/// Who holds a lease.
type Holder = (String, u64);

#[derive(Default)]
struct Seen {
    /// Every fence of each lease that any replica showed, and whose it was.
    holders: BTreeMap<String, BTreeMap<Fence, Holder>>,
    /// The highest fence of each lease and the index of the state that had it.
    highest: BTreeMap<String, (Fence, u64)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Leases(Mutex<Seen>);

/// What was committed under a fence.
pub(crate) struct Acted<'a> {
    pub(crate) what: &'a str,
    pub(crate) lease: &'a str,
    pub(crate) worker: &'a str,
    pub(crate) incarnation: u64,
    pub(crate) fence: Fence,
    /// Where it was applied.
    pub(crate) index: u64,
    /// The term of the entry there, if anybody saw it applied.
    pub(crate) term: Option<u64>,
}

impl Leases {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.0)
    }

    /// Looks at all leases of a state.
    pub(crate) fn look_at_all(&self, node: u64, view: &View) -> Vec<Breach> {
        let index = view.applied().index;
        view.leases().flat_map(|(name, lease)| self.look(node, index, name, lease)).collect()
    }

    /// Looks at those that changed.
    pub(crate) fn look_at<'a>(
        &self,
        node: u64,
        view: &View,
        names: impl Iterator<Item = &'a str>,
    ) -> Vec<Breach> {
        let index = view.applied().index;
        let of = |name: &'a str| Some((name, view.lease(name)?));
        names.filter_map(of).flat_map(|(name, lease)| self.look(node, index, name, lease)).collect()
    }

    fn look(&self, node: u64, index: u64, name: &str, lease: &Lease) -> Vec<Breach> {
        let mut breaches = vec![];
        let mut seen = self.seen();
        let fence = lease.fence;
        match seen.highest.get_mut(name) {
            None => drop(seen.highest.insert(name.to_owned(), (fence, index))),
            Some((was, at)) if fence > *was => (*was, *at) = (fence, index),
            Some((was, at)) if fence < *was && index >= *at => {
                let message = format!(
                    "{name} had fence {was} at {at} and has {fence} at {index} on replica {node}"
                );
                breaches.push(Breach { check: "I2", message });
            }
            Some(_) => {}
        }
        let holders = match seen.holders.get_mut(name) {
            Some(holders) => holders,
            None => seen.holders.entry(name.to_owned()).or_default(),
        };
        match holders.get(&fence) {
            None => drop(holders.insert(fence, (lease.owner.to_string(), lease.incarnation))),
            Some((owner, its)) if *owner == *lease.owner && *its == lease.incarnation => {}
            Some((owner, its)) => {
                let message = format!(
                    "{name} has two holders under fence {fence}: {owner}/{its} and, at {index} on replica {node}, \
                     {}/{}",
                    lease.owner, lease.incarnation
                );
                breaches.push(Breach { check: "I1", message });
            }
        }
        breaches
    }

    /// I3: what was applied was under the fence that its lease had there.
    pub(crate) fn judge(&self, acted: &Acted<'_>) -> Option<Breach> {
        let Acted { what, lease, worker, incarnation, fence, index, term } = *acted;
        let seen = self.seen();
        let breach = |why: String| {
            let message = format!(
                "{what} was applied at {index} for {worker}/{incarnation} under {lease} with fence {fence}, {why}"
            );
            Some(Breach { check: "I3", message })
        };
        if let Some(term) = term.filter(|term| *term != fence.term) {
            return breach(format!("in term {term}"));
        }
        if fence.index >= index {
            return breach("which came later".to_owned());
        }
        let holders = seen.holders.get(lease)?;
        if let Some((owner, its)) = holders.get(&fence)
            && (owner.as_str(), *its) != (worker, incarnation)
        {
            return breach(format!("which was {owner}/{its}'s"));
        }
        let newer = holders.range(fence..).map(|(newer, _)| *newer).find(|newer| *newer > fence);
        match newer.filter(|newer| newer.index < index) {
            Some(newer) => breach(format!("when {newer} was granted already")),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_state::Role;

    use super::*;

    fn fence(term: u64, index: u64) -> Fence {
        Fence { epoch: 0, term, index }
    }

    fn lease(owner: &str, fence: Fence) -> Lease {
        Lease { owner: owner.into(), incarnation: 1, role: Role::Controllers, fence, handoff: None }
    }

    fn checks(breaches: &[Breach]) -> Vec<&'static str> {
        breaches.iter().map(|breach| breach.check).collect()
    }

    #[test]
    fn one_fence_with_two_holders_is_a_breach_also_on_two_replicas() {
        let leases = Leases::default();
        assert_eq!(leases.look(1, 9, "shard:1", &lease("a", fence(1, 9))), []);
        assert_eq!(leases.look(2, 9, "shard:1", &lease("a", fence(1, 9))), []);
        assert_eq!(leases.look(2, 12, "shard:1", &lease("b", fence(1, 12))), []);
        assert_eq!(checks(&leases.look(1, 9, "shard:1", &lease("b", fence(1, 9)))), ["I1"]);
    }

    #[test]
    fn a_fence_that_goes_back_is_a_breach_and_an_older_state_is_none() {
        let leases = Leases::default();
        assert_eq!(leases.look(1, 20, "shard:1", &lease("a", fence(2, 15))), []);
        assert_eq!(leases.look(2, 12, "shard:1", &lease("a", fence(1, 9))), []);
        assert_eq!(checks(&leases.look(2, 21, "shard:1", &lease("a", fence(1, 9)))), ["I2"]);
    }

    #[test]
    fn what_is_done_under_a_fence_that_is_not_current_is_a_breach() {
        let leases = Leases::default();
        leases.look(1, 9, "shard:1", &lease("a", fence(1, 9)));
        leases.look(1, 20, "shard:1", &lease("b", fence(1, 20)));
        let acted = |worker, fence, index, term| {
            let (what, lease) = ("k", "shard:1");
            let acted = Acted { what, lease, worker, incarnation: 1, fence, index, term };
            leases.judge(&acted).map(|breach| breach.message)
        };
        assert_eq!(acted("a", fence(1, 9), 15, Some(1)), None);
        assert_eq!(acted("a", fence(1, 9), 20, Some(1)), None, "granted by that very entry");
        assert!(
            acted("a", fence(1, 9), 21, Some(1)).unwrap().ends_with("0.1.20 was granted already")
        );
        assert!(acted("a", fence(1, 9), 15, Some(2)).unwrap().ends_with("in term 2"));
        assert!(acted("b", fence(1, 9), 15, Some(1)).unwrap().ends_with("which was a/1's"));
        assert!(acted("b", fence(1, 20), 19, Some(1)).unwrap().ends_with("which came later"));
    }
}
