//! `palisade approval`: destructive work that waits until others approve it.

mod policy;
mod request;
mod shown;

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use self::shown::{Approvals, page, progress};
use super::{
    Session,
    node::print_change,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{Answer, BASE, Call, Client, segment},
    edge,
    output::{self, Exit, Failure, Format, Outcome, Progress, cell, human, text},
};

/// Flags of `approval`.
#[derive(Debug, clap::Args)]
pub struct Approval {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what waits for approval, and what became of it lately
    #[command(visible_alias = "list")]
    Ls {
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only those in this state: held, released, rejected, expired, withdrawn or failed
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show what one does, to what, and who has approved it
    #[command(visible_alias = "get")]
    Show {
        /// Its id
        approval: String,
        #[command(flatten)]
        read: Read,
    },
    /// Ask for several destructive calls at once, made all or none
    Request(request::Request),
    /// Approve what somebody else asked for, once you have seen it
    Approve {
        /// Its id
        approval: String,
        /// What you have looked at, as `show` has it; without it, a terminal is shown what it is now and asked
        #[arg(long, value_name = "SHA256")]
        digest: Option<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Say no to what somebody else asked for: it is never done
    Reject(End),
    /// Take back what you have asked for
    Withdraw(End),
    /// Wait until one has ended
    Wait {
        /// Its id
        approval: String,
    },
    /// What is held for approval, and for how many
    Policy(policy::Policy),
}

#[derive(Debug, clap::Args)]
struct End {
    /// Its id
    approval: String,
    /// Why, for whoever asked
    #[arg(long, default_value_t, hide_default_value = true)]
    reason: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Approval {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Ls { tenant, state, read, narrow, flag } => {
                let call = narrow
                    .say(read.get(format!("{BASE}/approvals")))
                    .query_some("tenant", tenant)
                    .query_some("state", state);
                if flag.watch {
                    return watch::<Approvals>(session, call).await;
                }
                // Ids say when.
                let all = session.client()?.list(call).await?;
                output::print_list::<Approvals>(session.format(), &all)
            }
            Verb::Show { approval, read } => {
                let answer = session.client()?.call(read.get(path(&approval))).await?;
                read.tell(&answer);
                match session.format() {
                    Format::Table | Format::Wide => output::data(page(&answer.body).as_bytes()),
                    format => output::print_one::<Approvals>(format, &answer.body),
                }
            }
            Verb::Request(request) => request.run(session).await,
            Verb::Approve { approval, digest, dry_run } => {
                approve(session, &approval, digest, dry_run).await
            }
            Verb::Reject(end) => end.run(session, "reject", "rejected").await,
            Verb::Withdraw(end) => end.run(session, "withdraw", "withdrawn").await,
            Verb::Wait { approval } => {
                let client = session.client()?;
                let record = ended(session, &client, &approval).await?;
                print_change::<Approvals>(session, &record, &approval, "released", false)
            }
            Verb::Policy(policy) => policy.run(session).await,
        }
    }
}

fn path(approval: &str) -> String {
    format!("{BASE}/approvals/{}", segment(approval))
}

/// Whether a call waits for approval and was not made: then says who must do what next, and prints the record of what holds
/// it. That is no failure: the program ends with 0.
pub(super) fn is_held(session: &Session, answer: &Answer) -> Outcome<bool> {
    if answer.held {
        print_change::<Approvals>(session, &answer.body, "-", "held", false)?;
        output::say(progress(&answer.body));
    }
    Ok(answer.held)
}

async fn approve(
    session: &Session,
    approval: &str,
    digest: Option<String>,
    dry_run: bool,
) -> Outcome {
    let client = session.client()?;
    let digest = match digest {
        Some(digest) => digest,
        None => {
            let now = client.call(Call::get(path(approval))).await?.body;
            output::say(page(&now).trim_end());
            let question = format!("Approve {approval}?");
            let agreed = if dry_run { Some(true) } else { edge::asked(&question).await };
            seen(approval, agreed)?;
            cell(&now, "/digest")
        }
    };
    let call = Call::post(format!("{}/approve", path(approval))).json(json!({ "digest": digest }));
    let record = client.call(call.dry_run(dry_run)).await?.body;
    let done = match text(&record, "/state") {
        Some("released") => "approved and released",
        Some("failed") => "approved, and could not be done",
        _ => "approved",
    };
    print_change::<Approvals>(session, &record, approval, done, dry_run)?;
    match end_of(&record) {
        Some(Err(failure)) => Err(failure),
        Some(Ok(())) => Ok(()),
        None => {
            output::say(progress(&record));
            Ok(())
        }
    }
}

/// Nobody approves what he has not seen: without a digest somebody at a terminal must have said yes.
fn seen(approval: &str, agreed: Option<bool>) -> Outcome {
    match agreed {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::new(Exit::Denied, format!("approval {approval} is not approved"))
            .hint(format!("to say no to it for good: `palisade approval reject {approval}`"))),
        None => Err(Failure::usage("nothing says what is approved: --digest is missing").hint(format!(
            "look at it first, and pass the digest that it has: `palisade approval show {approval}`"
        ))),
    }
}

