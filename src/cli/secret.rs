//! `palisade secret`: what workloads may know and nobody reads back.
//!
//! # Invariants
//! - `SEC-10` No verb takes a value from the command line, and none prints one.

use std::{
    fs,
    io::{self, Read as _},
    path::PathBuf,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::Subcommand;
use palisade_contract::{SecretBytes, secrets::SECRET_BYTES_MAX};
use serde_json::{Value, json};

use super::{
    Session,
    access::words,
    approval::is_held,
    node::print_change,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{BASE, Call, segment},
    output::{self, Exit, Failure, Outcome, Table, View, cell},
};

const SHORT: &str = "its value is in a file, or comes from a program: `palisade secret set NAME --from-file FILE`, \
                     or `PROGRAM | palisade secret set NAME --from-file -`";

/// Flags of `secret`.
#[derive(Debug, clap::Args)]
pub struct Secret {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a secret, or give it another value
    Set(Set),
    /// List secrets, without their values
    #[command(visible_alias = "list")]
    Ls {
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one secret, without its value
    #[command(visible_alias = "get")]
    Show {
        /// Its name
        secret: String,
        /// Whose it is
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        read: Read,
    },
    /// Remove secrets that nothing refers to
    #[command(visible_alias = "remove")]
    Rm {
        /// Names
        #[arg(required = true, value_name = "SECRET")]
        secrets: Vec<String>,
        /// Whose they are
        #[arg(long)]
        tenant: Option<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// List the cluster's keys of secrets, without the keys
    Keys {
        #[command(flatten)]
        read: Read,
    },
    /// Seal all secrets with a new key, and drop the old one
    RotateKey {
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(clap::Args)]
struct Set {
    /// Its name
    secret: String,
    /// The file with its value, byte for byte; - is standard input
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    /// Whose it is
    #[arg(long)]
    tenant: Option<String>,
    /// Only at this revision of it, as `-o json` shows it; 0: only if there is none
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Refused, without being repeated: SEC-10
    #[arg(hide = true, allow_hyphen_values = true, trailing_var_arg = true)]
    on_the_command_line: Vec<std::ffi::OsString>,
    #[arg(long, visible_alias = "from-literal", hide = true, allow_hyphen_values = true)]
    value: Option<std::ffi::OsString>,
}

/// `SEC-1`
impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Set").field("secret", &self.secret).finish_non_exhaustive()
    }
}

impl Secret {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Set(set) => set.run(session).await,
            Verb::Ls { tenant, read, narrow, flag } => {
                let call =
                    read.get(format!("{BASE}/secrets")).query_some("tenant", tenant.as_ref());
                let call = narrow.say(call);
                if flag.watch {
                    return watch::<Secrets>(session, call).await;
                }
                let secrets = session.client()?.list(call).await?;
                output::print_list::<Secrets>(session.format(), &secrets)
            }
            Verb::Show { secret, tenant, read } => {
                let call = read.get(format!("{BASE}/secrets/{}", segment(&secret)));
                let call = call.query_some("tenant", tenant.as_ref());
                let answer = session.client()?.call(call).await?;
                output::print_one::<Secrets>(session.format(), &answer.body)
            }
            Verb::Rm { secrets, tenant, dry_run } => {
                let client = session.client()?;
                for secret in &secrets {
                    let call = Call::delete(format!("{BASE}/secrets/{}", segment(secret)));
                    let call = call.query_some("tenant", tenant.as_ref());
                    let answer = client.call(call.dry_run(dry_run)).await?;
                    if is_held(session, &answer)? {
                        continue;
                    }
                    print_change::<Secrets>(session, &answer.body, secret, "removed", dry_run)?;
                }
                Ok(())
            }
            Verb::Keys { read } => {
                let call = read.get(format!("{BASE}/secret-keys"));
                let keys = session.client()?.list(call).await?;
                output::print_list::<Keys>(session.format(), &keys)
            }
            Verb::RotateKey { dry_run } => {
                let call = Call::post(format!("{BASE}/secret-keys/rotate")).json(json!({}));
                let answer = session.client()?.call(call.dry_run(dry_run)).await?;
                let version = output::number(&answer.body, "/version").to_string();
                print_change::<Keys>(session, &answer.body, &version, "asked for", dry_run)?;
                if !dry_run {
                    output::say("`palisade secret keys` shows how far it is");
                }
                Ok(())
            }
        }
    }
}

impl Set {
    /// `SEC-10`
    fn source(&self) -> Outcome<&PathBuf> {
        if !self.on_the_command_line.is_empty() || self.value.is_some() {
            return Err(Failure::usage(
                "a value on the command line is not taken: everybody on this machine sees it there, and the shell \
                 keeps it in its history",
            )
            .hint(format!("{SHORT}; and give it another value than the one that was written here")));
        }
        self.from_file
            .as_ref()
            .ok_or_else(|| Failure::usage("nothing says what the secret holds").hint(SHORT))
    }

    fn input(&self, content: &SecretBytes) -> Value {
        let bytes = content.reveal();
        let mut input = match std::str::from_utf8(bytes) {
            Ok(text) => json!({ "value": text }),
            Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
        };
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        input
    }

    async fn run(self, session: &Session) -> Outcome {
        let content = read(self.source()?)?;
        let client = session.client()?;
        if content.reveal().ends_with(b"\n") {
            output::say("note: the value ends with a line feed, which is part of it");
        }
        let path = format!("{BASE}/secrets/{}", segment(&self.secret));
        let mut call = Call::put(path).json(self.input(&content));
        if let Some(revision) = self.if_match {
            call = call.if_match(revision);
        }
        let answer = client.call(call.dry_run(self.dry_run)).await?;
        let done = format!("set, version {}", output::number(&answer.body, "/version"));
        print_change::<Secrets>(session, &answer.body, &self.secret, &done, self.dry_run)
    }
}

