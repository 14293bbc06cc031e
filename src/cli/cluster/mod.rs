//! `palisade cluster`: the control plane itself. One file for each verb.

mod address;
mod backup;
mod drain;
mod join;
mod look;
mod recover;
mod remove;
mod repair;
mod restore;
mod status;
mod transfer;
mod trust;
mod upgrade;

use clap::Subcommand;
use serde_json::Value;

use super::Session;
use crate::{
    client::Call,
    output::{self, Format, Outcome, cell},
};
pub(crate) use look::{Change, leader, leader_address, listed, status};

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
    /// Let a replica whose data is damaged or gone join again, under a new id
    Repair(repair::RepairArgs),
    /// Show the lineage, the CA and the pins by which agents recognise this cluster
    Trust,
    /// Make the directory of a new replica on this machine, for `palisade serve`
    #[command(visible_alias = "add")]
    Join(join::Join),
    /// Take a replica out of the cluster for good
    #[command(visible_alias = "rm")]
    Remove(remove::Remove),
    /// Let another replica lead
    TransferLeader(transfer::Transfer),
    /// Take leadership, leases and agents from a replica, before its machine is worked on
    Drain(drain::Drain),
    /// Let a drained replica have leadership, leases and agents again
    Undrain(drain::Drain),
    /// Note where a replica is reached now
    SetAddress(address::SetAddress),
    /// Show who runs which release, and which replica is next to be upgraded
    Upgrade(upgrade::Upgrade),
}

impl Cluster {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Status(status) => status.run(session).await,
            Verb::Backup(backup) => backup.run(session).await,
            Verb::Restore(restore) => restore.run(session),
            Verb::Recover(recover) => recover.run(session),
            Verb::Repair(repair) => repair.run(session).await,
            Verb::Trust => trust::run(session).await,
            Verb::Join(join) => join.run(session).await,
            Verb::Remove(remove) => remove.run(session).await,
            Verb::TransferLeader(transfer) => transfer.run(session).await,
            Verb::Drain(drain) => drain.run(session, false).await,
            Verb::Undrain(drain) => drain.run(session, true).await,
            Verb::SetAddress(set) => set.run(session).await,
            Verb::Upgrade(upgrade) => upgrade.run(session).await,
        }
    }
}

/// Asks for a change of the members, and says what came of it.
async fn change(session: &Session, call: Call, dry_run: bool) -> Outcome {
    let done = session.client()?.call(call.dry_run(dry_run)).await?.body;
    print_done(session, &done, dry_run)
}

fn print_done(session: &Session, done: &Value, dry_run: bool) -> Outcome {
    match session.format() {
        Format::Table | Format::Wide => {
            let note = if dry_run { " (dry run)" } else { "" };
            output::data(format!("{}{note}\n", cell(done, "/note")).as_bytes())
        }
        Format::Name => output::data(format!("replica/{}\n", cell(done, "/replica")).as_bytes()),
        format => output::data(output::render_value(format, done)?.as_bytes()),
    }
}
