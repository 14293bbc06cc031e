//! `palisade cluster recover`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Session;
use crate::{
    output::{self, Exit, Failure, Format, Outcome, Table, failure::chain},
    recovery::{Plan, Reach, RecoverError, RecoverOptions, Recovery, abandon, survey},
};

/// Flags of `recover`.
#[derive(Debug, clap::Args)]
pub struct Recover {
    /// The directory of the replica that is left; no process may run on it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Do it; without this it is only shown
    #[arg(long)]
    yes: bool,
    /// Do it although this replica and those it can reach still are a majority
    #[arg(long, requires = "yes")]
    even_with_quorum: bool,
    /// The new cluster's epoch [default: this replica's plus one]
    #[arg(long, value_name = "N")]
    epoch: Option<u64>,
    /// Do it without a backup, when the cluster's backup key is lost; the old data is kept all the same
    #[arg(long)]
    without_backup: bool,
    /// Give up a recovery that was begun and did not end: this replica is again what it was
    #[arg(long, conflicts_with_all = ["yes", "epoch", "without_backup"])]
    abandon: bool,
}

impl From<RecoverError> for Failure {
    fn from(error: RecoverError) -> Self {
        match error {
            error @ (RecoverError::Epoch { .. } | RecoverError::EpochTooHigh { .. }) => {
                Self::usage(error.to_string())
            }
            error @ RecoverError::Begun { .. } => Self::new(Exit::Conflict, chain(&error))
                .hint("end it without --epoch, or give it up with --abandon and begin again"),
            error @ RecoverError::BackupKey(_) => Self::new(Exit::Error, chain(&error)).hint(
                "every replica has the same pki/backup.key, and you may have kept a copy: put it there; if it is lost, \
                 add --without-backup: the old data is renamed and kept in any case",
            ),
            // These are transparent: what they hide is not among their sources.
            RecoverError::Lock(error) => Self::new(Exit::of_cause(&error), chain(&error)),
            RecoverError::Dir(error) => Self::new(Exit::of_cause(&error), chain(&error)),
            RecoverError::Data(error) => Self::new(Exit::of_cause(&error), chain(&error)),
            error => Self::new(Exit::of_cause(&error), chain(&error)),
        }
    }
}

impl Recover {
    pub(super) fn run(self, session: &Session) -> Outcome {
        if self.abandon {
            return give_up(&self.dir);
        }
        let recovery = survey(&RecoverOptions {
            dir: self.dir.clone(),
            epoch: self.epoch,
            without_backup: self.without_backup,
        })?;
        let plan = recovery.plan().clone();
        if plan.is_alone() {
            output::say(format!(
                "replica {} is the only one of cluster {}, epoch {}: there is nothing to recover. Run: palisade serve --dir {}",
                plan.journal.replica,
                plan.journal.from_cluster,
                plan.journal.from_epoch,
                self.dir.display()
            ));
            return Ok(());
        }
        print(session.format(), &recovery, self.without_backup)?;
        if plan.has_quorum() && !self.even_with_quorum {
            let what = format!(
                "this replica and the {} that it can reach are a majority of {}: the cluster needs no recovery, and \
                 there would be two",
                plan.reachable(),
                plan.members.iter().filter(|(member, _)| member.voter).count()
            );
            let instead = if plan.lost.is_some() {
                format!(
                    "let it join again from the others instead: `palisade cluster repair {}`",
                    self.dir.display()
                )
            } else if plan.is_resumed {
                "give up what was begun with --abandon and start this replica again".to_owned()
            } else {
                "start this replica again instead".to_owned()
            };
            return Err(Failure::new(Exit::Conflict, what).hint(format!(
                "{instead}; if the others must not be used any more, stop them for good and add --even-with-quorum --yes"
            )));
        }
        if !self.yes {
            return Err(Failure::usage("nothing was done").hint("read the above, then add --yes"));
        }
        let (aside, backup) = recovery.places();
        recovery.carry_out()?;
        let journal = plan.journal;
        output::say(format!(
            "replica {} is now the only one of cluster {}, epoch {}",
            journal.replica, journal.cluster, journal.epoch
        ));
        let backup = match backup.exists() {
            true => format!(", a backup of it in {}", backup.display()),
            false => String::new(),
        };
        output::say(format!("the old data is in {}{backup}", aside.display()));
        output::say(
            "start it, look at it with `palisade doctor`, and let fresh replicas join with `palisade cluster join`:",
        );
        output::data(format!("palisade serve --dir {}\n", self.dir.display()).as_bytes())
    }
}

