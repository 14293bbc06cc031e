//! Printing what instances wrote.

use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::Value;

use crate::{
    client::{BASE, Call, Client, segment},
    edge,
    output::{self, Failure, Outcome, cell},
};

const LINE_BYTES_MAX: usize = 64 * 1024;
const RECONNECTS_MAX: u32 = 20;
/// As many as the API gives.
const TAIL_MAX: u32 = 100_000;

/// Flags of verbs that print logs.
#[derive(Clone, Debug, clap::Args)]
pub struct LogFlags {
    /// Go on as more is written
    #[arg(short, long)]
    follow: bool,
    /// Begin with so many of the last lines
    #[arg(long, value_name = "LINES", default_value_t = TAIL_MAX, hide_default_value = true)]
    tail: u32,
}

/// Prints the logs of some instances; with more than one, each line says whose it is.
pub(super) async fn print_logs(client: &Client, instances: &[Value], flags: &LogFlags) -> Outcome {
    let width = instances.iter().map(|one| cell(one, "/name").len()).max().unwrap_or(0);
    let printers = instances.iter().map(|one| {
        let prefix = (instances.len() > 1).then(|| format!("{:<width$} | ", cell(one, "/name")));
        print_log(client, one, prefix, flags)
    });
    // Without --follow one after the other, so that each log stays in one piece.
    let at_once = if flags.follow { instances.len().max(1) } else { 1 };
    let results: Vec<Outcome> = stream::iter(printers).buffered(at_once).collect().await;
    results.into_iter().collect()
}

async fn print_log(
    client: &Client,
    instance: &Value,
    prefix: Option<String>,
    flags: &LogFlags,
) -> Outcome {
    let id = output::text(instance, "/id").unwrap_or("-");
    let mut printer = Printer { prefix, line: Vec::new() };
    let mut tail = flags.tail;
    for attempt in 0..RECONNECTS_MAX {
        let call = Call::get(format!("{BASE}/instances/{}/logs", segment(id)))
            .query("follow", flags.follow)
            .query("tail", tail);
        let mut body = client.stream(call).await?.bytes_stream();
        let broken = loop {
            match body.next().await {
                None => break None,
                Some(Ok(bytes)) => printer.print(&bytes)?,
                Some(Err(error)) => break Some(error),
            }
        };
        printer.end()?;
        let Some(error) = broken else { return Ok(()) };
        let name = cell(instance, "/name");
        if !flags.follow {
            return Err(Failure::caused(format!("the log of {name} broke off"), &error));
        }
        output::say(format!(
            "the replica that sent the log of {name} is gone; going on through another (lines in between may be missing)"
        ));
        tail = 0;
        edge::sleep(Duration::from_millis(100 << attempt.min(5))).await;
    }
    Ok(())
}

struct Printer {
    prefix: Option<String>,
    line: Vec<u8>,
}

impl Printer {
    fn print(&mut self, bytes: &[u8]) -> Outcome {
        let Some(prefix) = &self.prefix else { return output::data(bytes) };
        let mut out = Vec::with_capacity(bytes.len() + prefix.len());
        for byte in bytes {
            self.line.push(*byte);
            if *byte == b'\n' || self.line.len() >= LINE_BYTES_MAX {
                out.extend_from_slice(prefix.as_bytes());
                out.append(&mut self.line);
                if *byte != b'\n' {
                    out.push(b'\n');
                }
            }
        }
        output::data(&out)
    }

    /// Prints a last line that has no end.
    fn end(&mut self) -> Outcome {
        if self.line.is_empty() { Ok(()) } else { self.print(b"\n") }
    }
}
