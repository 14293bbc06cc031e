//! `palisade support`: what somebody who helps needs to see, in one file without secrets.
//!
//! # Invariants
//! - `SUPPORT-1` No credential, key or value of an environment variable is in the file: what is one by its place or by its look
//!   is replaced by [`HIDDEN`].
//! - `SUPPORT-2` What could not be read is in the file as the reason why, and is said; never left out silently.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Subcommand;
use futures::future::join_all;
use serde_json::{Map, Value, json};

use super::{Session, doctor, survey::survey, version::VERSION};
use crate::{
    client::{Address, BASE, Call, Client},
    edge,
    output::{self, Failure, Format, Outcome, failure::chain},
};

/// Stands where a secret was.
const HIDDEN: &str = "(hidden)";
/// How long one replica may take for one part.
const LIMIT: Duration = Duration::from_secs(8);
/// Of events and audit records, so many of the newest.
const NEWEST: u64 = 1_000;
/// What is known of the cluster, by the name that it has in the file.
const LISTS: [&str; 7] =
    ["nodes", "workloads", "instances", "join-tokens", "api-tokens", "principals", "role-bindings"];
/// What every replica says for itself.
const OWN: [(&str, &str); 4] = [
    ("cluster", "/api/compute/cluster?consistency=local"),
    ("selfCheck", "/api/compute/self-check?consistency=local"),
    ("version", "/api/compute/version?consistency=local"),
    ("ready", "/readyz"),
];

/// Flags of `support`.
#[derive(Debug, clap::Args)]
pub struct Support {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write what every replica knows of itself and of the cluster to one file, without secrets
    Bundle {
        /// The new file (mode 0600); - for stdout [default: palisade-support-<time>.json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

impl Support {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let Verb::Bundle { out } = self.verb;
        let client = session.client()?;
        let bundle = bundle(session, &client).await;
        let failed = failures(&bundle, "");
        let text = serde_json::to_string_pretty(&bundle)
            .map_err(|error| Failure::caused("the bundle cannot be encoded", &error))?
            + "\n";
        let stamp: String = made_at().chars().filter(|c| *c != ':').collect();
        let out = out.unwrap_or_else(|| PathBuf::from(format!("palisade-support-{stamp}.json")));
        if out == Path::new("-") {
            output::data(text.as_bytes())?;
        } else {
            write(&out, &text)?;
            told(session, &out, &text)?;
        }
        for (place, why) in &failed {
            output::say(format!("not in it: {place}: {why}"));
        }
        if failed.iter().any(|(place, _)| place.starts_with("cluster/")) {
            output::say("the replicas' own parts are in it; run it again when the cluster answers");
        }
        Ok(())
    }
}

/// Now, to the second.
fn made_at() -> String {
    let now = i64::try_from(edge::wall_ms() / 1000).unwrap_or(0);
    jiff::Timestamp::from_second(now).unwrap_or_default().to_string()
}

fn told(session: &Session, out: &Path, text: &str) -> Outcome {
    let path = out.display().to_string();
    match session.format() {
        format @ (Format::Json | Format::Yaml) => {
            let value = json!({"file": path, "bytes": text.len()});
            output::data(output::render_value(format, &value)?.as_bytes())
        }
        _ => {
            output::data(format!("{path}\n").as_bytes())?;
            output::say(
                "look at it before you send it: names, addresses and labels are in it as they are",
            );
            Ok(())
        }
    }
}

fn write(path: &Path, text: &str) -> Outcome {
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| {
        Failure::caused(format!("cannot write {}", path.display()), &error)
            .hint("name a new file with --out")
    })
}

/// All of it, with secrets taken out.
async fn bundle(session: &Session, client: &Client) -> Value {
    let seen = survey(client).await;
    let replicas = join_all(seen.0.iter().map(|one| replica(client, &one.address))).await;
    let mut cluster = Map::new();
    for list in LISTS {
        let call = Call::get(format!("{BASE}/{list}"));
        cluster.insert(list.to_owned(), part(client.list(call).await.map(Value::Array)));
    }
    for list in ["events", "audit"] {
        let call = Call::get(format!("{BASE}/{list}")).query("limit", NEWEST);
        cluster.insert(list.to_owned(), part(client.call(call).await.map(|answer| answer.body)));
    }
    let findings = doctor::look(client, LIMIT, None).await;
    let mut bundle = json!({
        "kind": "palisade-support-bundle",
        "version": 1,
        "madeAt": made_at(),
        "client": VERSION,
        "context": session.resolve().ok().and_then(|resolved| resolved.addresses_of),
        "replicas": replicas,
        "doctor": findings,
        "cluster": cluster,
    });
    hide(&mut bundle);
    bundle
}

async fn replica(client: &Client, address: &Address) -> Value {
    let mut parts = Map::new();
    parts.insert("address".to_owned(), address.to_string().into());
    for (name, path) in OWN {
        let said = client.text_at(address, path, LIMIT).await;
        let said = said.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)));
        parts.insert(name.to_owned(), part(said));
    }
    let metrics = client.text_at(address, "/metrics", LIMIT).await.map(Value::String);
    parts.insert("metrics".to_owned(), part(metrics));
    Value::Object(parts)
}

/// `SUPPORT-2`.
fn part<E: std::error::Error + 'static>(said: Result<Value, E>) -> Value {
    said.unwrap_or_else(|error| json!({ "notRead": chain(&error) }))
}

