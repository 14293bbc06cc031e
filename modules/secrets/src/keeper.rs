//! Each replica's own part: it holds the keys that it is to hold, says so, and removes those that were dropped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use palisade_contract::{Context, Result, secrets::SecretKeys};
use palisade_state::View;

use crate::{
    keyring::file_name,
    records::{HOLDERS, HolderRow, KeyState, RING_KEY, RingRow},
    rotation::KEYS_KIND,
};

/// How often a replica looks. Nothing is written when nothing has changed.
const LOOK: Duration = Duration::from_secs(1);
/// Looks between two times that the others are asked for a key that nobody had.
const PATIENCE: u32 = 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    ended: AtomicBool,
}

impl Keeper {
    /// Looks again and again until [`Keeper::end`].
    pub async fn keep(&self, cx: &Context, keys: &Arc<dyn SecretKeys>) {
        let (mut told, mut waits) = (false, 0);
        loop {
            cx.rt.sleep(LOOK).await;
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            let view = cx.store.view();
            // A cluster that is not formed has nobody who could be told.
            if view.formation().is_none() {
                continue;
            }
            if waits == 0 {
                match fetch_missing(&view, keys).await {
                    Ok(missing) if missing.is_empty() => told = false,
                    Ok(missing) => {
                        waits = PATIENCE;
                        if !std::mem::replace(&mut told, true) {
                            let files: Vec<String> =
                                missing.iter().map(|id| format!("pki/{}", file_name(id))).collect();
                            tracing::warn!(
                                files = files.join(", "),
                                "this replica lacks keys of secrets, and no other replica that answers has them: it asks again; \
                                 put copies of these files into its directory if they are lost elsewhere"
                            );
                        }
                    }
                    Err(error) => {
                        waits = PATIENCE;
                        tracing::warn!(%error, "a key of secrets cannot be kept");
                    }
                }
            }
            waits = waits.saturating_sub(1);
            if let Err(error) = say(cx, &view, keys).await {
                tracing::debug!(%error, "which keys this replica holds was not noted; it is tried again");
            }
        }
    }

    /// Ends [`Keeper::keep`] at its next look.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// Gets the keys that this replica is to hold and does not; those that nobody had.
async fn fetch_missing(view: &View, keys: &Arc<dyn SecretKeys>) -> Result<Vec<String>> {
    let needed = crate::rotation::needed_keys(view)?;
    let lacks = || needed.iter().filter(|id| !keys.has(id)).cloned().collect::<Vec<String>>();
    let wanted = lacks();
    if !wanted.is_empty() {
        keys.fetch(wanted).await?;
    }
    Ok(lacks())
}

/// Says which keys this replica holds, when that is another than it said before, and asks for the first key.
pub(crate) async fn say(cx: &Context, view: &View, keys: &Arc<dyn SecretKeys>) -> Result<()> {
    let ring = RingRow::of(view)?;
    for key in ring.keys.iter().filter(|key| key.state == KeyState::Dropped) {
        if keys.has(&key.id) {
            keys.forget(&key.id)?;
            tracing::info!(
                key = key.id,
                version = key.version,
                "a dropped key of secrets was removed"
            );
        }
    }
    let status = cx.store.status();
    let is_wanted = ring.in_state(KeyState::Current).is_none()
        && ring.in_state(KeyState::Pending).is_none()
        && view.work(KEYS_KIND, RING_KEY).is_none()
        && status.leader == Some(status.replica);
    let needed = ring.keys.iter().filter(|key| key.is_needed() && keys.has(&key.id));
    let mut held: Vec<String> = needed.map(|key| key.id.clone()).collect();
    held.sort_unstable();
    let me = cx.store.replica().0;
    let said = HOLDERS.get(view, &me)?.map(|row| row.value.keys).unwrap_or_default();
    let is_member = status.members.iter().any(|member| member.id.0 == me);
    if !is_wanted && (said == held || !is_member) {
        return Ok(());
    }
    cx.commit(|tx| {
        let before = tx.get(&HOLDERS, &me)?.map(|row| row.keys).unwrap_or_default();
        if before != held {
            tx.put(&HOLDERS, &me, &HolderRow { keys: held.clone() })?;
        }
        Ok(tx.enqueue(KEYS_KIND, RING_KEY)?)
    })
    .await?;
    Ok(())
}
