//! Sessions that are recorded under this replica and are not its own any more.
//!
//! # Invariants
//! - `GATE-4` A session that is recorded under a replica that serves, and that no task there has, is
//!   taken out of state within some seconds: a node does not stay ready because the replica that
//!   had its session came back without it, or could not write its end.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::future::Either;
use palisade_contract::{NodeId, Result, SessionId, node::Node};
use palisade_state::{Tx, View, commit};

use super::Core;
use crate::problem::chain;

/// How often the recorded sessions are compared with those that are here.
const EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether the tables are open yet.
const OPEN_EVERY: Duration = Duration::from_millis(100);
/// Sessions that one transaction takes away at most.
const BATCH_MAX: usize = 100;

impl Core {
    /// Takes such sessions away, until this replica stops. A round that finds none costs no log
    /// entry.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let rt = self.context.rt.clone();
        loop {
            let round = async {
                if !self.open.load(Ordering::Acquire) {
                    return rt.sleep(OPEN_EVERY).await;
                }
                match self.sweep_once().await {
                    Ok(0) => {}
                    Ok(count) => {
                        tracing::warn!(count, "sessions that this replica has no more were closed");
                    }
                    Err(error) if error.retryable => {
                        tracing::debug!(error = %chain(&error), "sessions could not be looked for");
                    }
                    Err(error) => {
                        tracing::error!(error = %chain(&error), "sessions could not be looked for");
                    }
                }
                rt.sleep(EVERY).await;
            };
            let stopped = std::pin::pin!(self.stopping.raised());
            if let Either::Right(_) = futures::future::select(std::pin::pin!(round), stopped).await
            {
                return;
            }
        }
    }

    async fn sweep_once(&self) -> Result<usize> {
        let nodes = self.context.ports.nodes.get()?;
        let view = self.context.store.linearizable().await?;
        // A session has its task before it is recorded, so whatever the view holds had one: if it
        // has none now, it is over.
        let over: Vec<_> =
            nodes.list(&view)?.into_iter().filter_map(|node| self.without_task(node)).collect();
        for batch in over.chunks(BATCH_MAX) {
            self.close_sessions(view.clone(), batch).await?;
        }
        Ok(over.len())
    }

    fn without_task(&self, node: Node) -> Option<(NodeId, SessionId)> {
        let session = node.session?;
        let ours = session.replica == self.context.store.replica().0;
        (ours && !self.sessions.is_alive(&session.id)).then_some((node.id, session.id))
    }

    /// Takes sessions out of state; those that are not there any more cost nothing.
    pub(super) async fn close_sessions(
        &self,
        view: View,
        sessions: &[(NodeId, SessionId)],
    ) -> Result<()> {
        let nodes = self.context.ports.nodes.get()?.clone();
        let build = |tx: &mut Tx| {
            for (node, session) in sessions {
                nodes.session_closed(tx, node, session)?;
            }
            self.context.check_tables(tx)
        };
        let mut trial = Tx::new(view.clone());
        build(&mut trial)?;
        if !trial.is_empty() {
            commit::run(&*self.context.store, &*self.context.rt, view, build).await?;
        }
        Ok(())
    }
}
