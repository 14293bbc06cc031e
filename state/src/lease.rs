//! Leases: which worker may act on what, handed out by the state machine itself.
//!
//! # Invariants
//! - `I1` At each revision a lease has one owner and one fence.
//! - `I2` The fences of one lease only increase.
//! - `I3` No transaction is applied under a fence that is not current: owner, incarnation and fence
//!   must be exactly the lease's, and the entry must have been appended in the fence's own term.
//! - `I5` Once a worker lives that can hold a lease, the lease has an owner at the next entry that
//!   lets time pass after the old owner's session ended.

use imbl::OrdMap;

use crate::{
    change::Changes,
    command::{FenceCheck, Fenced, LeaseRelease, Role, WorkerBeat},
    fence::Fence,
    limits::{HANDOFF_MS, SESSION_MS},
    planted::{self, Defect},
    shard::{SHARDS, Shard, rendezvous_weight},
    state::{Name, Position, State},
};

/// A named ownership of work.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lease {
    /// The worker that holds it.
    pub owner: Name,
    /// That worker's incarnation.
    pub incarnation: u64,
    /// The role whose workers may hold it.
    pub role: Role,
    /// What orders its holders.
    pub fence: Fence,
    /// Set while the owner is asked to give it up.
    pub handoff: Option<Handoff>,
}

/// A planned change of owner.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handoff {
    /// The successor.
    pub to: Name,
    /// Logical milliseconds at which the lease moves even if it was not released.
    pub deadline_ms: u64,
}

/// A live worker.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Session {
    /// Which start of the worker.
    pub incarnation: u64,
    /// Logical milliseconds at which it ends unless it is renewed.
    pub expires_ms: u64,
    /// It is going away.
    pub draining: bool,
    /// It takes shard leases.
    pub sharded: bool,
    /// The singleton leases that it can hold.
    pub singletons: Vec<Name>,
}

impl serde::Serialize for Role {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(*self as i32)
    }
}

impl<'de> serde::Deserialize<'de> for Role {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = <i32 as serde::Deserialize>::deserialize(deserializer)?;
        Self::try_from(number).map_err(serde::de::Error::custom)
    }
}

/// Checks a transaction's fence (`I3`).
pub(crate) fn check(state: &State, entry_term: u64, held: &FenceCheck) -> Result<(), Fenced> {
    let refuse = |current: Option<Fence>, why: &str| Fenced {
        lease: held.lease.clone(),
        current: current.map(Into::into),
        why: why.to_owned(),
    };
    let Some(lease) = state.leases.get(held.lease.as_str()) else {
        return Err(refuse(None, "nobody holds it"));
    };
    let fence = held.fence.map(Fence::from).unwrap_or_default();
    if lease.owner.as_ref() != held.worker || lease.incarnation != held.incarnation {
        return Err(refuse(Some(lease.fence), "another worker holds it"));
    }
    if lease.fence != fence {
        return Err(refuse(Some(lease.fence), "it was granted again under a newer fence"));
    }
    if fence.term != entry_term {
        return Err(refuse(Some(lease.fence), "an election came after the fence"));
    }
    Ok(())
}

/// Whether a fence is the current one of a lease whose owner lives, in the term and the life of the
/// cluster at `at`: what [`check`] comes to, for an assertion.
pub(crate) fn is_current(state: &State, at: Position, held: &FenceCheck) -> bool {
    let lease = state.leases.get(held.lease.as_str());
    lease.is_some_and(|lease| {
        let session = state.sessions.get(&(lease.role, lease.owner.clone()));
        let Fence { epoch, term, index } = lease.fence;
        let owner = (lease.owner.as_ref(), lease.incarnation);
        owner == (held.worker.as_str(), held.incarnation)
            && held.fence.map(Fence::from) == Some(lease.fence)
            && (epoch, term) == (state.epoch(), at.term)
            && index < at.index
            && session.is_some_and(|session| session.incarnation == lease.incarnation)
    })
}

