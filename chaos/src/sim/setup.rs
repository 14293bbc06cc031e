//! How a simulated replica is set up.

use std::time::Duration;

use palisade_raft::{LogSizes, Member, MembershipTuning, Tuning, history::HistorySizes};
use palisade_state::ReplicaId;

use crate::random::Random;

/// A member by its address.
pub(crate) fn member(id: u64, peer_addr: &str) -> Member {
    let api_addr = peer_addr.replace(":1", ":2");
    Member { id: ReplicaId(id), peer_addr: peer_addr.to_owned(), api_addr }
}

/// Small files and short times, so that much happens in a minute. With one seed in four what waits for history is more
/// than it may hold, which makes gaps.
pub(crate) fn tuning(seed: u64) -> Tuning {
    let queue_bytes = if Random::part(seed, "history").below(4) == 0 { 8 << 10 } else { 4 << 20 };
    let log = LogSizes {
        segment_bytes: 128 << 10,
        first_segment_bytes: 32 << 10,
        reserve_bytes: 256 << 10,
    };
    Tuning {
        log,
        snapshot_log_bytes: 96 << 10,
        snapshot_check: Duration::from_millis(500),
        keep_entries: 40,
        history: HistorySizes { queue_bytes, ..HistorySizes::default() },
        patience: Duration::from_secs(4),
        membership: MembershipTuning {
            promote_lag: 20,
            promote_after: Duration::from_secs(1),
            learner_timeout: Duration::from_secs(20),
            ..MembershipTuning::default()
        },
        ..Tuning::default()
    }
}
