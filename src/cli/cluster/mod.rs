//! `palisade cluster`: the control plane itself. One file for each verb.

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
    /// Show the lineage, the CA and the pins by which agents recognise this cluster
    Trust,
}

impl Cluster {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Status(status) => status.run(session).await,
            Verb::Trust => trust::run(session).await,
        }
    }
}
