//! A state on its way into a new life.

use palisade_state::{
    Formation, Machine, Position, ReplicaId, State, Tx, Verdict, View,
    command::{Entry, FORMAT},
    rebirth, roster,
};

use super::OfflineError;

/// A state that belongs to a new life of its cluster.
pub struct Reborn {
    machine: Machine,
    before: View,
}

impl Reborn {
    /// The state under its new identity; see [`rebirth`].
    #[must_use]
    pub fn new(state: State, formation: Formation) -> Self {
        let before = Machine::new(state.clone()).published().view();
        Self { machine: Machine::new(rebirth(state, formation)), before }
    }

    /// Whether the old life gave this id to a replica that joined it. Its events and audit records name it, so nobody
    /// else is to be called that.
    #[must_use]
    pub fn was_given(&self, replica: ReplicaId) -> bool {
        !matches!(roster::enrolment(&self.before, replica), Ok(None))
    }

    /// The state.
    #[must_use]
    pub fn view(&self) -> View {
        self.machine.published().view()
    }

    /// Applies one transaction that was built on [`Reborn::view`], as the entry behind the last one.
    ///
    /// # Errors
    /// It cannot be built, or the kernel refuses it.
    pub fn commit(&mut self, wall_ms: u64, tx: Tx) -> Result<(), OfflineError> {
        let Position { term, index } = self.machine.applied();
        let entry = Entry {
            format: FORMAT,
            proposer_term: term,
            delta_ms: 0,
            wall_ms,
            commands: vec![tx.build()?.into()],
        };
        let applied = self.machine.apply(Position { term, index: index + 1 }, entry);
        let outcomes = applied.map_err(|error| OfflineError::Refused(error.to_string()))?;
        self.machine.publish();
        match outcomes.into_iter().next().and_then(|outcome| outcome.verdict) {
            Some(Verdict::Applied(_)) => Ok(()),
            other => Err(OfflineError::Refused(format!("{other:?}"))),
        }
    }
}
