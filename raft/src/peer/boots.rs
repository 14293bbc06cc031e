//! Which processes call under one replica's id: a directory that was copied and started beside its original is turned
//! away.
//!
//! Each process has a boot id and says it with each call. A connection counts for the boot that called on it first, and
//! whatever is received on it, be it the answer to a ping, shows that its process lives. A process that was killed or
//! stopped has no connections: the system has closed them, or they do not answer pings.
//!
//! # Invariants
//! - `BOOT-1` While a process has connections, no younger one under its id is let in: the two might vote twice.
//! - `BOOT-2` A younger one is told that it is a copy on proof alone: something came from the older one when a dead one
//!   would long have been noticed. Both held the lock of a directory then, so there are two. A restart is at most made
//!   to wait.
//! - `BOOT-3` Who was found to be a copy is never let in, also when the older one has ended, and is in nobody's way.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use palisade_state::Rt;

/// One life of a replica's process. The one that was started first is the lesser one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Boot {
    started_ms: u64,
    random: u64,
}

impl Boot {
    /// This process's.
    pub(crate) fn new(rt: &Rt) -> Self {
        Self { started_ms: rt.wall_ms(), random: rt.random() }
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.started_ms, self.random)
    }
}

impl FromStr for Boot {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (started, random) = text.split_once('-').unwrap_or((text, ""));
        let number = |text| u64::from_str_radix(text, 16);
        Ok(Self { started_ms: number(started)?, random: number(random)? })
    }
}

/// Why a call is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Not now: an earlier process may have ended, and its connections not yet.
    Waiting(String),
    /// Never: the other process lives.
    Out(String),
}

/// Copies of one replica that are remembered.
const COPIES_MAX: usize = 64;

/// When something was last received on a connection, in microseconds.
type Heard = Arc<AtomicU64>;

#[derive(Debug, Default)]
struct Seen {
    /// Connections by boot.
    connections: BTreeMap<Boot, Vec<Heard>>,
    /// When boots called first that have connections, or wait.
    first: BTreeMap<Boot, Duration>,
    /// `BOOT-3`, the newest last.
    copies: VecDeque<Boot>,
}

impl Seen {
    /// `BOOT-2`
    fn find_copies(&mut self, hold: Duration) {
        let lives_beside = |boot: &Boot, first: &Duration| {
            let late = micros(first.saturating_add(hold));
            let mut older = self.connections.range(..boot).flat_map(|(_, heard)| heard);
            older.any(|heard| heard.load(Ordering::Relaxed) >= late)
        };
        let found = self.first.iter().filter(|(boot, first)| lives_beside(boot, first));
        for boot in found.map(|(boot, _)| *boot).collect::<Vec<_>>() {
            self.connections.remove(&boot);
            self.first.remove(&boot);
            self.copies.push_back(boot);
            if self.copies.len() > COPIES_MAX {
                self.copies.pop_front();
            }
        }
    }
}

/// What is known of all callers' boots.
pub(crate) struct Boots {
    rt: Rt,
    hold: Duration,
    seen: Mutex<BTreeMap<u64, Seen>>,
}

/// One connection.
pub(crate) struct Seat {
    boots: Arc<Boots>,
    taken: OnceLock<(u64, Boot, Heard)>,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Boots {
    /// A process is noticed to be dead within `hold`.
    pub(crate) fn new(rt: Rt, hold: Duration) -> Arc<Self> {
        Arc::new(Self { rt, hold, seen: Mutex::default() })
    }

    /// For a new connection.
    pub(crate) fn seat(self: &Arc<Self>) -> Arc<Seat> {
        Arc::new(Seat { boots: self.clone(), taken: OnceLock::new() })
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<u64, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, replica: u64, boot: Boot, heard: &Heard) {
        let mut all = self.seen();
        let Some(seen) = all.get_mut(&replica) else { return };
        // What this one heard is proof now or never.
        seen.find_copies(self.hold);
        if let Some(connections) = seen.connections.get_mut(&boot) {
            connections.retain(|other| !Arc::ptr_eq(other, heard));
            if connections.is_empty() {
                seen.connections.remove(&boot);
            }
        }
        // Whoever waits goes on waiting across its own connections, for as long as there is something to wait for.
        let Seen { connections, first, .. } = seen;
        let oldest = connections.keys().next().copied();
        first.retain(|boot, _| connections.contains_key(boot) || oldest.is_some_and(|o| o < *boot));
    }
}

impl Seat {
    /// Something was received on this connection.
    pub(crate) fn heard(&self) {
        if let Some((_, _, heard)) = self.taken.get() {
            heard.store(micros(self.boots.rt.now()), Ordering::Relaxed);
        }
    }

