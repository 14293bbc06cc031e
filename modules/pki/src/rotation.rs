//! The replacement of the cluster CA, one record that goes from phase to phase.
//!
//! # Invariants
//! - `PKI-5` The old CA is trusted until nobody who is waited for shows a certificate of it, or an operator says by
//!   force to go on without; the new one issues only once every member holds its key and trusts it, or so forced.
//! - `PKI-6` A phase is left once, in the transaction that has read why it may be left; whoever does it again finds it done.

use std::time::Duration;

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Context, Error, Periodic, ReconcileContext, Reconciler, Result, Run, ShardBy,
    node::NodePhase,
    pki::{Authorities, Ca, Phase},
};
use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::{
    port::{authorities, held},
    records::{AUTHORITIES, CLUSTER, NODES, REPLICAS, REVOCATIONS},
};

/// The reconciler's name.
pub const KIND: &str = "pki.rotation";
pub(crate) const KEY: &str = "ca";
const EVERY: Duration = Duration::from_secs(30);
/// How long a node's certificate is good: one that was never seen has none after that.
const NODE_LIFE_MS: u64 = 24 * 3600 * 1000;
/// Rows of nodes that are gone which go in one run.
const SWEEP_MAX: usize = 100;

/// Who keeps a phase from being left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// `replica/<id>` or `node/<id>`.
    pub id: String,
    /// What it has not done.
    pub reason: String,
    /// What is lost when it is gone on without it.
    pub loses: String,
}

fn replica_lost() -> String {
    "the others refuse it, and it has to join again: `palisade cluster repair DIR --force --yes`"
        .to_owned()
}

/// Who is still to be waited for, by the members' ids.
///
/// # Errors
/// A record cannot be read.
pub(crate) fn blockers(cx: &Context, view: &View, of: &Authorities) -> Result<Vec<Blocker>> {
    let mut found = vec![];
    let members = cx.store.status().members;
    for id in members.into_iter().map(|member| member.id.0) {
        let row = REPLICAS.get(view, &id)?.map(|found| found.value).unwrap_or_default();
        let lacks = |key: &String, had: &[String]| !had.contains(key);
        let reason = match of.phase {
            Phase::Trusting => of.other.as_ref().and_then(|new| {
                if lacks(&new.key, &row.holds) {
                    Some("it does not hold the new CA's key yet")
                } else if lacks(&new.key, &row.trusts) {
                    Some("it does not trust the new CA yet")
                } else {
                    None
                }
            }),
            Phase::Issuing => (row.leaf.issuer != of.issuing.key_id)
                .then_some("it has no certificate of the new CA yet"),
            Phase::Dropping => (row.trusts != of.trusted()).then_some("it still trusts the old CA"),
            Phase::Idle | Phase::Adding => None,
        };
        if let Some(reason) = reason {
            let (id, reason) = (format!("replica/{id}"), reason.to_owned());
            found.push(Blocker { id, reason, loses: replica_lost() });
        }
    }
    if of.phase == Phase::Issuing {
        nodes_of_old(cx, view, of, &mut found)?;
    }
    if of.phase == Phase::Adding {
        found.push(Blocker {
            id: "replica/any".to_owned(),
            reason: "no replica has made the new CA yet".to_owned(),
            loses: "this cannot be gone on without".to_owned(),
        });
    }
    Ok(found)
}

fn nodes_of_old(
    cx: &Context,
    view: &View,
    of: &Authorities,
    found: &mut Vec<Blocker>,
) -> Result<()> {
    let now_ms = view.clock().wall_ms;
    for node in cx.ports.nodes.get()?.list(view)? {
        if node.phase == NodePhase::Retired {
            continue;
        }
        let seen = NODES.get(view, &node.id.key())?.map(|found| found.value);
        let ends_ms = seen.as_ref().map_or(of.phase_ms + NODE_LIFE_MS, |leaf| leaf.not_after_ms);
        let is_new = seen.is_some_and(|leaf| leaf.issuer == of.issuing.key_id);
        if !is_new && ends_ms > now_ms {
            let ends = palisade_contract::time::rfc3339(ends_ms);
            found.push(Blocker {
                id: format!("node/{}", node.id),
                reason: format!(
                    "{} has no certificate of the new CA yet; its own ends at {ends}",
                    node.name
                ),
                loses: "it is refused and has to join again with a new token; its instances go on"
                    .to_owned(),
            });
        }
    }
    Ok(())
}

fn none() -> Error {
    Error::new(Code::InvalidState, "no replacement of the CA is on its way")
        .hint("`palisade pki rotate` begins one")
}

/// The authorities, which every cluster has once a replica has told.
pub(crate) fn known(tx: &mut Tx) -> Result<Authorities> {
    held(tx)?.ok_or_else(|| {
        Error::new(Code::Unavailable, "no replica has said yet which CA it issues by")
            .hint("try again in a moment")
    })
}

pub(crate) fn write(tx: &mut Tx, mut row: Authorities, phase: Phase) -> Result<Authorities> {
    row.phase = phase;
    row.phase_ms = tx.view().clock().wall_ms;
    tx.put(&AUTHORITIES, &CLUSTER.to_owned(), &row)?;
    tx.enqueue(KIND, KEY)?;
    let data = json!({
        "rotation": row.rotation, "phase": row.phase, "issuing": row.issuing.key,
        "other": row.other.as_ref().map(|ca| &ca.key), "by": row.by,
    });
    tx.publish("pki.rotation", "", "pki/ca".to_owned(), &data);
    Ok(row)
}

