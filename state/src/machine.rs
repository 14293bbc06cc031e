//! The machine: applies entries in order, publishes once for each batch.
//!
//! # Invariants
//! - `APPLY-1` Applying is a function of the state, the position and the entry alone: no clock, no
//!   randomness, no hash order, no environment.
//! - `CLOCK-2`, and the same for ticks, reports, formats and trims: the leader's own proposals count
//!   only in the term in which they were made.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::{
    change::{ChangeSet, Changes, Watch, Watchers},
    check,
    clock::Clock,
    command::{Command, Dropped, Entry, FORMAT, Form, Kind, Outcome, Role, Verdict},
    lease,
    planted::{self, Defect},
    recent::Recent,
    replicas,
    state::{Formation, Position, State},
    txn,
    view::View,
};

/// Why an entry could not be applied at all. The replica must stop: to guess would be to diverge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// Written by a newer build.
    #[error(
        "log entry {index} has format {format}, this build reads up to {FORMAT}: run a newer binary"
    )]
    NewerFormat {
        /// Where.
        index: u64,
        /// The entry's format.
        format: u32,
    },
    /// A command kind of a newer build.
    #[error("log entry {index} holds a command that this build does not know: run a newer binary")]
    UnknownCommand {
        /// Where.
        index: u64,
    },
    /// The cluster moved on to a format that this build does not read.
    #[error(
        "log entry {index} raises the cluster's format to {format}, this build reads up to {FORMAT}: run a newer binary"
    )]
    FormatRaised {
        /// Where.
        index: u64,
        /// The cluster's format.
        format: u32,
    },
    /// Not the entry that follows the last one applied.
    #[error("log entry {index} came after entry {applied}")]
    OutOfOrder {
        /// The last entry applied.
        applied: u64,
        /// The one that came.
        index: u64,
    },
}

/// Hands out views of what a machine published, and change sets. Cheap to share.
#[derive(Debug)]
pub struct Published {
    state: ArcSwap<State>,
    watchers: Watchers,
}

impl Published {
    /// The newest published view.
    #[must_use]
    pub fn view(&self) -> View {
        View::new(self.state.load_full())
    }

    /// A stream of change sets from now on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watchers.subscribe()
    }

    /// A stream of change sets with everything after `revision`; it begins with a reset when that is
    /// no longer remembered.
    #[must_use]
    pub fn watch_from(&self, revision: u64) -> Watch {
        self.watchers.subscribe_from(revision)
    }

    /// Ends all streams.
    pub fn close(&self) {
        self.watchers.close();
    }
}

/// Rows that a batch changed, above which dropping what it replaced takes long enough to matter.
const LARGE_ROWS: usize = 1_000;

/// What a publication replaced. Unless somebody still reads it, whoever drops it gives its memory
/// back, row by row: a large one is better dropped where nobody waits.
#[derive(Debug)]
pub struct Retired {
    root: Arc<State>,
    is_large: bool,
}

impl Retired {
    /// Whether dropping it may take long: a snapshot was installed, or the batch was large.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.is_large
    }

    /// Whether dropping it gives nothing back, because somebody still reads it.
    #[must_use]
    pub fn is_read(&self) -> bool {
        Arc::strong_count(&self.root) > 1
    }
}

/// The state machine of one replica.
#[derive(Debug)]
pub struct Machine {
    state: State,
    /// Of the entries applied since the last publication.
    changes: Changes,
    recent: Recent,
    published: Arc<Published>,
    /// The newest format that it applies.
    format_max: u32,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new(State::default())
    }
}

impl Machine {
    /// A machine that goes on from `state`.
    #[must_use]
    pub fn new(state: State) -> Self {
        let published = Published {
            watchers: Watchers::new(state.applied.index),
            state: ArcSwap::from_pointee(state.clone()),
        };
        let (changes, recent) = (Changes::default(), Recent::new(state.applied.index));
        Self { state, changes, recent, published: Arc::new(published), format_max: FORMAT }
    }

