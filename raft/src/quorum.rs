//! A leader that no majority has answered for a lease's length: it may not append.
//!
//! Slow disks do that to it, and pass. So what is proposed waits for two more lengths before it is refused.

use std::time::Duration;

use openraft::{AsyncRuntime, async_runtime::Instant as _};

use crate::{leadership::Leadership, refusal::Refusal, types::Raft};

/// Lease lengths without a majority's answer after which a leader refuses what it is asked.
const LEASES_MAX: u32 = 3;

/// For how long no majority has answered this leader, if it may not append because of that.
pub(crate) fn silence<R: AsyncRuntime>(
    raft: &Raft<R>,
    leadership: &Leadership,
    lease: Duration,
) -> Option<Duration> {
    let silence = raft.as_leader().ok()?.last_quorum_acked()?.elapsed();
    // A member that is alone is a majority.
    let needs_others = || leadership.seen().membership.membership().voter_ids().count() > 1;
    (silence >= lease && needs_others()).then_some(silence)
}

/// What is said when it has been too long.
pub(crate) fn refusal(silence: Duration, lease: Duration) -> Option<Refusal> {
    let silent_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
    (silence >= lease * LEASES_MAX).then_some(Refusal::NoQuorum(silent_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_waited_for() {
        let (lease, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(refusal(ms(2999), lease), None);
        assert_eq!(refusal(ms(3000), lease), Some(Refusal::NoQuorum(3000)));
    }
}
