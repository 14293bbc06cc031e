//! What an operator's drain of this replica means for its agents.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::future::Either;
use palisade_state::roster;

use super::Core;

/// How often it is looked whether this replica is drained.
const EVERY: Duration = Duration::from_millis(500);
/// Over how long agents are sent elsewhere, so that not all of them come to another replica at once.
const SPREAD: Duration = Duration::from_secs(2);

impl Core {
    /// Sends agents elsewhere once this replica is drained, and takes them again once that is undone, until this
    /// replica stops.
    pub(crate) async fn follow_drain(self: Arc<Self>) {
        let store = self.context.store.clone();
        loop {
            let stopped = std::pin::pin!(self.stopping.raised());
            let pause = self.context.rt.sleep(EVERY);
            if let Either::Right(_) = futures::future::select(pause, stopped).await {
                return;
            }
            let is_drained = roster::is_drained(&store.view(), store.replica());
            let was_drained = self.drained.swap(is_drained, Ordering::AcqRel);
            if is_drained && !was_drained {
                tracing::info!("this replica is drained: its agents go elsewhere");
                self.send_away(SPREAD).await;
            }
        }
    }
}
