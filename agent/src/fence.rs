//! Fences as the agent compares them: a larger one always wins.

use std::fmt;

use palisade_proto::agent as wire;

/// The cluster's epoch, then the Raft term, then the log index.
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
    /// Raised by each restore or recovery.
    pub epoch: u64,
    /// The Raft term.
    pub term: u64,
    /// The log index.
    pub index: u64,
}

impl Fence {
    /// Below every fence that was ever granted.
    pub const NONE: Self = Self { epoch: 0, term: 0, index: 0 };

    /// The fence of a message; a missing one counts as [`Fence::NONE`].
    #[must_use]
    pub fn of(wire: Option<&wire::Fence>) -> Self {
        wire.map_or(Self::NONE, |fence| Self {
            epoch: fence.epoch,
            term: fence.term,
            index: fence.index,
        })
    }

    /// As a message.
    #[must_use]
    pub fn to_wire(self) -> wire::Fence {
        wire::Fence { epoch: self.epoch, term: self.term, index: self.index }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch, self.term, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::Fence;

    #[test]
    fn epoch_outranks_term_and_term_outranks_index() {
        let base = Fence { epoch: 1, term: 5, index: 9 };
        assert!(Fence { epoch: 2, term: 1, index: 1 } > base);
        assert!(Fence { epoch: 1, term: 6, index: 1 } > base);
        assert!(Fence { epoch: 1, term: 5, index: 10 } > base);
        assert!(Fence { epoch: 1, term: 5, index: 8 } < base);
    }
}
