//! Events as they leave the cluster: their form, who takes them, and how they are sent over HTTP.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::{context::Context, error::Result, time::rfc3339};

/// An event in the form of CloudEvents 1.0.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudEvent {
    /// Unique with [`CloudEvent::source`], and the same whenever the event is sent again.
    pub id: String,
    /// `/palisade/<cluster>`.
    pub source: String,
    /// `type`: what happened, such as `instance.failed`.
    pub kind: String,
    /// What it happened to, such as `workload/web`.
    pub subject: String,
    /// Whose it is; empty: the cluster's.
    pub tenant: String,
    /// Its place in the order of all events of the cluster; 0: it is in none.
    pub seq: u64,
    /// The revision that published it.
    pub revision: u64,
    /// Unix milliseconds, by the leader's clock.
    pub at_ms: u64,
    /// What there is to say of it; `None`: it had more bytes than are sent.
    pub data: Option<Value>,
    /// How many bytes of data were left out; 0: none.
    pub left_out_bytes: u64,
}

/// The media type of [`CloudEvent::to_json`].
pub const CLOUD_EVENT: &str = "application/cloudevents+json";

impl CloudEvent {
    /// In the structured mode of the JSON format. `sequence` has 20 digits, so that texts compare as numbers do;
    /// `revision` is a text because an integer of CloudEvents has 32 bits.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut event = json!({
            "specversion": "1.0",
            "id": self.id,
            "source": self.source,
            "type": self.kind,
            "time": rfc3339(self.at_ms),
            "revision": self.revision.to_string(),
        });
        // An attribute that is empty is not one.
        for (name, text) in [("subject", &self.subject), ("tenant", &self.tenant)] {
            if !text.is_empty() {
                event[name] = json!(text);
            }
        }
        if self.seq > 0 {
            event["sequence"] = json!(format!("{:020}", self.seq));
        }
        if self.left_out_bytes > 0 {
            event["dataleftout"] = json!(self.left_out_bytes.to_string());
        }
        if let Some(data) = &self.data {
            event["datacontenttype"] = json!("application/json");
            event["data"] = data.clone();
        }
        event
    }
}

/// Takes events elsewhere: the code of an extension of kind `event-sink`.
pub trait EventSink: Send + Sync {
    /// Takes one event. It may come again, with the same id. Events of one subject come in order, and none before the one before
    /// it was taken; an error holds back the later ones of its subject, and it is tried again. It has 30 seconds.
    fn deliver<'a>(&'a self, cx: &'a Context, event: &'a CloudEvent) -> BoxFuture<'a, Result<()>>;
}

/// A sink with the name that it is registered under.
#[derive(Clone)]
pub struct RegisteredSink {
    /// The id of its extension.
    pub id: &'static str,
    /// The version of its extension.
    pub version: &'static str,
    /// Its code.
    pub sink: Arc<dyn EventSink>,
}

impl RegisteredSink {
    /// `<id>@<version>`, as a subscription names it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}@{}", self.id, self.version)
    }
}

/// A request to somebody's receiver.
#[derive(Clone, PartialEq, Eq)]
pub struct Post {
    /// `https://…`.
    pub url: String,
    /// Beside those of HTTP itself.
    pub headers: Vec<(&'static str, String)>,
    /// What is sent.
    pub body: Vec<u8>,
    /// For all of it: finding the address, connecting, sending, and the answer.
    pub limit: Duration,
}

/// What a receiver answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The HTTP status.
    pub status: u16,
    /// What `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// The beginning of the body, for people.
    pub excerpt: String,
}

/// Sends to receivers that operators name.
pub trait Webhooks: Send + Sync {
    /// Why a URL would never be sent to, as far as it says so itself; `None`: it may be.
    fn refuses(&self, url: &str) -> Option<String>;

    /// Sends once. What is no answer of the receiver is a sentence, without the URL.
    fn post(&self, post: Post) -> BoxFuture<'static, std::result::Result<Posted, String>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_attributes_of_cloud_events() {
        let event = CloudEvent {
            id: "cl_1-7".into(),
            source: "/palisade/cl_1".into(),
            kind: "node.ready".into(),
            subject: "node/nd_1".into(),
            tenant: String::new(),
            seq: 7,
            revision: 41,
            at_ms: 1_000,
            data: Some(json!({"name": "node-1"})),
            left_out_bytes: 0,
        };
        assert_eq!(
            event.to_json(),
            json!({
                "specversion": "1.0", "id": "cl_1-7", "source": "/palisade/cl_1", "type": "node.ready",
                "subject": "node/nd_1", "time": "1970-01-01T00:00:01.000Z", "sequence": "00000000000000000007",
                "revision": "41", "datacontenttype": "application/json", "data": {"name": "node-1"},
            })
        );
        let bare = CloudEvent { data: None, left_out_bytes: 9, seq: 0, ..event }.to_json();
        assert_eq!(bare["dataleftout"], "9");
        for absent in ["data", "datacontenttype", "sequence", "tenant"] {
            assert!(bare.get(absent).is_none(), "{absent}");
        }
        let names = bare.as_object().unwrap().keys();
        let is_attribute =
            |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        assert!(names.into_iter().all(|name| is_attribute(name) && name.len() <= 20));
    }
}
