//! `palisade cluster repair`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{join::enrolled, look};
use crate::{
    cli::{Session, survey::members},
    client::{BASE, Call, Client},
    edge,
    init::NewReplica,
    join::{advertised, listening},
    output::{self, Exit, Failure, Format, Outcome, cell, failure::chain, number, text},
    recovery::{Finding, Known, Repair, RepairError, Wanted, survey_damage},
    replica_dir::MemberConfig,
};

/// A replica that answered the leader within this time runs somewhere.
const SILENT_MS: u64 = 1_500;
/// How long a replica that has just ended is waited for to count as away.
const AWAY_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(250);

/// Flags of `repair`.
#[derive(Debug, clap::Args)]
pub(super) struct RepairArgs {
    /// The directory of the replica that does not start; no process may run on it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Do it; without this it is only shown
    #[arg(long)]
    yes: bool,
    /// Do it although nothing that it had is damaged
    #[arg(long, requires = "yes")]
    force: bool,
    /// The id that it had, where its directory does not say any more
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    replica: Option<u64>,
    /// Where it is reached [default: as the cluster knows it]
    #[arg(long, value_name = "HOST:PEERPORT,APIPORT", value_parser = advertised)]
    advertise: Option<NewReplica>,
    /// Where it listens [default: as its replica.toml says]; an IP
    #[arg(long, value_name = "IP:PEERPORT,APIPORT", value_parser = listening)]
    listen: Option<NewReplica>,
}

impl From<RepairError> for Failure {
    fn from(error: RepairError) -> Self {
        match &error {
            RepairError::Missing { .. } => Self::new(Exit::NotFound, error.to_string()).hint(
                "make it where its disk was lost and give --replica ID, or use `palisade cluster join --replace ID`",
            ),
            RepairError::Lock(error) => Self::new(Exit::of_cause(error), chain(error)),
            RepairError::Data(error) => Self::new(Exit::of_cause(error), chain(error)),
            _ => Self::new(Exit::of_cause(&error), chain(&error)),
        }
    }
}

