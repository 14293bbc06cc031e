//! The state machine as openraft sees it: applies a stream, publishes once, then answers.
//!
//! # Invariants
//! - `SM-1` Whoever is answered finds the effect of its command in this replica's view: outcomes leave after the
//!   publish.
//! - `SM-2` An entry that cannot be applied stops the replica; what came before it is published, nothing after it
//!   is applied.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt};
use openraft::{
    AsyncRuntime, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};
use palisade_state::{
    ApplyError, Machine, Outcome, Position, Retired, Rt, State, Verdict, View,
    command::{Command, Kind},
    planted::{self, Defect},
};

use crate::{
    fault::{Fault, chain},
    history::{Applied, Batch, Feeder},
    metrics::Metrics,
    progress::Progress,
    runtime::trace,
    snapshots::{SnapshotData, SnapshotStore},
    types::{
        Entry, EntryPayload, LogId, Outcomes, Snapshot, SnapshotMeta, StoredMembership, TypeConfig,
        term_of,
    },
};

/// What the state machine shares with the rest of the replica.
pub(crate) struct Shared {
    pub(crate) rt: Rt,
    pub(crate) fault: Arc<Fault>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) snapshots: Arc<SnapshotStore>,
    /// Monotonic microseconds at which the last batch was applied.
    pub(crate) applied_at: AtomicU64,
    /// The release that runs here.
    pub(crate) version: String,
}

impl Shared {
    /// When the last batch was applied, on this process's monotonic clock.
    pub(crate) fn last_applied_at(&self) -> Duration {
        Duration::from_micros(self.applied_at.load(Ordering::Relaxed))
    }
}

/// How long to wait before a name is tried again for which the disk had no room.
const FULL_DISK_PAUSE: Duration = Duration::from_millis(200);

impl Shared {
    /// Installs a snapshot. It came whole, so a full disk is waited for: nothing else may be applied before it.
    async fn install(&self, meta: &SnapshotMeta, mut data: SnapshotData) -> io::Result<State> {
        let mut waits = false;
        loop {
            let error = match self.snapshots.install(meta, &mut data).await {
                Ok(state) => return Ok(state),
                Err(error) => error,
            };
            if !error.is_unnamed() {
                let reason = chain(&error);
                self.fault.raise(format!("installing a snapshot: {reason}"));
                return Err(io::Error::other(reason));
            }
            if !waits {
                waits = true;
                tracing::warn!(
                    error = chain(&error),
                    "a received snapshot waits for room: free some space"
                );
                self.metrics.snapshots_put_off.inc();
            }
            self.rt.sleep(FULL_DISK_PAUSE).await;
        }
    }
}

/// The state machine.
pub(crate) struct StateMachine {
    machine: Machine,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    shared: Arc<Shared>,
    feeder: Feeder,
    /// What history is told of the batch that is being applied.
    told: Vec<Applied>,
}

fn was_applied(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Some(Verdict::Applied(_)))
}

fn writes_of(commands: &[Command]) -> usize {
    let of = |command: &Command| match &command.kind {
        Some(Kind::Txn(txn)) => txn.writes.len(),
        _ => 0,
    };
    commands.iter().map(of).sum()
}

impl StateMachine {
    /// A machine that goes on from `start`, or from nothing.
    pub(crate) fn new(
        machine: Machine,
        start: Option<(LogId, StoredMembership)>,
        shared: Arc<Shared>,
        feeder: Feeder,
    ) -> Self {
        let (last_applied, membership) = match start {
            Some((last, membership)) => (Some(last), membership),
            None => (None, StoredMembership::default()),
        };
        shared.progress.reached(last_applied.map_or(0, |last| last.index));
        let this = Self { machine, last_applied, membership, shared, feeder, told: Vec::new() };
        this.tell_of_what_was_not_applied();
        this
    }

    /// History was not there for anything up to now.
    fn tell_of_what_was_not_applied(&self) {
        let Some(last) = self.last_applied.map(|last| last.index) else { return };
        let before = self.machine.published().view();
        self.feeder.push(Batch { before, first: last + 1, last, entries: vec![] });
    }

    fn apply_one(&mut self, entry: Entry) -> io::Result<Outcomes> {
        let at = Position { term: term_of(&entry.log_id), index: entry.log_id.index };
        let outcomes = match entry.payload {
            EntryPayload::Normal(payload) => {
                let decoded = payload.take().map_err(io::Error::other)?;
                let first = decoded.commands.first().and_then(|command| command.kind.as_ref());
                let is_left_out =
                    planted::is(Defect::HistoryLeftOut) && at.index.is_multiple_of(13);
                let is_told = self.feeder.wants_entries()
                    && matches!(first, Some(Kind::Txn(_)))
                    && !is_left_out;
                let writes = if is_told { writes_of(&decoded.commands) } else { 0 };
                let outcomes = self.machine.apply(at, decoded).map_err(io::Error::other)?;
                if is_told && outcomes.iter().any(was_applied) {
                    let applied = outcomes.iter().map(was_applied).collect();
                    let (index, clock) = (at.index, self.machine.clock());
                    self.told.push(Applied { index, clock, payload, applied, writes });
                }
                Outcomes(outcomes)
            }
            EntryPayload::Blank => {
                self.pass(at)?;
                Outcomes::default()
            }
            EntryPayload::Membership(membership) => {
                self.pass(at)?;
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                Outcomes::default()
            }
        };
        self.last_applied = Some(entry.log_id);
        self.shared.rt.trace(&[trace::APPLIED, at.index, at.term, self.machine.now_ms()]);
        Ok(outcomes)
    }

