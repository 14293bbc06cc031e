//! What is watched while a run goes on: leaders, instances, and processes that end by themselves.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    books::{self, BookSeen},
    clock::{self, Clock},
    history::{Exit, InstanceSeen, LeaderSeen, ProcessSeen},
    http::BASE,
    proc,
    rig::{self, Rig},
};

const LEADERS_EVERY_MS: u64 = 100;
const PROCESSES_EVERY_MS: u64 = 50;
const HELD_EVERY_MS: u64 = 500;
const HELD_LIMIT: Duration = Duration::from_secs(5);
const STATUS_LIMIT: Duration = Duration::from_millis(400);
/// A process that ends again and again is started again this often.
const RESTARTS_MAX: usize = 10;

/// Says when to stop.
pub(crate) type Stop = Arc<AtomicBool>;

/// Whom one replica takes for the leader, whenever that changes.
pub(crate) async fn leaders(
    rig: Arc<Rig>,
    index: usize,
    clock: Clock,
    stop: Stop,
) -> Vec<LeaderSeen> {
    let mut seen: Vec<LeaderSeen> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if rig.is_in(index)
            && let Some(status) = rig.status(index, STATUS_LIMIT).await
            && let Some(leader) = status.leader
        {
            let (at, replica, term) = (clock.micros(), status.replica, status.term);
            if seen.last().is_none_or(|last| (last.term, last.leader) != (term, leader)) {
                seen.push(LeaderSeen { at, replica, term, leader });
            }
        }
        clock::sleep_ms(LEADERS_EVERY_MS).await;
    }
    seen
}

/// Whether the processes of `instances` are there: at the begin, whenever that changes, at the end.
pub(crate) async fn instances(
    instances: BTreeMap<String, ProcessSeen>,
    clock: Clock,
    stop: Stop,
) -> Vec<InstanceSeen> {
    let mut seen = Vec::new();
    let mut last: BTreeMap<&str, Option<ProcessSeen>> = BTreeMap::new();
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        for (name, process) in &instances {
            let now = proc::runs(*process).then_some(*process);
            if stopping || last.insert(name, now) != Some(now) {
                seen.push(InstanceSeen {
                    at: clock.micros(),
                    instance: name.clone(),
                    source: "process table".into(),
                    process: now,
                });
            }
        }
        if stopping {
            return seen;
        }
        clock::sleep_ms(PROCESSES_EVERY_MS).await;
    }
}

/// What nodes hold, whenever that changes.
pub(crate) async fn held(rig: Arc<Rig>, stop: Stop) -> Vec<BookSeen> {
    let mut seen: Vec<BookSeen> = Vec::new();
    let mut last: Vec<BookSeen> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok(nodes) = rig.http.list(&format!("{BASE}/nodes"), HELD_LIMIT).await {
            let now: Vec<BookSeen> = nodes.iter().flat_map(books::held).collect();
            if now != last {
                seen.extend(now.iter().cloned());
                last = now;
            }
        }
        clock::sleep_ms(HELD_EVERY_MS).await;
    }
    seen
}

/// Replicas and agents that end by themselves. They are started again, so that the run goes on.
pub(crate) async fn exits(rig: Arc<Rig>, clock: Clock, stop: Stop) -> Vec<Exit> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        for member in rig.replicas.iter().chain(&rig.agents) {
            if member.is_tended() {
                continue;
            }
            let Some(status) = member.ended() else { continue };
            let (process, log) = (member.name.clone(), member.log_tail());
            if rig::is_ending() {
                return seen;
            }
            seen.push(Exit { at: clock.micros(), process, status: status.to_string(), log });
            if seen.len() <= RESTARTS_MAX
                && let Err(error) = member.start()
            {
                tracing::warn!(member = %member.name, %error, "cannot be started again");
            }
        }
        clock::sleep_ms(PROCESSES_EVERY_MS).await;
    }
    seen
}