/// Lets time pass, and creates or renews a session. `Err` when a newer incarnation of the worker lives.
pub(crate) fn beat(
    state: &mut State,
    at: Position,
    beat: &WorkerBeat,
    role: Role,
    changes: &mut Changes,
) -> Result<(), Fenced> {
    let worker: Name = beat.worker.as_str().into();
    let id = (role, worker.clone());
    let session = Session {
        incarnation: beat.incarnation,
        expires_ms: state.clock.now_ms.saturating_add(SESSION_MS),
        draining: beat.draining,
        sharded: beat.sharded,
        singletons: beat.singletons.iter().map(|name| name.as_str().into()).collect(),
    };
    let now_ms = state.clock.now_ms;
    let replaces = state
        .sessions
        .get(&id)
        .is_some_and(|before| before.expires_ms > now_ms && before.incarnation < beat.incarnation);
    if replaces {
        // First of all: what others lose at this entry must not be granted to the old incarnation and then, under the
        // same fence, to the new one (I1, I2).
        state.sessions.insert(id.clone(), session.clone());
    }
    pass_time(state, at, changes);
    let before = state.sessions.get(&id).filter(|_| !replaces).cloned();
    if before.as_ref().is_some_and(|session| session.incarnation > beat.incarnation) {
        return Err(Fenced {
            lease: String::new(),
            current: None,
            why: "a newer incarnation of this worker lives".to_owned(),
        });
    }
    let same_membership = before
        .is_some_and(|before| Session { expires_ms: session.expires_ms, ..before } == session);
    state.sessions.insert(id, session);
    reconfirm(state, at, &worker, beat.incarnation, role, changes);
    if !same_membership {
        rebalance(state, at, role, changes);
    }
    Ok(())
}

/// Gives released leases to their successors, or ends a session that leaves.
pub(crate) fn release(
    state: &mut State,
    at: Position,
    release: &LeaseRelease,
    role: Role,
    changes: &mut Changes,
) {
    let id = (role, Name::from(release.worker.as_str()));
    let is_current = state.sessions.get(&id).is_some_and(|s| s.incarnation == release.incarnation);
    if !is_current {
        return;
    }
    for held in &release.leases {
        let fence = held.fence.map(Fence::from).unwrap_or_default();
        let matches = state.leases.get(held.lease.as_str()).is_some_and(|lease| {
            lease.owner == id.1 && lease.incarnation == release.incarnation && lease.fence == fence
        });
        if matches {
            complete_handoff(state, at, &Name::from(held.lease.as_str()), changes);
        }
    }
    if release.leave {
        state.sessions.remove(&id);
        rebalance(state, at, role, changes);
    }
}

/// Ends sessions and hand-offs whose time has come.
pub(crate) fn pass_time(state: &mut State, at: Position, changes: &mut Changes) {
    let now_ms = state.clock.now_ms;
    for role in [Role::Controllers, Role::Scheduler] {
        let ended: Vec<(Role, Name)> = state
            .sessions
            .iter()
            .filter(|((of, _), session)| *of == role && session.expires_ms <= now_ms)
            .map(|(id, _)| id.clone())
            .collect();
        for id in &ended {
            state.sessions.remove(id);
        }
        if !ended.is_empty() {
            rebalance(state, at, role, changes);
        }
    }
    let overdue: Vec<Name> = state
        .leases
        .iter()
        .filter(|(_, lease)| lease.handoff.as_ref().is_some_and(|h| h.deadline_ms <= now_ms))
        .map(|(name, _)| name.clone())
        .collect();
    for name in overdue {
        complete_handoff(state, at, &name, changes);
    }
    debug_assert!(
        state.sessions.values().all(|session| session.expires_ms > now_ms),
        "I5: a session outlived its time"
    );
}

/// In a new term every worker gets a whole lifetime to show itself: time stood still without a
/// leader, but the worker may have been waiting for one.
pub(crate) fn new_term(state: &mut State) {
    let until = state.clock.now_ms.saturating_add(SESSION_MS);
    let ids: Vec<(Role, Name)> = state.sessions.keys().cloned().collect();
    for id in ids {
        if let Some(session) = state.sessions.get_mut(&id) {
            session.expires_ms = session.expires_ms.max(until);
        }
    }
}

fn fence_at(state: &State, at: Position) -> Fence {
    Fence { epoch: state.epoch(), term: at.term, index: at.index }
}

fn reconfirm(
    state: &mut State,
    at: Position,
    worker: &Name,
    incarnation: u64,
    role: Role,
    changes: &mut Changes,
) {
    let fence = fence_at(state, at);
    let stale: Vec<Name> = state
        .leases
        .iter()
        .filter(|(_, lease)| {
            lease.role == role
                && lease.owner == *worker
                && lease.incarnation == incarnation
                && lease.fence.term < at.term
        })
        .map(|(name, _)| name.clone())
        .collect();
    for name in stale {
        if let Some(lease) = state.leases.get_mut(&name) {
            debug_assert!(fence > lease.fence, "I2");
            lease.fence = fence;
            changes.leases.push(name);
        }
    }
}

