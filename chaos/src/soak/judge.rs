//! Whether something grows that should not: a pure function of what was measured.

use serde::{Deserialize, Serialize};

/// What was measured of one process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// Milliseconds since the soak began.
    pub at_ms: u64,
    /// Its process: another one has other numbers.
    pub pid: u32,
    /// Bytes of resident memory that no file is behind.
    pub memory: u64,
    /// Open files.
    pub files: u64,
    /// Threads.
    pub threads: u64,
    /// Bytes below its directory, as the disk holds them.
    pub disk: u64,
    /// Bytes that it has written to its log for people.
    pub log: u64,
    /// Writes that were acknowledged by then, by all clients.
    pub writes: u64,
}

/// Something that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Resident memory that no file is behind.
    Memory,
    /// Open files.
    Files,
    /// Threads.
    Threads,
    /// The directory's size.
    Disk,
    /// The log for people.
    Log,
}

/// How much something may grow in the time that is judged: a part that is allowed once, a part for
/// each acknowledged write (what was written stays), and a part for each minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bound {
    /// Of what.
    pub measure: Measure,
    /// Allowed once.
    pub once: u64,
    /// Allowed for each acknowledged write.
    pub each_write: u64,
    /// Allowed for each minute.
    pub each_minute: u64,
}

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// The bounds, stated before anything is measured.
pub const BOUNDS: [Bound; 5] = [
    // Two caches that a short soak still fills: the newest 16 MiB of the log, and 32 MiB of history.
    // A write stays: with its record, its event, its audit record and the answer under its key.
    Bound { measure: Measure::Memory, once: 48 * MIB, each_write: 8 * KIB, each_minute: 0 },
    // Connections come and go.
    Bound { measure: Measure::Files, once: 12, each_write: 0, each_minute: 0 },
    Bound { measure: Measure::Threads, once: 4, each_write: 0, each_minute: 0 },
    // The next segment of the log is made ahead of use, up to 64 MiB at once. The slope takes one that comes in the
    // middle for half as much again, and history's store grows at the same time.
    Bound { measure: Measure::Disk, once: 128 * MIB, each_write: 8 * KIB, each_minute: 0 },
    Bound { measure: Measure::Log, once: 16 * KIB, each_write: 0, each_minute: 16 * KIB },
];

/// What came of one measure of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Growth {
    /// Whose.
    pub process: String,
    /// What.
    pub measure: Measure,
    /// At the first sample that counts.
    pub first: u64,
    /// At the last.
    pub last: u64,
    /// By how much it grew in the judged time, by its slope.
    pub grew: f64,
    /// By how much it may.
    pub bound: f64,
}

impl Growth {
    /// Whether it grew more than it may.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        self.grew > self.bound
    }
}

impl Measure {
    fn of(self, sample: &Sample) -> u64 {
        match self {
            Self::Memory => sample.memory,
            Self::Files => sample.files,
            Self::Threads => sample.threads,
            Self::Disk => sample.disk,
            Self::Log => sample.log,
        }
    }
}

