//! Seeds of the real rig: a number, and the version of the rig for which it means something.

use std::hash::{BuildHasher as _, Hasher as _};

use crate::clock;

/// What a seed of `run` and `soak` decides changes with it: which faults come when, whom they hit, and
/// what clients do. The last number is counted up with each such change.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-rig1");

/// A seed as it is written on a command line: `N`, or `VERSION:N`.
///
/// # Errors
/// It is of another version, or no number.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (version, number) = text.split_once(':').unwrap_or((VERSION, text));
    if version != VERSION {
        return Err(format!(
            "the seed is of rig version {version}, and this is {VERSION}, in which it decides something else"
        ));
    }
    number.parse().map_err(|_| "a seed is a whole number below 2^64".to_owned())
}

/// A seed for a run that names none. The number of the process would not do: within namespaces it is the same each time.
pub(crate) fn another() -> u64 {
    let random = std::hash::RandomState::new().build_hasher().finish();
    clock::unix_seconds() << 16 | (random & 0xffff)
}

/// With its version.
pub(crate) fn written(seed: u64) -> String {
    format!("{VERSION}:{seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_of_another_version_is_refused_with_both() {
        assert_eq!(parse("7"), Ok(7));
        assert_eq!(parse(&written(7)), Ok(7));
        let error = parse("0.0.9-rig1:7").unwrap_err();
        assert!(error.contains("0.0.9-rig1") && error.contains(VERSION), "{error}");
        assert!(parse("seven").unwrap_err().contains("whole number"));
    }
}