fn grant(
    state: &mut State,
    at: Position,
    name: &Name,
    role: Role,
    to: &Name,
    changes: &mut Changes,
) {
    let Some(session) = state.sessions.get(&(role, to.clone())) else {
        return;
    };
    let fence = fence_at(state, at);
    debug_assert!(state.leases.get(name).is_none_or(|lease| fence > lease.fence), "I2");
    let kept = state.leases.get(name).filter(|_| planted::is(Defect::FenceKept));
    let fence = kept.map_or(fence, |lease| lease.fence);
    let lease =
        Lease { owner: to.clone(), incarnation: session.incarnation, role, fence, handoff: None };
    state.leases.insert(name.clone(), lease);
    changes.leases.push(name.clone());
}

fn complete_handoff(state: &mut State, at: Position, name: &Name, changes: &mut Changes) {
    let Some(lease) = state.leases.get(name) else {
        return;
    };
    let (role, Some(handoff)) = (lease.role, lease.handoff.clone()) else {
        return;
    };
    if state.sessions.contains_key(&(role, handoff.to.clone())) {
        grant(state, at, name, role, &handoff.to, changes);
    }
}

/// The names of all leases that the role's live workers can hold.
fn wanted(sessions: &OrdMap<(Role, Name), Session>, role: Role) -> Vec<Name> {
    let of_role = || sessions.iter().filter(move |((of, _), _)| *of == role).map(|(_, s)| s);
    let mut names: Vec<Name> = Vec::new();
    if of_role().any(|session| session.sharded) {
        names.extend(
            (0..SHARDS)
                .filter_map(|n| u8::try_from(n).ok())
                .map(|n| role.shard_lease(Shard(n)).into()),
        );
    }
    names
        .extend(of_role().flat_map(|session| {
            session.singletons.iter().map(|name| singleton_lease(name).into())
        }));
    names.sort_unstable();
    names.dedup();
    names
}

/// The lease of a singleton.
#[must_use]
pub fn singleton_lease(name: &str) -> String {
    format!("singleton:{name}")
}

/// The live worker with the highest weight for a lease; one that drains only where no other is.
fn winner(sessions: &OrdMap<(Role, Name), Session>, role: Role, lease: &Name) -> Option<Name> {
    let singleton = lease.strip_prefix("singleton:");
    sessions
        .iter()
        .filter(|((of, _), session)| {
            *of == role
                && match singleton {
                    Some(name) => session.singletons.iter().any(|can| can.as_ref() == name),
                    None => session.sharded,
                }
        })
        .max_by_key(|((_, worker), session)| {
            (!session.draining, rendezvous_weight(worker, lease), worker.clone())
        })
        .map(|((_, worker), _)| worker.clone())
}

/// Makes owners what the live sessions of the role say. Only leases whose winner changed move.
fn rebalance(state: &mut State, at: Position, role: Role, changes: &mut Changes) {
    let deadline_ms = state.clock.now_ms.saturating_add(HANDOFF_MS);
    let names = wanted(&state.sessions, role);
    drop_orphans(state, role, &names, changes);
    for name in names {
        let Some(winner) = winner(&state.sessions, role, &name) else {
            continue;
        };
        if !has_live_owner(state, role, &name) {
            grant(state, at, &name, role, &winner, changes);
            continue;
        }
        let Some(lease) = state.leases.get_mut(&name) else {
            continue;
        };
        let planned = lease.handoff.take();
        let handoff = (lease.owner != winner).then(|| match &planned {
            Some(planned) if planned.to == winner => planned.clone(),
            _ => Handoff { to: winner, deadline_ms },
        });
        let changed = handoff != planned;
        lease.handoff = handoff;
        if changed {
            changes.leases.push(name);
        }
    }
    debug_assert!(
        state
            .leases
            .iter()
            .all(|(_, lease)| lease.handoff.as_ref().is_none_or(|h| h.to != lease.owner)),
        "I1: nobody is its own successor"
    );
    debug_assert!(
        wanted(&state.sessions, role).iter().all(|name| has_live_owner(state, role, name)),
        "I5: a lease that a live worker can hold has no live owner"
    );
}

/// Whether a lease is held by a worker that lives, under the incarnation that lives.
fn has_live_owner(state: &State, role: Role, name: &Name) -> bool {
    state.leases.get(name).is_some_and(|lease| {
        let session = state.sessions.get(&(role, lease.owner.clone()));
        session.is_some_and(|session| session.incarnation == lease.incarnation)
    })
}

/// A lease that no live worker can hold has no owner, instead of a dead one.
fn drop_orphans(state: &mut State, role: Role, wanted: &[Name], changes: &mut Changes) {
    let orphans: Vec<Name> = state
        .leases
        .iter()
        .filter(|(name, lease)| lease.role == role && wanted.binary_search(name).is_err())
        .map(|(name, _)| name.clone())
        .collect();
    for name in orphans {
        state.leases.remove(&name);
        changes.leases.push(name);
    }
}
