//! How long syncs of the log take: measured once after the start, and from then on at each real one.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use palisade_state::Rt;

use crate::disk::Files;

/// Syncs that count.
const KEPT: usize = 1000;
/// Fewer say nothing about the slowest of a hundred.
const ENOUGH: usize = 50;
const PROBES: u64 = 100;
const PROBE_LIMIT: Duration = Duration::from_secs(1);
const PROBE_BYTES: u64 = 512;

#[derive(Debug, Default)]
struct Times {
    /// Since when one is under way.
    begun: Option<Duration>,
    /// When each ended, and how long it took.
    took: VecDeque<(Duration, Duration)>,
    /// What was found since the last one ended.
    known: Option<Quantiles>,
}

/// The times of one replica's log.
pub(crate) struct SyncTimes {
    rt: Rt,
    times: Mutex<Times>,
}

/// What is usual, and what one in a hundred takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantiles {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

fn quantiles(mut took: Vec<Duration>) -> Option<Quantiles> {
    let last = took.len().checked_sub(1)?;
    let mut at = |permille: usize| *took.select_nth_unstable(last * permille / 1000).1;
    Some(Quantiles { p50: at(500), p99: at(990) })
}

impl SyncTimes {
    pub(crate) fn new(rt: Rt) -> Self {
        Self { rt, times: Mutex::default() }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, took: Duration) {
        let now = self.rt.now();
        let mut times = self.times();
        if times.took.len() >= KEPT {
            times.took.pop_front();
        }
        times.took.push_back((now, took));
        times.known = None;
    }

    /// How long the sync that is under way has taken so far.
    pub(crate) fn pending(&self) -> Option<Duration> {
        let begun = self.times().begun?;
        Some(self.rt.now().saturating_sub(begun))
    }

    /// Of the last thousand; `None` while there are too few.
    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        let mut times = self.times();
        if times.known.is_none() && times.took.len() >= ENOUGH {
            times.known = quantiles(times.took.iter().map(|(_, took)| *took).collect());
        }
        times.known
    }

    /// How many of the syncs that ended within `window` took longer than `limit`, if one in a hundred did.
    pub(crate) fn slow(&self, limit: Duration, window: Duration) -> Option<usize> {
        let since = self.rt.now().saturating_sub(window);
        let times = self.times();
        let recent = || times.took.iter().filter(|(ended, _)| *ended >= since);
        let slow = recent().filter(|(_, took)| *took > limit).count();
        (slow > 0 && slow * 100 >= recent().count()).then_some(slow)
    }

    /// Writes and syncs a little, in a file of its own. Blocks.
    pub(crate) fn probe(&self, files: &dyn Files, dir: &Path) -> io::Result<()> {
        let path = dir.join("log").join("sync-probe.tmp");
        // One that was left behind by a crash.
        let _ = files.remove(&path);
        let file = files.create(&path)?;
        let until = self.rt.now() + PROBE_LIMIT;
        let probed = file.allocate(PROBES * PROBE_BYTES).and_then(|()| {
            file.sync_data()?;
            for probe in 0..PROBES {
                let begun = self.rt.now();
                if begun >= until {
                    break;
                }
                file.write_all_at(probe * PROBE_BYTES, &[1; PROBE_BYTES as usize])?;
                file.sync_data()?;
                self.add(self.rt.now().saturating_sub(begun));
            }
            Ok(())
        });
        files.remove(&path)?;
        probed
    }
}

impl SyncTimes {
    /// Follows the log through its named points.
    pub(crate) fn on_point(&self, point: &'static str) {
        match point {
            // The first of several: a simulated disk takes its time before it is asked.
            "wal.before_sync" => {
                self.times().begun.get_or_insert(self.rt.now());
            }
            "wal.after_sync" => {
                let begun = self.times().begun.take();
                if let Some(begun) = begun {
                    self.add(self.rt.now().saturating_sub(begun));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_state::step::StepRuntime;

    use super::*;

    #[test]
    fn the_slowest_of_a_hundred_is_found() {
        let took = |slow: usize| {
            let fast = std::iter::repeat_n(Duration::from_millis(1), 1000 - slow);
            fast.chain(std::iter::repeat_n(Duration::from_millis(80), slow)).collect()
        };
        let p99 = |slow| quantiles(took(slow)).unwrap().p99.as_millis();
        assert_eq!((p99(5), p99(20)), (1, 80));
        assert_eq!(quantiles(vec![]), None);
    }

    #[test]
    fn a_slow_spell_is_forgotten_after_a_while() {
        let rt = StepRuntime::new(1);
        let times = SyncTimes::new(rt.clone());
        let (limit, minute) = (Duration::from_millis(500), Duration::from_secs(60));
        for _ in 0..8 {
            times.add(Duration::from_secs(1));
        }
        assert_eq!(times.slow(limit, minute), Some(8));
        for _ in 0..792 {
            times.add(Duration::from_millis(1));
        }
        assert_eq!(times.slow(limit, minute), Some(8), "one in a hundred");
        times.add(Duration::from_millis(1));
        assert_eq!(times.slow(limit, minute), None);
        rt.advance(minute * 2);
        times.add(Duration::from_secs(1));
        assert_eq!(times.slow(limit, minute), Some(1), "the others are old");
    }

    #[test]
    fn a_probe_leaves_nothing() {
        let rt: Rt = StepRuntime::new(1);
        let times = SyncTimes::new(rt);
        let files = crate::disk::MemFiles::new();
        files.create_dir_all(Path::new("/d/log")).unwrap();
        times.probe(&files, Path::new("/d")).unwrap();
        assert_eq!(files.list(Path::new("/d/log")).unwrap(), Vec::<String>::new());
        assert!(times.quantiles().is_some());
        times.on_point("wal.before_sync");
        assert_eq!(times.pending(), Some(Duration::ZERO));
        times.on_point("wal.after_sync");
        assert_eq!(times.pending(), None);
    }
}
