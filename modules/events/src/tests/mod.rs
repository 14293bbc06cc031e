//! The module on the kernel in memory, with a receiver that does as it is told and a clock that is stepped.

mod blocked;
mod letters;
mod life;
mod order;
mod pace;
mod past;
mod world;

use palisade_state::outbox::Event;
use serde_json::json;

use crate::records::{DeliveryRow, KeptEvent, SubscriptionRow};

/// An event.
pub(crate) fn event(tenant: &str, kind: &str, subject: &str) -> Event {
    Event {
        revision: 1,
        n: 0,
        kind: kind.into(),
        tenant: tenant.into(),
        subject: subject.into(),
        at_ms: 0,
        data: b"{}".to_vec(),
    }
}

/// A subscription to everything that its tenant may have.
pub(crate) fn row(tenant: &str, name: &str) -> SubscriptionRow {
    let row = json!({"id": "sub_1", "name": name, "tenant": tenant, "url": "https://pager.test/x", "createdAtMs": 0});
    serde_json::from_value(row).unwrap()
}

/// An event that waits and was not tried.
pub(crate) fn waits(seq: u64, subject: &str) -> DeliveryRow {
    let event = KeptEvent {
        id: format!("cl_1-{seq}"),
        source: "/palisade/cl_1".into(),
        kind: "a.b".into(),
        tenant: String::new(),
        subject: subject.into(),
        seq,
        revision: seq,
        at_ms: 0,
        data: None,
        left_out_bytes: 0,
        bytes: 2,
    };
    DeliveryRow {
        subscription: "acme/sub_1".into(),
        event,
        attempts: 0,
        first_at: 0,
        last_at: 0,
        due: 0,
        error: String::new(),
        since_ms: 0,
    }
}