/// Begins a replacement.
pub(crate) fn begin(tx: &mut Tx, by: &str) -> Result<Authorities> {
    let mut row = known(tx)?;
    if row.phase != Phase::Idle {
        let detail = format!("a replacement of the CA is on its way: {}", word(row.phase));
        return Err(Error::new(Code::InvalidState, detail)
            .hint("`palisade pki status` shows for whom it waits"));
    }
    row.rotation += 1;
    by.clone_into(&mut row.by);
    row.begun_ms = tx.view().clock().wall_ms;
    write(tx, row, Phase::Adding)
}

/// The first CA that is offered for a replacement is its new one.
pub(crate) fn offer(tx: &mut Tx, rotation: u64, ca: &Ca) -> Result<()> {
    let Some(mut row) = held(tx)? else { return Ok(()) };
    // PKI-6
    if row.phase != Phase::Adding || row.rotation != rotation {
        return Ok(());
    }
    row.other = Some(ca.clone());
    write(tx, row, Phase::Trusting).map(drop)
}

/// Takes a replacement back that issues nothing yet.
pub(crate) fn abort(tx: &mut Tx) -> Result<Authorities> {
    let mut row = known(tx)?;
    match row.phase {
        Phase::Idle => Err(none()),
        Phase::Adding | Phase::Trusting => {
            row.other = None;
            write(tx, row, Phase::Idle)
        }
        Phase::Issuing | Phase::Dropping => Err(Error::new(
            Code::InvalidState,
            "the new CA issues already, so the replacement cannot be taken back",
        )
        .hint("let it end, then begin another one; `palisade pki status` shows for whom it waits")),
    }
}

/// Leaves the phase, whoever was waited for.
pub(crate) fn leave(tx: &mut Tx, mut row: Authorities) -> Result<Authorities> {
    match row.phase {
        Phase::Idle => Err(none()),
        Phase::Adding => Err(Error::new(Code::InvalidState, "the new CA is not made yet")
            .hint("try again in a moment")),
        Phase::Trusting => {
            let Some(new) = row.other.take() else { return Err(none()) };
            row.other = Some(std::mem::replace(&mut row.issuing, new));
            write(tx, row, Phase::Issuing)
        }
        Phase::Issuing => write(tx, row, Phase::Dropping),
        Phase::Dropping => {
            row.former = row.other.take();
            write(tx, row, Phase::Idle)
        }
    }
}

/// A phase, for people.
pub(crate) fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "idle",
        Phase::Adding => "adding",
        Phase::Trusting => "trusting",
        Phase::Issuing => "issuing",
        Phase::Dropping => "dropping",
    }
}

/// Forgets what nodes that are gone have shown, and replicas.
fn sweep(cx: &Context, tx: &mut Tx) -> Result<()> {
    let view = tx.view().clone();
    let nodes = cx.ports.nodes.get()?;
    let mut gone = vec![];
    for row in NODES.page(&view, &[], None) {
        let (id, _) = row?;
        let found = nodes.find(&view, &id)?;
        if found.is_none_or(|node| node.phase == NodePhase::Retired || node.id.key() != id) {
            gone.push(id);
        }
        if gone.len() >= SWEEP_MAX {
            break;
        }
    }
    for id in gone {
        tx.delete(&NODES, &id)?;
    }
    let members = cx.store.status().members;
    for (id, _) in REPLICAS.all(&view)? {
        if !members.is_empty() && !members.iter().any(|member| member.id.0 == id) {
            tx.delete(&REPLICAS, &id)?;
        }
    }
    if members.is_empty() {
        return Ok(());
    }
    // Who has left makes itself no other key any more.
    refuse(tx, |_, of| !members.iter().any(|member| member.id.0 == of))
}

/// Lets revocations take effect that wait for a replica to make itself another key: those of which `due` says so, by key and
/// replica.
pub(crate) fn refuse(tx: &mut Tx, due: impl Fn(&str, u64) -> bool) -> Result<()> {
    let view = tx.view().clone();
    for (key, found) in REVOCATIONS.all(&view)? {
        if found.value.waits_for.is_some_and(|replica| due(&key, replica))
            && let Some(mut row) = tx.get(&REVOCATIONS, &key)?
            && row.waits_for == found.value.waits_for
        {
            row.waits_for = None;
            tx.put(&REVOCATIONS, &key, &row)?;
            let data = json!({"key": key, "holder": row.holder, "by": row.by});
            tx.publish("pki.revoked", "", format!("certificate/{key}"), &data);
        }
    }
    Ok(())
}

/// Takes the replacement on. One key; whoever holds its lease does it.
pub(crate) struct Rotation;

impl Reconciler for Rotation {
    fn name(&self) -> &'static str {
        KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        vec![Periodic { key: KEY.to_owned(), every: EVERY }]
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, _: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let mut look = Tx::new(cx.view());
            sweep(&cx.context, &mut look)?;
            if !look.is_empty() {
                cx.commit(|tx| sweep(&cx.context, tx)).await?;
            }
            let view = cx.view();
            let Some(found) = authorities(&view)? else { return Ok(Run::Done) };
            if found.phase == Phase::Idle || !blockers(&cx.context, &view, &found)?.is_empty() {
                return Ok(Run::Done);
            }
            cx.commit(|tx| {
                let row = known(tx)?;
                // PKI-6: what was looked at is what is left.
                if row == found && blockers(&cx.context, tx.view(), &row)?.is_empty() {
                    leave(tx, row)?;
                }
                Ok(())
            })
            .await?;
            Ok(Run::Again)
        })
    }
}
