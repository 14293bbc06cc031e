//! `palisade token`: tokens with which machines join.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Session, duration,
    node::print_change,
    session::Narrow,
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, Client, segment},
    context_file::write_private,
    output::{self, Failure, Format, Outcome, Table, View, cell, human, text},
    secret::NewSecret,
};

/// Flags of `token`.
#[derive(Debug, clap::Args)]
pub struct Token {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token, write it to a file that only you can read, and print the command for the node
    Create(Create),
    /// List tokens
    #[command(visible_alias = "list")]
    Ls(List),
    /// Revoke tokens
    #[command(visible_aliases = ["revoke", "remove"])]
    Rm {
        /// Ids
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// What of a list is wanted, and how.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    #[command(flatten)]
    pub narrow: Narrow,
    #[command(flatten)]
    pub flag: WatchFlag,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// The pool that the node joins
    #[arg(long, default_value = "default")]
    pool: String,
    /// The tenant that the node belongs to
    #[arg(long)]
    tenant: Option<String>,
    /// How long it is good, at most 24h
    #[arg(long, value_name = "DURATION", default_value = "2h", value_parser = duration)]
    ttl: std::time::Duration,
    /// How many nodes may join with it
    #[arg(long, default_value_t = 1)]
    uses: u32,
    /// Only a machine with this SMBIOS product UUID may join
    #[arg(long, value_name = "UUID")]
    expect_product_uuid: Option<String>,
    /// Only from this address
    #[arg(long, value_name = "IP")]
    expect_address: Option<String>,
    /// The file to write [default: ./<id>.join-token]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only say whether it would be made
    #[arg(long)]
    dry_run: bool,
}

/// A join token that was made.
pub(crate) struct Made {
    /// What the server answered.
    pub record: Value,
    /// The token itself.
    pub text: String,
}

/// Makes a join token. The secret is made here and only its hash is sent.
///
/// # Errors
/// The server refuses.
pub(crate) async fn create(client: &Client, input: Value) -> Outcome<Made> {
    ask(client, input, false).await
}

async fn ask(client: &Client, mut input: Value, dry_run: bool) -> Outcome<Made> {
    let secret = NewSecret::generate();
    input["secretSha256"] = json!(secret.sha256());
    let call = Call::post(format!("{BASE}/join-tokens")).json(input);
    let record = client.call(call.dry_run(dry_run)).await?.body;
    let Some(id) = text(&record, "/id") else {
        return Err(Failure::new(output::Exit::Error, "the server answered no token id"));
    };
    let text = format!("palj1.{id}.{}", secret.reveal());
    Ok(Made { record, text })
}

/// The keys by which an agent recognises this cluster: of the CA that this context trusts.
///
/// # Errors
/// The server does not say.
pub(crate) async fn pins(client: &Client) -> Outcome<Vec<String>> {
    let trust = client.call(Call::get(format!("{BASE}/cluster/trust"))).await?.body;
    let pins: Vec<String> = match trust.get("pins") {
        Some(Value::Array(pins)) => {
            pins.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => vec![],
    };
    if pins.is_empty() {
        return Err(Failure::new(output::Exit::Error, "the server answered no pins"));
    }
    Ok(pins)
}

impl Token {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let client = session.client()?;
        match self.verb {
            Verb::Create(create) => create.run(session, &client).await,
            Verb::Ls(List { narrow, flag }) => {
                let call = narrow.say(Call::get(format!("{BASE}/join-tokens")));
                if flag.watch {
                    return watch::<Tokens>(session, call).await;
                }
                let tokens = client.list(call).await?;
                output::print_list::<Tokens>(session.format(), &tokens)
            }
            Verb::Rm { tokens, dry_run } => {
                for token in &tokens {
                    let call = Call::delete(format!("{BASE}/join-tokens/{}", segment(token)));
                    let answer = client.call(call.dry_run(dry_run)).await?;
                    print_change::<Tokens>(session, &answer.body, token, "revoked", dry_run)?;
                }
                Ok(())
            }
        }
    }
}

impl Create {
    fn input(&self) -> Value {
        let mut input =
            json!({"pool": self.pool, "ttlSeconds": self.ttl.as_secs(), "uses": self.uses});
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        if let Some(uuid) = &self.expect_product_uuid {
            input["expect"]["productUuid"] = json!(uuid);
        }
        if let Some(address) = &self.expect_address {
            input["expect"]["address"] = json!(address);
        }
        input
    }

