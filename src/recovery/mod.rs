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

#[cfg(test)]
mod decay;
#[cfg(test)]
mod tests;