/// The slope of a line through points, as the middle of the slopes between all pairs: what is far off
/// for a moment does not count.
fn slope(points: &[(f64, f64)]) -> f64 {
    let mut slopes = Vec::new();
    for (index, (x, y)) in points.iter().enumerate() {
        for (later_x, later_y) in points.iter().skip(index + 1) {
            if later_x > x {
                slopes.push((later_y - y) / (later_x - x));
            }
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().unwrap_or(0.0)
}

/// Judges one process by its samples from `warm_ms` on. None: there are too few of one process.
#[must_use]
pub fn judge(process: &str, samples: &[Sample], warm_ms: u64) -> Option<Vec<Growth>> {
    let pid = samples.last()?.pid;
    let warm: Vec<&Sample> =
        samples.iter().filter(|sample| sample.at_ms >= warm_ms && sample.pid == pid).collect();
    let (first, last) = (warm.first()?, warm.last()?);
    if warm.len() < 8 {
        return None;
    }
    let minutes = (last.at_ms - first.at_ms) as f64 / 60_000.0;
    let writes = last.writes.saturating_sub(first.writes) as f64;
    let growth = |bound: Bound| {
        let point =
            |sample: &&Sample| (sample.at_ms as f64 / 60_000.0, bound.measure.of(sample) as f64);
        let points: Vec<(f64, f64)> = warm.iter().map(point).collect();
        Growth {
            process: process.to_owned(),
            measure: bound.measure,
            first: bound.measure.of(first),
            last: bound.measure.of(last),
            grew: slope(&points) * minutes,
            bound: bound.once as f64
                + bound.each_write as f64 * writes
                + bound.each_minute as f64 * minutes,
        }
    };
    Some(BOUNDS.into_iter().map(growth).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three minutes, a sample each 5 s, 20 writes a second.
    fn samples(change: impl Fn(u64, &mut Sample)) -> Vec<Sample> {
        let sample = |number: u64| {
            let mut sample = Sample {
                at_ms: number * 5000,
                pid: 7,
                memory: 80 * MIB + number * 100 * KIB,
                files: 90 + number % 3,
                threads: 12,
                disk: 20 * MIB + number * 100 * KIB,
                log: 4 * KIB,
                writes: number * 100,
            };
            change(number, &mut sample);
            sample
        };
        (0..36).map(sample).collect()
    }

    fn too_much(samples: &[Sample]) -> Vec<Measure> {
        let judged = judge("replica 1", samples, 60_000).unwrap();
        judged.iter().filter(|one| one.is_too_much()).map(|one| one.measure).collect()
    }

    #[test]
    fn steady_work_passes() {
        assert_eq!(too_much(&samples(|_, _| {})), []);
    }

    #[test]
    fn a_leak_of_memory_is_found() {
        let leaks = samples(|number, sample| sample.memory += number * 3 * MIB);
        assert_eq!(too_much(&leaks), [Measure::Memory]);
    }

    #[test]
    fn a_leak_of_open_files_is_found() {
        assert_eq!(too_much(&samples(|number, sample| sample.files += number)), [Measure::Files]);
    }

    #[test]
    fn a_leak_of_threads_is_found() {
        let leaks = samples(|number, sample| sample.threads += number / 3);
        assert_eq!(too_much(&leaks), [Measure::Threads]);
    }

    #[test]
    fn a_log_that_is_never_trimmed_and_one_that_talks_are_found() {
        let leaks = samples(|number, sample| sample.disk += number * 8 * MIB);
        assert_eq!(too_much(&leaks), [Measure::Disk]);
        let talks = samples(|number, sample| sample.log += number * 8 * KIB);
        assert_eq!(too_much(&talks), [Measure::Log]);
    }

    #[test]
    fn what_is_needed_late_or_for_a_moment_is_no_leak() {
        let late =
            samples(|number, sample| sample.memory += if number > 30 { 90 * MIB } else { 0 });
        assert_eq!(too_much(&late), []);
        // As measured: a segment of 64 MiB in the middle, while history's store grew by 24.
        let segment = samples(|number, sample| {
            sample.disk += number * MIB + if number > 24 { 64 * MIB } else { 0 };
        });
        assert_eq!(too_much(&segment), []);
        let moment = samples(|number, sample| sample.files += if number == 30 { 500 } else { 0 });
        assert_eq!(too_much(&moment), []);
    }

    #[test]
    fn what_happens_while_it_warms_up_is_not_judged() {
        let warms = samples(|number, sample| sample.memory += number.min(12) * 30 * MIB);
        assert_eq!(too_much(&warms), []);
    }

    #[test]
    fn a_process_that_was_just_started_cannot_be_judged() {
        let fresh = samples(|number, sample| sample.pid = if number > 30 { 8 } else { 7 });
        assert_eq!(judge("replica 1", &fresh, 60_000), None);
    }
}
