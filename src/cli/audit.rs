//! `palisade audit export`, `verify FILE` and `key`: the chain as a file, and whether it is whole, without a network.

use std::{
    fs::{self, File},
    io::{BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use futures::StreamExt as _;
use palisade_audit::{
    line::Line,
    note::Verifier,
    statement::Extent,
    verify::{Report, verify},
};
use serde_json::{Value, json};

use super::Session;
use crate::{
    client::{BASE, Call},
    output::{self, Exit, Failure, Format, Outcome, Table, View, cell, failure::chain},
};

/// So often in a row an export that breaks off is gone on with, although nothing more came.
const VAIN_MAX: u32 = 3;

/// How the chain is exported.
#[derive(Debug, clap::Args)]
pub(super) struct Export {
    /// Begin with this record [default: the oldest that is kept]
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// End with this record [default: the newest]
    #[arg(long, value_name = "SEQ")]
    to: Option<u64>,
    /// Write to this file (mode 0600); one that is there is gone on with, and its torn end is cut
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    out: Option<PathBuf>,
}

/// How far an export is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Progress {
    /// The last record.
    last: Option<u64>,
    /// Where it ends.
    to: Option<u64>,
    /// Bytes of whole lines.
    bytes: u64,
}

impl Progress {
    /// Takes a whole line.
    fn take(&mut self, line: &[u8]) {
        self.bytes += line.len() as u64;
        match serde_json::from_slice(line) {
            Ok(Line::Record(entry)) => self.last = Some(entry.seq),
            Ok(Line::Export { note }) => {
                let text = note.rfind("\n\n").and_then(|end| note.get(..=end));
                self.to = text.and_then(Extent::read).map(|extent| extent.to).max(self.to);
            }
            _ => {}
        }
    }

    fn is_over(&self) -> bool {
        self.last.is_some() && self.last >= self.to
    }
}

/// Where lines go.
enum Sink {
    Stdout,
    File(PathBuf, File),
}

impl Sink {
    /// A file, with how far it is; what is torn at its end is cut.
    fn file(path: &Path) -> Outcome<(Self, Progress)> {
        let failed = |error: &std::io::Error| {
            Failure::caused(format!("cannot write {}", path.display()), error)
        };
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(|error| failed(&error))?;
        let (mut progress, mut rest) = (Progress::default(), vec![]);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = file.read(&mut buffer).map_err(|error| failed(&error))?;
            if read == 0 {
                break;
            }
            rest.extend_from_slice(&buffer[..read]);
            lines(&mut rest, |line| {
                progress.take(line);
                Ok(())
            })?;
        }
        file.set_len(progress.bytes).map_err(|error| failed(&error))?;
        file.seek(SeekFrom::End(0)).map_err(|error| failed(&error))?;
        Ok((Self::File(path.to_owned(), file), progress))
    }

    fn write(&mut self, line: &[u8]) -> Outcome {
        match self {
            Self::Stdout => output::data(line),
            Self::File(path, file) => file.write_all(line).map_err(|error| {
                Failure::caused(format!("cannot write {}", path.display()), &error)
            }),
        }
    }

    fn finish(&mut self) -> Outcome {
        let Self::File(path, file) = self else { return Ok(()) };
        file.sync_all()
            .map_err(|error| Failure::caused(format!("cannot sync {}", path.display()), &error))
    }
}

/// Takes whole lines off the beginning of what came.
fn lines(came: &mut Vec<u8>, mut take: impl FnMut(&[u8]) -> Outcome) -> Outcome {
    let Some(end) = came.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
    let rest = came.split_off(end + 1);
    for line in came.split_inclusive(|byte| *byte == b'\n') {
        take(line)?;
    }
    *came = rest;
    Ok(())
}

