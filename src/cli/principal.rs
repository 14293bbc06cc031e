//! `palisade principal`: who there is beside tokens that stand for themselves.

mod certify;

use std::path::PathBuf;

use clap::Subcommand;
use jiff::Timestamp;
use palisade_api::pki;
use serde_json::{Value, json};

use self::certify::Certify;
use super::{
    Session,
    access::held,
    node::print_change,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, Client, segment},
    output::{self, Failure, Outcome, Table, View, cell, human, number, text},
};

/// Flags of `principal`.
#[derive(Debug, clap::Args)]
pub struct Principal {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List principals, with the roles that they hold
    #[command(visible_alias = "list")]
    Ls {
        /// Only those that belong to this tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one principal
    #[command(visible_alias = "get")]
    Show {
        /// Its name
        principal: String,
        #[command(flatten)]
        read: Read,
    },
    /// Make a principal, which holds no role yet
    Create(Create),
    /// Accept client certificates of a key for a principal
    Enrol(Enrol),
    /// Make a client certificate, on the machine of a replica, and enrol its key
    Certify(Certify),
    /// Let principals in no longer, and end what they watch
    Disable(Change),
    /// Let principals in again
    Enable(Change),
    /// Remove principals with their bindings, and revoke their tokens
    #[command(visible_alias = "remove")]
    Rm(Change),
}

#[derive(Debug, clap::Args)]
struct Create {
    /// What to call it
    name: String,
    /// The tenant that it belongs to and in which alone it can hold roles
    #[arg(long)]
    tenant: Option<String>,
    /// What it is for
    #[arg(long, default_value_t, hide_default_value = true)]
    description: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Enrol {
    /// Its name
    principal: String,
    /// The SHA-256 of a public key (SPKI, DER), 64 hexadecimal digits
    #[arg(long = "key", value_name = "HEX", required_unless_present = "cert")]
    keys: Vec<String>,
    /// A certificate (PEM) whose key it is
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Accept no key any more that was enrolled before
    #[arg(long)]
    only: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Names
    #[arg(required = true, value_name = "PRINCIPAL")]
    principals: Vec<String>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

fn path_of(principal: &str) -> String {
    format!("{BASE}/principals/{}", segment(principal))
}

impl Principal {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Ls { tenant, read, narrow, flag } => {
                let call =
                    narrow.say(read.get(format!("{BASE}/principals"))).query_some("tenant", tenant);
                if flag.watch {
                    return watch::<Principals>(session, call).await;
                }
                let principals = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Principals>(session.format(), &principals)
            }
            Verb::Show { principal, read } => {
                let answer = session.client()?.call(read.get(path_of(&principal))).await?;
                output::print_one::<Principals>(session.format(), &answer.body)
            }
            Verb::Create(create) => create.run(session).await,
            Verb::Enrol(enrol) => enrol.run(session).await,
            Verb::Certify(certify) => certify.run(session).await,
            Verb::Disable(change) => change.each(session, "disabled", Some(true)).await,
            Verb::Enable(change) => change.each(session, "enabled", Some(false)).await,
            Verb::Rm(change) => change.each(session, "removed", None).await,
        }
    }
}

impl Create {
    async fn run(self, session: &Session) -> Outcome {
        let mut input = json!({"name": self.name, "description": self.description});
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        let call = Call::post(format!("{BASE}/principals")).json(input).dry_run(self.dry_run);
        let answer = session.client()?.call(call).await?;
        print_change::<Principals>(session, &answer.body, &self.name, "created", self.dry_run)
    }
}

impl Change {
    async fn each(self, session: &Session, done: &str, disabled: Option<bool>) -> Outcome {
        let client = session.client()?;
        for principal in &self.principals {
            let call = match disabled {
                Some(disabled) => {
                    Call::patch(path_of(principal)).json(json!({"disabled": disabled}))
                }
                None => Call::delete(path_of(principal)),
            };
            let answer = client.call(call.dry_run(self.dry_run)).await?;
            print_change::<Principals>(session, &answer.body, principal, done, self.dry_run)?;
        }
        Ok(())
    }
}

impl Enrol {
    async fn run(self, session: &Session) -> Outcome {
        let mut keys = self.keys.clone();
        if let Some(file) = &self.cert {
            keys.push(key_of(file)?);
        }
        let client = session.client()?;
        let record = enrol(&client, &self.principal, keys, self.only, self.dry_run).await?;
        print_change::<Principals>(session, &record, &self.principal, "changed", self.dry_run)
    }
}

/// The SHA-256 of the key of the first certificate in a file.
pub(super) fn key_of(file: &std::path::Path) -> Outcome<String> {
    let refused = |error: &pki::PkiError| {
        Failure::caused(format!("{} holds no certificate", file.display()), error)
            .hint("give a PEM file that begins with the client's own certificate")
    };
    let all = pki::load_certificates(file).map_err(|error| refused(&error))?;
    let spki = match all.first() {
        Some(first) => pki::spki_of(first).map_err(|error| refused(&error))?,
        None => return Err(Failure::usage(format!("{} is empty", file.display()))),
    };
    Ok(pki::spki_sha256(&spki))
}

/// Enrols keys, beside those that are enrolled or in place of them, unless somebody changes them meanwhile.
async fn enrol(
    client: &Client,
    principal: &str,
    mut keys: Vec<String>,
    only: bool,
    dry_run: bool,
) -> Outcome<Value> {
    let mut revision = None;
    if !only {
        let read = client.call(Call::get(path_of(principal))).await?.body;
        if let Some(Value::Array(enrolled)) = read.pointer("/keys") {
            keys.extend(enrolled.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        revision = Some(number(&read, "/revision"));
    }
    let mut call = Call::patch(path_of(principal)).json(json!({ "keys": keys }));
    if let Some(revision) = revision {
        call = call.if_match(revision);
    }
    Ok(client.call(call.dry_run(dry_run)).await?.body)
}

struct Principals;

impl View for Principals {
    const KIND: &'static str = "principal";

    fn table(principals: &[Value], wide: bool) -> Table {
        Self::table_at(principals, wide, Timestamp::now())
    }
}

impl Principals {
    fn table_at(principals: &[Value], wide: bool, now: Timestamp) -> Table {
        let mut header = vec!["NAME", "TENANT", "STATUS", "ROLES", "KEYS", "AGE"];
        if wide {
            header.extend(["BY", "DESCRIPTION"]);
        }
        let mut table = Table::new(&header);
        for principal in principals {
            let keys = match principal.pointer("/keys") {
                Some(Value::Array(keys)) => keys.len().to_string(),
                _ => "any".to_owned(),
            };
            let mut row = vec![
                cell(principal, "/name"),
                cell(principal, "/tenant"),
                cell(principal, "/status"),
                held(principal, "/roles"),
                keys,
                human::age(text(principal, "/createdAt"), now),
            ];
            if wide {
                row.extend([cell(principal, "/createdBy"), cell(principal, "/description")]);
            }
            table.row(row);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::stub::{Stub, client};

    #[test]
    fn principals_are_a_table() {
        let principals = [
            json!({"name": "admin", "tenant": "", "status": "active", "keys": null,
                "roles": [{"role": "cluster-admin", "tenant": ""}], "createdAt": null,
                "createdBy": "init", "description": ""}),
            json!({"name": "ci", "tenant": "acme", "status": "disabled", "keys": ["00"],
                "roles": [{"role": "operator", "tenant": "acme"}, {"role": "scaler", "tenant": "acme"}],
                "createdAt": "2026-01-01T00:00:00.000Z", "createdBy": "user/ada",
                "description": "builds"}),
        ];
        let now = "2026-01-01T00:03:00Z".parse().unwrap();
        insta::assert_snapshot!(Principals::table_at(&principals, true, now).render(), @r"
        NAME   TENANT  STATUS    ROLES                      KEYS  AGE  BY        DESCRIPTION
        admin  -       active    cluster-admin              any   -    init      -
        ci     acme    disabled  operator@acme,scaler@acme  1     3m   user/ada  builds
        ");
    }

    #[tokio::test]
    async fn a_key_is_enrolled_beside_the_others_at_the_revision_that_was_read() {
        let read = json!({"name": "ci", "keys": ["aa"], "revision": 7});
        let stub = Stub::new(vec![(200, read), (200, json!({"name": "ci"}))]);
        let client = client(vec![stub.address()], Duration::from_secs(5));
        enrol(&client, "ci", vec!["bb".to_owned()], false, false).await.unwrap();
        let sent: Value = serde_json::from_str(&stub.seen()[1].body).unwrap();
        assert_eq!(sent, json!({"keys": ["bb", "aa"]}));
    }
}
