//! `palisade context`: the clusters that this machine knows. Nothing here asks a cluster.

use clap::Subcommand;
use serde_json::{Value, json};

use super::Global;
use crate::{
    client::{BASE, Call},
    context_file::{Context as Stored, Contexts},
    output::{self, Exit, Failure, Format, Outcome, Table, View, cell, text},
};

/// Flags of `context`.
#[derive(Debug, clap::Args)]
pub struct Context {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List contexts
    #[command(visible_alias = "list")]
    Ls,
    /// Use a context from now on
    Use {
        /// Its name
        name: String,
    },
    /// Show a context, without its token
    Show {
        /// Its name [default: the one in use]
        name: Option<String>,
    },
    /// Ask the cluster in use where its replicas are now and which CA to trust, and keep that
    Refresh,
    /// Forget a context and its token
    #[command(visible_alias = "remove")]
    Rm {
        /// Its name
        name: String,
    },
}

impl Context {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let overrides = global.overrides();
        let path = overrides.path()?;
        let mut contexts = Contexts::load(&path)?;
        let used = overrides.context.clone().or_else(|| contexts.current.clone());
        match self.verb {
            Verb::Ls => {
                let records: Vec<Value> =
                    contexts.contexts.iter().map(|one| record(one, used.as_deref())).collect();
                output::print_list::<Stores>(global.output, &records)
            }
            Verb::Show { name } => {
                let Some(name) = name.or_else(|| used.clone()) else {
                    return Err(crate::context_file::ContextError::NoneChosen { path }.into());
                };
                let record = record(contexts.named(&name, &path)?, used.as_deref());
                output::print_one::<Stores>(global.output, &record)
            }
            Verb::Use { name } => {
                contexts.named(&name, &path)?;
                contexts.current = Some(name.clone());
                contexts.save(&path)?;
                say_done(global, &name, "in use")
            }
            Verb::Refresh => {
                let Some(name) = used else {
                    return Err(crate::context_file::ContextError::NoneChosen { path }.into());
                };
                let mut context = contexts.named(&name, &path)?.clone();
                (context.addrs, context.ca_pem) =
                    super::small_runtime()?.block_on(refreshed(global))?;
                contexts.put(context);
                contexts.save(&path)?;
                say_done(global, &name, "refreshed")
            }
            Verb::Rm { name } => {
                contexts.named(&name, &path)?;
                contexts.remove(&name);
                if contexts.current.as_deref() == Some(&name) {
                    contexts.current = None;
                }
                contexts.save(&path)?;
                say_done(global, &name, "removed")
            }
        }
    }
}

/// Where the replicas of the cluster are and whom to trust, as it says itself to who trusts it already.
async fn refreshed(global: &Global) -> Outcome<(Vec<String>, String)> {
    let client = super::Session::new(global.clone()).client()?;
    let status = super::cluster::status(&client, false).await?;
    let members = status.get("members").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut addrs: Vec<String> = members
        .iter()
        .filter_map(|member| member.get("apiAddr").and_then(Value::as_str))
        .filter(|addr| !addr.is_empty())
        .map(|addr| format!("https://{addr}"))
        .collect();
    addrs.sort();
    if addrs.is_empty() {
        return Err(Failure::new(Exit::Error, "the cluster named no replica's address"));
    }
    let trust = client.call(Call::get(format!("{BASE}/cluster/trust"))).await?.body;
    match text(&trust, "/caPem") {
        None | Some("") => Err(Failure::new(Exit::Error, "the cluster named no CA")),
        Some(ca_pem) => Ok((addrs, ca_pem.to_owned())),
    }
}

fn say_done(global: &Global, name: &str, done: &str) -> Outcome {
    match global.output {
        Format::Table | Format::Wide => output::data(format!("context/{name} {done}\n").as_bytes()),
        format => output::print_one::<Stores>(format, &json!({ "name": name })),
    }
}

fn record(context: &Stored, used: Option<&str>) -> Value {
    json!({
        "name": context.name,
        "current": used == Some(context.name.as_str()),
        "addrs": context.addrs,
        "token": if context.token.reveal().is_empty() { "none" } else { "set" },
        "caPem": context.ca_pem,
    })
}

/// How contexts are shown.
struct Stores;

impl View for Stores {
    const KIND: &'static str = "context";

    fn table(contexts: &[Value], _wide: bool) -> Table {
        let mut table = Table::new(&["CURRENT", "NAME", "REPLICAS", "TOKEN"]);
        for context in contexts {
            let addrs = match context.get("addrs") {
                Some(Value::Array(addrs)) => {
                    addrs.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
                }
                _ => String::new(),
            };
            let mark = if context["current"] == true { "*" } else { " " };
            table.row(vec![
                mark.to_owned(),
                cell(context, "/name"),
                addrs,
                cell(context, "/token"),
            ]);
        }
        table
    }
}
