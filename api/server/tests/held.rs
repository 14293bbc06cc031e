//! Destructive calls that are held (`QUO-6`): their status, where they wait, and what they leave.

use std::sync::Arc;

use palisade_contract::{
    Context, Error, MethodContext, Result,
    approvals::{Approvals, Asked, Batch, BatchRequest},
    command::Command,
};
use palisade_state::{Store, Tx};
use serde_json::{Value, json};

use crate::support::{widgets::WIDGETS, world};

/// Holds what is done to the widget `held`.
struct Holds;

impl Approvals for Holds {
    fn create_batch(&self, _: &Context, _: &mut Tx, _: &BatchRequest) -> Result<Batch> {
        Err(Error::internal("nobody makes a batch here"))
    }

    fn admit(&self, _: &mut Tx, _: &Command) -> Result<bool> {
        Err(Error::internal("nobody sends a command here"))
    }

    fn asks(&self, _: &MethodContext, _: &mut Tx, call: Asked<'_>) -> Result<bool> {
        Ok(call.input["widget"] == "held")
    }

    fn hold(&self, _: &MethodContext, tx: &mut Tx, call: Asked<'_>) -> Result<Value> {
        tx.publish("approval.held", call.tenant, "approval/ap_1".to_owned(), &json!({}));
        Ok(json!({"id": "ap_1", "state": "held", "revision": 0}))
    }
}

#[tokio::test]
async fn a_call_that_is_held_is_accepted_and_not_made() {
    let world = world().await;
    world.ports.approvals.fill(Arc::new(Holds)).unwrap();
    for name in ["held", "free"] {
        let put = world.api("PUT", &format!("/widgets/{name}")).json(&json!({"sizeLimit": 3}));
        assert_eq!(put.send().await.status, 200);
    }
    let remove = || world.api("DELETE", "/widgets/held").header("idempotency-key", "once").send();
    let held = remove().await;
    assert_eq!(held.status, 202, "QUO-6");
    assert_eq!(held.header("location"), "/api/compute/approvals/ap_1");
    let revision = held.json()["revision"].as_u64().unwrap();
    assert_eq!(held.header("etag"), format!("\"{revision}\""));
    assert_eq!(held.json(), json!({"id": "ap_1", "state": "held", "revision": revision}));
    let there = |name: &str| WIDGETS.get(&world.store.memory.view(), &name.to_owned()).unwrap();
    assert!(there("held").is_some(), "QUO-6");
    let again = remove().await;
    assert_eq!((again.status.as_u16(), again.header("idempotency-replayed")), (202, "true"));
    assert_eq!(again.json(), held.json());
    let audited: Vec<(String, String)> = {
        let view = world.store.memory.view();
        let bodies = view.audit(0).map(|record| record.body.clone().unwrap());
        bodies.map(|body| (body.method, body.outcome)).collect()
    };
    assert_eq!(audited.last().unwrap(), &("widgets.remove".to_owned(), "held".to_owned()));
    let dry = world.api("DELETE", "/widgets/held?dryRun=true").send().await;
    assert_eq!(dry.status, 200, "it says what would be done");
    let free = world.api("DELETE", "/widgets/free").send().await;
    assert_eq!((free.status.as_u16(), there("free").is_none()), (200, true));
    let none = world.api("DELETE", "/widgets/none").send().await;
    assert_ne!(none.status, 202, "what would be refused is not held");
}
