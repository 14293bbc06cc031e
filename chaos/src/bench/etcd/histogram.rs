//! Latencies in buckets that grow with the value: exact below 128 µs, within 1.6 % above.

/// Each power of two has so many buckets.
const PARTS: u64 = 64;
const PARTS_BITS: u32 = PARTS.trailing_zeros();
/// The largest value that has a bucket of its own is about 2^(6 + 34) µs.
const BUCKETS: usize = (PARTS as usize) * 36;

/// How often which latency was seen, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, max: 0 }
    }
}

/// The bucket of a value.
fn bucket(micros: u64) -> usize {
    if micros < 2 * PARTS {
        return usize::try_from(micros).unwrap_or(0);
    }
    let shift = micros.ilog2() - PARTS_BITS;
    let index = u64::from(shift) * PARTS + (micros >> shift);
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn highest(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PARTS {
        return bucket;
    }
    let shift = bucket / PARTS - 1;
    (((bucket % PARTS) + PARTS + 1) << shift) - 1
}

impl Histogram {
    /// Takes note of one.
    pub(in crate::bench) fn record(&mut self, micros: u64) {
        if let Some(count) = self.counts.get_mut(bucket(micros)) {
            *count += 1;
        }
        self.total += 1;
        self.max = self.max.max(micros);
    }

    /// Takes over what another has seen.
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// How many were seen.
    pub(in crate::bench) fn count(&self) -> u64 {
        self.total
    }

    /// The largest, in milliseconds.
    pub(in crate::bench) fn max_ms(&self) -> f64 {
        self.max as f64 / 1000.0
    }

    /// The value that this share (from 0 to 1) does not exceed, in milliseconds; 0 when nothing was seen.
    pub(in crate::bench) fn quantile_ms(&self, share: f64) -> f64 {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return highest(index).min(self.max) as f64 / 1000.0;
            }
        }
        self.max_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_ends_where_the_next_begins() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(highest(index)), index);
            assert_eq!(bucket(highest(index) + 1), index + 1);
        }
    }

    #[test]
    fn a_bucket_is_at_most_one_64th_wide() {
        for micros in [128_u64, 200, 1_000, 12_345, 1_000_000, 600_000_000] {
            let error = highest(bucket(micros)) - micros;
            assert!(error * PARTS <= micros, "{micros}: {error}");
        }
    }

    #[test]
    fn quantiles_of_a_hundred_values_are_those_values() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|micros| histogram.record(micros));
        assert!((histogram.quantile_ms(0.5) - 0.050).abs() < 1e-9);
        assert!((histogram.quantile_ms(0.99) - 0.099).abs() < 1e-9);
        assert!((histogram.quantile_ms(1.0) - 0.100).abs() < 1e-9);
    }

    #[test]
    fn two_added_are_as_one() {
        let (mut one, mut other, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for micros in 0..5_000 {
            if micros % 3 == 0 {
                one.record(micros * 7)
            } else {
                other.record(micros * 7)
            };
            both.record(micros * 7);
        }
        one.add(&other);
        assert_eq!(one, both);
    }

    #[test]
    fn nothing_seen_is_zero() {
        assert!(Histogram::default().quantile_ms(0.99).abs() < f64::EPSILON);
    }

    #[test]
    fn a_value_beyond_all_buckets_is_counted_and_is_the_max() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!(histogram.count(), 1);
        assert!(histogram.quantile_ms(0.5) > 0.0);
    }
}
