//! Which processes call under one replica's id: a directory that was copied and started beside its original is turned
//! away.
//!
//! Each process has a boot id and says it with each call. A connection counts for the boot that called on it first. A
//! process that was killed or stopped has no connections: the system has closed them, or they do not answer pings.
//!
//! # Invariants
//! - `BOOT-1` While a process has connections, no younger one under its id is let in: the two might vote twice.
//! - `BOOT-2` A younger one is told for good to stay away only after the older one has outlived the time in which a dead
//!   one would have been noticed. So a restart is at most made to wait.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

#[derive(Debug, Default)]
struct Seen {
    /// Connections by boot.
    connections: BTreeMap<Boot, usize>,
    /// Since when boots are kept waiting.
    waiting: BTreeMap<Boot, Duration>,
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
    taken: Mutex<Option<(u64, Boot)>>,
}

impl Boots {
    /// A younger boot waits for `hold` before it is told to stay away.
    pub(crate) fn new(rt: Rt, hold: Duration) -> Arc<Self> {
        Arc::new(Self { rt, hold, seen: Mutex::default() })
    }

    /// For a new connection.
    pub(crate) fn seat(self: &Arc<Self>) -> Arc<Seat> {
        Arc::new(Seat { boots: self.clone(), taken: Mutex::default() })
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<u64, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, replica: u64, boot: Boot) -> Result<(), Kept> {
        let mut all = self.seen();
        let seen = all.entry(replica).or_default();
        let older = seen.connections.keys().find(|other| **other < boot);
        if older.is_none() {
            seen.waiting.remove(&boot);
            return Ok(());
        }
        let now = self.rt.now();
        let since = *seen.waiting.entry(boot).or_insert(now);
        if now.saturating_sub(since) < self.hold {
            return Err(Kept::Waiting(format!(
                "an earlier process of replica {replica} still has connections: its successor waits until they end"
            )));
        }
        Err(Kept::Out(format!(
            "another process runs as replica {replica}, and it was there before this one: a copied data directory must \
             not run beside its original; stop this process and remove the copy. For one more replica, make a new \
             directory with `palisade cluster join`"
        )))
    }

    fn leave(&self, replica: u64, boot: Boot) {
        let mut all = self.seen();
        let Some(seen) = all.get_mut(&replica) else { return };
        if let Some(count) = seen.connections.get_mut(&boot) {
            *count -= 1;
            if *count == 0 {
                seen.connections.remove(&boot);
            }
        }
        // Whoever waits goes on waiting across its own connections, for as long as there is something to wait for.
        let oldest = seen.connections.keys().next().copied();
        seen.waiting.retain(|waiting, _| oldest.is_some_and(|oldest| oldest < *waiting));
    }
}

impl Seat {
    /// Whether a call of this boot on this connection is let in.
    pub(crate) fn check(&self, replica: u64, boot: Boot) -> Result<(), Kept> {
        {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            if taken.is_none() {
                *taken = Some((replica, boot));
                let mut all = self.boots.seen();
                *all.entry(replica).or_default().connections.entry(boot).or_default() += 1;
            }
        }
        self.boots.check(replica, boot)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((replica, boot)) = taken {
            self.boots.leave(replica, boot);
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
        for _ in 0..14 {
            assert!(matches!(next.check(3, boot(2)), Err(Kept::Waiting(_))));
            rt.advance(Duration::from_secs(1));
        }
        drop(dead);
        assert_eq!(next.check(3, boot(2)), Ok(()));
    }

    #[test]
    fn a_copy_is_told_to_stay_away_and_the_original_is_not() {
        let (rt, boots) = world();
        let (original, copy) = (boots.seat(), boots.seat());
        assert_eq!(original.check(3, boot(1)), Ok(()));
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Waiting(_))));
        drop(copy);
        rt.advance(HOLD);
        let copy = boots.seat();
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Out(_))), "another connection");
        assert_eq!(original.check(3, boot(1)), Ok(()));
    }

    #[test]
    fn an_original_that_comes_late_is_let_in_and_the_copy_goes() {
        let (rt, boots) = world();
        let (copy, original) = (boots.seat(), boots.seat());
        assert_eq!(copy.check(3, boot(2)), Ok(()), "nobody else is known");
        assert_eq!(original.check(3, boot(1)), Ok(()));
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Waiting(_))));
        rt.advance(HOLD);
        assert!(matches!(copy.check(3, boot(2)), Err(Kept::Out(_))));
    }
}
