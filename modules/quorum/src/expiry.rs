//! The end of batches by their time, and of what is kept of those that ended.

use std::time::Duration;

use futures::future::BoxFuture;
use palisade_contract::{ReconcileContext, Reconciler, Result, ShardBy, module::Run};
use palisade_state::{Tx, View};

use crate::{
    life,
    records::{BATCHES, BatchRow, State},
};

/// The reconciler that expires batches; its keys are their ids.
pub const EXPIRY_KIND: &str = "approval-expiry";
/// Logical milliseconds for which a batch that ended is kept.
pub(crate) const KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// Logical milliseconds at which something is to be done with a batch.
fn due_ms(row: &BatchRow) -> u64 {
    match &row.ended {
        Some(ended) => ended.at_logical_ms.saturating_add(KEPT_MS).max(row.expires_ms),
        None => row.expires_ms,
    }
}

/// Wakes it when its time has come.
pub(crate) fn wake(tx: &mut Tx, row: &BatchRow) -> Result<()> {
    let left_ms = due_ms(row).saturating_sub(tx.view().clock().now_ms);
    Ok(tx.enqueue_after(EXPIRY_KIND, &row.id, left_ms)?)
}

/// See the module.
pub(crate) struct Expiry;

impl Reconciler for Expiry {
    fn name(&self) -> &'static str {
        EXPIRY_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        Ok(BATCHES.all(view)?.into_iter().map(|(id, _)| id).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let key = key.to_owned();
            let Some(found) = BATCHES.get(&cx.view(), &key)? else { return Ok(Run::Done) };
            let now_ms = cx.view().clock().now_ms;
            let left_ms = due_ms(&found.value).saturating_sub(now_ms);
            if left_ms > 0 {
                return Ok(Run::After(Duration::from_millis(left_ms)));
            }
            cx.commit(|tx| look(cx, tx, &key)).await?;
            Ok(Run::Again)
        })
    }
}

fn look(cx: &ReconcileContext, tx: &mut Tx, key: &String) -> Result<()> {
    let Some(mut row) = tx.get(&BATCHES, key)? else { return Ok(()) };
    if due_ms(&row) > tx.view().clock().now_ms {
        return Ok(());
    }
    if row.state == State::Held {
        let seconds = row.life_ms.div_ceil(1000);
        let why = format!("it was not approved within {seconds} s");
        return life::end(&cx.context, tx, &mut row, State::Expired, "", &why);
    }
    Ok(tx.delete(&BATCHES, key)?)
}