impl End {
    async fn run(self, session: &Session, verb: &str, done: &str) -> Outcome {
        let call = Call::post(format!("{}/{verb}", path(&self.approval)));
        let call = call.json(json!({ "reason": self.reason })).dry_run(self.dry_run);
        let answer = session.client()?.call(call).await?;
        print_change::<Approvals>(session, &answer.body, &self.approval, done, self.dry_run)
    }
}

const POLL_FIRST: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_secs(2);

/// Waits until one has ended; an end that is no release is a failure.
async fn ended(session: &Session, client: &Client, approval: &str) -> Outcome<Value> {
    let (begin, limit) = (edge::now(), session.wait_limit());
    let (mut lines, mut pause) = (Progress::new(), POLL_FIRST);
    loop {
        let record = client.call(Call::get(path(approval))).await?.body;
        if let Some(end) = end_of(&record) {
            lines.end();
            return end.map(|()| record);
        }
        let state = progress(&record);
        if begin.elapsed() >= limit {
            lines.end();
            let detail = format!("after {}, {state}", human::limit(limit));
            return Err(Failure::new(Exit::TimedOut, detail)
                .hint(format!("it goes on: `palisade approval wait {approval}` waits again")));
        }
        lines.update(&state);
        edge::sleep(pause).await;
        pause = (pause * 3 / 2).min(POLL_MAX);
    }
}

/// How an approval has ended; `None`: it waits.
fn end_of(record: &Value) -> Option<Outcome> {
    let (exit, hint) = match text(record, "/state")? {
        "released" => return Some(Ok(())),
        "held" => return None,
        "rejected" => (Exit::Denied, "talk to who rejected it"),
        "expired" => (Exit::TimedOut, "ask again: that makes another"),
        _ => (Exit::Conflict, "ask again: that makes another"),
    };
    let (id, state) = (cell(record, "/id"), cell(record, "/state"));
    let why = text(record, "/ended/why").map_or(String::new(), |why| format!(": {why}"));
    let by = text(record, "/ended/by").map_or(String::new(), |by| format!(" ({by})"));
    Some(Err(Failure::new(exit, format!("approval {id} is {state}{by}{why}")).hint(hint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_digest_somebody_must_have_agreed() {
        let exit = |agreed| seen("ap_1", agreed).map_err(|failure| failure.exit);
        assert_eq!(exit(Some(true)), Ok(()));
        assert_eq!(exit(Some(false)), Err(Exit::Denied));
        assert_eq!(exit(None), Err(Exit::Usage));
    }

    #[test]
    fn an_end_that_is_no_release_is_a_failure_with_its_own_exit_code() {
        let end = |state: &str| {
            let ended = json!({"by": "user/bob", "why": "no"});
            let record = json!({"id": "ap_1", "state": state, "ended": ended});
            end_of(&record).map(|end| end.map_err(|failure| (failure.exit, failure.detail)))
        };
        assert_eq!(end("held"), None);
        assert_eq!(end("released"), Some(Ok(())));
        for (state, exit) in [
            ("rejected", Exit::Denied),
            ("expired", Exit::TimedOut),
            ("withdrawn", Exit::Conflict),
            ("failed", Exit::Conflict),
        ] {
            let why = format!("approval ap_1 is {state} (user/bob): no");
            assert_eq!(end(state), Some(Err((exit, why))), "{state}");
        }
    }
}
