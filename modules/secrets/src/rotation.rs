//! The cluster's keys: making one, waiting until every voter holds it, and sealing everything with it.
//!
//! # Invariants
//! - `SEC-7` Nothing is sealed with a key before every voter has said that it is in its directory.
//! - `SEC-8` A key is dropped only in a transaction that has read that nothing is sealed with it. Whoever seals reads which key is current,
//!   so that one of both is done again.
//! - `SEC-9` A rotation can end anywhere and goes on: its steps are in state, each seals few secrets anew, and a secret
//!   that was set meanwhile stays what it was set to.

use std::{collections::BTreeSet, time::Duration};

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Context, Error, Method, MethodContext, Nothing, ReconcileContext, Reconciler, Resource,
    Result, Run, ShardBy, Verb, time::rfc3339,
};
use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::{
    port::keys,
    records::{
        HOLDERS, KeyRow, KeyState, RING, RING_KEY, RingRow, SECRETS, SecretRow, sealed_with,
    },
};

/// The kind of the work.
pub(crate) const KEYS_KIND: &str = "secrets.keys";
/// How long to wait before looking again who holds a key: whoever gets it wakes the reconciler.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Secrets that one transaction seals anew at most.
const STEP_MAX: usize = 20;
/// Bytes that they hold together; the first may be longer.
const STEP_BYTES_MAX: usize = 256 * 1024;
/// Steps of one run.
const STEPS_MAX: usize = 50;

/// A key of the cluster, without the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRecord {
    /// By what its file is known: `pki/secrets-<id>.key`.
    pub id: String,
    /// 1, 2, 3 …
    pub version: u64,
    /// Where it is in its life.
    pub state: KeyState,
    /// How many secrets are sealed with it.
    pub secrets: u64,
    /// The replicas that hold it.
    pub held_by: Vec<u64>,
    /// The voters for which it waits, or that lack it.
    pub lacking: Vec<u64>,
    /// Who asked for it.
    pub by: String,
    /// When it was made.
    pub made_at: String,
}

/// What a rotation begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotationRecord {
    /// The version that the next key will have.
    pub version: u64,
    /// What happens now, in a sentence.
    pub note: String,
}

pub(crate) fn methods() -> Vec<Method> {
    let on = |_: &serde_json::Value| Resource::cluster("secret-key", "");
    vec![
        Method::query("secretKeys", "list", "compute:secret-keys:read", list)
            .summary("Lists the keys that secrets are sealed with, without the keys, and which replicas hold them.")
            .rest(Verb::Get, "/secret-keys")
            .list()
            .on(on),
        Method::mutation("secretKeys", "rotate", "compute:secret-keys:rotate", rotate)
            .summary("Makes another key, seals all secrets with it, and then drops the old one.")
            .rest(Verb::Post, "/secret-keys/rotate")
            .on(on),
    ]
}

fn list(cx: &MethodContext, view: &View, _: Nothing) -> Result<Vec<SecretKeyRecord>> {
    let (counts, voters) = (sealed_with(view)?, voters(&cx.context));
    let record = |key: &KeyRow| {
        let held_by = holders(view, &key.id)?;
        let lacks = |voter: &&u64| key.is_needed() && !held_by.contains(voter);
        Ok(SecretKeyRecord {
            id: key.id.clone(),
            version: key.version,
            state: key.state,
            secrets: counts.get(&key.id).copied().unwrap_or(0),
            lacking: voters.iter().filter(lacks).copied().collect(),
            held_by: held_by.into_iter().collect(),
            by: key.by.clone(),
            made_at: rfc3339(key.made_at_ms),
        })
    };
    RingRow::of(view)?.keys.iter().map(record).collect()
}

/// The voters.
pub(crate) fn voters(cx: &Context) -> BTreeSet<u64> {
    let members = cx.store.status().members;
    members.into_iter().filter(|member| member.voter).map(|member| member.id.0).collect()
}

/// The replicas that have said that they hold a key.
pub(crate) fn holders(view: &View, id: &str) -> Result<BTreeSet<u64>> {
    let all = HOLDERS.all(view)?.into_iter();
    let holds = |keys: &[String]| keys.iter().any(|held| held == id);
    Ok(all.filter(|(_, row)| holds(&row.value.keys)).map(|(replica, _)| replica).collect())
}