impl RepairArgs {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let mut repair = survey_damage(&self.dir)?;
        if let Some(journal) = repair.resumed() {
            let (wanted, why) = (journal.wanted.clone(), journal.why.clone());
            if !self.yes {
                let begun =
                    "a repair was begun here and did not end; it is taken up where it stopped";
                output::say(begun);
                self.print(session.format(), &repair, &wanted, &why, None)?;
                return Err(undone());
            }
            return self.end(session.format(), repair);
        }
        if !self.force && self.is_refused(repair.finding())? {
            return Ok(());
        }
        let why = repair.finding().why().to_owned();
        let client = session.client()?;
        let status = match look::of_leader(&client).await {
            Ok(status) => status,
            Err(failure) => {
                self.print_finding(session.format(), &repair, &why)?;
                return Err(self.alone(failure));
            }
        };
        let wanted = self.wanted(&repair, &status)?;
        let is_member =
            members(&status).iter().any(|member| Some(number(member, "/id")) == wanted.replaces);
        self.print(session.format(), &repair, &wanted, &why, Some(is_member))?;
        if !self.yes {
            return Err(undone());
        }
        if let Some(replaced) = wanted.replaces {
            is_away(&client, status, replaced).await?;
        }
        let csr = repair.begin(wanted.clone())?;
        let body = json!({
            "csr": csr, "peerAddr": wanted.peer_addr, "apiAddr": wanted.api_addr, "replace": wanted.replaces,
        });
        let added = client.call(Call::post(format!("{BASE}/cluster/replicas")).json(body)).await;
        let added = added.map_err(|error| self.alone(error.into()))?.body;
        repair.enrolled(&enrolled(&added)?)?;
        self.end(session.format(), repair)
    }

    /// Whether there is nothing to do; why it may not be done.
    fn is_refused(&self, finding: &Finding) -> Outcome<bool> {
        let dir = self.dir.display();
        match finding {
            Finding::Damaged(_) | Finding::Removed(_) => Ok(false),
            Finding::Fresh => {
                output::say(format!(
                    "{dir} holds a replica that has never run: there is nothing to repair. Run: palisade serve --dir {dir}"
                ));
                Ok(true)
            }
            Finding::Sound { last } => Err(Failure::new(
                Exit::Conflict,
                format!("nothing in {dir} is damaged: it has all entries up to {last}"),
            )
            .hint(format!(
                "run `palisade serve --dir {dir}`; --force --yes repairs it all the same"
            ))),
            Finding::Unable(why) => {
                Err(Failure::new(Exit::Conflict, format!("this is no damage: {why}"))
                    .hint("mend what the message names; --force --yes repairs it all the same"))
            }
        }
    }

    /// The others do not answer.
    fn alone(&self, failure: Failure) -> Failure {
        let dir = self.dir.display();
        let detail = match failure.exit {
            Exit::Unavailable | Exit::TimedOut => format!(
                "the other replicas have no quorum, or cannot be reached, and without one this replica cannot join \
                 again: {}",
                failure.detail
            ),
            _ => failure.detail.clone(),
        };
        let hint = match failure.exit {
            Exit::Unavailable | Exit::TimedOut => Some(
                "bring the others back and run this again; when they are lost, `palisade cluster recover` on the one \
                 whose data is good, or `palisade cluster restore` from a backup"
                    .into(),
            ),
            _ => failure.hint.clone(),
        };
        let note = format!("nothing was changed: what the replica had is where it was, in {dir}");
        Failure { detail, hint, ..failure }.note(note)
    }

    /// What it is to be.
    fn wanted(&self, repair: &Repair, status: &Value) -> Outcome<Wanted> {
        let known = repair.known();
        let is_same_life = check_life(known, status)?;
        if let (Some(given), Some(own)) = (self.replica, known.replica)
            && given != own
        {
            let what = format!("this directory is of replica {own}, and --replica says {given}");
            return Err(Failure::usage(what).hint("leave --replica out, or give its own directory"));
        }
        let replica = self.replica.or(known.replica);
        let own = own_address(repair, replica);
        let member = |wanted: &dyn Fn(&Value) -> bool| {
            members(status).iter().find(|member| wanted(member)).cloned()
        };
        let by_id = replica
            .filter(|_| is_same_life)
            .and_then(|id| member(&|member| number(member, "/id") == id));
        let given = self.advertise.as_ref().map(NewReplica::member);
        // One that was enrolled and never came has another id than the member whose place it was to take.
        let there = given.as_ref().or(own.as_ref());
        let by_address = || {
            let there = there?;
            member(&|member| text(member, "/peerAddr") == Some(there.peer_addr.as_str()))
        };
        let replaced = by_id.or_else(by_address);
        let recorded = replaced.as_ref().map(|member| MemberConfig {
            id: number(member, "/id"),
            peer_addr: cell(member, "/peerAddr"),
            api_addr: cell(member, "/apiAddr"),
        });
        // Its own enrolment, if nobody came with it, keeps its addresses until another takes its place.
        let pending = status.get("pending").and_then(Value::as_array).into_iter().flatten();
        let never_came = replica
            .filter(|id| is_same_life && pending.clone().any(|join| number(join, "/id") == *id));
        let replaces = recorded.as_ref().map(|member| member.id).or(never_came);
        if let Some(given) = self.replica.filter(|_| replaces.is_none() && is_same_life) {
            let known: Vec<String> = members(status).iter().map(|one| cell(one, "/id")).collect();
            let known = known.join(", ");
            return Err(Failure::new(
                Exit::NotFound,
                format!("there is no replica {given}: the members are {known}"),
            )
            .hint("`palisade cluster status` shows them"));
        }
        if replica.is_none() && replaces.is_none() {
            return Err(Failure::usage(format!(
                "nothing in {} says which replica it was",
                self.dir.display()
            ))
            .hint("give --replica ID; `palisade cluster status` shows the members"));
        }
        let to = given.or(recorded).or(own).ok_or_else(|| {
            Failure::usage("nothing says where this replica is reached")
                .hint("give --advertise HOST:PEERPORT,APIPORT")
        })?;
        let (peer_listen, api_listen) = self.listen(repair, &to)?;
        let MemberConfig { peer_addr, api_addr, .. } = to;
        Ok(Wanted { replica, replaces, peer_addr, api_addr, peer_listen, api_listen })
    }

    fn listen(&self, repair: &Repair, to: &MemberConfig) -> Outcome<(SocketAddr, SocketAddr)> {
        if let Some(listen) = &self.listen {
            return Ok((listen.listen(listen.peer_port), listen.listen(listen.api_port)));
        }
        if let Some(config) = repair.config().filter(|_| self.advertise.is_none()) {
            return Ok((config.peer_listen, config.api_listen));
        }
        let port = |address: &str| address.rsplit_once(':').map_or("", |(_, port)| port).to_owned();
        let text = format!("{},{}", to.peer_addr, port(&to.api_addr));
        let parsed = advertised(&text)
            .map_err(|why| Failure::usage(why).hint("give --listen IP:PEERPORT,APIPORT"))?;
        Ok((parsed.listen(parsed.peer_port), parsed.listen(parsed.api_port)))
    }

    fn end(&self, format: Format, repair: Repair) -> Outcome {
        let done = repair.carry_out()?;
        let (dir, aside) = (self.dir.display(), done.aside.display());
        let place = done.replaces.map(|id| format!(" in the place of {id}")).unwrap_or_default();
        output::say(format!("replica {}{place} may join within a day", done.id));
        output::say(format!(
            "what it had is in {aside}; keep that until it votes, then it may be deleted"
        ));
        output::say(
            "run it here; it gets everything from the others, and votes once it has caught up:",
        );
        match format {
            Format::Json | Format::Yaml => {
                let value = json!({
                    "replica": done.id, "replaces": done.replaces, "dir": self.dir, "aside": done.aside,
                });
                output::data(output::render_value(format, &value)?.as_bytes())
            }
            Format::Name => output::data(format!("replica/{}\n", done.id).as_bytes()),
            Format::Table | Format::Wide => {
                output::data(format!("palisade serve --dir {dir}\n").as_bytes())
            }
        }
    }

    /// What was found, where nothing more can be said.
    fn print_finding(&self, format: Format, repair: &Repair, why: &str) -> Outcome {
        if matches!(format, Format::Json | Format::Yaml) {
            return Ok(());
        }
        output::data(format!("{}\n", found(repair, self.replica, why)).as_bytes())
    }

    /// What was found, and what will be done. `is_member`: whether the one to replace is one, where that is known.
    fn print(
        &self,
        format: Format,
        repair: &Repair,
        wanted: &Wanted,
        why: &str,
        is_member: Option<bool>,
    ) -> Outcome {
        let aside = repair.aside();
        match format {
            // With --yes the data is what came of it.
            Format::Json | Format::Yaml if self.yes => Ok(()),
            Format::Json | Format::Yaml => {
                let value = json!({
                    "finding": repair.finding().word(), "why": why, "resumed": repair.resumed().is_some(),
                    "wanted": wanted, "aside": aside,
                });
                output::data(output::render_value(format, &value)?.as_bytes())
            }
            Format::Name => Ok(()),
            Format::Table | Format::Wide => {
                let mut page = found(repair, wanted.replica, why);
                let place = match wanted.replaces {
                    Some(id) => match is_member {
                        Some(true) => {
                            format!("in the place of replica {id}, which is removed once it votes")
                        }
                        Some(false) => {
                            format!("instead of replica {id}, which was enrolled and has not come")
                        }
                        None => format!("in the place of replica {id}"),
                    },
                    None => "as one more replica: the cluster has none in its place".to_owned(),
                };
                page.push_str(&format!(
                    "\nWhat is done:\n\
                     1. the cluster gives it a new id, {place};\n   it is reached at {} and {}\n\
                     2. what it had is renamed, nothing is deleted: {}\n\
                     3. at its next start it gets everything from the other replicas\n",
                    wanted.peer_addr,
                    wanted.api_addr,
                    aside.display()
                ));
                if self.yes {
                    output::say(page.trim_end())
                } else {
                    output::data(page.as_bytes())?
                }
                Ok(())
            }
        }
    }
}

