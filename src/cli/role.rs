//! `palisade role`: what can be held.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Session,
    access::words,
    node::print_change,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, segment},
    output::{self, Outcome, Table, View, cell},
};

/// Flags of `role`.
#[derive(Debug, clap::Args)]
pub struct Role {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List roles, those that are built in too
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one role with all that it allows
    #[command(visible_alias = "get")]
    Show {
        /// Its name
        role: String,
        #[command(flatten)]
        read: Read,
    },
    /// Make a role
    Create(Define),
    /// Change what a role allows, for whoever holds it
    Update(Change),
    /// Remove roles that nobody holds
    #[command(visible_alias = "remove")]
    Rm {
        /// Names
        #[arg(required = true, value_name = "ROLE")]
        roles: Vec<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Define {
    /// What to call it
    name: String,
    /// What it allows, such as compute:workloads:scale; may be repeated
    #[arg(long = "action", required = true, value_name = "ACTION")]
    actions: Vec<String>,
    /// What it is for
    #[arg(long, default_value_t, hide_default_value = true)]
    description: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Its name
    name: String,
    /// What it allows from now on, all of it; may be repeated
    #[arg(long = "action", value_name = "ACTION", required_unless_present = "description")]
    actions: Vec<String>,
    /// What it is for
    #[arg(long)]
    description: Option<String>,
    /// Only at this revision of it, as `-o json` shows it
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Role {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Ls { read, narrow, flag } => {
                let call = narrow.say(read.get(format!("{BASE}/roles")));
                if flag.watch {
                    return watch::<Roles>(session, call).await;
                }
                let roles = session.client()?.list(call).await?;
                output::print_list::<Roles>(session.format(), &roles)
            }
            Verb::Show { role, read } => {
                let call = read.get(format!("{BASE}/roles/{}", segment(&role)));
                let answer = session.client()?.call(call).await?;
                output::print_one::<OneRole>(session.format(), &answer.body)
            }
            Verb::Create(define) => define.run(session).await,
            Verb::Update(change) => change.run(session).await,
            Verb::Rm { roles, dry_run } => {
                let client = session.client()?;
                for role in &roles {
                    let call = Call::delete(format!("{BASE}/roles/{}", segment(role)));
                    let answer = client.call(call.dry_run(dry_run)).await?;
                    print_change::<Roles>(session, &answer.body, role, "removed", dry_run)?;
                }
                Ok(())
            }
        }
    }
}

impl Define {
    async fn run(self, session: &Session) -> Outcome {
        let input = json!({
            "name": self.name, "actions": self.actions, "description": self.description,
        });
        let call = Call::post(format!("{BASE}/roles")).json(input).dry_run(self.dry_run);
        let answer = session.client()?.call(call).await?;
        print_change::<Roles>(session, &answer.body, &self.name, "created", self.dry_run)
    }
}

impl Change {
    async fn run(self, session: &Session) -> Outcome {
        let mut input = json!({});
        if !self.actions.is_empty() {
            input["actions"] = json!(self.actions);
        }
        if let Some(description) = &self.description {
            input["description"] = json!(description);
        }
        let mut call = Call::patch(format!("{BASE}/roles/{}", segment(&self.name))).json(input);
        if let Some(revision) = self.if_match {
            call = call.if_match(revision);
        }
        let answer = session.client()?.call(call.dry_run(self.dry_run)).await?;
        print_change::<Roles>(session, &answer.body, &self.name, "changed", self.dry_run)
    }
}

/// Many roles: of each, how many actions it allows.
struct Roles;

impl View for Roles {
    const KIND: &'static str = "role";

    fn table(roles: &[Value], wide: bool) -> Table {
        let mut table = Table::new(&["NAME", "BUILT IN", "ACTIONS", "DESCRIPTION"]);
        for role in roles {
            let actions = role.pointer("/actions").and_then(Value::as_array).map_or(0, Vec::len);
            let is_built_in = role.pointer("/builtIn") == Some(&Value::Bool(true));
            table.row(vec![
                cell(role, "/name"),
                if is_built_in { "yes" } else { "no" }.to_owned(),
                if wide { words(role, "/actions") } else { actions.to_string() },
                cell(role, "/description"),
            ]);
        }
        table
    }
}

/// One role: each action on a line.
struct OneRole;

impl View for OneRole {
    const KIND: &'static str = "role";

    fn table(roles: &[Value], _wide: bool) -> Table {
        let mut table = Table::new(&["NAME", "ACTION"]);
        for role in roles {
            let actions = role.pointer("/actions").and_then(Value::as_array);
            for action in actions.into_iter().flatten() {
                let action = action.as_str().unwrap_or_default().to_owned();
                table.row(vec![cell(role, "/name"), action]);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_a_table_and_one_of_them_is_a_list_of_actions() {
        let roles = [
            json!({"name": "viewer", "builtIn": true, "description": "reads everything",
                "actions": ["compute:nodes:read", "compute:workloads:read"]}),
            json!({"name": "scaler", "builtIn": false, "description": "",
                "actions": ["compute:workloads:scale"]}),
        ];
        insta::assert_snapshot!(Roles::table(&roles, false).render(), @r"
        NAME    BUILT IN  ACTIONS  DESCRIPTION
        viewer  yes       2        reads everything
        scaler  no        1        -
        ");
        insta::assert_snapshot!(OneRole::table(&roles[..1], false).render(), @r"
        NAME    ACTION
        viewer  compute:nodes:read
        viewer  compute:workloads:read
        ");
    }
}
