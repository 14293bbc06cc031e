//! What became of an attempt, and what an event looks like on the wire.

use std::time::Duration;

use palisade_contract::{
    CloudEvent,
    events::{CLOUD_EVENT, Post, Posted},
};

use crate::{
    records::{KeptEvent, SubscriptionRow},
    schedule::RETRY_AFTER_MS_MAX,
    signature::{SigningKey, header},
};

/// How long one attempt may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// How long a sink may take.
pub(crate) const SINK_LIMIT: Duration = Duration::from_secs(30);
/// Characters of an error that are kept.
const ERROR_MAX: usize = 300;

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The receiver has it.
    Delivered,
    /// It may not have it.
    Failed {
        /// In a sentence.
        error: String,
        /// Milliseconds for which the receiver wants nothing.
        hold_ms: u64,
        /// It wants no more, ever.
        gone: bool,
    },
    /// It was not tried.
    Skipped,
}

impl Attempt {
    pub fn failed(error: impl Into<String>) -> Self {
        Self::Failed { error: shortened(&error.into()), hold_ms: 0, gone: false }
    }
}

/// What is kept of a text that somebody else wrote: one line of it, without what cannot be seen.
pub(crate) fn shortened(text: &str) -> String {
    let seen = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    seen.take(ERROR_MAX).collect::<String>().trim().to_owned()
}

impl From<Result<Posted, String>> for Attempt {
    fn from(answer: Result<Posted, String>) -> Self {
        let Posted { status, retry_after, excerpt } = match answer {
            Err(error) => return Self::failed(error),
            Ok(posted) => posted,
        };
        let asked = retry_after.filter(|_| matches!(status, 429 | 503)).unwrap_or_default();
        let hold_ms = u64::try_from(asked.as_millis()).unwrap_or(u64::MAX).min(RETRY_AFTER_MS_MAX);
        let why = match status {
            200..=299 => return Self::Delivered,
            300..=399 => {
                "which redirects: nothing is sent to another place than the one that was named"
                    .to_owned()
            }
            410 => "which asks for no more".to_owned(),
            _ if excerpt.is_empty() => "with no word".to_owned(),
            _ => format!("and said {excerpt:?}"),
        };
        let error = shortened(&format!("the receiver answered {status}, {why}"));
        Self::Failed { error, hold_ms, gone: status == 410 }
    }
}

/// The event as it is sent.
pub(crate) fn cloud_event(event: &KeptEvent) -> CloudEvent {
    CloudEvent {
        id: event.id.clone(),
        source: event.source.clone(),
        kind: event.kind.clone(),
        subject: event.subject.clone(),
        tenant: event.tenant.clone(),
        seq: event.seq,
        revision: event.revision,
        at_ms: event.at_ms,
        data: event.data.clone(),
        left_out_bytes: event.left_out_bytes,
    }
}

/// `EVT-1` The request for an event, at a wall-clock time in seconds.
pub(crate) fn post(
    subscription: &SubscriptionRow,
    keys: &[SigningKey],
    event: &KeptEvent,
    at: u64,
) -> Post {
    let body = cloud_event(event).to_json().to_string().into_bytes();
    Post {
        url: subscription.url.clone(),
        headers: vec![
            ("content-type", CLOUD_EVENT.to_owned()),
            ("webhook-id", event.id.clone()),
            ("webhook-timestamp", at.to_string()),
            ("webhook-signature", header(keys, &event.id, at, &body)),
        ],
        body,
        limit: LIMIT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(status: u16, retry_after: Option<u64>) -> Attempt {
        let retry_after = retry_after.map(Duration::from_secs);
        Ok(Posted { status, retry_after, excerpt: "no\nroom".into() }).into()
    }

    #[test]
    fn only_an_answer_of_2xx_is_a_delivery() {
        for status in [200, 202, 204, 299] {
            assert_eq!(attempt(status, None), Attempt::Delivered);
        }
        for status in [100, 301, 307, 400, 401, 404, 429, 500, 503] {
            let Attempt::Failed { error, hold_ms: 0, gone: false } = attempt(status, None) else {
                panic!("{status}")
            };
            assert!(error.contains(&status.to_string()) && !error.contains('\n'), "{error}");
        }
        assert!(matches!(attempt(410, None), Attempt::Failed { gone: true, .. }));
    }

    #[test]
    fn what_the_receiver_asks_for_is_respected_and_bounded() {
        let hold = |status, seconds| match attempt(status, Some(seconds)) {
            Attempt::Failed { hold_ms, .. } => hold_ms,
            _ => panic!(),
        };
        assert_eq!((hold(429, 7), hold(503, 7), hold(500, 7)), (7_000, 7_000, 0));
        assert_eq!(hold(429, u64::MAX / 1000), RETRY_AFTER_MS_MAX);
    }
}
