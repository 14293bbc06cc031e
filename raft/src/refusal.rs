//! Why a command or a read was not answered, between replicas.

use palisade_state::StoreError;

use crate::peer::wire;

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Certain that nothing was applied: ask whoever leads.
    NotLeader,
    /// Certain that nothing was applied: this replica leads, and no majority has answered it for so many milliseconds.
    NoQuorum(u64),
    /// It was proposed and its fate is unknown.
    Unknown,
    /// The leader's disk is nearly full: whose it is, what is free and what must be.
    NoSpace(String),
    /// It is over a limit.
    TooLarge(String),
    /// The replica is stopping or has a fault.
    Unavailable(String),
    /// It would be refused everywhere.
    Invalid(String),
}

type Why = wire::refusal::Why;

impl From<Refusal> for wire::Refusal {
    fn from(refusal: Refusal) -> Self {
        let (why, detail) = match refusal {
            Refusal::NotLeader => (Why::NotLeader, String::new()),
            Refusal::NoQuorum(silent_ms) => (Why::NoQuorum, silent_ms.to_string()),
            Refusal::Unknown => (Why::Unknown, String::new()),
            Refusal::NoSpace(what) => (Why::NoSpace, what),
            Refusal::TooLarge(what) => (Why::TooLarge, what),
            Refusal::Unavailable(what) => (Why::Unavailable, what),
            Refusal::Invalid(what) => (Why::Invalid, what),
        };
        Self { why: why.into(), detail }
    }
}

impl From<wire::Refusal> for Refusal {
    fn from(refusal: wire::Refusal) -> Self {
        let detail = refusal.detail;
        match Why::try_from(refusal.why) {
            Ok(Why::NotLeader) => Self::NotLeader,
            Ok(Why::NoQuorum) => Self::NoQuorum(detail.parse().unwrap_or_default()),
            // A reason of a newer build: nothing can be assumed.
            Ok(Why::Unknown) | Err(_) => Self::Unknown,
            // An older build does not say more.
            Ok(Why::NoSpace) if detail.is_empty() => Self::NoSpace("it does not say more".into()),
            Ok(Why::NoSpace) => Self::NoSpace(detail),
            Ok(Why::TooLarge) => Self::TooLarge(detail),
            Ok(Why::Unavailable) => Self::Unavailable(detail),
            Ok(Why::Invalid) => Self::Invalid(detail),
        }
    }
}

impl Refusal {
    /// What the caller of the store is told; `waited_ms` is how long it waited for a leader.
    pub(crate) fn into_store_error(self, waited_ms: u64) -> StoreError {
        match self {
            Self::NotLeader | Self::NoQuorum(_) => StoreError::NoQuorum { waited_ms },
            Self::Unknown => StoreError::Unknown,
            Self::NoSpace(what) => StoreError::NoSpace(what),
            Self::TooLarge(what) => StoreError::TooLarge(what),
            Self::Unavailable(what) => StoreError::Unavailable(what),
            Self::Invalid(what) => StoreError::Invalid(what),
        }
    }
}
