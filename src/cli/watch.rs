//! `--watch`: a list, and then what changes in it.
//!
//! # Invariants
//! - `CLI-WATCH` What is printed, from the first line to the last, ends as the list is: what is missed while no replica
//!   answers is told when one does.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use serde_json::{Value, json};

use super::Session;
use crate::{
    client::{Call, Client, ClientError, Refusal},
    edge,
    output::{self, Failure, Format, Outcome, View, text},
};

/// A replica says something every five seconds; one that is silent for so long is left for another.
const SILENCE_MAX: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(300);
/// Bytes of one event at most.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Flag of lists that can be watched.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct WatchFlag {
    /// Go on with what changes; as JSON, one line for each change
    #[arg(short, long)]
    pub(super) watch: bool,
}

/// One server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    id: Option<String>,
    name: String,
    data: String,
}

/// Takes events out of bytes as they come (WHATWG HTML, "Server-sent events"; lines end with LF, as ours do).
#[derive(Debug, Default)]
struct Events {
    bytes: Vec<u8>,
}

impl Events {
    /// The next whole event of what has come.
    fn next(&mut self) -> Option<Event> {
        loop {
            let end = self.bytes.windows(2).position(|two| two == b"\n\n")?;
            let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
            let mut event = Event::default();
            for line in String::from_utf8_lossy(&block).lines() {
                let (field, value) = line.split_once(':').unwrap_or((line, ""));
                let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
                match field {
                    "id" => event.id = Some(value),
                    "event" => event.name = value,
                    "data" => event.data = value,
                    // Comments, and what later servers may say.
                    _ => {}
                }
            }
            if !event.name.is_empty() {
                return Some(event);
            }
        }
    }
}

/// What is known of a list, and what is to be printed of it.
struct Shown {
    /// Records by id, as they were told last.
    records: BTreeMap<String, Value>,
    /// After a reset: those that were told again, until the list is whole.
    again: Option<BTreeMap<String, Value>>,
    /// Changes that were told since the last mark.
    changes: Vec<Change>,
    /// The list was printed whole.
    begun: bool,
    /// Nothing is ever deleted from it, and it has an order of its own.
    numbered: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Put(Value),
    /// As it was before.
    Deleted(Value),
}

fn id_of(record: &Value) -> String {
    let id = text(record, "/id").or_else(|| text(record, "/name"));
    id.map_or_else(
        || record.pointer("/seq").map(Value::to_string).unwrap_or_default(),
        str::to_owned,
    )
}

impl Shown {
    fn new(numbered: bool) -> Self {
        Self { records: BTreeMap::new(), again: None, changes: vec![], begun: false, numbered }
    }

    fn put(&mut self, record: Value) {
        if self.numbered {
            return self.changes.push(Change::Put(record));
        }
        let id = id_of(&record);
        if let Some(again) = &mut self.again {
            again.insert(id.clone(), record.clone());
        }
        if self.records.get(&id) != Some(&record) {
            self.records.insert(id, record.clone());
            self.changes.push(Change::Put(record));
        }
    }

    fn delete(&mut self, id: &str) {
        if let Some(before) = self.records.remove(id) {
            self.changes.push(Change::Deleted(before));
        }
    }

    fn reset(&mut self) {
        self.again = Some(BTreeMap::new());
    }

    /// The list is whole: what there is to print.
    fn mark(&mut self) -> Vec<Change> {
        if let Some(again) = self.again.take() {
            let gone: Vec<String> =
                self.records.keys().filter(|id| !again.contains_key(*id)).cloned().collect();
            for id in gone {
                self.delete(&id);
            }
        }
        std::mem::take(&mut self.changes)
    }
}

/// Prints a list and then what changes in it, until somebody ends it.
pub(super) async fn watch<V: View>(session: &Session, call: Call) -> Outcome {
    follow::<V>(session, call, Shown::new(false)).await
}

/// The same for a list of numbered records.
pub(super) async fn tail<V: View>(session: &Session, call: Call) -> Outcome {
    follow::<V>(session, call, Shown::new(true)).await
}

async fn follow<V: View>(session: &Session, call: Call, mut shown: Shown) -> Outcome {
    let client = session.client()?;
    let call = call.query("watch", "true");
    let mut last: Option<String> = None;
    let mut printer = Printer::<V>::new(session.format());
    loop {
        let asked = call.clone().query_some("lastEventId", last.as_deref());
        let broken = match listen(&client, asked, &mut last, &mut shown, &mut printer).await? {
            Ended::Refused(refusal) if !refusal.retryable => {
                return Err(ClientError::Refused(refusal).into());
            }
            Ended::Refused(refusal) => refusal.detail,
            Ended::Broken(why) => why,
        };
        output::say(format!("the watch broke off ({broken}); asking another replica"));
        edge::sleep(PAUSE).await;
    }
}

enum Ended {
    /// The replica said why.
    Refused(Box<Refusal>),
    Broken(String),
}