/// Reads at most a byte more than a secret may have.
fn read(path: &PathBuf) -> Outcome<SecretBytes> {
    let unreadable = |error: io::Error| {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Error,
        };
        Failure::new(exit, format!("cannot read {}: {error}", path.display()))
    };
    let (mut bytes, most) = (vec![], SECRET_BYTES_MAX as u64 + 1);
    if path.as_os_str() == "-" {
        io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    } else {
        let file = fs::File::open(path).map_err(unreadable)?;
        file.take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    }
    match bytes.len() {
        0 => Err(Failure::usage(format!("{} is empty, and a secret is not", path.display()))),
        len if len > SECRET_BYTES_MAX => {
            let what = format!(
                "{} is larger than a secret may be: {SECRET_BYTES_MAX} bytes",
                path.display()
            );
            Err(Failure::usage(what))
        }
        _ => Ok(SecretBytes::new(bytes)),
    }
}

/// Secrets, without their values.
struct Secrets;

impl View for Secrets {
    const KIND: &'static str = "secret";

    fn table(secrets: &[Value], wide: bool) -> Table {
        let mut heads = vec!["NAME", "TENANT", "VERSION", "BYTES", "SET", "USED BY"];
        if wide {
            heads.extend(["KEY", "BY"]);
        }
        let mut table = Table::new(&heads);
        for secret in secrets {
            let mut row = vec![
                cell(secret, "/name"),
                cell(secret, "/tenant"),
                cell(secret, "/version"),
                cell(secret, "/bytes"),
                cell(secret, "/setAt"),
                words(secret, "/usedBy"),
            ];
            if wide {
                row.extend([cell(secret, "/keyVersion"), cell(secret, "/setBy")]);
            }
            table.row(row);
        }
        table
    }
}

/// Keys, without the keys.
struct Keys;

impl View for Keys {
    const KIND: &'static str = "secret-key";

    fn table(keys: &[Value], _wide: bool) -> Table {
        let heads = ["VERSION", "ID", "STATE", "SECRETS", "HELD BY", "LACKING", "MADE"];
        let mut table = Table::new(&heads);
        for key in keys {
            table.row(vec![
                cell(key, "/version"),
                cell(key, "/id"),
                cell(key, "/state"),
                cell(key, "/secrets"),
                replicas(key, "/heldBy"),
                replicas(key, "/lacking"),
                cell(key, "/madeAt"),
            ]);
        }
        table
    }
}

fn replicas(key: &Value, pointer: &str) -> String {
    let all = key.pointer(pointer).and_then(Value::as_array);
    let all: Vec<String> = all.into_iter().flatten().map(Value::to_string).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        secret: Secret,
    }

    #[test]
    fn a_value_on_the_command_line_is_refused_and_not_repeated() {
        for words in [
            &["x", "set", "db", "canary-1"][..],
            &["x", "set", "db", "--value", "canary-1"],
            &["x", "set", "db", "--value=-canary-1"],
            &["x", "set", "db", "--from-literal", "canary-1"],
            &["x", "set", "db", "--", "-canary-1", "b"],
        ] {
            let Ok(line) = Line::try_parse_from(words) else { panic!("{words:?}") };
            let Verb::Set(set) = line.secret.verb else { panic!() };
            let refused = set.source().unwrap_err();
            assert_eq!(refused.exit, Exit::Usage);
            let told = format!("{refused} {set:?}");
            assert!(told.contains("history") && !told.contains("canary"), "SEC-10: {told}");
        }
        let line = Line::try_parse_from(["x", "set", "db"]).map_err(|e| e.to_string());
        let Verb::Set(set) = line.unwrap_or_else(|e| panic!("{e}")).secret.verb else { panic!() };
        assert!(set.source().unwrap_err().to_string().contains("--from-file"));
    }

    #[test]
    fn a_file_is_taken_byte_for_byte_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        let write = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read(&path)
        };
        assert_eq!(write(b"a\n").unwrap().reveal(), b"a\n");
        assert_eq!(write(&vec![0; SECRET_BYTES_MAX]).unwrap().reveal().len(), SECRET_BYTES_MAX);
        assert_eq!(write(&vec![0; SECRET_BYTES_MAX + 1]).unwrap_err().exit, Exit::Usage);
        assert_eq!(write(b"").unwrap_err().exit, Exit::Usage);
        assert_eq!(read(&dir.path().join("none")).unwrap_err().exit, Exit::NotFound);
    }

    #[test]
    fn secrets_and_their_keys_are_tables_without_values() {
        let secrets =
            [json!({"name": "db", "tenant": "acme", "version": 3, "keyVersion": 1, "bytes": 12,
            "usedBy": ["workload/web"], "setBy": "token/ci", "setAt": "2026-11-30T02:10:00.000Z"})];
        insta::assert_snapshot!(Secrets::table(&secrets, false).render(), @r"
        NAME  TENANT  VERSION  BYTES  SET                       USED BY
        db    acme    3        12     2026-11-30T02:10:00.000Z  workload/web
        ");
        let keys = [
            json!({"version": 2, "id": "00ff", "state": "pending", "secrets": 0, "heldBy": [1, 3],
            "lacking": [2], "madeAt": "2026-11-30T02:10:00.000Z"}),
        ];
        insta::assert_snapshot!(Keys::table(&keys, false).render(), @r"
        VERSION  ID    STATE    SECRETS  HELD BY  LACKING  MADE
        2        00ff  pending  0        1, 3     2        2026-11-30T02:10:00.000Z
        ");
    }
}
