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
/// How far back a new stream begins, to find the place where another broke off.
const RESUME_LINES: u32 = 1_000;
const RESUME_BYTES_MAX: usize = 256 * 1024;
const RESUME_LIMIT: Duration = Duration::from_secs(2);
const SEEN_BYTES: usize = 1024;

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
    let (id, name) = (cell(instance, "/id"), cell(instance, "/name"));
    let mut printer = Printer { prefix, line: Vec::new() };
    let mut resume = Resume::default();
    for attempt in 0..RECONNECTS_MAX {
        let tail = if resume.seen.is_empty() { flags.tail } else { RESUME_LINES };
        let call = Call::get(format!("{BASE}/instances/{}/logs", segment(&id)))
            .query("follow", flags.follow)
            .query("tail", tail);
        let body = client.stream(call).await?.bytes_stream();
        let broken = copy(body, &mut printer, &mut resume).await?;
        printer.end()?;
        let Some(error) = broken else { return Ok(()) };
        if !flags.follow {
            return Err(Failure::caused(format!("the log of {name} broke off"), &error));
        }
        output::say(format!("the replica that sent the log of {name} is gone; asking another"));
        resume.begin();
        edge::sleep(Duration::from_millis(100 << attempt.min(5))).await;
    }
    Ok(())
}

/// Prints a stream to its end; answers the error that broke it.
async fn copy(
    body: impl futures::Stream<Item = Result<bytes::Bytes, reqwest::Error>>,
    printer: &mut Printer,
    resume: &mut Resume,
) -> Outcome<Option<reqwest::Error>> {
    let mut body = std::pin::pin!(body);
    loop {
        let next = if resume.is_waiting() {
            match edge::within(RESUME_LIMIT, body.next()).await {
                Some(next) => next,
                // What was printed last is not in what is left of the log.
                None => {
                    printer.print(&resume.give_up())?;
                    continue;
                }
            }
        } else {
            body.next().await
        };
        match next {
            None => {
                printer.print(&resume.give_up())?;
                return Ok(None);
            }
            Some(Ok(bytes)) => printer.print(&resume.feed(&bytes))?,
            Some(Err(error)) => return Ok(Some(error)),
        }
    }
}

/// Goes on in a log where another stream of it broke off: looks in the new stream for what was
/// printed last, and gives what follows.
#[derive(Debug, Default)]
struct Resume {
    /// The end of what was printed.
    seen: Vec<u8>,
    /// What came before the place was found; `None` once it was.
    held: Option<Vec<u8>>,
}

impl Resume {
    /// A new stream begins.
    fn begin(&mut self) {
        self.held = (!self.seen.is_empty()).then(Vec::new);
    }

    fn is_waiting(&self) -> bool {
        self.held.is_some()
    }

    /// What of these bytes is to be printed.
    fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some(held) = &mut self.held else { return self.note(bytes.to_vec()) };
        held.extend_from_slice(bytes);
        let place = held.windows(self.seen.len()).rposition(|window| window == self.seen);
        match place {
            Some(place) => {
                let rest = held.split_off(place + self.seen.len());
                self.held = None;
                self.note(rest)
            }
            None if held.len() > RESUME_BYTES_MAX => self.give_up(),
            None => Vec::new(),
        }
    }

    /// Prints all that was held back: the place is not there.
    fn give_up(&mut self) -> Vec<u8> {
        let held = self.held.take().unwrap_or_default();
        self.note(held)
    }

    fn note(&mut self, printed: Vec<u8>) -> Vec<u8> {
        self.seen.extend_from_slice(&printed);
        let surplus = self.seen.len().saturating_sub(SEEN_BYTES);
        self.seen.drain(..surplus);
        printed
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_on_where_it_broke_off() {
        let mut resume = Resume::default();
        assert_eq!(resume.feed(b"one\ntwo\n"), b"one\ntwo\n");
        resume.begin();
        assert_eq!(resume.feed(b"one\nt"), b"");
        assert_eq!(resume.feed(b"wo\nthree\n"), b"three\n");
        assert_eq!(resume.feed(b"four\n"), b"four\n");
    }

    #[test]
    fn a_log_that_was_rotated_meanwhile_is_printed_whole() {
        let mut resume = Resume::default();
        resume.feed(b"one\n");
        resume.begin();
        assert_eq!(resume.feed(b"nine\n"), b"");
        assert_eq!(resume.give_up(), b"nine\n");
        assert_eq!(resume.feed(b"ten\n"), b"ten\n");
    }
}
