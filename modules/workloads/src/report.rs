//! What agents report of instances, taken in.
//!
//! # Invariants
//! - `WL-1` see [`crate::reconcile`].

use std::collections::BTreeMap;

use palisade_contract::{
    Context, InstanceId, NodeId, Result,
    node::{InstancePhase, InstanceStatus, NodeStatus},
};
use palisade_state::Tx;
use serde_json::json;

use crate::{
    RECONCILE_KIND,
    records::{BY_NODE, INSTANCES, InstanceRow, Life, Seen},
    told::Told,
};

/// Takes a report in. One that says nothing new leaves the transaction empty.
///
/// # Errors
/// A record cannot be read.
pub fn take_in(cx: &Context, tx: &mut Tx, node: &NodeId, status: &NodeStatus) -> Result<()> {
    let view = tx.view().clone();
    let mut told = Told::new(view.clone());
    let reported: BTreeMap<&InstanceId, &InstanceStatus> =
        status.instances.iter().map(|instance| (&instance.id, instance)).collect();
    for (key, row) in INSTANCES.by_index(&view, BY_NODE, node.as_str())? {
        let row = row.value;
        let seen = reported.get(&row.id).copied();
        match (row.life, seen) {
            (Life::Live, Some(seen)) => note(tx, key, row, seen)?,
            (Life::Live, None) | (Life::Leaving { .. }, Some(_)) => {}
            (Life::Leaving { told: was_told, .. }, None) => {
                // The agent follows a spec without it and does not have it. One that was never
                // told may still be in a spec that is being merged.
                let follows = status.generation >= told.generation(node)?
                    && !told.holds(node, &row.id)?
                    && (was_told || told.is_settled(node));
                if follows {
                    cx.ports.capacity.get()?.release(tx, &row.id)?;
                    tx.delete(&INSTANCES, &key)?;
                    tx.enqueue(RECONCILE_KIND, row.workload.as_str())?;
                }
            }
        }
    }
    Ok(())
}

fn note(tx: &mut Tx, key: String, mut row: InstanceRow, seen: &InstanceStatus) -> Result<()> {
    let seen = Seen::from(seen);
    if row.seen == seen {
        return Ok(());
    }
    let before = std::mem::replace(&mut row.seen, seen);
    tx.put(&INSTANCES, &key, &row)?;
    if before.phase == row.seen.phase && before.generation == row.seen.generation {
        return Ok(());
    }
    tx.enqueue(RECONCILE_KIND, row.workload.as_str())?;
    if before.phase == row.seen.phase {
        return Ok(());
    }
    match row.seen.phase {
        InstancePhase::Healthy => publish(tx, "instance.healthy", &row),
        InstancePhase::Unhealthy => publish(tx, "instance.unhealthy", &row),
        InstancePhase::Failed | InstancePhase::CrashLoop => publish(tx, "instance.failed", &row),
        _ => {}
    }
    Ok(())
}

/// Publishes an event of an instance.
pub(crate) fn publish(tx: &mut Tx, kind: &str, row: &InstanceRow) {
    let data = json!({
        "instance": row.id, "name": row.name, "workload": row.workload_name, "node": row.node(),
        "phase": row.seen.phase, "message": row.seen.message, "code": row.seen.code,
    });
    tx.publish(kind, &row.tenant, format!("instance/{}", row.id), &data);
}
