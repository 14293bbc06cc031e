//! `palisade binding`: who holds which role where.

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Session,
    node::print_change,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, segment},
    output::{self, Outcome, Table, View, cell, human, text},
};

/// Flags of `binding`.
#[derive(Debug, clap::Args)]
pub struct Binding {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List bindings
    #[command(visible_alias = "list")]
    Ls {
        /// Only those in this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only those of this principal
        #[arg(long)]
        principal: Option<String>,
        /// Only those of this role
        #[arg(long)]
        role: Option<String>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one binding
    #[command(visible_alias = "get")]
    Show {
        /// Its id
        binding: String,
        #[command(flatten)]
        read: Read,
    },
    /// Let a principal hold a role
    Create(Create),
    /// Take roles from principals, at once
    #[command(visible_alias = "remove")]
    Rm {
        /// Ids, such as ci.operator.acme
        #[arg(required = true, value_name = "BINDING")]
        bindings: Vec<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Who is to hold it
    principal: String,
    /// The role
    role: String,
    /// On whose things [default: its own tenant's; for one that belongs to none, everybody's]
    #[arg(long)]
    tenant: Option<String>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Binding {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Ls { tenant, principal, role, read, narrow, flag } => {
                let call = narrow
                    .say(read.get(format!("{BASE}/role-bindings")))
                    .query_some("tenant", tenant)
                    .query_some("principal", principal)
                    .query_some("role", role);
                if flag.watch {
                    return watch::<Bindings>(session, call).await;
                }
                let bindings = session.client()?.list(call).await?;
                output::print_list::<Bindings>(session.format(), &bindings)
            }
            Verb::Show { binding, read } => {
                let call = read.get(format!("{BASE}/role-bindings/{}", segment(&binding)));
                let answer = session.client()?.call(call).await?;
                output::print_one::<Bindings>(session.format(), &answer.body)
            }
            Verb::Create(create) => create.run(session).await,
            Verb::Rm { bindings, dry_run } => {
                let client = session.client()?;
                for binding in &bindings {
                    let call = Call::delete(format!("{BASE}/role-bindings/{}", segment(binding)));
                    let answer = client.call(call.dry_run(dry_run)).await?;
                    print_change::<Bindings>(session, &answer.body, binding, "removed", dry_run)?;
                }
                Ok(())
            }
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> Outcome {
        let mut input = json!({"principal": self.principal, "role": self.role});
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        let call = Call::post(format!("{BASE}/role-bindings")).json(input).dry_run(self.dry_run);
        let answer = session.client()?.call(call).await?;
        print_change::<Bindings>(session, &answer.body, &self.principal, "created", self.dry_run)
    }
}

struct Bindings;

impl View for Bindings {
    const KIND: &'static str = "binding";

    fn table(bindings: &[Value], _wide: bool) -> Table {
        let now = Timestamp::now();
        let mut table = Table::new(&["PRINCIPAL", "ROLE", "TENANT", "AGE", "BY", "ID"]);
        for binding in bindings {
            table.row(vec![
                cell(binding, "/principal"),
                cell(binding, "/role"),
                cell(binding, "/tenant"),
                human::age(text(binding, "/createdAt"), now),
                cell(binding, "/createdBy"),
                cell(binding, "/id"),
            ]);
        }
        table
    }
}