fn rotate(cx: &MethodContext, tx: &mut Tx, _: Nothing) -> Result<RotationRecord> {
    keys(&cx.context)?;
    let mut ring = tx.get(&RING, &RING_KEY.to_owned())?.unwrap_or_default();
    let is_on_its_way = ring.wanted_by.is_some()
        || ring.in_state(KeyState::Pending).is_some()
        || ring.in_state(KeyState::Retiring).is_some();
    if is_on_its_way {
        let error = Error::new(Code::Conflict, "a rotation is on its way and has not ended");
        let error = error.hint(
            "`palisade secret keys` shows how far it is, `palisade doctor` what it waits for",
        );
        return Err(Error { retryable: false, ..error });
    }
    let version = ring.next_version();
    ring.wanted_by = Some(cx.principal.name.clone());
    tx.put(&RING, &RING_KEY.to_owned(), &ring)?;
    tx.enqueue(KEYS_KIND, RING_KEY)?;
    Ok(RotationRecord {
        version,
        note: "a key is made; once every voter holds it, all secrets are sealed with it and the old key is dropped"
            .to_owned(),
    })
}

/// See the module.
pub(crate) struct Rotation;

/// What one look came to.
enum Step {
    /// Something was done.
    Went,
    /// Somebody else must do something.
    Waits,
    /// There is nothing to do.
    Done,
}

impl Reconciler for Rotation {
    fn name(&self) -> &'static str {
        KEYS_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        let ring = RingRow::of(view)?;
        let is_settled = ring.wanted_by.is_none()
            && ring.in_state(KeyState::Current).is_some()
            && ring.in_state(KeyState::Pending).is_none()
            && ring.in_state(KeyState::Retiring).is_none();
        Ok(if is_settled { vec![] } else { vec![RING_KEY.to_owned()] })
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, _key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            if cx.context.ports.secret_keys.filled().is_none() {
                return Ok(Run::Done);
            }
            // Where the last step ended: looking at all from the first in each would cost the square of them.
            let mut after = String::new();
            for _ in 0..STEPS_MAX {
                if cx.cancelled.is_cancelled() {
                    break;
                }
                match step(cx, &mut after).await? {
                    Step::Went => {}
                    Step::Waits => return Ok(Run::After(LOOK_AGAIN)),
                    Step::Done => return Ok(Run::Done),
                }
            }
            Ok(Run::Again)
        })
    }
}

async fn step(cx: &ReconcileContext, after: &mut String) -> Result<Step> {
    let view = cx.view();
    let ring = RingRow::of(&view)?;
    if let Some(pending) = ring.in_state(KeyState::Pending) {
        return promote(cx, &view, pending).await;
    }
    if ring.wanted_by.is_some() || ring.in_state(KeyState::Current).is_none() {
        return make(cx, &ring).await;
    }
    let Some(current) = ring.in_state(KeyState::Current) else { return Ok(Step::Done) };
    match ring.in_state(KeyState::Retiring) {
        Some(retiring) => reseal(cx, &view, (retiring, current), after).await,
        None => Ok(Step::Done),
    }
}

/// Makes a key. One that was made and not noted is a file that nothing refers to.
async fn make(cx: &ReconcileContext, seen: &RingRow) -> Result<Step> {
    let id = keys(&cx.context)?.make()?;
    cx.context.rt.crash_point("secrets.key-made").await;
    cx.commit(|tx| {
        let mut ring = tx.get(&RING, &RING_KEY.to_owned())?.unwrap_or_default();
        if ring != *seen {
            return Ok(());
        }
        let clock = tx.view().clock();
        ring.keys.push(KeyRow {
            version: ring.next_version(),
            id: id.clone(),
            state: KeyState::Pending,
            by: ring.wanted_by.take().unwrap_or_else(|| "system".to_owned()),
            made_at_ms: clock.wall_ms,
            made_at_logical_ms: clock.now_ms,
        });
        Ok(tx.put(&RING, &RING_KEY.to_owned(), &ring)?)
    })
    .await?;
    Ok(Step::Went)
}

/// `SEC-7`
async fn promote(cx: &ReconcileContext, view: &View, pending: &KeyRow) -> Result<Step> {
    let (voters, holders) = (voters(&cx.context), holders(view, &pending.id)?);
    if voters.is_empty() || !voters.is_subset(&holders) {
        return Ok(Step::Waits);
    }
    cx.commit(|tx| {
        let mut ring = tx.get(&RING, &RING_KEY.to_owned())?.unwrap_or_default();
        if ring.in_state(KeyState::Pending) != Some(pending) {
            return Ok(());
        }
        ring.turn(KeyState::Current, KeyState::Retiring);
        ring.turn(KeyState::Pending, KeyState::Current);
        tx.put(&RING, &RING_KEY.to_owned(), &ring)?;
        // Of replicas that are gone nobody asks any more.
        let members = cx.context.store.status().members;
        for (replica, _) in tx.scan(&HOLDERS, b"")? {
            if !members.iter().any(|member| member.id.0 == replica) {
                tx.delete(&HOLDERS, &replica)?;
            }
        }
        let data = json!({ "version": pending.version, "key": pending.id, "by": pending.by });
        tx.publish("secret-key.current", "", format!("secret-key/{}", pending.id), &data);
        Ok(())
    })
    .await?;
    Ok(Step::Went)
}