impl Export {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let client = session.client()?;
        let (mut sink, mut progress) = match &self.out {
            Some(path) => Sink::file(path)?,
            None => (Sink::Stdout, Progress::default()),
        };
        if progress.is_over() {
            // It goes on behind what it was to be.
            progress.to = None;
        }
        let mut vain = 0;
        loop {
            let before = progress.bytes;
            let from = progress.last.map(|last| last + 1).or(self.from);
            let call = Call::get(format!("{BASE}/audit/export"))
                .query_some("from", from)
                .query_some("to", progress.to.or(self.to));
            let mut body = client.stream(call).await?.bytes_stream();
            let (mut came, mut broke) = (vec![], None);
            while let Some(bytes) = body.next().await {
                match bytes {
                    Ok(bytes) => came.extend_from_slice(&bytes),
                    Err(error) => broke = Some(chain(&error)),
                }
                lines(&mut came, |line| {
                    progress.take(line);
                    sink.write(line)
                })?;
            }
            if progress.is_over() {
                sink.finish()?;
                let (last, to) = (progress.last.unwrap_or_default(), &self.out);
                let file = to.as_ref().map_or("FILE".to_owned(), |path| path.display().to_string());
                output::say(format!(
                    "exported up to record {last}; `palisade audit verify {file} --key KEY` verifies it anywhere"
                ));
                return Ok(());
            }
            vain = if progress.bytes > before { 0 } else { vain + 1 };
            if vain >= VAIN_MAX {
                let why = broke.unwrap_or_else(|| "it ended early".to_owned());
                return Err(Failure::new(
                    Exit::Unavailable,
                    format!("the export broke off: {why}"),
                )
                .hint("run it again with --out FILE: what is there is gone on with"));
            }
        }
    }
}

/// What is verified, and with which key.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// An export, verified without a network; - is stdin [default: the cluster's chain, over the network]
    file: Option<PathBuf>,
    /// The cluster's key, or a file with it, as `palisade audit key` prints it
    #[arg(long = "key", value_name = "KEY", requires = "file")]
    keys: Vec<String>,
}

fn keys_of(given: &[String]) -> Outcome<Vec<Verifier>> {
    let mut keys = vec![];
    for text in given {
        if let Ok(key) = text.parse() {
            keys.push(key);
            continue;
        }
        let read = fs::read_to_string(text).map_err(|error| {
            Failure::caused(format!("{text:?} is no key, and no file with one"), &error)
                .hint("`palisade audit key` prints the key of a cluster that you trust")
        })?;
        for line in read.lines().filter(|line| !line.trim().is_empty()) {
            let key = line.parse();
            keys.push(key.map_err(|error| Failure::caused(format!("{text}: not a key"), &error))?);
        }
    }
    if keys.is_empty() {
        return Err(Failure::usage("an export is verified with the cluster's key: give --key")
            .hint("`palisade audit key` prints the key of a cluster that you trust"));
    }
    Ok(keys)
}

impl Verify {
    /// Verifies a file; `false`: none was given.
    pub(super) fn offline(&self, format: Format) -> Outcome<bool> {
        let Some(path) = &self.file else { return Ok(false) };
        let keys = keys_of(&self.keys)?;
        let verified = if path.as_os_str() == "-" {
            verify(std::io::stdin().lock(), &keys)
        } else {
            let file = File::open(path).map_err(|error| {
                Failure::caused(format!("cannot read {}", path.display()), &error)
            })?;
            verify(BufReader::new(file), &keys)
        };
        let report = verified.map_err(|flaw| {
            Failure::new(Exit::Error, format!("{} is not verified: {flaw}", path.display())).hint(
                "keep it as it is; export again, compare the two, and ask who had the file in between",
            )
        })?;
        tell(format, &report)?;
        Ok(true)
    }
}

