//! The inventory's workers: nodes whose grace is over, and sessions whose replica died.

use std::time::Duration;

use futures::future::BoxFuture;
use palisade_contract::{
    NodeId, Periodic, ReconcileContext, Reconciler, Result, ShardBy, module::Run, node::NodePhase,
};
use palisade_state::{Tx, View, key::after_prefix};

use crate::{
    life,
    records::{NODES, NODES_BY_REPLICA, live_node, phase_word},
};

/// Sessions that one transaction takes away at most.
const ORPHANS_MAX: usize = 100;
/// Such transactions of one run at most; the rest is another run's.
const PASSES_MAX: usize = 20;
const ORPHANS_EVERY: Duration = Duration::from_secs(5);

/// Declares nodes lost that had no session for the whole grace. Keys are node ids.
pub(crate) struct LostNodes {
    pub lost_grace: Duration,
}

impl Reconciler for LostNodes {
    fn name(&self) -> &'static str {
        life::NODES_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Node
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        let away = NODES.by_index(view, "phase", phase_word(NodePhase::Unhealthy))?;
        Ok(away.into_iter().map(|(id, _)| id).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let Some(id) = NodeId::parse(key) else { return Ok(Run::Done) };
            let mut look = Tx::new(cx.view());
            if let Some(left_ms) = life::lose(&mut look, &id, self.lost_grace)? {
                return Ok(Run::After(Duration::from_millis(left_ms)));
            }
            if look.is_empty() {
                return Ok(Run::Done);
            }
            // The node may have come back and gone again since the look: then nothing is written,
            // and the enqueue of that going keeps the row.
            cx.finish(|tx| life::lose(tx, &id, self.lost_grace).map(drop)).await?;
            Ok(Run::Done)
        })
    }
}

/// Takes sessions away that a replica without a live worker holds; the nodes' grace begins then.
/// One key.
pub(crate) struct OrphanedSessions {
    pub lost_grace: Duration,
}

impl Reconciler for OrphanedSessions {
    fn name(&self) -> &'static str {
        "inventory.sessions"
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        vec![Periodic { key: "all".to_owned(), every: ORPHANS_EVERY }]
    }

    fn keys(&self, _view: &View) -> Result<Vec<String>> {
        Ok(vec!["all".to_owned()])
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, _key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            for _ in 0..PASSES_MAX {
                if cx.cancelled.is_cancelled() {
                    break;
                }
                let orphans = orphans(&cx.view())?;
                if orphans.is_empty() {
                    return Ok(Run::Done);
                }
                cx.commit(|tx| {
                    for id in &orphans {
                        self.take_away(tx, id)?;
                    }
                    Ok(())
                })
                .await?;
            }
            Ok(Run::Again)
        })
    }
}

impl OrphanedSessions {
    fn take_away(&self, tx: &mut Tx, id: &NodeId) -> Result<()> {
        let Some(row) = live_node(tx, id)? else { return Ok(()) };
        let replica = row.node.session.as_ref().map(|session| session.replica.to_string());
        match replica {
            Some(replica) if !tx.view().worker_lives(&replica) => {
                life::disconnect(tx, &row, self.lost_grace)
            }
            _ => Ok(()),
        }
    }
}

/// Nodes whose session is held by a dead replica, at most [`ORPHANS_MAX`]. Looks at one index row
/// for each replica as long as all live, however many nodes there are.
fn orphans(view: &View) -> Result<Vec<NodeId>> {
    let mut start: Vec<u8> = vec![];
    loop {
        let first = view.rows(NODES_BY_REPLICA, &start, None).next();
        let Some((row, _)) = first else { return Ok(vec![]) };
        let replica: Vec<u8> = row.iter().copied().take_while(|byte| *byte != 0).collect();
        let replica = String::from_utf8_lossy(&replica).into_owned();
        if !view.worker_lives(&replica) {
            let held = NODES.by_index(view, "replica", &replica)?;
            return Ok(held
                .into_iter()
                .map(|(_, found)| found.value.node.id)
                .take(ORPHANS_MAX)
                .collect());
        }
        let Some(next) = after_prefix(&[replica.as_bytes(), &[0]].concat()) else {
            return Ok(vec![]);
        };
        start = next.to_vec();
    }
}
