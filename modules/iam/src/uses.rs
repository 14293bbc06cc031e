//! When tokens were used last: noted in memory, and written now and then.
//!
//! # Invariants
//! - `IAM-6` Whoever is let in writes nothing by it: uses are noted in this replica's memory, and of one token no more than
//!   one use an hour is written, by a task of its own.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use palisade_contract::{Context, Result};
use palisade_state::View;

use crate::records::{API_TOKENS, TOKEN_USES, UseRow};

/// How often a replica looks whether there is a use to write.
const LOOK: Duration = Duration::from_mins(1);
/// Milliseconds by which a use is newer than the written one before it is written itself.
const WRITTEN_EVERY_MS: u64 = 60 * 60 * 1000;
/// Uses that one transaction writes at most.
const TOGETHER_MAX: usize = 200;
/// Uses are shown to the minute, so that a list of tokens that is watched does not change with every call.
const SHOWN_TO_MS: u64 = 60 * 1000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Wall-clock milliseconds of the newest use of each token that this replica has let in.
    newest: Mutex<BTreeMap<String, u64>>,
    ended: AtomicBool,
}

impl Uses {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a token has let somebody in.
    pub fn note(&self, token: &str, wall_ms: u64) {
        let mut newest = self.lock();
        match newest.get_mut(token) {
            Some(at) => *at = wall_ms.max(*at),
            None => drop(newest.insert(token.to_owned(), wall_ms)),
        }
    }

    /// When a token was used last, as far as this replica knows, to the minute.
    pub fn shown(&self, view: &View, token: &str) -> Result<Option<u64>> {
        let written = TOKEN_USES.get(view, &token.to_owned())?.map(|row| row.value.last_used_ms);
        let newest = written.max(self.lock().get(token).copied());
        Ok(newest.map(|at| at - at % SHOWN_TO_MS))
    }

    /// The uses that are to be written now.
    fn due(&self, view: &View) -> Result<Vec<(String, u64)>> {
        let mut newest = self.lock();
        let mut due = vec![];
        let mut gone = vec![];
        for (token, at) in &*newest {
            let written = TOKEN_USES.get(view, token)?.map(|row| row.value.last_used_ms);
            if API_TOKENS.get(view, token)?.is_none() {
                gone.push(token.clone());
            } else if is_due(written, *at) && due.len() < TOGETHER_MAX {
                due.push((token.clone(), *at));
            }
        }
        for token in gone {
            newest.remove(&token);
        }
        Ok(due)
    }

    /// Writes what is due, in one transaction or in none; answers how many uses.
    ///
    /// # Errors
    /// It could not be written; it is due again.
    pub async fn write(&self, cx: &Context) -> Result<usize> {
        let due = self.due(&cx.store.view())?;
        if due.is_empty() {
            return Ok(0);
        }
        cx.commit(|tx| {
            for (token, at) in &due {
                let written = tx.get(&TOKEN_USES, token)?.map(|row| row.last_used_ms);
                if is_due(written, *at) && tx.get(&API_TOKENS, token)?.is_some() {
                    tx.put(&TOKEN_USES, token, &UseRow { last_used_ms: *at })?;
                }
            }
            Ok(())
        })
        .await?;
        Ok(due.len())
    }

    /// Writes what is due, again and again, until [`Uses::end`].
    pub async fn keep(&self, cx: &Context) {
        loop {
            cx.rt.sleep(LOOK).await;
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = self.write(cx).await {
                // Nothing is lost: it is due again.
                tracing::debug!(%error, "last uses of tokens could not be written");
            }
        }
    }

    /// Ends [`Uses::keep`] at its next look.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

fn is_due(written: Option<u64>, at: u64) -> bool {
    written.is_none_or(|written| at >= written.saturating_add(WRITTEN_EVERY_MS))
}
