//! The system's tools that the rig calls.

use std::{ffi::OsStr, path::Path, process::Stdio};

use anyhow::{Context, Result, bail};

use crate::enclosure;

/// Runs a tool to its end and answers what it said.
pub(crate) async fn run(name: &str, args: &[&dyn AsRef<OsStr>]) -> Result<String> {
    fed(name, args, "").await
}

/// The same, with something to read.
pub(crate) async fn fed(name: &str, args: &[&dyn AsRef<OsStr>], input: &str) -> Result<String> {
    let path = enclosure::tool(name).with_context(|| format!("there is no {name}"))?;
    let mut command = tokio::process::Command::new(path);
    command.args(args.iter().map(|arg| arg.as_ref())).kill_on_drop(true);
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        use tokio::io::AsyncWriteExt as _;
        stdin.write_all(input.as_bytes()).await.with_context(|| format!("{name} reads nothing"))?;
    }
    let output = child.wait_with_output().await.with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{name} {} ended with {}: {said}", words.join(" "), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies a directory with all that is in it into another, which is there.
pub(crate) async fn copy(from: &Path, into: &Path) -> Result<()> {
    run("cp", &[&"-a", &from.join("."), &into]).await.map(drop)
}
