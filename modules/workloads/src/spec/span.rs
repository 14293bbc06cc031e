//! Spans of time as people write them: `10s`, `1m30s`, `250ms`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest span that a spec may name: 30 days.
const MS_MAX: u64 = 30 * 24 * 60 * 60 * 1000;

/// A span of time such as `10s`, `1m30s` or `250ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Span(String);

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Span {
    /// So many milliseconds, in the largest unit that shows them whole.
    #[must_use]
    pub fn of_ms(ms: u64) -> Self {
        let fits = UNITS.iter().rev().find(|(_, unit)| ms >= *unit && ms.is_multiple_of(*unit));
        let (name, unit) = fits.copied().unwrap_or(("ms", 1));
        Self(format!("{}{name}", ms / unit))
    }

    pub(super) fn two_seconds() -> Self {
        Self::of_ms(2_000)
    }

    pub(super) fn five_seconds() -> Self {
        Self::of_ms(5_000)
    }

    pub(super) fn ten_seconds() -> Self {
        Self::of_ms(10_000)
    }

    /// In milliseconds; 0 for one that [`Span::parse`] refuses, which no accepted spec holds.
    #[must_use]
    pub fn ms(&self) -> u64 {
        self.parse().unwrap_or(0)
    }

    /// In milliseconds.
    ///
    /// # Errors
    /// What is wrong with it, in a clause.
    pub fn parse(&self) -> Result<u64, String> {
        let shown: String = self.0.chars().take(40).flat_map(char::escape_debug).collect();
        let junk = || {
            format!(
                "\"{shown}\" is not a span of time; write one such as \"10s\", \"1m30s\" or \"250ms\""
            )
        };
        let mut rest = self.0.trim();
        if rest.is_empty() {
            return Err(junk());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(junk)?;
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(junk)?.1;
            if digits == 0 || digits > 12 {
                return Err(junk());
            }
            let number: u64 = number.parse().map_err(|_| junk())?;
            total = total.saturating_add(number.saturating_mul(unit));
            rest = after.trim_start();
        }
        if total > MS_MAX {
            return Err(format!("\"{shown}\" is longer than 30 days"));
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them() {
        for (text, ms) in
            [("10s", 10_000), ("1m30s", 90_000), ("250ms", 250), ("0s", 0), ("1h 5m", 3_900_000)]
        {
            assert_eq!(Span(text.to_owned()).parse(), Ok(ms), "{text}");
        }
        for junk in ["", "10", "s", "-1s", "1.5s", "ten", "10 parsecs", "99999999999d", "1s2"] {
            assert!(Span(junk.to_owned()).parse().is_err(), "{junk}");
        }
    }

    #[test]
    fn a_span_is_shown_in_its_largest_whole_unit() {
        assert_eq!(Span::of_ms(90_000), Span("90s".to_owned()));
        assert_eq!(Span::of_ms(0), Span("0ms".to_owned()));
        assert_eq!(Span::of_ms(300_000), Span("5m".to_owned()));
    }
}