fn undone() -> Failure {
    Failure::usage("nothing was done").hint("read the above, then add --yes")
}

fn found(repair: &Repair, given: Option<u64>, why: &str) -> String {
    let known = repair.known();
    let id = known.replica.or(given).map_or("unknown".to_owned(), |id| id.to_string());
    let life =
        known.life.as_ref().map(|(cluster, epoch)| format!(" of cluster {cluster}, epoch {epoch}"));
    format!("Replica {id}{}\n{}: {why}\n", life.unwrap_or_default(), repair.finding().word())
}

/// Where it was reached by its own files, if they name it.
fn own_address(repair: &Repair, replica: Option<u64>) -> Option<MemberConfig> {
    let config = repair.config()?;
    if let Some(to) = config.advertise.as_deref().and_then(|text| advertised(text).ok()) {
        return Some(to.member());
    }
    config.members.iter().find(|member| Some(member.id) == replica).cloned()
}

/// Whether the cluster that answers is in the life that the replica was of; a later one gives other ids.
fn check_life(known: &Known, status: &Value) -> Outcome<bool> {
    let (cluster, lineage) = (cell(status, "/cluster"), cell(status, "/lineage"));
    let epoch = number(status, "/epoch");
    let stranger = |what: String| {
        Err(Failure::new(Exit::Conflict, what)
            .hint("choose the context that leads to its own cluster"))
    };
    if let Some(own) = known.lineage.as_ref().filter(|own| **own != lineage) {
        return stranger(format!(
            "the cluster that answers is of lineage {lineage}, and this replica is of lineage {own}"
        ));
    }
    match &known.life {
        None => Ok(true),
        Some((own, _)) if *own == cluster => Ok(true),
        Some((_, own)) if *own < epoch => Ok(false),
        Some((own, own_epoch)) => stranger(format!(
            "the cluster that answers is {cluster}, epoch {epoch}, and this replica is of {own}, epoch {own_epoch}, \
             which is no earlier life of it"
        )),
    }
}

/// Waits until the leader has not heard of a replica for a while.
async fn is_away(client: &Client, mut status: Value, replica: u64) -> Outcome {
    let deadline = edge::now() + AWAY_LIMIT;
    loop {
        let member = members(&status).iter().find(|one| number(one, "/id") == replica);
        let silent = member.and_then(|member| member.get("lastAckMs").and_then(Value::as_u64));
        let leads = look::leader(&status) == Some(replica);
        if !leads && silent.is_none_or(|silent| silent > SILENT_MS) {
            return Ok(());
        }
        if edge::now() > deadline {
            let what = format!(
                "replica {replica} answers the leader: another process runs under that id, and this directory is a \
                 copy of its own"
            );
            return Err(Failure::new(Exit::Conflict, what).hint(
                "leave this directory alone and use `palisade cluster join` with another one; or stop that process \
                 for good first",
            ));
        }
        edge::sleep(POLL).await;
        status = look::of_leader(client).await?;
    }
}