fn give_up(dir: &Path) -> Outcome {
    match abandon(dir)? {
        None => output::say(format!(
            "no recovery is on its way in {}: there is nothing to give up",
            dir.display()
        )),
        Some(journal) => {
            output::say(format!(
                "replica {} is again what it was, one of cluster {}, epoch {}; the backup that was made stays",
                journal.replica, journal.from_cluster, journal.from_epoch
            ));
            output::data(format!("palisade serve --dir {}\n", dir.display()).as_bytes())?;
        }
    }
    Ok(())
}

fn print(format: Format, recovery: &Recovery, without_backup: bool) -> Outcome {
    let plan = recovery.plan();
    let (aside, backup) = recovery.places();
    if matches!(format, Format::Json | Format::Yaml) {
        let members = plan.members.iter().map(|(member, reach)| {
            json!({"id": member.id, "peerAddr": member.peer_addr, "voter": member.voter, "state": state(reach.as_ref())})
        });
        let value = json!({
            "resumed": plan.is_resumed, "journal": plan.journal, "members": members.collect::<Vec<_>>(),
            "committed": plan.committed, "last": plan.last, "revision": plan.revision, "lost": plan.lost,
            "aside": aside, "backup": backup,
        });
        return output::data(output::render_value(format, &value)?.as_bytes());
    }
    let backup = (!without_backup).then_some(backup.as_path());
    output::data(page(plan, &aside, backup).as_bytes())
}

fn state(reach: Option<&Reach>) -> String {
    match reach {
        None => "this one".to_owned(),
        Some(Reach::Answers) => "answers".to_owned(),
        Some(Reach::Silent(why)) => format!("cannot be reached: {why}"),
    }
}

fn page(plan: &Plan, aside: &Path, backup: Option<&Path>) -> String {
    let journal = &plan.journal;
    let mut page = format!(
        "Replica {} of cluster {}, epoch {}\n\n",
        journal.replica, journal.from_cluster, journal.from_epoch
    );
    if plan.is_resumed {
        page.push_str(
            "A recovery was begun here and did not end. It is taken up where it stopped.\n\n",
        );
    }
    let mut table = Table::new(&["REPLICA", "PEER", "STATE"]);
    for (member, reach) in &plan.members {
        let state = state(reach.as_ref());
        table.row(vec![member.id.to_string(), member.peer_addr.clone(), state]);
    }
    page.push_str(&table.render());
    if plan.last > 0 {
        let unsure = plan.last.saturating_sub(plan.committed);
        page.push_str(&format!(
            "\nIt has all entries up to {}. {unsure} of them may never have been acknowledged to anybody: they are kept.\n\
             What the others acknowledged and never sent to it is lost. It cannot know how much that is: if another\n\
             replica's disk is readable, recover the one whose last entry is highest.\n",
            plan.last
        ));
    }
    if let Some(lost) = &plan.lost {
        page.push_str(&format!("\nNot all that it had confirmed is there: {lost}\n"));
    }
    let backup = backup.map_or_else(|| "left out".to_owned(), |path| path.display().to_string());
    page.push_str(&format!(
        "\nWhat is done:\n\
         1. a backup of what it has: {backup}\n\
         2. a cluster of one: {}, epoch {}; its agents come back by themselves, replicas of the old cluster are refused\n\
         3. the old data is renamed, nothing is deleted: {}\n",
        journal.cluster,
        journal.epoch,
        aside.display()
    ));
    page
}
