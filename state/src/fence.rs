//! Fences: they order the holders of one lease, across elections and across rebuilt clusters.
//!
//! # Invariants
//! - `I2` The fences of one lease only increase (kept in [`crate::lease`]).

use std::fmt;

use crate::command::FenceWire;

/// The cluster's epoch, then the Raft term, then the log index of the entry that granted or
/// re-confirmed a lease. A larger fence always wins.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Fence {
    /// 0 at birth, raised by each restore or recovery.
    pub epoch: u64,
    /// The Raft term.
    pub term: u64,
    /// The log index.
    pub index: u64,
}

impl Fence {
    /// Below every fence that was ever granted.
    pub const NONE: Self = Self { epoch: 0, term: 0, index: 0 };
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch, self.term, self.index)
    }
}

impl From<FenceWire> for Fence {
    fn from(wire: FenceWire) -> Self {
        Self { epoch: wire.epoch, term: wire.term, index: wire.index }
    }
}

impl From<Fence> for FenceWire {
    fn from(fence: Fence) -> Self {
        Self { epoch: fence.epoch, term: fence.term, index: fence.index }
    }
}

#[cfg(test)]
mod tests {
    use super::Fence;

    #[test]
    fn a_rebuilt_cluster_outranks_every_term_before_it() {
        let before = Fence { epoch: 0, term: 900, index: 1_000_000 };
        let rebuilt = Fence { epoch: 1, term: 1, index: 1 };
        assert!(rebuilt > before);
        assert!(Fence { epoch: 0, term: 901, index: 5 } > before);
        assert!(before > Fence::NONE);
    }
}
