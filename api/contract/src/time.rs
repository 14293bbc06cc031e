//! Moments as records show them.

/// Wall-clock milliseconds as RFC 3339, in UTC, always with three decimals, so that texts sort as times do.
#[must_use]
pub fn rfc3339(wall_ms: u64) -> String {
    let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_three_decimals_whatever_they_are() {
        assert_eq!(rfc3339(1_700_000_000_000), "2023-11-14T22:13:20.000Z");
        assert_eq!(rfc3339(1_700_000_000_120), "2023-11-14T22:13:20.120Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-30T22:00:00.999Z");
    }
}