fn tell(format: Format, report: &Report) -> Outcome {
    let Report { records, first, last, head, between, checkpoints, exported_at } = report;
    let (from, to) = between.clone().unwrap_or_default();
    if matches!(format, Format::Json | Format::Yaml) {
        let value = json!({
            "records": records, "first": first, "last": last, "head": head, "from": from, "to": to,
            "checkpoints": checkpoints, "exportedAt": exported_at,
        });
        return output::data(output::render_value(format, &value)?.as_bytes());
    }
    output::say(format!(
        "verified: {records} records, {first} to {last}, of {from} to {to}; exported at {exported_at}; {checkpoints} \
         signed checkpoints"
    ));
    if *first > 1 {
        output::say(format!(
            "records 1 to {} are not in this export, which says so itself",
            first - 1
        ));
    }
    output::data(format!("{head}\n").as_bytes())
}

/// Prints the key.
pub(super) async fn key(session: &Session) -> Outcome {
    let key = session.client()?.call(Call::get(format!("{BASE}/audit/key"))).await?.body;
    match session.format() {
        Format::Json | Format::Yaml => {
            output::data(output::render_value(session.format(), &key)?.as_bytes())
        }
        _ => output::data(format!("{}\n", cell(&key, "/key")).as_bytes()),
    }
}

/// Lists the checkpoints.
pub(super) async fn checkpoints(session: &Session) -> Outcome {
    let listed = session.client()?.list(Call::get(format!("{BASE}/audit/checkpoints"))).await?;
    output::print_list::<Checkpoints>(session.format(), &listed)
}

struct Checkpoints;

impl View for Checkpoints {
    const KIND: &'static str = "checkpoint";

    fn table(checkpoints: &[Value], _wide: bool) -> Table {
        let mut table = Table::new(&["SIZE", "TIME", "SIGNED", "HEAD"]);
        for one in checkpoints {
            let signed = if one.get("note").is_some_and(Value::is_string) { "yes" } else { "no" };
            table.row(vec![
                cell(one, "/size"),
                cell(one, "/at"),
                signed.to_owned(),
                cell(one, "/head"),
            ]);
        }
        table
    }

    fn name(checkpoint: &Value) -> &str {
        output::text(checkpoint, "/id").unwrap_or("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(from: u64, to: u64) -> String {
        let formation = palisade_state::Formation::default();
        let extent = Extent { from, to, prev: vec![1; 32], head: vec![2; 32], at_ms: 0 };
        let note = format!("{}\n— somebody x\n", extent.text(&formation));
        Line::Export { note }.text().unwrap()
    }

    #[test]
    fn a_file_that_broke_off_is_cut_at_its_last_whole_line_and_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.ndjson");
        let record = json!({
            "type": "record", "seq": 4, "revision": 9, "at": "", "actor": "", "method": "", "resource": "",
            "tenant": "", "outcome": "", "requestId": "", "prevHash": "", "hash": "",
        });
        let whole = format!("{}{record}\n", header(4, 7));
        fs::write(&path, format!("{whole}{{\"type\":\"rec")).unwrap();
        let (sink, progress) = Sink::file(&path).unwrap();
        assert_eq!((progress.last, progress.to, progress.is_over()), (Some(4), Some(7), false));
        drop(sink);
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        let (_, fresh) = Sink::file(&dir.path().join("new")).unwrap();
        assert_eq!(fresh, Progress::default());
    }

    #[test]
    fn lines_are_taken_whole_however_they_come() {
        let (mut came, mut taken) = (vec![], vec![]);
        for piece in ["a", "b\nc", "\n\nd"] {
            came.extend_from_slice(piece.as_bytes());
            lines(&mut came, |line| {
                taken.push(String::from_utf8_lossy(line).into_owned());
                Ok(())
            })
            .unwrap();
        }
        assert_eq!((taken.join("|").as_str(), came.as_slice()), ("ab\n|c\n|\n", &b"d"[..]));
    }

    #[test]
    fn a_key_is_given_as_text_or_as_a_file() {
        let key = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, format!("{key}\n")).unwrap();
        let given = [key.to_owned(), path.display().to_string()];
        let keys = keys_of(&given).unwrap();
        assert_eq!(keys[0], keys[1]);
        assert!(keys_of(&["/no/such/file".to_owned()]).is_err() && keys_of(&[]).is_err());
    }
}