async fn listen<V: View>(
    client: &Client,
    call: Call,
    last: &mut Option<String>,
    shown: &mut Shown,
    printer: &mut Printer<V>,
) -> Outcome<Ended> {
    let mut body = client.stream(call).await?.bytes_stream();
    let mut events = Events::default();
    loop {
        match edge::within(SILENCE_MAX, body.next()).await {
            None => return Ok(Ended::Broken("it fell silent".to_owned())),
            Some(None) => return Ok(Ended::Broken("the replica ended it".to_owned())),
            Some(Some(Err(_))) => return Ok(Ended::Broken("the connection is gone".to_owned())),
            Some(Some(Ok(bytes))) => events.bytes.extend_from_slice(&bytes),
        }
        while let Some(event) = events.next() {
            let data = serde_json::from_str(&event.data)
                .map_err(|error| Failure::caused("an event of the watch is no JSON", &error));
            match event.name.as_str() {
                "put" => shown.put(data?),
                "delete" => shown.delete(text(&data?, "/id").unwrap_or_default()),
                "reset" => {
                    if shown.numbered && shown.begun {
                        output::say(
                            "what came in between cannot be told any more: these are the newest",
                        );
                    }
                    shown.reset();
                }
                "mark" => {
                    *last = event.id.or(last.take());
                    printer.print(shown)?;
                }
                "end" => {
                    let refusal = Refusal::parse(503, None, event.data.as_bytes());
                    return Ok(Ended::Refused(Box::new(refusal)));
                }
                // Of a later release.
                _ => {}
            }
        }
        if events.bytes.len() > EVENT_BYTES_MAX {
            return Ok(Ended::Broken(format!("an event has more than {EVENT_BYTES_MAX} bytes")));
        }
    }
}

/// Prints changes.
struct Printer<V> {
    format: Format,
    /// How wide the columns have been.
    widths: Vec<usize>,
    of: std::marker::PhantomData<V>,
}

impl<V: View> Printer<V> {
    fn new(format: Format) -> Self {
        Self { format, widths: vec![], of: std::marker::PhantomData }
    }

    fn print(&mut self, shown: &mut Shown) -> Outcome {
        let changes = shown.mark();
        let is_first = !std::mem::replace(&mut shown.begun, true);
        let text = match self.format {
            Format::Table | Format::Wide => self.rows(changes, is_first, shown.numbered),
            Format::Name => changes.iter().map(Self::name).collect(),
            Format::Json => {
                changes.iter().map(|change| format!("{}\n", Self::wire(change))).collect()
            }
            Format::Yaml => {
                let mut text = String::new();
                for change in &changes {
                    text.push_str("---\n");
                    text.push_str(&output::render_value(Format::Yaml, &Self::wire(change))?);
                }
                text
            }
        };
        if text.is_empty() {
            if is_first && matches!(self.format, Format::Table | Format::Wide) {
                output::say(format!("no {} yet", output::many(V::KIND)));
            }
            return Ok(());
        }
        output::data(text.as_bytes())
    }

    fn name(change: &Change) -> String {
        match change {
            Change::Put(record) => format!("{}/{}\n", V::KIND, V::name(record)),
            Change::Deleted(record) => format!("{}/{} deleted\n", V::KIND, V::name(record)),
        }
    }

    /// `{"event": "put", "record": …}`, `{"event": "delete", "id": …}`.
    fn wire(change: &Change) -> Value {
        match change {
            Change::Put(record) => json!({"event": "put", "record": record}),
            Change::Deleted(record) => json!({"event": "delete", "id": id_of(record)}),
        }
    }

    fn rows(&mut self, changes: Vec<Change>, is_first: bool, numbered: bool) -> String {
        let is_wide = self.format == Format::Wide;
        let (put, gone): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| matches!(change, Change::Put(_)));
        let put = put.into_iter().filter_map(|change| match change {
            Change::Put(record) => Some(record),
            Change::Deleted(_) => None,
        });
        let put: Vec<Value> = put.collect();
        let put = if numbered { put } else { output::by_name(put) };
        let mut text: String = gone.iter().map(|change| Self::name(change)).collect();
        if put.is_empty() {
            return text;
        }
        let has_header = self.widths.is_empty() || is_first;
        text.push_str(&V::table(&put, is_wide).render_as(&mut self.widths, has_header));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pet(name: &str, size: u64) -> Value {
        json!({"id": format!("pt_{name}"), "name": name, "size": size})
    }

    #[test]
    fn events_are_taken_out_of_bytes_wherever_these_are_cut() {
        let bytes = b"retry: 1000\n\n: alive\n\nevent: put\ndata: {\"a\": \"b: c\"}\n\nid: 7@cl_1\nevent: mark\ndata: {}\n\n";
        for cut in 0..bytes.len() {
            let (mut events, mut found) = (Events::default(), vec![]);
            for part in [&bytes[..cut], &bytes[cut..]] {
                events.bytes.extend_from_slice(part);
                found.extend(std::iter::from_fn(|| events.next()));
            }
            let event = |id: Option<&str>, name: &str, data: &str| Event {
                id: id.map(str::to_owned),
                name: name.to_owned(),
                data: data.to_owned(),
            };
            let wanted =
                [event(None, "put", "{\"a\": \"b: c\"}"), event(Some("7@cl_1"), "mark", "{}")];
            assert_eq!(found, wanted, "cut at {cut}");
        }
    }

    #[test]
    fn after_a_reset_only_what_differs_is_shown() {
        let mut shown = Shown::new(false);
        for record in [pet("a", 1), pet("b", 1), pet("c", 1)] {
            shown.put(record);
        }
        assert_eq!(shown.mark().len(), 3);
        shown.reset();
        shown.put(pet("a", 1));
        shown.put(pet("b", 2));
        shown.put(pet("d", 1));
        let changes = shown.mark();
        let wanted =
            [Change::Put(pet("b", 2)), Change::Put(pet("d", 1)), Change::Deleted(pet("c", 1))];
        assert_eq!(changes, wanted, "CLI-WATCH");
        shown.delete("pt_a");
        shown.delete("pt_a");
        assert_eq!(shown.mark(), [Change::Deleted(pet("a", 1))]);
    }
}
