//! `palisade cluster`: the control plane itself. One file for each verb.

mod backup;
mod recover;
mod restore;
mod status;
mod trust;

use clap::Subcommand;

use super::Session;
use crate::output::Outcome;
pub(crate) use status::{leader, status};

/// Flags of `cluster`.
#[derive(Debug, clap::Args)]
pub struct Cluster {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show members, leader, term, last index, lag, and who owns which shards
    Status(status::Status),
    /// Write everything into one file, or look at such a file
    Backup(backup::Backup),
    /// Make a new cluster from a backup
    Restore(restore::Restore),
    /// Go on with the one replica that is left when the others are lost
    Recover(recover::Recover),
    /// Show the lineage, the CA and the pins by which agents recognise this cluster
    Trust,
}

impl Cluster {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Status(status) => status.run(session).await,
            Verb::Backup(backup) => backup.run(session).await,
            Verb::Restore(restore) => restore.run(session),
            Verb::Recover(recover) => recover.run(session),
            Verb::Trust => trust::run(session).await,
        }
    }
}
