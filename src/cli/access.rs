//! `palisade api-token` and `palisade auth`: who may use the API, and who is asking.

use std::path::PathBuf;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Session, can_i::CanI, duration, node::print_change};
use crate::{
    client::{BASE, Call, Client, segment},
    context_file::write_private,
    output::{self, Failure, Format, Outcome, Table, View, cell, human, text},
    secret::NewSecret,
};

/// Flags of `api-token`.
#[derive(Debug, clap::Args)]
pub struct ApiToken {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token; it is shown once
    Create(Create),
    /// List tokens
    #[command(visible_alias = "list")]
    Ls,
    /// Revoke tokens
    #[command(visible_aliases = ["revoke", "remove"])]
    Rm {
        /// Names or ids
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// What to call it
    name: String,
    /// What it may: viewer, operator, tenant-admin or cluster-admin
    #[arg(long = "role", required = true, value_name = "ROLE")]
    roles: Vec<String>,
    /// The tenant in which it may
    #[arg(long)]
    tenant: Option<String>,
    /// How long it is good [default: until revoked]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<std::time::Duration>,
    /// Write it to this new file (mode 0600) and not to stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl ApiToken {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let client = session.client()?;
        match self.verb {
            Verb::Create(create) => create.run(session, &client).await,
            Verb::Ls => {
                let tokens = client.list(Call::get(format!("{BASE}/api-tokens"))).await?;
                output::print_list::<ApiTokens>(session.format(), &tokens)
            }
            Verb::Rm { tokens } => {
                for token in &tokens {
                    let call = Call::delete(format!("{BASE}/api-tokens/{}", segment(token)));
                    let answer = client.call(call).await?;
                    print_change::<ApiTokens>(session, &answer.body, token, "revoked", false)?;
                }
                Ok(())
            }
        }
    }
}

impl Create {
    async fn run(self, session: &Session, client: &Client) -> Outcome {
        if let Some(path) = self.out.as_ref().filter(|path| path.exists()) {
            return Err(Failure::usage(format!("{} exists already", path.display()))
                .hint("give another --out; a token is never written over a file"));
        }
        let secret = NewSecret::generate();
        let mut input =
            json!({"name": self.name, "roles": self.roles, "secretSha256": secret.sha256()});
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        if let Some(ttl) = self.ttl {
            input["ttlSeconds"] = json!(ttl.as_secs());
        }
        let call = Call::post(format!("{BASE}/api-tokens")).json(input);
        let mut record = client.call(call).await?.body;
        let id = cell(&record, "/id");
        let token = format!("pal_{id}_{}", secret.reveal());
        if let Some(path) = &self.out {
            if let Err(error) = write_private(path, format!("{token}\n").as_bytes()) {
                let call = Call::delete(format!("{BASE}/api-tokens/{}", segment(&id)));
                let _ = client.call(call).await;
                return Err(Failure::caused(format!("cannot write {}", path.display()), &error)
                    .note(format!("token {id} was revoked again")));
            }
            record["file"] = json!(path.display().to_string());
        }
        match (session.format(), &self.out) {
            (Format::Table | Format::Wide, Some(path)) => {
                output::say(format!("token {} is in {} (mode 0600)", self.name, path.display()));
                Ok(())
            }
            (Format::Table | Format::Wide, None) => {
                output::say(
                    "this is shown once; use it as PALISADE_TOKEN or with --api-token-file:",
                );
                output::data(format!("{token}\n").as_bytes())
            }
            (Format::Name, _) => output::print_one::<ApiTokens>(Format::Name, &record),
            (format, out) => {
                if out.is_none() {
                    record["token"] = json!(token);
                }
                output::print_one::<ApiTokens>(format, &record)
            }
        }
    }
}

struct ApiTokens;

impl View for ApiTokens {
    const KIND: &'static str = "api-token";

    fn table(tokens: &[Value], _wide: bool) -> Table {
        let now = Timestamp::now();
        let mut table = Table::new(&["NAME", "ROLES", "TENANT", "STATUS", "EXPIRES", "AGE", "ID"]);
        for token in tokens {
            table.row(vec![
                cell(token, "/name"),
                words(token, "/roles"),
                cell(token, "/tenant"),
                cell(token, "/status"),
                human::until(text(token, "/expiresAt"), now),
                human::age(text(token, "/createdAt"), now),
                cell(token, "/id"),
            ]);
        }
        table
    }
}

/// The texts of a list, with commas between them.
fn words(record: &Value, pointer: &str) -> String {
    match record.pointer(pointer) {
        Some(Value::Array(words)) if !words.is_empty() => {
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        }
        _ => "-".to_owned(),
    }
}

/// Flags of `auth`.
#[derive(Debug, clap::Args)]
pub struct Auth {
    #[command(subcommand)]
    verb: AuthVerb,
}

#[derive(Debug, Subcommand)]
enum AuthVerb {
    /// Say as whom the cluster knows this context
    Whoami,
    /// Ask whether you may do something; exit code 5 when not
    CanI(CanI),
}

impl Auth {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        if let AuthVerb::CanI(asked) = self.verb {
            return asked.run(session).await;
        }
        let me = session.client()?.call(Call::get(format!("{BASE}/auth/whoami"))).await?.body;
        match session.format() {
            Format::Table | Format::Wide => {
                let mut table = Table::new(&["NAME", "ROLES", "TENANT"]);
                table.row(vec![cell(&me, "/name"), words(&me, "/roles"), cell(&me, "/tenant")]);
                output::data(table.render().as_bytes())
            }
            Format::Name => output::data(format!("{}\n", cell(&me, "/name")).as_bytes()),
            format => output::data(output::render_value(format, &me)?.as_bytes()),
        }
    }
}
