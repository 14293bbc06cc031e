//! Who may call this replica: members, those who may become one, and nobody who was.
//!
//! # Invariants
//! - `MEMBER-4` A replica that this one's state knows as removed, or whose id state should know and does not, is not
//!   heard. One whose id may be newer than what this replica has applied is: a voter that is behind must still follow
//!   a leader that joined meanwhile.

use std::sync::Arc;

use palisade_state::{
    Published, ReplicaId,
    roster::{self, Known, Standing},
};

use crate::{
    Identity,
    leadership::Leadership,
    peer::{Door, PeerError},
};

/// Looks callers up in this replica's own state.
pub(crate) struct Doorkeeper {
    pub(crate) identity: Arc<Identity>,
    pub(crate) published: Arc<Published>,
    pub(crate) leadership: Arc<Leadership>,
}

impl Door for Doorkeeper {
    fn admit(&self, caller: u64) -> Result<(), PeerError> {
        let view = self.published.view();
        let known = roster::known(&view, ReplicaId(caller)).unwrap_or(Known::Nothing);
        if let Known::Replica(row) = &known
            && row.standing == Standing::Removed
        {
            return Err(PeerError::Removed(row.why.clone()));
        }
        let seen = self.leadership.seen();
        let membership = seen.membership.membership();
        let is_unformed = membership.nodes().next().is_none();
        let is_member = membership.get_node(&caller).is_some();
        if is_member || is_unformed || known != Known::Nothing || caller > view.applied().index {
            return Ok(());
        }
        let Identity { cluster, replica, .. } = self.identity.as_ref();
        Err(PeerError::Refused(format!(
            "replica {replica} of cluster {cluster} knows no replica {caller}: it is no member and was not enrolled \
             with `palisade cluster join`"
        )))
    }
}
