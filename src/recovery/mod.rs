//! Losing things, and getting them back: backups, restore, recovery of a survivor, repair of a replica.

mod files;
mod module;
mod reach;
mod recover;
mod renew;
mod repair;
mod restore;
mod s3;
mod schedule;
mod source;
mod stages;

pub use module::Backups;
pub use reach::{Reach, reach};
pub use recover::{Plan, RecoverError, RecoverOptions, Recovery, abandon, survey};
pub use repair::{
    Finding, Known, Repair, RepairError, RepairJournal, Repaired, Wanted, survey_damage,
};
pub use restore::{RestoreError, RestoreOptions, Restored, restore};
pub use source::Source;
pub use stages::MARKER;

/// The highest epoch of a cluster: far more lives than one can have, and there is a higher number for whoever asks.
pub(crate) const EPOCH_MAX: u64 = u32::MAX as u64;

#[cfg(test)]
mod decay;
#[cfg(test)]
mod tests;
