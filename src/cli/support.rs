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
    ("ready", READY),
];
const READY: &str = "/readyz";

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
        parts.insert(name.to_owned(), said(client, address, path).await);
    }
    parts.insert("metrics".to_owned(), said(client, address, "/metrics").await);
    Value::Object(parts)
}

async fn said(client: &Client, address: &Address, path: &str) -> Value {
    let (status, text) = match client.text_at(address, path, LIMIT).await {
        Ok(said) => said,
        Err(error) => return not_read(chain(&error)),
    };
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    // A replica that is not ready says why, with 503.
    if status < 400 || path == READY {
        return value;
    }
    let what = output::text(&value, "/detail").unwrap_or("it does not say why");
    not_read(format!("HTTP {status}: {what}"))
}

fn not_read(why: String) -> Value {
    json!({ "notRead": why })
}

/// `SUPPORT-2`.
fn part<E: std::error::Error + 'static>(said: Result<Value, E>) -> Value {
    said.unwrap_or_else(|error| not_read(chain(&error)))
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
                match name.as_str() {
                    "env" | "environment" => hide_all(of),
                    "command" | "args" => hide_arguments(of),
                    // Of records of ours, the id of one.
                    "token" => {}
                    name if is_secret_name(name) && !is_about_one(name) && of.is_string() => {
                        *of = HIDDEN.into();
                    }
                    _ => hide(of),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::String(text) => {
            if let Some(hidden) = without_secrets(text) {
                *text = hidden;
            }
        }
        _ => {}
    }
}

/// All but names.
fn hide_all(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|of| *of = HIDDEN.into()),
        Value::Array(items) => {
            for item in items {
                let name = item.as_str().and_then(|text| text.split_once('='));
                *item = name.map_or(HIDDEN.into(), |(name, _)| format!("{name}={HIDDEN}").into());
            }
        }
        other => *other = HIDDEN.into(),
    }
}

/// All but the program.
fn hide_arguments(value: &mut Value) {
    match value {
        Value::Array(items) => {
            for (nth, item) in items.iter_mut().enumerate() {
                let is_program = item.as_str().is_some_and(|text| !text.contains([' ', '=']));
                if nth > 0 || !is_program {
                    *item = HIDDEN.into();
                }
            }
        }
        other => hide(other),
    }
}

/// Whether something of this name is a secret, as far as a name can tell.
fn is_secret_name(name: &str) -> bool {
    const WORDS: [&str; 12] = [
        "passw",
        "passphrase",
        "pwd",
        "secret",
        "apikey",
        "accesskey",
        "privatekey",
        "signingkey",
        "credential",
        "authorization",
        "token",
        "bearer",
    ];
    let name = name.to_ascii_lowercase().replace(['-', '_'], "");
    name.ends_with("pass") || WORDS.iter().any(|word| name.contains(word))
}

/// A hash of a secret, or an id, tells nothing.
fn is_about_one(name: &str) -> bool {
    ["Sha256", "Hash", "Id", "Name", "At"].iter().any(|end| name.ends_with(end))
}

