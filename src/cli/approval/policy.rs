//! `palisade approval policy`: what is held, and for how many.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    cli::{
        Session,
        access::words,
        approval::is_held,
        duration,
        node::print_change,
        session::{Narrow, Read},
    },
    client::{BASE, Call, segment},
    output::{self, Outcome, Table, View, cell, human, number, text},
};

/// What stands for the cluster itself.
const CLUSTER: &str = "_";

/// Flags of `approval policy`.
#[derive(Debug, clap::Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the policies that were set
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
    },
    /// Show what a tenant asks to be approved
    #[command(visible_alias = "get")]
    Show {
        /// Whose [default: the cluster's own]
        #[arg(default_value = CLUSTER, hide_default_value = true)]
        tenant: String,
        #[command(flatten)]
        read: Read,
    },
    /// Say what a tenant asks to be approved; what is held already stays as it is
    Set(Set),
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Whose [default: the cluster's own]
    #[arg(default_value = CLUSTER, hide_default_value = true)]
    tenant: String,
    /// Hold nothing
    #[arg(long, conflicts_with_all = ["require", "kinds", "life"])]
    off: bool,
    /// From SIZE things on COUNT must approve, such as 1=1,5=2,20=3
    #[arg(long, value_name = "SIZE=COUNT", value_delimiter = ',', value_parser = threshold)]
    require: Vec<(u32, u32)>,
    /// Only of this method or kind of command; may be repeated [default: all that are destructive]
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// How long what is held waits [default: 1d]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    life: Option<Duration>,
    /// Only at this revision of it, as `-o json` shows it; 0: only if nobody has set it
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

fn threshold(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("{text:?} is not SIZE=COUNT, such as 5=2");
    let (size, count) = text.split_once('=').ok_or_else(wrong)?;
    Ok((size.parse().map_err(|_| wrong())?, count.parse().map_err(|_| wrong())?))
}

fn path(tenant: &str) -> String {
    format!("{BASE}/approval-policies/{}", segment(tenant))
}

impl Policy {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Ls { read, narrow } => {
                let call = narrow.say(read.get(format!("{BASE}/approval-policies")));
                let all = session.client()?.list(call).await?;
                output::print_list::<Policies>(session.format(), &all)
            }
            Verb::Show { tenant, read } => {
                let answer = session.client()?.call(read.get(path(&tenant))).await?;
                read.tell(&answer);
                output::print_one::<Policies>(session.format(), &answer.body)
            }
            Verb::Set(set) => set.run(session).await,
        }
    }
}

impl Set {
    async fn run(self, session: &Session) -> Outcome {
        let mut input = json!({ "mode": if self.off { "off" } else { "on" }, "kinds": self.kinds });
        if !self.require.is_empty() {
            let one = |(size, required): &(u32, u32)| json!({"size": size, "required": required});
            input["thresholds"] = self.require.iter().map(one).collect();
        }
        if let Some(life) = self.life {
            input["lifeSeconds"] = json!(life.as_secs());
        }
        let mut call = Call::put(path(&self.tenant)).json(input).dry_run(self.dry_run);
        if let Some(revision) = self.if_match {
            call = call.if_match(revision);
        }
        let answer = session.client()?.call(call).await?;
        if is_held(session, &answer)? {
            return Ok(());
        }
        print_change::<Policies>(session, &answer.body, &self.tenant, "set", self.dry_run)
    }
}

/// How policies are shown.
struct Policies;

impl View for Policies {
    const KIND: &'static str = "approval-policy";

    fn table(records: &[Value], _wide: bool) -> Table {
        let mut table = Table::new(&["TENANT", "MODE", "REQUIRES", "KINDS", "WAITS", "BY"]);
        for record in records {
            let thresholds = record.pointer("/thresholds").and_then(Value::as_array);
            let one =
                |one: &Value| format!("{}={}", number(one, "/size"), number(one, "/required"));
            let requires: Vec<String> = thresholds.into_iter().flatten().map(one).collect();
            let kinds = match words(record, "/kinds") {
                none if none == "-" => "all destructive".to_owned(),
                kinds => kinds,
            };
            table.row(vec![
                cell(record, "/id"),
                cell(record, "/mode"),
                requires.join(","),
                kinds,
                human::span(i64::try_from(number(record, "/lifeSeconds")).unwrap_or(i64::MAX)),
                cell(record, "/setBy"),
            ]);
        }
        table
    }

    fn name(record: &Value) -> &str {
        text(record, "/id").unwrap_or("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_a_table() {
        let policy = json!({"id": "acme", "mode": "on", "kinds": [], "lifeSeconds": 86400,
            "thresholds": [{"size": 1, "required": 1}, {"size": 5, "required": 2}],
            "setBy": "user/tess"});
        insta::assert_snapshot!(Policies::table(&[policy], false).render(), @r"
        TENANT  MODE  REQUIRES  KINDS            WAITS  BY
        acme    on    1=1,5=2   all destructive  24h    user/tess
        ");
        assert_eq!(threshold("5=2"), Ok((5, 2)));
        assert!(threshold("5").is_err());
    }
}
