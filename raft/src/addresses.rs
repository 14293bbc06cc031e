//! Where peers are reached: the membership's record, what the operator wrote down, and what was said.
//!
//! A wrong address costs only time, because a connection is used only once the other end has shown the certificate of
//! the replica that was meant. So all that is known is tried, and no order of it has to be right: the one that worked
//! last, then the membership's record, then the hints, one further each time an attempt fails.
//!
//! # Invariants
//! - `ADDR-1` Replicas that all moved find each other by their hints although every record is old, and a replica whose
//!   record changed is found although the hints are old.
//! - `ADDR-2` Where a replica was turned away by who it is, or met somebody else, it comes again only after a pause, longer
//!   each time and of no fixed length; being let in ends that. Another address of the same peer is not held up by it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use palisade_state::{Rt, port::jittered};

use crate::options::Member;

/// The first pause, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// A place where a replica was turned away.
#[derive(Debug)]
struct Closed {
    times: u32,
    until: Duration,
    /// An attempt is on its way; there is one at a time.
    is_tried: bool,
    why: String,
}

fn pause(rt: &Rt, times: u32) -> Duration {
    let base = PAUSE_MIN.saturating_mul(1 << times.saturating_sub(1).min(8)).min(PAUSE_MAX);
    jittered(rt.as_ref(), base).min(PAUSE_MAX)
}

#[derive(Debug, Default)]
struct Entry {
    recorded: String,
    hints: Vec<String>,
    /// The one that worked last, until an attempt takes it.
    good: Option<String>,
    last_good: Option<String>,
    attempts: usize,
    closed: BTreeMap<String, Closed>,
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

    /// Whether a connection may be tried here now; if not, why the last one was not taken. An attempt takes its turn by
    /// asking. `ADDR-2`
    pub(crate) fn may_try(&self, rt: &Rt, peer: u64, addr: &str) -> Result<(), String> {
        let now = rt.now();
        let mut held = self.held();
        let Some(closed) = held.get_mut(&peer).and_then(|entry| entry.closed.get_mut(addr)) else {
            return Ok(());
        };
        if now < closed.until {
            return Err(closed.why.clone());
        }
        (closed.until, closed.is_tried) = (now + pause(rt, closed.times), true);
        Ok(())
    }

    /// The other end turned this replica away by who it is, or is not the peer. `ADDR-2`
    pub(crate) fn turned_away(&self, rt: &Rt, peer: u64, addr: &str, why: &str) {
        let now = rt.now();
        let mut held = self.held();
        let entry = held.entry(peer).or_default();
        // Places that are known no more.
        entry
            .closed
            .retain(|at, _| *at == addr || *at == entry.recorded || entry.hints.contains(at));
        let first = Closed { times: 0, until: now, is_tried: true, why: String::new() };
        let closed = entry.closed.entry(addr.to_owned()).or_insert(first);
        // Several that set out together are one time.
        if now < closed.until && !closed.is_tried {
            return;
        }
        closed.times = closed.times.saturating_add(1);
        closed.until = now + pause(rt, closed.times);
        closed.is_tried = false;
        why.clone_into(&mut closed.why);
    }

    /// The peer let this replica in here.
    pub(crate) fn let_in(&self, peer: u64, addr: &str) {
        if let Some(entry) = self.held().get_mut(&peer) {
            entry.closed.remove(addr);
        }
    }

    /// This replica is somebody else from now on, or trusts others: all may be tried at once.
    pub(crate) fn forget_refusals(&self) {
        self.held().values_mut().for_each(|entry| entry.closed.clear());
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

    use palisade_state::Runtime as _;

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

    /// Time that stands until it is put on, and dice that always show the same.
    struct Still(std::sync::atomic::AtomicU64);

    impl palisade_state::Runtime for Still {
        fn now(&self) -> Duration {
            Duration::from_millis(self.0.load(std::sync::atomic::Ordering::Relaxed))
        }

        fn wall_ms(&self) -> u64 {
            0
        }

        fn sleep(&self, _: Duration) -> futures::future::BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn random(&self) -> u64 {
            500
        }

        fn spawn(&self, _: &'static str, _: futures::future::BoxFuture<'static, ()>) {}
    }

    #[test]
    fn where_a_replica_is_turned_away_it_comes_again_later_and_later() {
        let clock = std::sync::Arc::new(Still(0.into()));
        let rt: Rt = clock.clone();
        let addresses = Addresses::default();
        addresses.record(1, "taken:1");
        addresses.hint(1, "right:1");
        let may = |addr: &str| addresses.may_try(&rt, 1, addr).is_ok();
        let mut waited = vec![];
        for _ in 0..8 {
            assert!(may("taken:1"), "ADDR-2");
            addresses.turned_away(&rt, 1, "taken:1", "another one is there");
            // Of those that set out together the others are not counted.
            addresses.turned_away(&rt, 1, "taken:1", "another one is there");
            assert!(!may("taken:1") && may("right:1"), "ADDR-2");
            let from = clock.now();
            while addresses.held()[&1].closed["taken:1"].until > clock.now() {
                clock.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            waited.push((clock.now() - from).as_millis());
        }
        assert_eq!(waited, [100, 200, 400, 800, 1600, 3000, 3000, 3000]);
        // One at a time, and one that is given up before it ends has had its turn.
        assert!(may("taken:1") && !may("taken:1"), "ADDR-2");
        addresses.let_in(1, "taken:1");
        assert!(may("taken:1") && may("taken:1"));
        addresses.turned_away(&rt, 1, "taken:1", "it refused");
        assert_eq!(addresses.may_try(&rt, 1, "taken:1"), Err("it refused".to_owned()));
        addresses.forget_refusals();
        assert!(may("taken:1"));
    }
}
