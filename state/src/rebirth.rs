//! A new life for a state: restore and recovery.

use crate::{
    roster::{ENROLMENTS, REPLICAS},
    state::{Formation, State},
};

/// The state of the cluster that goes on from `state` under another identity. What belongs to the
/// replicas of the old life goes: worker sessions, leases, replica reports, and the roster: who was
/// removed, drained or enrolled there says nothing about the new life's replicas, which may have the
/// same ids. Everything else is kept, the position in the log among it, so that ids that are given
/// from it stay new.
///
/// The epoch must be higher than the old one, so that the new life's fences outrank every fence
/// that an agent remembers.
#[must_use]
pub fn rebirth(mut state: State, formation: Formation) -> State {
    debug_assert!(
        state.formation.is_none() || formation.epoch > state.epoch(),
        "I2: fences of a new life are above those of the old one"
    );
    state.formation = Some(formation.into());
    state.sessions.clear();
    state.leases.clear();
    state.replicas.clear();
    for table in [REPLICAS.name(), ENROLMENTS.name()] {
        state.tables.remove(table);
    }
    state
}
