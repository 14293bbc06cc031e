//! What replicas report through the log, and what the leader makes of it: windows that shrink, a format that rises.
//!
//! # Invariants
//! - `REPORT-1` Nothing is proposed while nothing has changed: an idle cluster reports nothing.
//! - `REPORT-2` What leaves memory is durable in the history of a majority of the voters. A replica that has lost what
//!   it had reported says so at once.
//! - `REPORT-3` An audit record that a replica reports as durable is behind an entry that is durable in its own log, too:
//!   others take the report for what its log had (`LOST-3`). A leader whose disk is slow has applied more than that, by
//!   the word of the others, and its history may be durable first.

use std::{sync::Arc, time::Duration};

use openraft::AsyncRuntime;
use palisade_state::{
    Published, ReplicaRow, Rt, View,
    command::{Kind, RaiseFormat, ReplicaReport, Trim},
    limits::{AUDIT_MAX, EVENTS_MAX},
    port::timeout,
};

use crate::{
    formats::Build,
    forward::Forwarder,
    history::{Durable, History},
    leadership::Leadership,
    log_store::LogStore,
    proposer::Proposer,
    types::Raft,
};

/// How often it is looked whether there is something to say.
const LOOK: Duration = Duration::from_millis(500);
/// Trims in one look; each takes a bounded step.
const TRIMS_MAX: usize = 64;

/// One replica's reports, and its duties as leader.
pub(crate) struct Reporter<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) rt: Rt,
    pub(crate) me: u64,
    pub(crate) published: Arc<Published>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) proposer: Proposer,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) history: History,
    pub(crate) log: LogStore,
    pub(crate) build: Build,
    /// The shortest time between two reports of what is durable.
    pub(crate) every: Duration,
    pub(crate) patience: Duration,
}

/// What a majority of the voters has at least, from what each has.
fn majority(mut durable: Vec<u64>) -> u64 {
    durable.sort_unstable_by(|a, b| b.cmp(a));
    durable.get(durable.len() / 2).copied().unwrap_or(0)
}

fn excess(first: Option<u64>, last: u64, window: usize) -> u64 {
    let kept = first.map_or(0, |first| (last + 1).saturating_sub(first));
    kept.saturating_sub(u64::try_from(window).unwrap_or(u64::MAX))
}

/// What may leave memory, if something should.
fn trim(view: &View, voters: &[u64]) -> Option<Trim> {
    let of = |durable: fn(&ReplicaRow) -> u64| {
        majority(voters.iter().map(|id| view.replica(*id).map_or(0, durable)).collect())
    };
    let (events, audit) = (of(|row| row.events_durable), of(|row| row.audit_durable));
    let over = |first: Option<u64>, last, window, durable| {
        excess(first, last, window) > 0 && first.is_some_and(|first| first <= durable)
    };
    let wanted = over(view.first_event(), view.last_event(), EVENTS_MAX, events)
        || over(view.first_audit(), view.last_audit(), AUDIT_MAX, audit);
    wanted.then_some(Trim { events_below: events + 1, audit_below: audit + 1 })
}

/// The format that all members read, if it is above the active one.
fn raise(view: &View, members: &[u64], format_max: u32) -> Option<RaiseFormat> {
    let reads = members.iter().map(|id| view.replica(*id).map_or(0, |row| row.format_max));
    let format = reads.min()?.min(format_max);
    (format > view.format()).then(|| RaiseFormat { format, members: members.to_vec() })
}

/// `REPORT-3`: the last of the audit records, given by number and log entry, that is durable both in history, up to
/// `durable`, and in the log, up to `log`; `said` was before.
fn covered(
    records: impl DoubleEndedIterator<Item = (u64, u64)>,
    durable: u64,
    said: u64,
    log: u64,
) -> u64 {
    let (mut is_kept, mut has_later) = (false, false);
    for (seq, entry) in records.rev() {
        if seq > durable {
            has_later = true;
        } else if entry <= log {
            return seq.max(said);
        } else {
            is_kept = true;
        }
    }
    // What has left memory is older than all that is there. Right after a start history may be ahead of all of it.
    if has_later && !is_kept { durable } else { said }
}

/// What `me` has to say, if it is not what is `known` of it. What was lost is said however early it is.
fn news(
    me: u64,
    known: Option<&ReplicaRow>,
    durable: Option<Durable>,
    build: &Build,
    is_early: bool,
) -> Option<ReplicaReport> {
    let Build { format_max, version, .. } = build.clone();
    let same_build =
        known.is_some_and(|row| row.format_max == format_max && row.version == version);
    let said = known.map_or_else(Durable::default, |row| Durable {
        audit: row.audit_durable,
        events: row.events_durable,
    });
    // A history that is not open yet has said nothing; what it had said stays.
    let durable = durable.unwrap_or(said);
    let is_lost = durable.audit < said.audit || durable.events < said.events;
    (!same_build || is_lost || (durable != said && !is_early)).then_some(ReplicaReport {
        replica: me,
        format_max,
        version,
        events_durable: durable.events,
        audit_durable: durable.audit,
    })
}

