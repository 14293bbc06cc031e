//! Named places in the product, at which a node's power can be cut or its process killed.

use super::nodes::{Life, Nodes};

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process alone: what was written is there.
    Process,
    /// The power: what was not synced is lost, whole or in part.
    Power,
}

/// A place that is waited for.
#[derive(Clone, Debug)]
pub(crate) struct Armed {
    pub(crate) node: u64,
    pub(crate) point: &'static str,
    /// How often it is passed unharmed before.
    pub(crate) after: u64,
    pub(crate) end: End,
    /// Decides what the disk keeps.
    pub(crate) seed: u64,
}

/// Places in the log and on the disk that are aimed at.
pub(crate) const POINTS: &[&str] = &[
    "wal.after_write",
    "wal.before_sync",
    "wal.sync",
    "wal.after_sync",
    "wal.before_callback",
    "wal.rotate.sealed",
    "wal.rotate.created",
    "wal.rotate.done",
    "wal.drop.removed",
    "disk.snapshot.renamed",
    "disk.snapshot.synced",
    "disk.segment.renamed",
    "disk.dir.synced",
    "disk.removed",
    "answer.vote",
    "answer.heartbeat",
    "answer.transfer",
    "answer.snapshot",
    "answer.append",
    "heard.vote",
    "heard.snapshot",
];

impl Nodes {
    /// A life passes a named place, and may end there.
    pub(crate) fn pass(&self, life: Life, point: &'static str) {
        let (armed, disk) = {
            let mut state = self.state();
            let Some(known) = state.lives.get(&life) else { return };
            let (node, disk) = (known.node, known.disk.clone());
            let found = state.armed.iter().position(|a| a.node == node && a.point == point);
            let Some(found) = found else { return };
            let Some(armed) = state.armed.get_mut(found) else { return };
            if armed.after > 0 {
                armed.after -= 1;
                return;
            }
            (state.armed.remove(found), disk)
        };
        if self.is_gone(life) {
            return;
        }
        self.tell(|| format!("node {} ends at {point} ({:?})", armed.node, armed.end));
        self.note(&[0xdead, armed.node, point.len() as u64]);
        // The disk as it is now: nothing that the task does before it pauses reaches it.
        if let Some(disk) = disk {
            disk.ends(armed.end, armed.seed);
        }
        self.doom(life, point);
    }
}