    /// Whether a call of this boot on this connection is let in.
    pub(crate) fn check(&self, replica: u64, boot: Boot) -> Result<(), Kept> {
        let now = self.boots.rt.now();
        let mut all = self.boots.seen();
        let seen = all.entry(replica).or_default();
        if self.taken.get().is_none() && !seen.copies.contains(&boot) {
            let heard = Heard::new(AtomicU64::new(micros(now)));
            seen.connections.entry(boot).or_default().push(heard.clone());
            seen.first.entry(boot).or_insert(now);
            // Set once: a connection's calls are let in under the lock.
            let _ = self.taken.set((replica, boot, heard));
        }
        self.heard();
        seen.find_copies(self.boots.hold);
        if seen.copies.contains(&boot) {
            return Err(Kept::Out(format!(
                "another process runs as replica {replica}, and it was there before this one: a copied data directory \
                 must not run beside its original"
            )));
        }
        if seen.connections.range(..boot).next().is_none() {
            return Ok(());
        }
        Err(Kept::Waiting(format!(
            "an earlier process of replica {replica} still has connections: its successor waits until they end"
        )))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some((replica, boot, heard)) = self.taken.take() {
            self.boots.leave(replica, boot, &heard);
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_state::step::StepRuntime;

    use super::*;

    const HOLD: Duration = Duration::from_secs(15);

    fn boot(started_ms: u64) -> Boot {
        Boot { started_ms, random: 7 }
    }

    fn world() -> (Arc<StepRuntime>, Arc<Boots>) {
        let rt = StepRuntime::new(1);
        (rt.clone(), Boots::new(rt, HOLD))
    }

    #[test]
    fn boots_are_written_and_read() {
        let boot = Boot { started_ms: 255, random: u64::MAX };
        assert_eq!(boot.to_string().parse(), Ok(boot));
        assert!("".parse::<Boot>().is_err() && "ff".parse::<Boot>().is_err());
    }

    #[test]
    fn a_restart_is_let_in_at_once_when_the_old_connections_are_gone() {
        let (_, boots) = world();
        let (append, votes) = (boots.seat(), boots.seat());
        assert_eq!(append.check(3, boot(1)), Ok(()));
        assert_eq!(votes.check(3, boot(1)), Ok(()));
        drop(append);
        let next = boots.seat();
        assert!(matches!(next.check(3, boot(2)), Err(Kept::Waiting(_))), "one is left");
        drop(votes);
        assert_eq!(next.check(3, boot(2)), Ok(()));
        assert_eq!(boots.seat().check(2, boot(9)), Ok(()), "another replica's are its own");
    }

    #[test]
    fn a_dead_process_that_is_noticed_late_makes_its_successor_wait_and_no_more() {
        let (rt, boots) = world();
        let (dead, next) = (boots.seat(), boots.seat());
        assert_eq!(dead.check(3, boot(1)), Ok(()));
        for second in 0..60 {
            assert!(matches!(next.check(3, boot(2)), Err(Kept::Waiting(_))));
            rt.advance(Duration::from_secs(1));
            if second < 11 {
                // What its system sent once more after its end.
                dead.heard();
            }
        }
        drop(dead);
        assert_eq!(next.check(3, boot(2)), Ok(()), "BOOT-2");
    }

    #[test]
    fn a_copy_is_told_to_stay_away_and_the_original_is_not() {
        let (rt, boots) = world();
        let (original, copy) = (boots.seat(), boots.seat());
        assert_eq!(original.check(3, boot(1)), Ok(()));
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Waiting(_))));
        drop(copy);
        rt.advance(HOLD);
        // It answers a ping.
        original.heard();
        let copy = boots.seat();
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Out(_))), "another connection");
        assert_eq!(original.check(3, boot(1)), Ok(()));
    }

    #[test]
    fn an_original_that_is_restarted_is_let_in_and_its_copy_never() {
        let (rt, boots) = world();
        let (original, copy) = (boots.seat(), boots.seat());
        assert_eq!(original.check(3, boot(1)), Ok(()));
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Waiting(_))));
        rt.advance(HOLD);
        original.heard();
        // The copy does not call again before the original has ended.
        drop(original);
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Out(_))), "BOOT-3");
        let again = boots.seat();
        assert_eq!(again.check(3, boot(3)), Ok(()), "the copy is in nobody's way");
        drop(copy);
        drop(again);
        rt.advance(HOLD);
        assert!(matches!(boots.seat().check(3, boot(2)), Err(Kept::Out(_))), "BOOT-3");
    }

    #[test]
    fn an_original_that_comes_late_is_let_in_and_the_copy_goes() {
        let (rt, boots) = world();
        let (copy, original) = (boots.seat(), boots.seat());
        assert_eq!(copy.check(3, boot(2)), Ok(()), "nobody else is known");
        assert_eq!(original.check(3, boot(1)), Ok(()));
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Waiting(_))));
        rt.advance(HOLD);
        assert_eq!(original.check(3, boot(1)), Ok(()));
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Out(_))));
    }
}
