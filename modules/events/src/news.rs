//! What happened behind a subscription's cursor: from memory, and from this replica's history where it has left memory.
//!
//! # Invariants
//! - `EVT-3` (its half) Events that can be read no more are a gap that is noted, and never left out without a word.

use palisade_contract::{Code, Context, Error, Result, past::History};
use palisade_state::{View, outbox::Event};
use serde_json::Value;

use crate::{
    filter::wants,
    plan::News,
    records::{DeliveryRow, KeptEvent, ProgressRow, SubscriptionRow},
};

/// Events that one run looks at in memory, and in history.
const LOOK_MAX: usize = 20_000;
const PAGE: usize = 1_000;
/// Those of them that are taken up.
const TAKE_MAX: usize = 64;
/// Bytes of data that are sent with an event; of more only the number is told.
pub(crate) const DATA_BYTES_MAX: usize = 256 * 1024;

/// What there is to read.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub news: News,
    /// The first number that is not known any more, and the last.
    pub gap: Option<(u64, u64)>,
}

/// An event as it waits for a subscription.
pub(crate) fn kept(view: &View, subscription: &str, seq: u64, event: &Event) -> DeliveryRow {
    let cluster = view.formation().map_or("", |formation| formation.cluster.as_str());
    let bytes = event.data.len();
    let is_sent = bytes <= DATA_BYTES_MAX;
    let text = || String::from_utf8_lossy(&event.data).into_owned();
    let data: Option<Value> =
        is_sent.then(|| serde_json::from_slice(&event.data).unwrap_or_else(|_| text().into()));
    let event = KeptEvent {
        id: format!("{cluster}-{seq}"),
        source: format!("/palisade/{cluster}"),
        kind: event.kind.to_string(),
        tenant: event.tenant.to_string(),
        subject: event.subject.to_string(),
        seq,
        revision: event.revision,
        at_ms: event.at_ms,
        data,
        left_out_bytes: if is_sent { 0 } else { bytes as u64 },
        bytes: if is_sent { bytes as u64 } else { 0 },
    };
    DeliveryRow {
        subscription: subscription.to_owned(),
        event,
        attempts: 0,
        first_at: 0,
        last_at: 0,
        due: 0,
        error: String::new(),
        since_ms: view.clock().wall_ms,
    }
}

/// Reads on behind a subscription's cursor.
pub(crate) async fn read(
    cx: &Context,
    view: &View,
    row: &SubscriptionRow,
    progress: &ProgressRow,
) -> Result<Found> {
    let (next, last) = (progress.cursor + 1, view.last_event());
    let first = view.first_event().unwrap_or(last + 1);
    if next >= first {
        let events = view.events(next).take(LOOK_MAX);
        return Ok(taken(view, row, progress.cursor, events));
    }
    let Some(history) = cx.ports.history.filled() else {
        return Ok(Found { gap: Some((next, first - 1)), ..Found::default() });
    };
    match past(&**history, next, first).await? {
        Past::Events(events) => {
            let events = events.iter().map(|(seq, event)| (*seq, event));
            Ok(taken(view, row, progress.cursor, events))
        }
        Past::Gone { until } => Ok(Found { gap: Some((next, until)), ..Found::default() }),
    }
}

enum Past {
    /// From the number on that was asked for, without a hole.
    Events(Vec<(u64, Event)>),
    /// They are not known here any more, up to this one.
    Gone { until: u64 },
}

/// Events that have left memory, whose first is `first`.
async fn past(history: &dyn History, next: u64, first: u64) -> Result<Past> {
    let reach = history.reach().events.filter(|(_, last)| *last > 0);
    let Some((oldest, newest)) = reach else {
        return Err(not_yet("cannot be read now"));
    };
    if next < oldest {
        return Ok(Past::Gone { until: oldest.min(first) - 1 });
    }
    if next > newest {
        return Err(not_yet("has not come so far"));
    }
    let page = match history.events(next, PAGE).await {
        Ok(page) => page,
        Err(error) if error.retryable => return Err(error),
        // What is damaged or gone will not come back here.
        Err(_) => vec![],
    };
    let mut due = next;
    let in_order = page.iter().take_while(|(seq, _)| {
        let fits = *seq == due && *seq < first;
        due += 1;
        fits
    });
    let count = in_order.count();
    if count == 0 {
        let known = page.first().map_or(first, |(seq, _)| (*seq).min(first));
        return Ok(Past::Gone { until: known.max(next + 1) - 1 });
    }
    Ok(Past::Events(page.into_iter().take(count).collect()))
}

fn not_yet(what: &str) -> Error {
    let detail = format!("events have left memory, and this replica's history {what}");
    Error::new(Code::Unavailable, detail)
        .hint("it is tried again; `palisade doctor` says what is wrong with a history")
}

/// Of these events those that the subscription asks for, up to what one run takes up.
fn taken<'a>(
    view: &View,
    row: &SubscriptionRow,
    cursor: u64,
    events: impl Iterator<Item = (u64, &'a Event)>,
) -> Found {
    let mut news = News { until: cursor, ..News::default() };
    for (seq, event) in events {
        if news.events.len() == TAKE_MAX {
            break;
        }
        news.until = seq;
        if wants(row, event) {
            news.events.push(kept(view, &row.rows(), seq, event));
        }
    }
    news.more = news.until < view.last_event();
    Found { news, gap: None }
}
