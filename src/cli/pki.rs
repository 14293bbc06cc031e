//! `palisade pki`: the cluster's CA, its replacement, and keys that are refused.

use std::path::PathBuf;

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Session,
    approval::is_held,
    principal::key_of,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, segment},
    output::{self, Format, Outcome, Table, View, cell, human, number, text},
};

/// Flags of `pki`.
#[derive(Debug, clap::Args)]
pub struct Pki {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the CA, how far its replacement is, and for whom that waits
    Status {
        #[command(flatten)]
        read: Read,
    },
    /// List the certificates of replicas and nodes
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
    },
    /// Begin to replace the CA; it goes on by itself
    Rotate {
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Take the replacement of the CA to its next phase
    Advance {
        /// Also without those that are waited for, who are refused then
        #[arg(long, requires = "phase")]
        force: bool,
        /// The phase that is to be left, as `pki status` shows it; in another one nothing is done
        #[arg(long)]
        phase: Option<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Take back a replacement of the CA that issues nothing yet
    Abort {
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Refuse a key, for ever
    Revoke(Revoke),
    /// List the keys that are refused
    Revocations {
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one key that is refused
    #[command(visible_alias = "get")]
    Show {
        /// Its SHA-256, 64 hexadecimal digits
        key: String,
        #[command(flatten)]
        read: Read,
    },
}

/// What is refused.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Whose {
    /// The SHA-256 of a public key (SPKI, DER), 64 hexadecimal digits
    #[arg(long, value_name = "HEX")]
    key: Option<String>,
    /// A certificate (PEM) whose key it is
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// A node: all keys that it has
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// A replica: the key that it has, once it has made itself another one
    #[arg(long, value_name = "ID")]
    replica: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Revoke {
    #[command(flatten)]
    whose: Whose,
    /// Why
    #[arg(long, default_value_t, hide_default_value = true)]
    reason: String,
    /// Also the present key of a replica, at once: it is cut off
    #[arg(long)]
    force: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Pki {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let rotation = format!("{BASE}/pki/rotation");
        match self.verb {
            Verb::Status { read } => {
                let answer = session.client()?.call(read.get(format!("{BASE}/pki"))).await?;
                shown(session, &answer.body)
            }
            Verb::Ls { read, narrow } => {
                let call = narrow.say(read.get(format!("{BASE}/pki/certificates")));
                let all = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Certificates>(session.format(), &all)
            }
            Verb::Rotate { dry_run } => {
                change(session, Call::post(rotation).json(json!({})), dry_run).await
            }
            Verb::Advance { force, phase, dry_run } => {
                let status = session.client()?.call(Call::get(format!("{BASE}/pki"))).await?.body;
                let number = status.pointer("/rotation/number").cloned();
                let input = json!({"force": force, "phase": phase, "rotation": number});
                let call = Call::post(format!("{rotation}/advance")).json(input);
                change(session, call, dry_run).await
            }
            Verb::Abort { dry_run } => {
                let call = Call::post(format!("{rotation}/abort")).json(json!({}));
                change(session, call, dry_run).await
            }
            Verb::Revoke(revoke) => revoke.run(session).await,
            Verb::Revocations { read, narrow, flag } => {
                let call = narrow.say(read.get(format!("{BASE}/pki/revocations")));
                if flag.watch {
                    return watch::<Revocations>(session, call).await;
                }
                let all = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Revocations>(session.format(), &all)
            }
            Verb::Show { key, read } => {
                let call = read.get(format!("{BASE}/pki/revocations/{}", segment(&key)));
                let answer = session.client()?.call(call).await?;
                output::print_one::<Revocations>(session.format(), &answer.body)
            }
        }
    }
}

async fn change(session: &Session, call: Call, dry_run: bool) -> Outcome {
    let answer = session.client()?.call(call.dry_run(dry_run)).await?;
    if is_held(session, &answer)? {
        return Ok(());
    }
    if dry_run && matches!(session.format(), Format::Table | Format::Wide) {
        output::say("dry run: this is what it would be");
    }
    shown(session, &answer.body)
}

fn shown(session: &Session, status: &Value) -> Outcome {
    match session.format() {
        Format::Table | Format::Wide => output::data(rendered(status, Timestamp::now()).as_bytes()),
        format => output::print_one::<Authorities>(format, status),
    }
}

fn rendered(status: &Value, now: Timestamp) -> String {
    let list = |at: &str| status.pointer(at).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut out = Authorities::table(&list("/authorities"), false).render();
    let phase = text(status, "/rotation/phase").unwrap_or_default();
    let waiting = number(status, "/rotation/waiting");
    out.push('\n');
    if phase == "idle" {
        out.push_str("no replacement is on its way\n");
    } else {
        let since = human::age(text(status, "/rotation/phaseSince"), now);
        let nth = number(status, "/rotation/number");
        out.push_str(&format!(
            "replacement {nth} is {phase} since {since}, and waits for {waiting}\n"
        ));
        let waits_for = list("/rotation/waitsFor");
        for one in &waits_for {
            let (id, reason) = (cell(one, "/id"), cell(one, "/reason"));
            out.push_str(&format!("  {id}: {reason}\n    without it: {}\n", cell(one, "/loses")));
        }
        let more = usize::try_from(waiting).unwrap_or(0).saturating_sub(waits_for.len());
        if more > 0 {
            out.push_str(&format!("  and {more} more\n"));
        }
    }
    let count = number(status, "/certificates");
    out.push_str(&format!("{count} certificates are known"));
    if status.pointer("/nextEnd/id").is_some() {
        let (id, ends) = (cell(status, "/nextEnd/id"), cell(status, "/nextEnd/notAfter"));
        out.push_str(&format!("; the first to end is {id}'s, at {ends}"));
    }
    out.push_str(&format!("\n{} keys are refused\n", number(status, "/revocations")));
    out
}

impl Revoke {
    async fn run(self, session: &Session) -> Outcome {
        let mut input = json!({"reason": self.reason, "force": self.force});
        let key = match (&self.whose.key, &self.whose.cert) {
            (_, Some(file)) => Some(key_of(file)?),
            (key, None) => key.clone(),
        };
        if let Some(key) = key {
            input["key"] = json!(key);
        }
        if let Some(node) = &self.whose.node {
            input["node"] = json!(node);
        }
        if let Some(replica) = self.whose.replica {
            input["replica"] = json!(replica);
        }
        let call = Call::post(format!("{BASE}/pki/revocations")).json(input);
        let answer = session.client()?.call(call.dry_run(self.dry_run)).await?;
        if is_held(session, &answer)? {
            return Ok(());
        }
        let all = answer.body.pointer("/revocations").and_then(Value::as_array);
        let all = all.map_or(&[][..], Vec::as_slice);
        output::data(revoked(session.format(), all, self.dry_run)?.as_bytes())
    }
}

/// A line for each key that was refused, or one list of their records: a node may have several.
fn revoked(format: Format, all: &[Value], dry_run: bool) -> Outcome<String> {
    if !matches!(format, Format::Table | Format::Wide) {
        return output::render_list::<Revocations>(format, all);
    }
    let note = if dry_run { " (dry run)" } else { "" };
    let line = |one: &Value| {
        let done = match text(one, "/status") {
            Some("waiting") => "refused once its replica has another key",
            _ => "refused",
        };
        format!("{}/{} {done}{note}\n", Revocations::KIND, cell(one, "/id"))
    };
    Ok(all.iter().map(line).collect())
}

struct Authorities;

impl View for Authorities {
    const KIND: &'static str = "ca";

    fn table(authorities: &[Value], _wide: bool) -> Table {
        let mut table = Table::new(&["CA", "ROLE", "VALID FROM", "UNTIL"]);
        for ca in authorities {
            table.row(vec![
                text(ca, "/key").unwrap_or_default().chars().take(16).collect(),
                cell(ca, "/role"),
                cell(ca, "/notBefore"),
                cell(ca, "/notAfter"),
            ]);
        }
        table
    }
}

struct Certificates;

impl View for Certificates {
    const KIND: &'static str = "certificate";

    fn table(certificates: &[Value], wide: bool) -> Table {
        let mut table = Table::new(&["OF", "UNTIL", "ISSUER", "REVOKED", "KEY"]);
        let cut = |one: &Value, at: &str| -> String {
            let text = text(one, at).unwrap_or_default();
            if wide { text.to_owned() } else { text.chars().take(16).collect() }
        };
        for one in certificates {
            let is_revoked = one.pointer("/revoked") == Some(&Value::Bool(true));
            table.row(vec![
                cell(one, "/id"),
                cell(one, "/notAfter"),
                cut(one, "/issuer"),
                if is_revoked { "yes" } else { "no" }.to_owned(),
                cut(one, "/key"),
            ]);
        }
        table
    }
}

struct Revocations;

impl View for Revocations {
    const KIND: &'static str = "certificate";

    fn table(revocations: &[Value], _wide: bool) -> Table {
        let mut table = Table::new(&["KEY", "OF", "STATUS", "AT", "BY", "REASON"]);
        for one in revocations {
            table.row(vec![
                cell(one, "/id"),
                cell(one, "/holder"),
                cell(one, "/status"),
                cell(one, "/at"),
                cell(one, "/by"),
                cell(one, "/reason"),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_node_are_one_document() {
        let all = ["aa", "bb"].map(|key| json!({"id": key.repeat(32), "status": "refused"}));
        let json: Value =
            serde_json::from_str(&revoked(Format::Json, &all, false).unwrap()).unwrap();
        assert_eq!(json, json!(all));
        let lines = revoked(Format::Table, &all, true).unwrap();
        assert!(lines.starts_with("certificate/aaaa") && lines.lines().count() == 2, "{lines}");
        assert!(lines.ends_with("bb refused (dry run)\n"), "{lines}");
    }

    #[test]
    fn the_status_says_for_whom_a_replacement_waits_and_what_it_costs_to_go_on() {
        let status = json!({
            "authorities": [
                {"key": "aa".repeat(32), "role": "issuing", "notBefore": "2026-01-01T00:00:00.000Z",
                    "notAfter": "2036-01-01T00:00:00.000Z"},
                {"key": "bb".repeat(32), "role": "trusted", "notBefore": "2026-01-01T00:00:00.000Z",
                    "notAfter": "2036-01-01T00:00:00.000Z"},
            ],
            "rotation": {"phase": "trusting", "number": 1, "phaseSince": "2026-01-01T00:00:00.000Z",
                "waiting": 1, "waitsFor": [{"id": "replica/3", "reason": "it does not hold it", "loses": "its place"}]},
            "certificates": 3, "nextEnd": {"id": "node/n_1", "notAfter": "2026-01-02T00:00:00.000Z"},
            "revocations": 0,
        });
        let now = "2026-01-01T00:03:00Z".parse().unwrap();
        insta::assert_snapshot!(rendered(&status, now), @r"
        CA                ROLE     VALID FROM                UNTIL
        aaaaaaaaaaaaaaaa  issuing  2026-01-01T00:00:00.000Z  2036-01-01T00:00:00.000Z
        bbbbbbbbbbbbbbbb  trusted  2026-01-01T00:00:00.000Z  2036-01-01T00:00:00.000Z

        replacement 1 is trusting since 3m, and waits for 1
          replica/3: it does not hold it
            without it: its place
        3 certificates are known; the first to end is node/n_1's, at 2026-01-02T00:00:00.000Z
        0 keys are refused
        ");
    }
}
