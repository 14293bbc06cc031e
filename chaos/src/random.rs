//! Numbers that a seed decides, on every machine and in every version.

/// SplitMix64. Written out, because a seed in an old report must mean the same in ten years.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of one part under a seed, apart from those of the other parts.
    #[must_use]
    pub fn part(seed: u64, part: &str) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in part.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let mut mixed = Self(seed ^ hash);
        Self(mixed.next())
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 {
            return 0;
        }
        let wide = u128::from(self.next()) * u128::from(end);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number from `first` to `last`, both included.
    pub fn within(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// True in one half of all cases.
    pub fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// An index into something of that length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// Brings `items` into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }

    /// 64 hexadecimal digits.
    pub fn hex64(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.next())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn parts_of_one_seed_differ_and_repeat() {
        assert_eq!(Random::part(7, "a").next(), Random::part(7, "a").next());
        assert_ne!(Random::part(7, "a").next(), Random::part(7, "b").next());
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut random = Random(3);
        for _ in 0..1000 {
            assert!((5..=9).contains(&random.within(5, 9)));
        }
        assert_eq!(random.below(0), 0);
    }
}
