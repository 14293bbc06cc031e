//! Whom leadership is handed to, and taking it back when nobody takes it.

use std::time::Duration;

use openraft::{AsyncRuntime, ServerState, async_runtime::WatchReceiver, raft::VoteRequest};
use palisade_state::{ReplicaId, View, roster};

use crate::{
    membership::health::Members,
    types::{Raft, log_id, make_vote},
};

/// The term in which this replica leads, and its members; `None` when it does not lead.
pub(crate) fn leading<R: AsyncRuntime>(raft: &Raft<R>) -> Option<(u64, Members)> {
    let shown = raft.metrics().borrow_watched().clone();
    (shown.state == ServerState::Leader).then(|| (shown.current_term, Members::of::<R>(&shown)))
}

/// Who is to lead after this replica, which leads: the voter that is least behind of those that answered within
/// `answered` and are not drained; else one that is drained, or has not answered for longer.
pub(crate) fn successor<R: AsyncRuntime>(
    raft: &Raft<R>,
    view: &View,
    answered: Duration,
) -> Option<u64> {
    let (_, members) = leading(raft)?;
    let drained = |id: u64| roster::is_drained(view, ReplicaId(id));
    members
        .successor(answered, |id| !drained(id))
        .or_else(|| members.successor(answered, |_| true))
        .or_else(|| members.successor(Duration::MAX, |_| true))
}

/// Ends a transfer to `to` that came to nothing. openraft does not: it goes on to send no heartbeats and to take neither
/// reads nor writes until somebody else wins, and perhaps nobody can. So this replica steps down, by granting `to` its
/// vote as if that had asked for it, and stands for election itself.
pub(crate) async fn take_back<R: AsyncRuntime>(raft: &Raft<R>, to: u64) {
    let Some((term, members)) = leading(raft).filter(|(_, members)| members.me != to) else {
        return;
    };
    tracing::warn!(successor = to, term, "leadership was not taken: standing for election again");
    let request = VoteRequest {
        vote: make_vote(term + 1, to, false),
        // It is only compared, with the end of this replica's own log.
        last_log_id: Some(log_id(term, u64::MAX)),
        leadership_transfer: true,
    };
    let stepped_down = raft.vote(request).await;
    if stepped_down.is_err() || raft.trigger().elect(true).await.is_err() {
        tracing::warn!(replica = members.me, "consensus has stopped");
    }
}
