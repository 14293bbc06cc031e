//! `palisade cluster backup`.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use futures::StreamExt;
use palisade_contract::time::rfc3339;
use palisade_raft::backup::{BackupReader, Checker, Info};
use serde_json::{Value, json};

use super::Session;
use crate::{
    client::{BASE, Call, Client},
    output::{self, Exit, Failure, Format, Outcome, failure::chain, human},
};

/// How much is written between two syncs.
const SYNC_EVERY: u64 = 16 << 20;

/// Flags of `backup`.
#[derive(Debug, clap::Args)]
pub struct Backup {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace a file of that name
    #[arg(long, conflicts_with = "inspect")]
    force: bool,
    /// Check a backup that is there from end to end and show what it holds; asks no cluster
    #[arg(long)]
    inspect: bool,
}

impl Backup {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        if self.inspect {
            let reader = BackupReader::open(&self.file).map_err(unusable)?;
            return show(session.format(), &self.file, reader.info());
        }
        if self.file.exists() && !self.force {
            let what = format!("{} is there already", self.file.display());
            return Err(Failure::new(Exit::Conflict, what).hint("give another name, or --force"));
        }
        let info = write(&session.client()?, &self.file).await?;
        output::say("this file and the cluster's pki/backup.key restore it; keep them apart");
        show(session.format(), &self.file, &info)
    }
}

/// A backup that cannot be used.
pub(super) fn unusable(error: palisade_raft::backup::BackupError) -> Failure {
    Failure::new(Exit::of_cause(&error), chain(&error))
}

/// Removes what is not whole.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        // It is gone once it has its name.
        let _ = fs::remove_file(&self.0);
    }
}

async fn write(client: &Client, path: &Path) -> Outcome<Info> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = Part(PathBuf::from(name));
    let failed = |what: &str, error: &std::io::Error| {
        Failure::caused(format!("cannot {what} {}", part.0.display()), error)
    };
    let body = client.stream(Call::get(format!("{BASE}/cluster/backup"))).await?;
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&part.0);
    let mut file = opened.map_err(|error| failed("create", &error))?;
    let mut checker = Checker::new(&part.0);
    let mut unsynced = 0;
    let mut body = body.bytes_stream();
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|error| {
            Failure::new(Exit::Unavailable, format!("the backup broke off: {}", chain(&error)))
                .hint("nothing was left of it; run it again")
        })?;
        checker.push(&bytes).map_err(unusable)?;
        file.write_all(&bytes).map_err(|error| failed("write", &error))?;
        unsynced += bytes.len() as u64;
        if unsynced >= SYNC_EVERY {
            unsynced = 0;
            file.sync_data().map_err(|error| failed("sync", &error))?;
        }
    }
    checker.finish().map_err(unusable)?;
    file.sync_all().map_err(|error| failed("sync", &error))?;
    // What is on the disk, not what was sent.
    let info = BackupReader::open(&part.0).map_err(unusable)?.info().clone();
    fs::rename(&part.0, path).map_err(|error| failed("rename", &error))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| failed("make durable", &error))?;
    Ok(info)
}

/// What a backup holds, as a document.
pub(super) fn document(file: &Path, info: &Info) -> Value {
    let head = &info.head;
    json!({
        "file": file.display().to_string(), "bytes": info.file_bytes, "sha256": hex::encode(info.sha256),
        "cluster": head.cluster, "lineage": head.lineage, "epoch": head.epoch,
        "term": head.term, "index": head.index, "revision": head.revision,
        "createdAt": rfc3339(head.created_ms), "palisade": head.palisade, "backupKey": head.ca_key.key_id,
        "tables": head.tables, "members": head.members,
    })
}

fn show(format: Format, file: &Path, info: &Info) -> Outcome {
    match format {
        Format::Json | Format::Yaml => {
            output::data(output::render_value(format, &document(file, info))?.as_bytes())
        }
        Format::Name => output::data(format!("backup/{}\n", file.display()).as_bytes()),
        Format::Table | Format::Wide => output::data(page(file, info).as_bytes()),
    }
}

/// What a backup holds, as a page.
pub(super) fn page(file: &Path, info: &Info) -> String {
    let head = &info.head;
    let rows: u64 = head.tables.values().sum();
    let members: Vec<String> = head.members.iter().map(|member| member.id.to_string()).collect();
    let mut page = String::new();
    for (label, value) in [
        ("Backup", file.display().to_string()),
        ("Made", format!("{} by palisade {}", rfc3339(head.created_ms), head.palisade)),
        ("Cluster", head.cluster.clone()),
        ("Lineage", head.lineage.clone()),
        ("Epoch", head.epoch.to_string()),
        ("Replicas", members.join(", ")),
        ("Revision", head.revision.to_string()),
        ("Records", format!("{rows} in {} tables", head.tables.len())),
        ("Size", human::bytes(info.file_bytes)),
        ("SHA-256", hex::encode(info.sha256)),
        ("Backup key", head.ca_key.key_id.clone()),
    ] {
        page.push_str(&format!("{label:<12} {value}\n"));
    }
    page
}
