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
    change::{ChangeSet, Watch, Watchers},
    command::{Command, Dropped, Entry, FORMAT, Form, Kind, Outcome, Role, Verdict},
    lease, replicas,
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

/// The state machine of one replica.
#[derive(Debug)]
pub struct Machine {
    state: State,
    /// Of the entry that is being applied.
    entry: ChangeSet,
    /// Of the entries applied since the last publication.
    changes: ChangeSet,
    published: Arc<Published>,
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
        Self {
            state,
            entry: ChangeSet::default(),
            changes: ChangeSet::default(),
            published: Arc::new(published),
        }
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

    /// Applies one entry and answers an outcome for each of its commands.
    ///
    /// # Errors
    /// The entry is not one that this build may apply; the state is unchanged.
    pub fn apply(&mut self, at: Position, entry: Entry) -> Result<Vec<Outcome>, ApplyError> {
        if entry.format > FORMAT {
            return Err(ApplyError::NewerFormat { index: at.index, format: entry.format });
        }
        if entry.commands.iter().any(|command| command.kind.is_none()) {
            return Err(ApplyError::UnknownCommand { index: at.index });
        }
        let in_its_term = entry.proposer_term == at.term;
        if let [Command { kind: Some(Kind::RaiseFormat(raise)) }] = entry.commands.as_slice()
            && raise.format > FORMAT
            && in_its_term
            && replicas::may_raise(&self.state, raise).is_ok()
        {
            return Err(ApplyError::FormatRaised { index: at.index, format: raise.format });
        }
        self.begin(at)?;
        if in_its_term {
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

    /// Publishes what was applied since the last time and wakes each watcher once.
    pub fn publish(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        changes.applied = self.state.applied.index;
        changes.revision = self.state.revision;
        changes.now_ms = self.state.clock.now_ms;
        self.published.state.store(Arc::new(self.state.clone()));
        self.published.watchers.publish(changes);
    }

    /// Replaces the whole state by a snapshot's and publishes it.
    pub fn install(&mut self, state: State) {
        self.state = state;
        self.changes = ChangeSet { everything: true, ..ChangeSet::default() };
        self.publish();
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
        let verdict = match command.kind {
            Some(Kind::Txn(txn)) => {
                let (revision, verdict) = txn::apply(&mut self.state, at, txn, &mut self.entry);
                return Outcome::new(revision, verdict);
            }
            Some(_) if !alone => Verdict::Invalid("only transactions share an entry".to_owned()),
            Some(
                Kind::Tick(_)
                | Kind::Report(_)
                | Kind::RaiseFormat(_)
                | Kind::Trim(_)
                | Kind::ForgetReplica(_),
            ) if !in_its_term => Verdict::Dropped(Dropped { proposer_term, entry_term: at.term }),
            Some(Kind::Tick(_)) => {
                self.tick(at);
                Verdict::Applied(vec![])
            }
            Some(Kind::WorkerBeat(beat)) => match Role::try_from(beat.role) {
                Err(_) => Verdict::Invalid(format!("role {} is not known", beat.role)),
                Ok(role) => {
                    lease::pass_time(&mut self.state, at, &mut self.entry);
                    match lease::beat(&mut self.state, at, &beat, role, &mut self.entry) {
                        Ok(()) => Verdict::Applied(vec![]),
                        Err(fenced) => Verdict::Fenced(fenced),
                    }
                }
            },
            Some(Kind::LeaseRelease(release)) => match Role::try_from(release.role) {
                Err(_) => Verdict::Invalid(format!("role {} is not known", release.role)),
                Ok(role) => {
                    lease::release(&mut self.state, at, &release, role, &mut self.entry);
                    Verdict::Applied(vec![])
                }
            },
            Some(Kind::Form(form)) => self.form(form),
            Some(Kind::Report(report)) => {
                replicas::report(&mut self.state, at, report, &mut self.entry)
            }
            Some(Kind::RaiseFormat(raise)) => {
                replicas::raise(&mut self.state, &raise, &mut self.entry)
            }
            Some(Kind::Trim(trim)) => {
                self.state.outbox.trim(trim.events_below);
                self.state.audit.trim(trim.audit_below);
                Verdict::Applied(vec![])
            }
            Some(Kind::ForgetReplica(forget)) => {
                replicas::forget(&mut self.state, forget, &mut self.entry)
            }
            None => Verdict::Invalid("empty command".to_owned()),
        };
        Outcome::new(at.index, verdict)
    }

    fn tick(&mut self, at: Position) {
        lease::pass_time(&mut self.state, at, &mut self.entry);
        self.state.idempotency.expire(self.state.clock.now_ms);
    }

    fn form(&mut self, form: Form) -> Verdict {
        if self.state.formation.is_some() {
            return Verdict::Invalid("the cluster is formed already".to_owned());
        }
        let Form { cluster, lineage, epoch } = form;
        self.state.formation = Some(Formation { cluster, lineage, epoch });
        Verdict::Applied(vec![])
    }

    /// Takes one entry's changes into the batch's. Whether an entry moved the revision must not
    /// depend on how entries are cut into batches, so each is looked at alone.
    fn note_changes(&mut self, at: Position, before: (u64, bool)) {
        let entry = std::mem::take(&mut self.entry);
        if !entry.is_empty() || before != self.marks() {
            self.state.revision = at.index;
        }
        self.changes.rows.extend(entry.rows);
        self.changes.work.extend(entry.work);
        self.changes.leases.extend(entry.leases);
        self.changes.replicas |= entry.replicas;
        if let Some((first, after)) = entry.events {
            let first = self.changes.events.map_or(first, |(first, _)| first);
            self.changes.events = Some((first, after));
        }
    }

    /// What changes without being in a change set.
    fn marks(&self) -> (u64, bool) {
        (self.state.audit.last_seq, self.state.formation.is_some())
    }
}
