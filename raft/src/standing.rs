//! What is under way among the members: who may join and has not come, and a change that is not over.

use openraft::AsyncRuntime;
use palisade_state::{
    ReplicaId, View,
    port::{PendingChange, PendingJoin},
    roster,
};

use crate::types::TypeConfig;

/// Who may join and has not come yet. Rows that cannot be read are left out: they are found elsewhere.
pub(crate) fn pending<R: AsyncRuntime>(
    view: &View,
    shown: &openraft::RaftMetrics<TypeConfig<R>>,
) -> Vec<PendingJoin> {
    let membership = shown.membership_config.membership();
    let now_ms = view.clock().now_ms;
    let all = roster::pending(view).unwrap_or_default().into_iter();
    // One that has just come is a member, and has no row yet.
    let absent = all.filter(|(id, _)| membership.get_node(&id.0).is_none());
    let join = |(id, row): (ReplicaId, roster::Enrolment)| PendingJoin {
        id,
        peer_addr: row.peer_addr,
        api_addr: row.api_addr,
        replaces: row.replaces.map(ReplicaId),
        for_ms: now_ms.saturating_sub(row.at_ms),
    };
    absent.map(join).collect()
}

/// A change of the members that was begun and is not over.
pub(crate) fn change<R: AsyncRuntime>(
    shown: &openraft::RaftMetrics<TypeConfig<R>>,
) -> Option<PendingChange> {
    let membership = &shown.membership_config;
    let at = membership.log_id().as_ref().map(|id| id.index);
    let is_committed = at <= shown.local_committed.as_ref().map(|id| id.index);
    let sets = membership.membership().get_joint_config();
    let ids = |set: &std::collections::BTreeSet<u64>| set.iter().copied().map(ReplicaId).collect();
    match sets.as_slice() {
        [from, .., to] => Some(PendingChange { from: ids(from), to: ids(to) }),
        [to] if !is_committed => Some(PendingChange { from: vec![], to: ids(to) }),
        _ => None,
    }
}
