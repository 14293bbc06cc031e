//! Rehearsing an upgrade: a debug build says of itself that it is another release. A release build has none of this.

use palisade_raft::{Build, Tuning};

use crate::output::{Failure, Outcome};

/// `VERSION/FORMAT`: the release, and the newest format of the log that it reads.
const VARIABLE: &str = "PALISADE_REHEARSED_BUILD";

fn parse(text: &str) -> Option<Build> {
    let (version, format) = text.split_once('/')?;
    Some(Build { version: version.to_owned(), format_max: format.parse().ok()?, newer: vec![] })
}

/// Lets the replica run as the release that the environment names, if it names one.
pub(super) fn rehearse(tuning: &mut Tuning) -> Outcome {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(()) };
    let usage = || Failure::usage(format!("{VARIABLE} is VERSION/FORMAT, and {text:?} is not"));
    tuning.build = parse(&text).ok_or_else(usage)?;
    let (version, format) = (tuning.build.version.as_str(), tuning.build.format_max);
    tracing::warn!(version, format, "this replica rehearses another release");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rehearsed_build_has_a_version_and_a_format() {
        let build = parse("0.2.0/2").unwrap();
        assert_eq!((build.version.as_str(), build.format_max), ("0.2.0", 2));
        assert!(parse("0.2.0").is_none() && parse("0.2.0/x").is_none());
    }
}
