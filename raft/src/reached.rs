//! Waiting for a revision, and saying exactly why it is not here.

use std::time::Duration;

use openraft::AsyncRuntime;
use palisade_state::{StoreError, View, port::timeout};

use crate::{
    refusal::Refusal,
    replica::{Replica, millis},
};

/// How long a revision that is not here is waited for before the leader is asked whether there is such a one.
const BEFORE_ASKING: Duration = Duration::from_millis(100);

impl<R: AsyncRuntime> Replica<R> {
    /// Waits until `index` is applied here.
    pub(crate) async fn caught_up(
        &self,
        index: u64,
        patience: Duration,
    ) -> Result<View, StoreError> {
        match timeout(self.rt.as_ref(), patience, self.shared.progress.wait(index)).await {
            Some(Ok(())) => Ok(self.published.view()),
            Some(Err(_)) => {
                self.check_serving()?;
                Err(StoreError::Unavailable("it has stopped".to_owned()))
            }
            None => {
                let (revision, applied) = (index, self.shared.progress.applied());
                Err(StoreError::Behind { revision, applied, waited_ms: millis(patience) })
            }
        }
    }

    /// A view that has `revision`.
    pub(crate) async fn view_at(&self, revision: u64) -> Result<View, StoreError> {
        self.check_serving()?;
        let patience = self.tuning.patience;
        let early = BEFORE_ASKING.min(patience);
        if let Ok(view) = self.caught_up(revision, early).await {
            return Ok(view);
        }
        self.check_serving()?;
        // Whoever knows of a revision knows of a committed one, and a round that begins now answers no less.
        match timeout(self.rt.as_ref(), patience, self.reads.index()).await {
            Some(Ok(current)) if current < revision => {
                Err(StoreError::NotReached { revision, current })
            }
            Some(Ok(_)) => self.caught_up(revision, patience.saturating_sub(early)).await,
            None | Some(Err(Refusal::NotLeader | Refusal::NoQuorum(_) | Refusal::Unknown)) => {
                Err(StoreError::NoQuorum { waited_ms: millis(patience) })
            }
            Some(Err(refusal)) => Err(refusal.into_store_error(millis(patience))),
        }
    }
}
