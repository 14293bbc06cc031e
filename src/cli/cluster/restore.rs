//! `palisade cluster restore`.

use std::path::PathBuf;

use serde_json::json;

use super::{Session, backup};
use crate::{
    context_file::Contexts,
    init::{HEARTBEAT_MS, NODE_LOST_MS, NewReplica},
    output::{self, Exit, Failure, Format, Outcome, failure::chain},
    recovery::{RestoreError, RestoreOptions, Restored, restore},
};

/// Flags of `restore`.
#[derive(Debug, clap::Args)]
pub struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where the replicas' directories are made; must be empty
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A replica; give one, three or five
    #[arg(long = "replica", required = true, value_name = "ID=HOST:PEERPORT,APIPORT", value_parser = NewReplica::parse)]
    replicas: Vec<NewReplica>,
    /// The backup.key of the cluster that wrote the backup
    #[arg(long, value_name = "FILE", required_unless_present = "fork", conflicts_with = "fork")]
    key: Option<PathBuf>,
    /// Make a cluster of another lineage, to try a backup beside a living cluster: no agent of the old
    /// one listens to it
    #[arg(long)]
    fork: bool,
    /// The new cluster's epoch [default: the backup's plus one]; give a higher one when the cluster was
    /// restored or recovered after the backup was made
    #[arg(long, value_name = "N")]
    epoch: Option<u64>,
    /// The name of the context to make
    #[arg(long = "as", value_name = "NAME", default_value = "restored")]
    name: String,
    /// Replace a context of that name
    #[arg(long)]
    replace_context: bool,
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Replicas(error) => error.into(),
            error @ (RestoreError::NoKey
            | RestoreError::Epoch { .. }
            | RestoreError::EpochTooHigh { .. }
            | RestoreError::UsedId { .. }) => Self::usage(error.to_string()),
            RestoreError::Backup(error) => super::backup::unusable(error),
            error => Self::new(Exit::of_cause(&error), chain(&error)),
        }
    }
}

impl Restore {
    pub(super) fn run(self, session: &Session) -> Outcome {
        let path = session.context_path()?;
        // Looked at first: without a place for its token the cluster would have no new way in.
        let mut contexts = Contexts::load(&path)?;
        if contexts.get(&self.name).is_some() && !self.replace_context {
            let what = format!("there is a context {:?} in {} already", self.name, path.display());
            return Err(Failure::new(Exit::Conflict, what)
                .hint("give another --as NAME, or --replace-context"));
        }
        let file = self.file.clone();
        let options = RestoreOptions {
            file: self.file,
            key: self.key,
            dir: self.dir,
            replicas: self.replicas,
            fork: self.fork,
            epoch: self.epoch,
            context: self.name.clone(),
            heartbeat_ms: HEARTBEAT_MS,
            node_lost_ms: NODE_LOST_MS,
        };
        let mut other = None;
        let made = restore(&options, |context| {
            other = contexts.put_new(context.clone());
            contexts.save(&path)
        })?;
        output::say(format!(
            "cluster {} of lineage {}, epoch {}, with pin {}",
            made.cluster, made.lineage, made.epoch, made.pin
        ));
        output::say(format!("its admin is the context {:?} in {}", self.name, path.display()));
        other.into_iter().for_each(output::say);
        print(session.format(), &file, &made, self.fork)
    }
}

fn print(format: Format, file: &std::path::Path, made: &Restored, fork: bool) -> Outcome {
    let dirs: Vec<String> = made.replicas.iter().map(|dir| dir.display().to_string()).collect();
    if matches!(format, Format::Json | Format::Yaml) {
        let value = json!({
            "cluster": made.cluster, "lineage": made.lineage, "epoch": made.epoch, "pin": made.pin,
            "context": made.context.name, "replicas": dirs, "backup": backup::document(file, &made.info),
        });
        return output::data(output::render_value(format, &value)?.as_bytes());
    }
    output::say(backup::page(file, &made.info).trim_end());
    if fork {
        output::say("it has a CA and a backup key of its own; agents must join it anew");
    } else {
        output::say(
            "stop what is left of the old cluster for good: agents go to whoever answers under the addresses they know",
        );
    }
    output::say("copy each directory to its machine (keep the modes) and run there:");
    let lines: String = dirs.iter().map(|dir| format!("palisade serve --dir {dir}\n")).collect();
    output::data(lines.as_bytes())?;
    output::say(format!(
        "then see that all is well: palisade --context {} doctor",
        made.context.name
    ));
    Ok(())
}
