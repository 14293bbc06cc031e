//! Where peers are reached: the membership's record, what the operator wrote down, and what was said.
//!
//! A wrong address costs only time, because a connection is used only once the other end has shown the certificate of
//! the replica that was meant. So all that is known is tried, and no order of it has to be right: the one that worked
//! last, then the membership's record, then the hints, one further each time an attempt fails.
//!
//! # Invariants
//! - `ADDR-1` Replicas that all moved find each other by their hints although every record is old, and a replica whose
//!   record changed is found although the hints are old.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::options::Member;

#[derive(Debug, Default)]
struct Entry {
    recorded: String,
    hints: Vec<String>,
    /// The one that worked last, until an attempt takes it.
    good: Option<String>,
    last_good: Option<String>,
    attempts: usize,
}

/// Every peer's addresses. Cheap to look at.
#[derive(Debug, Default)]
pub struct Addresses(Mutex<BTreeMap<u64, Entry>>);

impl Addresses {
    fn held(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With a hint for each of these members.
    pub(crate) fn of(members: &[Member]) -> Self {
        let addresses = Self::default();
        for member in members {
            addresses.hint(member.id.0, &member.peer_addr);
        }
        addresses
    }

    /// What the membership says now.
    pub(crate) fn record(&self, peer: u64, addr: &str) {
        let mut held = self.held();
        let entry = held.entry(peer).or_default();
        if entry.recorded != addr {
            addr.clone_into(&mut entry.recorded);
        }
    }

    /// Another place to try.
    pub(crate) fn hint(&self, peer: u64, addr: &str) {
        if addr.is_empty() {
            return;
        }
        let mut held = self.held();
        let hints = &mut held.entry(peer).or_default().hints;
        if !hints.iter().any(|hint| hint == addr) {
            // A replica that moves often does not grow the list for ever.
            if hints.len() >= 4 {
                hints.remove(0);
            }
            hints.push(addr.to_owned());
        }
    }

    /// Peers of which anything is known.
    pub(crate) fn peers(&self) -> Vec<u64> {
        self.held().keys().copied().collect()
    }

    /// The membership's record, or the first hint; empty: nothing is known.
    #[must_use]
    pub fn recorded(&self, peer: u64) -> String {
        let held = self.held();
        let Some(entry) = held.get(&peer) else { return String::new() };
        if entry.recorded.is_empty() {
            entry.hints.first().cloned().unwrap_or_default()
        } else {
            entry.recorded.clone()
        }
    }

    /// Where the peer was reached last.
    pub(crate) fn last_good(&self, peer: u64) -> String {
        let good = self.held().get(&peer).and_then(|entry| entry.last_good.clone());
        good.unwrap_or_else(|| self.recorded(peer))
    }

    /// What an attempt to connect tries, in order. An attempt that is given up before it ends has taken its turn too.
    pub(crate) fn attempt(&self, peer: u64) -> Vec<String> {
        let mut held = self.held();
        let Some(entry) = held.get_mut(&peer) else { return vec![] };
        let mut order: Vec<String> = vec![];
        let mut add = |addr: &String| {
            if !addr.is_empty() && !order.contains(addr) {
                order.push(addr.clone());
            }
        };
        add(&entry.recorded);
        entry.hints.iter().for_each(&mut add);
        if let Some(good) = entry.good.take() {
            order.retain(|addr| *addr != good);
            order.insert(0, good);
            entry.attempts = 0;
        } else if !order.is_empty() {
            let by = entry.attempts % order.len();
            order.rotate_left(by);
            entry.attempts = entry.attempts.wrapping_add(1);
        }
        order
    }

    /// The peer itself answered here.
    pub(crate) fn worked(&self, peer: u64, addr: &str) {
        let mut held = self.held();
        let entry = held.entry(peer).or_default();
        entry.good = Some(addr.to_owned());
        entry.last_good.clone_from(&entry.good);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_its_turn_and_the_good_one_is_first() {
        let addresses = Addresses::default();
        assert!(addresses.attempt(1).is_empty());
        addresses.record(1, "old:1");
        addresses.hint(1, "new:1");
        addresses.hint(1, "old:1");
        assert_eq!(addresses.attempt(1), ["old:1", "new:1"]);
        assert_eq!(addresses.attempt(1), ["new:1", "old:1"], "the first had its turn");
        addresses.worked(1, "new:1");
        assert_eq!(addresses.last_good(1), "new:1");
        assert_eq!(addresses.attempt(1), ["new:1", "old:1"]);
        assert_eq!(addresses.attempt(1), ["old:1", "new:1"], "it is good until it is tried");
        addresses.record(1, "newer:1");
        assert_eq!(addresses.recorded(1), "newer:1");
    }
}