/// What was not read, and why.
fn failures(value: &Value, at: &str) -> Vec<(String, String)> {
    match value {
        Value::Object(fields) => match (fields.get("notRead"), fields.len()) {
            (Some(Value::String(why)), 1) => {
                vec![(at.trim_start_matches('/').to_owned(), why.clone())]
            }
            _ => {
                fields.iter().flat_map(|(name, of)| failures(of, &format!("{at}/{name}"))).collect()
            }
        },
        Value::Array(items) => items
            .iter()
            .enumerate()
            .flat_map(|(n, of)| failures(of, &format!("{at}/{n}")))
            .collect(),
        _ => vec![],
    }
}

/// `SUPPORT-1`: by place.
fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, of) in fields.iter_mut() {
                if matches!(name.as_str(), "env" | "environment") {
                    hide_all(of);
                } else if is_secret_name(name) && of.is_string() {
                    *of = HIDDEN.into();
                } else {
                    hide(of);
                }
            }
        }
        Value::Array(items) => {
            let mut is_next = false;
            for item in items {
                // `--password X`: the value is the next one.
                let follows = std::mem::replace(
                    &mut is_next,
                    item.as_str().is_some_and(|text| {
                        text.starts_with('-') && !text.contains('=') && is_secret_name(text)
                    }),
                );
                if follows && item.is_string() {
                    *item = HIDDEN.into();
                } else {
                    hide(item);
                }
            }
        }
        Value::String(text) => {
            if let Some(hidden) = without_secrets(text) {
                *text = hidden;
            }
        }
        _ => {}
    }
}

fn hide_all(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(hide_all),
        Value::Array(items) => items.iter_mut().for_each(hide_all),
        Value::String(text) => {
            // `NAME=value` keeps its name.
            let name = text.split_once('=').map(|(name, _)| format!("{name}={HIDDEN}"));
            *text = name.unwrap_or_else(|| HIDDEN.to_owned());
        }
        other => *other = HIDDEN.into(),
    }
}

/// Whether something of this name is a secret; a hash or an id of one is none.
fn is_secret_name(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase().replace(['-', '_'], "");
    [
        "password",
        "passwd",
        "secret",
        "apikey",
        "accesskey",
        "privatekey",
        "credential",
        "authorization",
        "token",
        "bearer",
    ]
    .iter()
    .any(|word| name == *word || name.ends_with(word))
}

/// `SUPPORT-1`: by look. Nothing when there is nothing to hide.
fn without_secrets(text: &str) -> Option<String> {
    if text.contains("PRIVATE KEY-----") {
        return Some(HIDDEN.to_owned());
    }
    let mut hidden = false;
    let words: Vec<String> = text
        .split_inclusive(|letter: char| letter.is_whitespace() || "\"'`,;()".contains(letter))
        .map(|word| {
            let shown = word_without_secrets(word);
            hidden |= shown != word;
            shown
        })
        .collect();
    hidden.then(|| words.concat())
}

fn word_without_secrets(word: &str) -> String {
    for mark in ["pal_", "palj1.", "whsec_"] {
        if let Some(at) = word.find(mark) {
            let (before, secret) = word.split_at(at);
            let end = secret
                .find(|letter: char| !letter.is_ascii_alphanumeric() && !"_-.".contains(letter))
                .unwrap_or(secret.len());
            return format!("{before}{HIDDEN}{}", secret.get(end..).unwrap_or_default());
        }
    }
    if let Some((name, value)) = word.split_once('=')
        && !value.trim().is_empty()
        && is_secret_name(name.rsplit(['?', '&', '/']).next().unwrap_or(name))
    {
        let end = value.trim_end().len();
        return format!("{name}={HIDDEN}{}", value.get(end..).unwrap_or_default());
    }
    // `scheme://user:password@host`.
    if let Some((scheme, rest)) = word.split_once("://")
        && let Some((user, host)) = rest.split_once('@')
        && user.contains(':')
        && !user.contains('/')
    {
        return format!("{scheme}://{HIDDEN}@{host}");
    }
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_secret_by_its_place_or_look_is_hidden_and_the_rest_stays() {
        let mut value = json!({
            "spec": {
                "task": { "command": ["serve", "--password", "canary1", "--db=postgres://u:canary2@db/x", "--api-token=canary3", "--port", "80"] },
                "env": { "DB": "canary4", "N": 5, "L": ["A=canary5"] },
            },
            "token": "canary6", "apiToken": "canary7", "tokenId": "tk_1", "secretSha256": "abcd",
            "message": "refused pal_canary8.x for ada, palj1.canary9!",
            "key": "-----BEGIN PRIVATE KEY-----\ncanary10\n-----END PRIVATE KEY-----",
            "url": "https://h/x?token=canary11",
        });
        hide(&mut value);
        let text = value.to_string();
        assert!(!text.contains("canary"), "SUPPORT-1: {text}");
        assert_eq!(value["tokenId"], "tk_1");
        assert_eq!(value["secretSha256"], "abcd");
        assert_eq!(value["spec"]["env"]["L"][0], "A=(hidden)");
        assert_eq!(value["message"], "refused (hidden) for ada, (hidden)!");
        assert_eq!(value["spec"]["task"]["command"][5], "--port");
        assert_eq!(value["spec"]["task"]["command"][3], "--db=postgres://(hidden)@db/x");
    }

    #[test]
    fn what_was_not_read_is_told_with_its_place() {
        let bundle = json!({"replicas": [{"metrics": {"notRead": "refused"}, "x": 1}], "cluster": {"nodes": []}});
        assert_eq!(
            failures(&bundle, ""),
            [("replicas/0/metrics".to_owned(), "refused".to_owned())]
        );
    }
}