    fn pass(&mut self, at: Position) -> io::Result<()> {
        // The first entry of a log has index 0 and forms it; the kernel counts from 1.
        if at.index == 0 { Ok(()) } else { self.machine.pass(at).map_err(io::Error::other) }
    }

    fn publish(&mut self) {
        let retired = self.machine.publish();
        self.retire(retired);
        let now = u64::try_from(self.shared.rt.now().as_micros()).unwrap_or(u64::MAX);
        self.shared.applied_at.store(now, Ordering::Relaxed);
        self.shared.progress.reached(self.last_applied.map_or(0, |last| last.index));
    }

    /// Gives the memory of what was replaced back; a lot of it on another thread.
    fn retire(&self, retired: Retired) {
        if retired.is_large() {
            let disk = self.shared.snapshots.disk.clone();
            let dropped = async move {
                let _ = disk.run("retire", move || drop(retired)).await;
            };
            self.shared.rt.spawn("retire", Box::pin(dropped));
        }
    }

    /// Which releases run where, when one of them is too old.
    fn releases(&self, error: &io::Error) -> String {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<ApplyError>());
        let format = match cause {
            Some(
                ApplyError::NewerFormat { format, .. } | ApplyError::FormatRaised { format, .. },
            ) => *format,
            _ => return String::new(),
        };
        let view = self.machine.published().view();
        let newer = view.replicas().find(|(_, row)| row.format_max >= format);
        let newer = newer
            .map(|(id, row)| format!(", and replica {id} reported that it runs {}", row.version));
        format!(" (this replica runs {}{})", self.shared.version, newer.unwrap_or_default())
    }

    fn builder(&self) -> Builder {
        Builder {
            view: Some(self.machine.published().view()),
            meta: SnapshotMeta {
                last_log_id: self.last_applied,
                last_membership: self.membership.clone(),
            },
            shared: self.shared.clone(),
        }
    }
}

impl<R: AsyncRuntime> RaftStateMachine<TypeConfig<R>> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig<R>>>> + Unpin + OptionalSend,
    {
        let mut answers = Vec::new();
        let mut applied = 0;
        let before = self.machine.published().view();
        let first = self.last_applied.map_or(0, |last| last.index + 1);
        let ended = loop {
            let (entry, responder) = match entries.next().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(error),
                Some(Ok(next)) => next,
            };
            match self.apply_one(entry) {
                Ok(outcomes) => answers.extend(responder.map(|responder| (responder, outcomes))),
                Err(error) => break Err(error),
            }
            applied += 1;
        };
        self.publish();
        self.shared.metrics.applied.inc_by(applied);
        for (responder, outcomes) in answers {
            responder.send(outcomes);
        }
        let last = self.last_applied.map_or(0, |last| last.index);
        let entries = std::mem::take(&mut self.told);
        self.feeder.push(Batch { before, first, last, entries });
        if let Err(error) = &ended {
            self.shared.fault.raise(format!("apply: {}{}", chain(error), self.releases(error)));
        }
        ended
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.builder()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: SnapshotData,
    ) -> io::Result<()> {
        let state = self.shared.install(meta, data).await?;
        let retired = self.machine.install(state);
        self.retire(retired);
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.publish();
        self.tell_of_what_was_not_applied();
        self.shared.metrics.snapshots_installed.inc();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.shared.snapshots.current())
    }
}

/// What openraft gets when there is none: it has a newer one, or none, and goes on with that. An error would stop the
/// replica.
fn snapshot_of_nothing() -> Snapshot {
    Snapshot { meta: SnapshotMeta::default(), snapshot: SnapshotData::PutOff }
}

/// Writes one snapshot from a view, while apply goes on.
pub(crate) struct Builder {
    /// Given away when it is written: dropping it where the consensus core runs would hold that up.
    view: Option<View>,
    meta: SnapshotMeta,
    shared: Arc<Shared>,
}

impl<R: AsyncRuntime> RaftSnapshotBuilder<TypeConfig<R>> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let Some(view) = self.view.take().filter(|_| self.meta.last_log_id.is_some()) else {
            return Ok(snapshot_of_nothing());
        };
        let written = self.shared.snapshots.write(view, self.meta.clone()).await;
        match written {
            Ok(SnapshotData::PutOff) => Ok(snapshot_of_nothing()),
            Ok(data) => {
                self.shared.metrics.snapshots_taken.inc();
                Ok(Snapshot { meta: self.meta.clone(), snapshot: data })
            }
            Err(error) if error.is_full() => {
                tracing::warn!(error = chain(&error), "a snapshot was put off");
                self.shared.metrics.snapshots_put_off.inc();
                Ok(snapshot_of_nothing())
            }
            Err(error) => {
                let reason = chain(&error);
                self.shared.fault.raise(format!("writing a snapshot: {reason}"));
                Err(io::Error::other(reason))
            }
        }
    }
}