/// `SUPPORT-1`: by look. Nothing when there is nothing to hide.
fn without_secrets(text: &str) -> Option<String> {
    if text.contains("PRIVATE KEY-----") {
        return Some(HIDDEN.to_owned());
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let mut hidden = false;
    while !rest.is_empty() {
        match secret_at(rest) {
            Some((keep, secret)) => {
                shown.push_str(rest.get(..keep).unwrap_or_default());
                shown.push_str(HIDDEN);
                rest = rest.get(keep + secret..).unwrap_or_default();
                hidden = true;
            }
            None => {
                // Whole words, so that a name is looked at once, from its beginning.
                let word = word_length(rest);
                let step =
                    if word > 0 { word } else { rest.chars().next().map_or(1, char::len_utf8) };
                shown.push_str(rest.get(..step).unwrap_or_default());
                rest = rest.get(step..).unwrap_or_default();
            }
        }
    }
    hidden.then_some(shown)
}

fn word_length(text: &str) -> usize {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    text.find(|letter: char| !is_part(letter)).unwrap_or(text.len())
}

/// Whether a secret begins in the word that a text begins with: how many bytes stand before it, and how many it has.
fn secret_at(text: &str) -> Option<(usize, usize)> {
    let until = |text: &str, ends: &[char]| {
        text.find(|letter: char| letter.is_whitespace() || ends.contains(&letter))
            .unwrap_or(text.len())
    };
    if ["pal_", "palj1.", "whsec_", "ghp_", "eyJ"].iter().any(|mark| text.starts_with(mark)) {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
        return Some((0, text.find(|letter: char| !is_part(letter)).unwrap_or(text.len())));
    }
    if let Some(rest) = text.strip_prefix("://") {
        let place = rest.get(..until(rest, &['"', '\'', '`'])).unwrap_or_default();
        let (user, _) = place.rsplit_once('@')?;
        return user.contains(':').then_some((3, user.len()));
    }
    let name = text.get(..word_length(text)).filter(|name| !name.is_empty())?;
    let behind = text.get(name.len()..).unwrap_or_default();
    let is_scheme = ["bearer", "basic"].contains(&name.to_ascii_lowercase().as_str());
    if !is_scheme && !is_secret_name(name) {
        return None;
    }
    // `name=`, `name: `, `"name": `, `--name `, `Bearer `.
    let unquoted = behind.strip_prefix(['"', '\'']).unwrap_or(behind);
    let value = match unquoted.trim_start().strip_prefix(['=', ':']) {
        Some(value) => value.trim_start(),
        None if is_scheme || name.starts_with('-') => behind.trim_start(),
        None => return None,
    };
    let bare = value.strip_prefix(['"', '\'']);
    let (value, length) = match bare {
        Some(quoted) => (quoted, quoted.find(['"', '\'']).unwrap_or(quoted.len())),
        None => (value, until(value, &['"', '\'', '`', '&', ';'])),
    };
    // `Authorization: Bearer x`: the scheme is no secret, what follows it is.
    let scheme = value.get(..word_length(value)).unwrap_or_default().to_ascii_lowercase();
    if !is_scheme && ["bearer", "basic"].contains(&scheme.as_str()) {
        return None;
    }
    (length > 0).then_some((text.len() - value.len(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_secret_by_its_place_is_hidden_and_the_rest_stays() {
        let mut value = json!({
            "spec": {
                "task": { "command": ["serve", "--password", "canary1", "sh -c 'x --pass canary2'"] },
                "env": { "DB": "canary3", "PADDED": "canary4==", "DSN": "a=b;p=canary5", "N": 5 },
                "health": { "exec": { "command": ["check --key=canary6"] } },
            },
            "list": { "env": ["A=canary7", "canary8"] },
            "apiToken": "canary9", "token": "rp2ffzs435eyowtm", "tokenId": "tk_1", "secretSha256": "abcd",
        });
        hide(&mut value);
        let text = value.to_string();
        assert!(!text.contains("canary"), "SUPPORT-1: {text}");
        assert_eq!(value["spec"]["task"]["command"][0], "serve");
        assert_eq!(value["spec"]["env"]["PADDED"], HIDDEN);
        assert_eq!(value["list"]["env"][0], "A=(hidden)");
        assert_eq!(value["token"], "rp2ffzs435eyowtm");
        assert_eq!((&value["tokenId"], &value["secretSha256"]), (&json!("tk_1"), &json!("abcd")));
    }

    #[test]
    fn what_is_a_secret_by_its_look_is_hidden_and_the_rest_stays() {
        for (text, shown) in [
            ("refused pal_canary.x for ada, palj1.canary!", "refused (hidden) for ada, (hidden)!"),
            ("serve --password canary --port 80", "serve --password (hidden) --port 80"),
            ("https://h/x?a=1&token=canary&b=2", "https://h/x?a=1&token=(hidden)&b=2"),
            ("--api-key=can,canary", "--api-key=(hidden)"),
            ("--secret='two canary' next", "--secret='(hidden)' next"),
            ("https://u:can/canary@h/", "https://(hidden)@h/"),
            ("postgres://u:canary@db/x?y", "postgres://(hidden)@db/x?y"),
            ("curl -H 'Authorization: Bearer canary'", "curl -H 'Authorization: Bearer (hidden)'"),
            ("X-Api-Key: canary", "X-Api-Key: (hidden)"),
            ("{\"password\":\"canary\"}", "{\"password\":\"(hidden)\"}"),
            ("password: canary\nuser: ada", "password: (hidden)\nuser: ada"),
            ("--db-pass=canary --pwd=canary", "--db-pass=(hidden) --pwd=(hidden)"),
            ("--client-secret-value canary", "--client-secret-value (hidden)"),
            ("ghp_canary eyJcanary.eyJ.x", "(hidden) (hidden)"),
        ] {
            assert_eq!(without_secrets(text).as_deref(), Some(shown), "SUPPORT-1: {text}");
        }
        let key = "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----";
        assert_eq!(without_secrets(key).as_deref(), Some(HIDDEN));
        for text in
            ["passes every test", "the token was revoked", "a=b https://h/x", "no tokens, no name"]
        {
            assert_eq!(without_secrets(text), None, "{text}");
        }
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
