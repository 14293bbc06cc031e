//! `palisade api-token` and `palisade auth`: who may use the API, and who is asking.

use std::path::PathBuf;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Session, can_i::CanI, duration, node::print_change, token::List, watch::watch};
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
    Ls(List),
    /// Revoke tokens
    #[command(visible_aliases = ["revoke", "remove"])]
    Rm {
        /// Names or ids
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// What to call it
    name: String,
    /// What it may: viewer, operator, tenant-admin or cluster-admin
    #[arg(long = "role", required_unless_present = "principal", value_name = "ROLE")]
    roles: Vec<String>,
    /// The tenant in which it may
    #[arg(long)]
    tenant: Option<String>,
    /// As whom it lets in, with the roles that that one holds
    #[arg(long, conflicts_with_all = ["roles", "tenant"])]
    principal: Option<String>,
    /// How long it is good [default: until revoked]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<std::time::Duration>,
    /// Write it to this new file (mode 0600) and not to stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only say whether it would be made
    #[arg(long)]
    dry_run: bool,
}

impl ApiToken {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let client = session.client()?;
        match self.verb {
            Verb::Create(create) => create.run(session, &client).await,
            Verb::Ls(List { narrow, flag }) => {
                let call = narrow.say(Call::get(format!("{BASE}/api-tokens")));
                if flag.watch {
                    return watch::<ApiTokens>(session, call).await;
                }
                let tokens = client.list(call).await?;
                output::print_list::<ApiTokens>(session.format(), &tokens)
            }
            Verb::Rm { tokens, dry_run } => {
                for token in &tokens {
                    let call = Call::delete(format!("{BASE}/api-tokens/{}", segment(token)));
                    let answer = client.call(call.dry_run(dry_run)).await?;
                    print_change::<ApiTokens>(session, &answer.body, token, "revoked", dry_run)?;
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
        let mut input = json!({"name": self.name, "secretSha256": secret.sha256()});
        match &self.principal {
            Some(principal) => input["principal"] = json!(principal),
            None => input["roles"] = json!(self.roles),
        }
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        if let Some(ttl) = self.ttl {
            input["ttlSeconds"] = json!(ttl.as_secs());
        }
        let call = Call::post(format!("{BASE}/api-tokens")).json(input);
        let mut record = client.call(call.dry_run(self.dry_run)).await?.body;
        if self.dry_run {
            return print_change::<ApiTokens>(session, &record, &self.name, "created", true);
        }
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
        Self::table_at(tokens, Timestamp::now())
    }
}

impl ApiTokens {
    fn table_at(tokens: &[Value], now: Timestamp) -> Table {
        let mut table =
            Table::new(&["NAME", "ROLES", "TENANT", "STATUS", "LAST USED", "EXPIRES", "AGE", "ID"]);
        for token in tokens {
            let roles = match text(token, "/principal").filter(|name| !name.is_empty()) {
                Some(principal) => format!("as {principal}"),
                None => words(token, "/roles"),
            };
            let used = text(token, "/lastUsedAt");
            table.row(vec![
                cell(token, "/name"),
                roles,
                cell(token, "/tenant"),
                cell(token, "/status"),
                used.map_or("never".to_owned(), |at| format!("{} ago", human::age(Some(at), now))),
                human::until(text(token, "/expiresAt"), now),
                human::age(text(token, "/createdAt"), now),
                cell(token, "/id"),
            ]);
        }
        table
    }
}

/// The texts of a list, with commas between them.
pub(super) fn words(record: &Value, pointer: &str) -> String {
    match record.pointer(pointer) {
        Some(Value::Array(words)) if !words.is_empty() => {
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        }
        _ => "-".to_owned(),
    }
}

/// Roles, and where they are held where it is not everywhere.
pub(super) fn held(record: &Value, pointer: &str) -> String {
    let Some(Value::Array(all)) = record.pointer(pointer) else { return words(record, "/roles") };
    let one = |held: &Value| match text(held, "/tenant") {
        Some(tenant) if !tenant.is_empty() => format!("{}@{tenant}", cell(held, "/role")),
        _ => cell(held, "/role"),
    };
    match all.iter().map(one).collect::<Vec<_>>() {
        none if none.is_empty() => "-".to_owned(),
        some => some.join(","),
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
                table.row(vec![cell(&me, "/name"), held(&me, "/holds"), cell(&me, "/tenant")]);
                output::data(table.render().as_bytes())
            }
            Format::Name => output::data(format!("{}\n", cell(&me, "/name")).as_bytes()),
            format => output::data(output::render_value(format, &me)?.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_a_table() {
        let now = "2026-01-01T00:03:00Z".parse().unwrap();
        let token = |name: &str, roles: &[&str], principal: &str, used: Value| {
            json!({
                "id": "abc", "name": name, "roles": roles, "tenant": "", "principal": principal,
                "status": "active", "createdAt": "2026-01-01T00:00:00.000Z", "expiresAt": null,
                "lastUsedAt": used,
            })
        };
        let tokens = [
            token("bootstrap", &["cluster-admin"], "", json!("2026-01-01T00:02:00.000Z")),
            token("ci", &[], "ci", json!(null)),
        ];
        insta::assert_snapshot!(ApiTokens::table_at(&tokens, now).render(), @r"
        NAME       ROLES          TENANT  STATUS  LAST USED  EXPIRES  AGE  ID
        bootstrap  cluster-admin  -       active  60s ago    -        3m   abc
        ci         as ci          -       active  never      -        3m   abc
        ");
    }

    #[test]
    fn roles_are_told_with_their_tenants() {
        let holds =
            json!([{"role": "viewer", "tenant": ""}, {"role": "operator", "tenant": "acme"}]);
        assert_eq!(held(&json!({ "holds": holds }), "/holds"), "viewer,operator@acme");
        assert_eq!(held(&json!({"holds": []}), "/holds"), "-");
    }
}
