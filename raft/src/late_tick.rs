//! A defect on purpose: a deposed leader keeps a tick and appends it when it leads again, with the time since it
//! stamped last. Without it nothing could show that such a tick is dropped: `PROP-1` lets none get so far.

use std::time::Duration;

use openraft::AsyncRuntime;
use palisade_state::{
    Rt,
    command::{Entry, Kind, Tick},
    planted::{self, Defect},
};

use crate::types::{Payload, Raft};

const LOOK: Duration = Duration::from_millis(50);

/// Does so, if that is the defect that was chosen. Otherwise a build that can have defects does what every other does.
pub(crate) fn begin<R: AsyncRuntime>(rt: &Rt, raft: &Raft<R>) {
    if planted::is(Defect::DeposedTick) {
        rt.spawn("late tick", Box::pin(run(rt.clone(), raft.clone())));
    }
}

async fn run<R: AsyncRuntime>(rt: Rt, raft: Raft<R>) {
    let mut stamped: Option<(u64, Duration)> = None;
    loop {
        rt.sleep(LOOK).await;
        let Ok(term) = raft.as_leader().map(|leader| leader.term()) else { continue };
        let now = rt.now();
        if let Some((proposer_term, last)) = stamped.filter(|(before, _)| *before != term) {
            let delta_ms = u64::try_from(now.saturating_sub(last).as_millis()).unwrap_or(0);
            let commands = vec![Kind::Tick(Tick {}).into()];
            let (format, wall_ms) = (0, rt.wall_ms());
            let entry = Entry { format, proposer_term, delta_ms, wall_ms, commands };
            let _ = raft.write(Payload::new(entry)).await;
        }
        stamped = Some((term, now));
    }
}