    /// A machine that goes on from a view, beside the one that published it, which hears nothing of it.
    #[must_use]
    pub fn beside(view: &View) -> Self {
        Self::new(view.state().clone())
    }

    /// The machine of a build that reads formats up to `format_max`: for rehearsals of an upgrade.
    #[must_use]
    pub fn reading(self, format_max: u32) -> Self {
        Self { format_max, ..self }
    }

    /// Where views and change sets come from.
    #[must_use]
    pub fn published(&self) -> Arc<Published> {
        self.published.clone()
    }

    /// The state, published or not, for whoever gives it a new life.
    #[must_use]
    pub fn into_state(self) -> State {
        self.state
    }

    /// The last entry applied, published or not.
    #[must_use]
    pub fn applied(&self) -> Position {
        self.state.applied
    }

    /// Both times after the last entry applied, published or not.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.state.clock
    }

    /// Logical time after the last entry applied, published or not.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.state.clock.now_ms
    }

    /// Applies one entry and answers an outcome for each of its commands.
    ///
    /// # Errors
    /// The entry is not one that this build may apply; the state is unchanged.
    pub fn apply(&mut self, at: Position, entry: Entry) -> Result<Vec<Outcome>, ApplyError> {
        if entry.format > self.format_max {
            return Err(ApplyError::NewerFormat { index: at.index, format: entry.format });
        }
        if entry.commands.iter().any(|command| command.kind.is_none()) {
            return Err(ApplyError::UnknownCommand { index: at.index });
        }
        let in_its_term = entry.proposer_term == at.term;
        if let [Command { kind: Some(Kind::RaiseFormat(raise)) }] = entry.commands.as_slice()
            && raise.format > self.format_max
            && in_its_term
            && replicas::may_raise(&self.state, raise).is_ok()
        {
            return Err(ApplyError::FormatRaised { index: at.index, format: raise.format });
        }
        self.begin(at)?;
        if in_its_term || planted::is(Defect::DeposedTick) {
            self.state.clock.advance(entry.delta_ms, entry.wall_ms);
        }
        let before = self.marks();
        let alone = entry.commands.len() == 1;
        let outcomes = entry
            .commands
            .into_iter()
            .map(|command| self.command(at, command, alone, in_its_term, entry.proposer_term))
            .collect();
        self.note_changes(at, before);
        Ok(outcomes)
    }

    /// Passes an entry that holds no command of ours (a blank or a membership entry).
    ///
    /// # Errors
    /// The entry is out of order.
    pub fn pass(&mut self, at: Position) -> Result<(), ApplyError> {
        self.begin(at)
    }

    /// Publishes what was applied since the last time and wakes each watcher once. Answers what it
    /// replaced, which may be dropped elsewhere.
    pub fn publish(&mut self) -> Retired {
        let changes = self.changes.take();
        self.publish_as(changes)
    }

    /// Replaces the whole state by a snapshot's and publishes it.
    pub fn install(&mut self, state: State) -> Retired {
        self.recent = Recent::new(state.applied.index);
        self.state = state;
        self.changes = Changes::default();
        self.publish_as(ChangeSet { everything: true, ..ChangeSet::default() })
    }

    fn publish_as(&mut self, mut changes: ChangeSet) -> Retired {
        changes.applied = self.state.applied.index;
        changes.revision = self.state.revision;
        changes.now_ms = self.state.clock.now_ms;
        let is_large = changes.everything || changes.rows.len() > LARGE_ROWS;
        let root = self.published.state.swap(Arc::new(self.state.clone()));
        self.published.watchers.publish(changes);
        Retired { root, is_large }
    }

    fn begin(&mut self, at: Position) -> Result<(), ApplyError> {
        let applied = self.state.applied;
        if at.index <= applied.index || at.term < applied.term {
            return Err(ApplyError::OutOfOrder { applied: applied.index, index: at.index });
        }
        if at.term > applied.term {
            lease::new_term(&mut self.state);
        }
        self.state.applied = at;
        Ok(())
    }

    fn command(
        &mut self,
        at: Position,
        command: Command,
        alone: bool,
        in_its_term: bool,
        proposer_term: u64,
    ) -> Outcome {
        if let Err(malformed) = check::command(&command) {
            return Outcome::new(at.index, malformed.into());
        }
        let verdict = match command.kind {
            Some(Kind::Txn(txn)) => {
                let before = (self.marks(), self.state.idempotency.rows.len());
                let (state, changes) = (&mut self.state, &mut self.changes);
                let (revision, verdict) = txn::apply(state, at, txn, changes, &mut self.recent);
                debug_assert!(
                    matches!(verdict, Verdict::Applied(_))
                        || (self.marks(), self.state.idempotency.rows.len()) == before,
                    "TXN-1: what was refused changed something"
                );
                return Outcome::new(revision, verdict);
            }
            Some(_) if !alone => Verdict::Invalid("only transactions share an entry".to_owned()),
            Some(
                Kind::Tick(_)
                | Kind::Report(_)
                | Kind::RaiseFormat(_)
                | Kind::Trim(_)
                | Kind::ForgetReplica(_),
            ) if !in_its_term && !planted::is(Defect::DeposedTick) => {
                Verdict::Dropped(Dropped { proposer_term, entry_term: at.term })
            }
            Some(Kind::Tick(_)) => {
                self.tick(at);
                Verdict::Applied(vec![])
            }
            Some(Kind::WorkerBeat(beat)) => match Role::try_from(beat.role) {
                Err(_) => Verdict::Invalid(format!("role {} is not known", beat.role)),
                Ok(role) => {
                    match lease::beat(&mut self.state, at, &beat, role, &mut self.changes) {
                        Ok(()) => Verdict::Applied(vec![]),
                        Err(fenced) => Verdict::Fenced(fenced),
                    }
                }
            },
            Some(Kind::LeaseRelease(release)) => match Role::try_from(release.role) {
                Err(_) => Verdict::Invalid(format!("role {} is not known", release.role)),
                Ok(role) => {
                    lease::release(&mut self.state, at, &release, role, &mut self.changes);
                    Verdict::Applied(vec![])
                }
            },
            Some(Kind::Form(form)) => self.form(form),
            Some(Kind::Report(report)) => {
                replicas::report(&mut self.state, at, report, &mut self.changes)
            }
            Some(Kind::RaiseFormat(raise)) => {
                replicas::raise(&mut self.state, &raise, &mut self.changes)
            }
            Some(Kind::Trim(trim)) => {
                self.state.outbox.trim(trim.events_below);
                self.state.audit.trim(trim.audit_below);
                Verdict::Applied(vec![])
            }
            Some(Kind::ForgetReplica(forget)) => {
                replicas::forget(&mut self.state, forget, &mut self.changes)
            }
            None => Verdict::Invalid("empty command".to_owned()),
        };
        Outcome::new(at.index, verdict)
    }

    fn tick(&mut self, at: Position) {
        lease::pass_time(&mut self.state, at, &mut self.changes);
        self.state.idempotency.expire(self.state.clock.now_ms);
        self.state.queue.pass_time(self.state.clock.now_ms);
    }

    fn form(&mut self, form: Form) -> Verdict {
        if self.state.formation.is_some() {
            return Verdict::Invalid("the cluster is formed already".to_owned());
        }
        let Form { cluster, lineage, epoch } = form;
        self.state.formation = Some(Formation { cluster, lineage, epoch }.into());
        Verdict::Applied(vec![])
    }

    /// Moves the revision if the entry changed anything. Whether it did must not depend on how
    /// entries are cut into batches, so each is looked at alone.
    fn note_changes(&mut self, at: Position, before: Marks) {
        if before != self.marks() {
            self.state.revision = at.index;
        }
    }

    fn marks(&self) -> Marks {
        Marks {
            changes: self.changes.count(),
            event: self.state.outbox.last_seq,
            audit: self.state.audit.last_seq,
            formed: self.state.formation.is_some(),
        }
    }
}

/// What tells whether something changed.
#[derive(PartialEq, Eq)]
struct Marks {
    changes: usize,
    event: u64,
    audit: u64,
    formed: bool,
}