/// `SEC-9`
async fn reseal(
    cx: &ReconcileContext,
    view: &View,
    (retiring, current): (&KeyRow, &KeyRow),
    after: &mut String,
) -> Result<Step> {
    let ring_keys = keys(&cx.context)?;
    let (mut fresh, mut bytes): (Vec<(SecretRow, SecretRow)>, usize) = (vec![], 0);
    let mut closed = None;
    let is_whole = after.is_empty();
    for found in SECRETS.behind(view, &after.clone()) {
        let row = found?.1.value;
        if row.key != retiring.id {
            continue;
        }
        if fresh.len() == STEP_MAX || (!fresh.is_empty() && bytes + row.bytes > STEP_BYTES_MAX) {
            break;
        }
        let bound = row.bound_to(view, &row.key);
        let opened = row.sealed().and_then(|sealed| ring_keys.open(&row.key, &bound, &sealed));
        let plain = match opened {
            Ok(plain) => plain,
            // It holds up the key, but none of the others.
            Err(error) if error.code == Code::Internal => {
                closed.get_or_insert((row.id(), error));
                continue;
            }
            Err(error) => return Err(error),
        };
        bytes += row.bytes;
        let bound = row.bound_to(view, &current.id);
        let sealed = ring_keys.seal(&current.id, &bound, &plain)?;
        fresh.push((row.clone(), row.with(&current.id, &sealed)));
    }
    match (fresh.last(), closed) {
        (None, Some((id, error))) if is_whole => {
            let key = &retiring.id;
            let detail = format!(
                "secret {id} is not what was sealed with key {key}, which stays: {}",
                error.detail
            );
            return Err(Error { detail, ..error }.hint("set it anew, or remove it"));
        }
        (None, None) if is_whole => return drop_key(cx, retiring).await,
        // What was set meanwhile may be before that place.
        (None, _) => {
            after.clear();
            return Ok(Step::Went);
        }
        (Some((last, _)), _) => *after = last.id(),
    }
    cx.commit(|tx| {
        for (before, after) in &fresh {
            // What was set or removed meanwhile stays so.
            if tx.get(&SECRETS, &before.id())?.as_ref() == Some(before) {
                tx.put(&SECRETS, &before.id(), after)?;
            }
        }
        Ok(())
    })
    .await?;
    cx.context.rt.crash_point("secrets.resealed").await;
    Ok(Step::Went)
}

/// `SEC-8`
async fn drop_key(cx: &ReconcileContext, retiring: &KeyRow) -> Result<Step> {
    cx.commit(|tx| {
        let mut ring = tx.get(&RING, &RING_KEY.to_owned())?.unwrap_or_default();
        if tx.scan(&SECRETS, b"")?.iter().any(|(_, row)| row.key == retiring.id) {
            return Ok(());
        }
        let of_it = |key: &&mut KeyRow| key.id == retiring.id && key.state == KeyState::Retiring;
        let Some(key) = ring.keys.iter_mut().find(of_it) else { return Ok(()) };
        key.state = KeyState::Dropped;
        ring.trim();
        tx.put(&RING, &RING_KEY.to_owned(), &ring)?;
        let data = json!({ "version": retiring.version, "key": retiring.id });
        tx.publish("secret-key.dropped", "", format!("secret-key/{}", retiring.id), &data);
        Ok(())
    })
    .await?;
    Ok(Step::Went)
}

/// Says that no replica of this cluster will ever have the keys that there are: it is a fork, whose CA and keys are
/// its own. What is sealed with them is lost to it; a new key is made by itself.
///
/// # Errors
/// The record cannot be read.
pub fn lose_keys(tx: &mut Tx) -> Result<()> {
    let Some(mut ring) = tx.get(&RING, &RING_KEY.to_owned())? else { return Ok(()) };
    for state in [KeyState::Pending, KeyState::Current, KeyState::Retiring] {
        ring.turn(state, KeyState::Lost);
    }
    ring.wanted_by = None;
    tx.put(&RING, &RING_KEY.to_owned(), &ring)?;
    tx.enqueue(KEYS_KIND, RING_KEY)?;
    Ok(())
}

/// The ids of the keys that a copy of this state needs to be of use.
///
/// # Errors
/// The record cannot be read.
pub fn needed_keys(view: &View) -> Result<Vec<String>> {
    let ring = RingRow::of(view)?;
    Ok(ring.keys.iter().filter(|key| key.is_needed()).map(|key| key.id.clone()).collect())
}