    async fn run(self, session: &Session, client: &Client) -> Outcome {
        if let Some(path) = self.out.as_ref().filter(|path| path.exists()) {
            return Err(Failure::usage(format!("{} exists already", path.display()))
                .hint("give another --out; a token is never written over a file"));
        }
        if self.dry_run {
            let made = ask(client, self.input(), true).await?;
            return print_change::<Tokens>(session, &made.record, "token", "created", true);
        }
        let pins = pins(client).await?;
        let made = create(client, self.input()).await?;
        let id = cell(&made.record, "/id");
        let path = self.out.unwrap_or_else(|| PathBuf::from(format!("{id}.join-token")));
        if let Err(error) = write_private(&path, format!("{}\n", made.text).as_bytes()) {
            // Nobody has it, so nobody may use it.
            let call = Call::delete(format!("{BASE}/join-tokens/{}", segment(&id)));
            let _ = client.call(call).await;
            return Err(Failure::caused(format!("cannot write {}", path.display()), &error)
                .note(format!("token {id} was revoked again")));
        }
        let command = join_command(client, &pins, &path);
        match session.format() {
            Format::Table | Format::Wide => {
                output::say(format!(
                    "token {id} is in {} (mode 0600), good for {} until {}",
                    path.display(),
                    if self.uses == 1 {
                        "one node".to_owned()
                    } else {
                        format!("{} nodes", self.uses)
                    },
                    cell(&made.record, "/expiresAt"),
                ));
                output::say("copy the file to the node, keep its mode, and run there:");
                output::data(format!("{command}\n").as_bytes())
            }
            Format::Name => output::print_one::<Tokens>(Format::Name, &made.record),
            format => {
                let mut record = made.record;
                record["file"] = json!(path.display().to_string());
                record["command"] = json!(command);
                record["pins"] = json!(pins);
                output::print_one::<Tokens>(format, &record)
            }
        }
    }
}

fn join_command(client: &Client, pins: &[String], file: &Path) -> String {
    let mut command = "palisade agent join".to_owned();
    for address in client.addresses() {
        command.push_str(&format!(" --server {}", address.host_port()));
    }
    for pin in pins {
        command.push_str(&format!(" --pin {pin}"));
    }
    command.push_str(&format!(" --token-file {}", shell_word(&file.display().to_string())));
    command
}

/// A text as one word of a POSIX shell.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

struct Tokens;

impl View for Tokens {
    const KIND: &'static str = "token";

    fn table(tokens: &[Value], _wide: bool) -> Table {
        let now = Timestamp::now();
        let mut table = Table::new(&["ID", "POOL", "STATUS", "USED", "EXPIRES", "AGE", "BY"]);
        for token in tokens {
            let used = token.get("nodes").and_then(Value::as_array).map_or(0, Vec::len);
            table.row(vec![
                cell(token, "/id"),
                cell(token, "/pool"),
                cell(token, "/status"),
                format!("{used}/{}", cell(token, "/uses")),
                human::until(text(token, "/expiresAt"), now),
                human::age(text(token, "/createdAt"), now),
                cell(token, "/createdBy"),
            ]);
        }
        table
    }

    fn name(token: &Value) -> &str {
        text(token, "/id").unwrap_or("-")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::stub::{Stub, client};

    #[tokio::test]
    async fn only_the_hash_of_the_secret_is_sent() {
        let stub = Stub::new(vec![(200, json!({"id": "abcdefghijklmnop"}))]);
        let client = client(vec![stub.address()], Duration::from_secs(5));
        let made = create(&client, json!({"pool": "default"})).await.unwrap();
        let secret = made.text.strip_prefix("palj1.abcdefghijklmnop.").unwrap();
        let sent = stub.seen()[0].body.clone();
        assert!(!sent.contains(secret), "{sent}");
        let hash = serde_json::from_str::<Value>(&sent).unwrap()["secretSha256"].clone();
        assert_eq!(hash.as_str().map(str::len), Some(64));
    }

    #[test]
    fn odd_file_names_stay_one_word() {
        assert_eq!(shell_word("a/b.token"), "a/b.token");
        assert_eq!(shell_word("it's $x"), r"'it'\''s $x'");
    }
}
