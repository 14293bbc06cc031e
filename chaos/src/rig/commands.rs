//! How the product is called: the one place that knows its command line.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The product's binary.
#[derive(Clone, Debug)]
pub(crate) struct Binary(PathBuf);

/// Two ports of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) peer: u16,
    pub(crate) api: u16,
}

impl Binary {
    /// `given`, or `palisade` beside this program.
    pub(crate) fn find(given: Option<&Path>) -> Result<Self> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => std::env::current_exe()
                .context("cannot tell where this program is; give --bin")?
                .with_file_name("palisade"),
        };
        let path = path.canonicalize().with_context(|| {
            format!(
                "there is no binary {}: build it (cargo build --release) or give --bin",
                path.display()
            )
        })?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs it to its end and answers what it wrote to stdout. No context or address of the caller
    /// reaches it but the one given.
    pub(crate) async fn run(&self, context_file: &Path, args: &[OsString]) -> Result<String> {
        let mut command = tokio::process::Command::new(&self.0);
        command.args(args).stdin(Stdio::null()).kill_on_drop(true);
        for name in ["PALISADE_ADDR", "PALISADE_TOKEN", "PALISADE_CACERT", "PALISADE_CONTEXT"] {
            command.env_remove(name);
        }
        command.env("PALISADE_CONTEXT_FILE", context_file);
        let output =
            command.output().await.with_context(|| format!("cannot run {}", self.0.display()))?;
        if !output.status.success() {
            let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
            bail!(
                "palisade {} ended with {}: {}",
                words.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The product's version, as it says it.
    pub(crate) async fn version(&self) -> Result<String> {
        let text = self.run(Path::new("/nonexistent/contexts.toml"), &["--version".into()]).await?;
        Ok(text.trim().to_owned())
    }
}

/// Builds arguments from texts and paths.
pub(crate) fn words(words: &[&dyn AsRef<std::ffi::OsStr>]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// `palisade init`: makes `dir/replica-N` for each.
pub(crate) fn init(dir: &Path, ports: &[Ports]) -> Vec<OsString> {
    init_at(dir, std::net::Ipv4Addr::LOCALHOST.into(), ports)
}

/// The same, for replicas that are looked for at `host`.
pub(crate) fn init_at(dir: &Path, host: std::net::IpAddr, ports: &[Ports]) -> Vec<OsString> {
    let mut args = words(&[&"init", &"--dir", &dir]);
    for (index, Ports { peer, api }) in ports.iter().enumerate() {
        args.push("--replica".into());
        args.push(format!("{}={host}:{peer},{api}", index + 1).into());
    }
    args
}

/// `palisade cluster join`: makes the directory of one more replica, or of one in another's place.
pub(crate) fn join_replica(
    dir: &Path,
    advertise: &str,
    listen: &str,
    replace: Option<u64>,
) -> Vec<OsString> {
    let mut args = words(&[
        &"cluster",
        &"join",
        &dir,
        &"--advertise",
        &advertise,
        &"--listen",
        &listen,
        &"-o",
        &"json",
        &"--timeout",
        &"10s",
    ]);
    if let Some(id) = replace {
        args.extend(words(&[&"--replace", &id.to_string()]));
    }
    args
}

/// `palisade cluster repair --yes`.
pub(crate) fn repair(dir: &Path) -> Vec<OsString> {
    words(&[&"cluster", &"repair", &dir, &"--yes", &"-o", &"json", &"--timeout", &"10s"])
}

/// `palisade serve`.
pub(crate) fn serve(dir: &Path) -> Vec<OsString> {
    words(&[&"serve", &"--dir", &dir])
}

/// `palisade token create`: writes the token to `file` and answers its record.
pub(crate) fn create_token(file: &Path, uses: usize) -> Vec<OsString> {
    let uses = uses.to_string();
    words(&[&"token", &"create", &"--uses", &uses, &"--out", &file, &"-o", &"json"])
}

/// What a node needs to join.
pub(crate) struct Joining<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) token_file: &'a Path,
    pub(crate) pins: &'a [String],
    pub(crate) servers: &'a [String],
    pub(crate) name: &'a str,
    pub(crate) ports: (u16, u16),
}

/// `palisade agent join`.
pub(crate) fn join(joining: &Joining<'_>) -> Vec<OsString> {
    let ports = format!("{}-{}", joining.ports.0, joining.ports.1);
    let mut args = words(&[
        &"agent",
        &"join",
        &"--dir",
        &joining.dir,
        &"--token-file",
        &joining.token_file,
        &"--name",
        &joining.name,
        &"--ports",
        &ports,
    ]);
    for pin in joining.pins {
        args.extend(words(&[&"--pin", pin]));
    }
    for server in joining.servers {
        args.extend(words(&[&"--server", server]));
    }
    args
}

/// `palisade agent run`.
pub(crate) fn run_agent(dir: &Path) -> Vec<OsString> {
    words(&[&"agent", &"run", &"--dir", &dir])
}

/// The pins in a token's record.
pub(crate) fn pins(record: &str) -> Result<Vec<String>> {
    let record: Value = serde_json::from_str(record).context("the token's record is no JSON")?;
    let pins = record.get("pins").and_then(Value::as_array).context("it names no pins")?;
    Ok(pins.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}