impl<R: AsyncRuntime> Reporter<R> {
    pub(crate) async fn run(self) {
        let mut reported: Option<Duration> = None;
        loop {
            self.rt.sleep(LOOK.min(self.every)).await;
            let seen = self.leadership.seen();
            let membership = seen.membership.membership();
            let view = self.published.view();
            if view.formation().is_none() || membership.get_node(&self.me).is_none() {
                continue;
            }
            let now = self.rt.now();
            let is_early = reported.is_some_and(|at| now < at + self.every);
            if let Some(report) = self.report(&view, is_early)
                && self.propose(Kind::Report(report)).await
            {
                reported = Some(now);
            }
            if self.raft.is_leader() {
                let voters: Vec<u64> = membership.voter_ids().collect();
                let members: Vec<u64> = membership.nodes().map(|(id, _)| *id).collect();
                self.lead(&voters, &members).await;
            }
        }
    }

    fn report(&self, view: &View, is_early: bool) -> Option<ReplicaReport> {
        let known = view.replica(self.me);
        let said = known.map_or(0, |row| row.audit_durable);
        let log = self.log.durable();
        let durable = self.history.durable().map(|Durable { audit, events }| {
            let records = view.audit(0).map(|record| (record.seq, record.revision));
            Durable { audit: covered(records, audit, said.min(audit), log), events }
        });
        news(self.me, known, durable, &self.build, is_early)
    }

    async fn lead(&self, voters: &[u64], members: &[u64]) {
        let view = self.published.view();
        if let Some(raise) = raise(&view, members, self.build.format_max) {
            let format = raise.format;
            if self.propose(Kind::RaiseFormat(raise)).await {
                tracing::info!(format, "every member reads a newer format: it is active now");
            }
        }
        for _ in 0..TRIMS_MAX {
            let Some(trim) = trim(&self.published.view(), voters) else { return };
            if !self.propose(Kind::Trim(trim)).await {
                return;
            }
        }
    }

    /// Proposes, here or through the leader; true when it was applied.
    async fn propose(&self, kind: Kind) -> bool {
        let seen = self.leadership.seen();
        let proposing = async {
            match seen.leader {
                Some(leader) if leader == self.me => self.proposer.propose(kind.into()).await.ok(),
                Some(leader) => {
                    let node = seen.node(leader)?;
                    self.forwarder.forward(leader, node, kind.into()).await.ok()
                }
                None => None,
            }
        };
        let outcome = timeout(self.rt.as_ref(), self.patience, proposing).await.flatten();
        if let Some(refused) = outcome.as_ref().filter(|outcome| !outcome.is_applied()) {
            tracing::debug!(verdict = ?refused.verdict, "a report or a duty of the leader was not applied");
        }
        outcome.is_some_and(|outcome| outcome.is_applied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_has_what_the_middle_one_has() {
        assert_eq!(majority(vec![5, 9, 7]), 7);
        assert_eq!(majority(vec![0, 9, 7]), 7);
        assert_eq!(majority(vec![0, 0, 7]), 0);
        assert_eq!(majority(vec![4, 8]), 4, "of two it takes both");
        assert_eq!(majority(vec![1, 2, 3, 4, 5]), 3);
        assert_eq!(majority(vec![]), 0);
    }

    #[test]
    fn what_a_history_has_lost_is_reported_at_once() {
        let build = Build { format_max: 1, version: "1".to_owned(), ..Build::default() };
        let row = |audit_durable, events_durable| ReplicaRow {
            format_max: 1,
            version: "1".to_owned(),
            events_durable,
            audit_durable,
            reported_rev: 5,
            reported_ms: 5,
        };
        let said = |known: &ReplicaRow, durable: Option<Durable>, is_early| {
            news(7, Some(known), durable, &build, is_early)
                .map(|report| (report.audit_durable, report.events_durable))
        };
        let has = |audit, events| Some(Durable { audit, events });
        let known = row(100, 200);
        assert_eq!(said(&known, None, false), None, "not open yet: what it had said stays");
        assert_eq!(said(&known, has(100, 200), false), None, "REPORT-1");
        assert_eq!(said(&known, has(101, 200), true), None, "more can wait");
        assert_eq!(said(&known, has(101, 200), false), Some((101, 200)));
        assert_eq!(said(&known, has(0, 0), true), Some((0, 0)), "REPORT-2: it was set aside");
        assert_eq!(said(&known, has(120, 199), true), Some((120, 199)));
        let fresh = news(7, None, None, &build, true).unwrap();
        assert_eq!((fresh.replica, fresh.audit_durable), (7, 0));
    }

    #[test]
    fn a_history_ahead_of_its_own_log_is_reported_as_far_as_the_log_is_durable() {
        let records = || [(7, 20), (8, 24), (9, 24), (10, 30)].into_iter();
        assert_eq!(covered(records(), 9, 5, 30), 9, "all of it is in the log");
        assert_eq!(covered(records(), 10, 5, 29), 9, "REPORT-3: the leader's disk is slow");
        assert_eq!(covered(records(), 10, 5, 23), 7);
        assert_eq!(covered(records(), 10, 5, 3), 5, "what was said stays");
        assert_eq!(covered(records(), 4, 3, 3), 4, "it has left memory, so it is old");
        assert_eq!(
            covered(records(), 12, 5, 100),
            10,
            "history is ahead of what is applied here again"
        );
        assert_eq!(covered([].into_iter(), 4, 2, 0), 2);
    }

    #[test]
    fn only_what_is_over_the_window_is_in_excess() {
        assert_eq!(excess(Some(1), 100, 100), 0);
        assert_eq!(excess(Some(1), 101, 100), 1);
        assert_eq!(excess(None, 0, 100), 0);
    }
}
