//! Which release a replica runs, and what the cluster's active format lets it propose.
//!
//! # Invariants
//! - `FORMAT-2` A command of a kind that some member cannot read is never proposed: kinds that are newer than format 1
//!   wait until the active format, which all members read, is at least theirs.

use palisade_state::{
    Command,
    command::{FORMAT, Kind},
};

use crate::refusal::Refusal;

/// Kinds of commands that are newer than format 1, by their number, with the format that brought them. The first one
/// that is added after a release goes here.
const NEWER: &[(u32, u32)] = &[];

/// What a replica runs. Only a rehearsal of an upgrade has another than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The release.
    pub version: String,
    /// The newest format that it reads.
    pub format_max: u32,
    /// The format that a kind of command needs, by the kind's number; kinds that are not here need format 1.
    pub newer: Vec<(u32, u32)>,
}

impl Default for Build {
    fn default() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, format_max: FORMAT, newer: NEWER.to_vec() }
    }
}

/// The number of a kind, as it is on the log, and its name.
fn named(kind: &Kind) -> (u32, &'static str) {
    match kind {
        Kind::Txn(_) => (1, "a transaction"),
        Kind::Tick(_) => (2, "a tick"),
        Kind::WorkerBeat(_) => (3, "a worker's beat"),
        Kind::LeaseRelease(_) => (4, "a release of leases"),
        Kind::Form(_) => (5, "a formation"),
        Kind::Report(_) => (6, "a replica's report"),
        Kind::RaiseFormat(_) => (7, "a raise of the format"),
        Kind::Trim(_) => (8, "a trim"),
        Kind::ForgetReplica(_) => (9, "a removal of a replica's report"),
    }
}

impl Build {
    /// Whether a command may be proposed while `active` is the format that all members read.
    pub(crate) fn check(&self, command: &Command, active: u32) -> Result<(), Refusal> {
        let Some(kind) = command.kind.as_ref().filter(|_| !self.newer.is_empty()) else {
            return Ok(());
        };
        let (number, name) = named(kind);
        let needed = self.newer.iter().find(|(kind, _)| *kind == number).map_or(1, |(_, at)| *at);
        if needed <= active {
            return Ok(());
        }
        Err(Refusal::Invalid(format!(
            "{name} needs format {needed}, and this cluster is at format {active} until every member runs a release \
             that reads {needed}: `palisade cluster status` shows which do not"
        )))
    }
}

#[cfg(test)]
mod tests {
    use palisade_state::command::Trim;

    use super::*;

    #[test]
    fn a_newer_kind_waits_for_the_active_format() {
        let trim: Command = Kind::Trim(Trim::default()).into();
        assert_eq!(Build::default().check(&trim, 1), Ok(()));
        let next = Build { newer: vec![(8, 2)], format_max: 2, ..Build::default() };
        assert_eq!(next.check(&trim, 2), Ok(()));
        let Err(Refusal::Invalid(why)) = next.check(&trim, 1) else { panic!("it was let through") };
        assert!(why.contains("a trim needs format 2") && why.contains("at format 1"), "{why}");
        let txn: Command = palisade_state::Txn::default().into();
        assert_eq!(next.check(&txn, 1), Ok(()));
    }
}
