//! Who the control plane's members are, and how that changes.
//!
//! A change is asked of any replica and made by the leader: [`leader`] and `requests` answer, [`keeper`] does by itself
//! what nobody asks for (promoting, giving up, finishing what a dead leader began), [`ask`] finds the leader.
//!
//! # Invariants
//! - `MEMBER-2` Two changes never overlap: one leader makes them one by one, and openraft refuses a second one.
//! - `MEMBER-3` A change that a majority of the voters after it does not answer is made by force only.
//! - `MEMBER-5` A member that came with an enrolment has a row in the roster, whoever led when it came, and an enrolment
//!   that somebody came with is never forgotten.
//! - `MEMBER-8` Who answers is found out after a change was asked for: a replica that died a moment before is not counted
//!   on. A change that waits for it would stop all writes.
//! - `MEMBER-7` Changes are taken from members; whoever was enrolled may say hello. A farewell is taken from voters.

pub(crate) mod ask;
pub(crate) mod door;
pub(crate) mod enrol;
pub(crate) mod health;
pub(crate) mod keeper;
pub(crate) mod leader;
mod requests;

use std::{sync::Arc, time::Duration};

use palisade_state::ReplicaId;

pub(crate) use self::{ask::Asking, door::Doorkeeper, leader::Members};
use crate::{options::Member, peer::wire, revoked::RevokedKeys};

/// Times and bounds of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipTuning {
    /// How often the leader looks at its members.
    pub check: Duration,
    /// A member that answered within this time is healthy.
    pub answer_within: Duration,
    /// A learner that is at most so many entries behind is caught up.
    pub promote_lag: u64,
    /// How long a learner is caught up and healthy before it votes.
    pub promote_after: Duration,
    /// A learner that makes no progress for so long is given up.
    pub learner_timeout: Duration,
    /// An enrolment that nobody came with for so long is forgotten.
    pub enrolment_life: Duration,
    /// How long a change may take before its caller is told that it goes on.
    pub change_within: Duration,
}

impl Default for MembershipTuning {
    fn default() -> Self {
        Self {
            check: Duration::from_millis(500),
            answer_within: Duration::from_secs(2),
            promote_lag: 1_000,
            promote_after: Duration::from_secs(10),
            learner_timeout: Duration::from_secs(600),
            enrolment_life: Duration::from_secs(24 * 3600),
            change_within: Duration::from_secs(10),
        }
    }
}

/// What only replicas may hold, by name; asked for each time.
pub type Vault = Arc<dyn Fn() -> std::io::Result<Vec<(String, Vec<u8>)>> + Send + Sync>;

/// What a replica knows of the others, and what they may have from it.
#[derive(Clone, Default)]
pub struct Neighbours {
    /// Where members may be reached although their records say otherwise.
    pub hints: Vec<Member>,
    /// Where this replica is reached now (`host:port` for peers, then for operators), if its record is to say so.
    pub advertise: Option<(String, String)>,
    /// What a replica that joins is given.
    pub vault: Option<Vault>,
    /// Whom it refuses by what it knows itself, from its start on. `PEER-6`
    pub revoked: Option<RevokedKeys>,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours")
            .field("hints", &self.hints)
            .field("advertise", &self.advertise)
            .finish_non_exhaustive()
    }
}

/// A change of the control plane's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Gives the holder of a key an id with which it may join; the same key gets the same id.
    Enrol {
        /// SHA-256 of its public key, hex.
        key: String,
        /// Where its peers will reach it.
        peer_addr: String,
        /// Where operators and agents will reach it.
        api_addr: String,
        /// The member whose place it takes.
        replaces: Option<ReplicaId>,
    },
    /// Takes a replica out for good.
    Remove {
        /// Which.
        replica: ReplicaId,
        /// Although it is at the quorum's risk.
        force: bool,
    },
    /// Notes where a replica is reached now.
    SetAddress {
        /// Which.
        replica: ReplicaId,
        /// For peers; empty: as it is.
        peer_addr: String,
        /// For operators and agents; empty: as it is.
        api_addr: String,
    },
    /// Lets another replica lead.
    TransferLeader {
        /// Which; absent: whoever is best.
        to: Option<ReplicaId>,
    },
    /// Takes leadership, leases and agents from a replica, or lets it have them again.
    Drain {
        /// Which.
        replica: ReplicaId,
        /// It may have them again.
        undo: bool,
    },
}

impl Change {
    /// Whether making it twice does no more than making it once.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self, Self::TransferLeader { to: None })
    }

    pub(crate) fn to_wire(&self) -> wire::manage_request::Change {
        use wire::manage_request::Change as Wire;
        match self.clone() {
            Self::Enrol { key, peer_addr, api_addr, replaces } => {
                let replaces = replaces.map_or(0, |id| id.0);
                Wire::Enrol(wire::EnrolReplica { key, peer_addr, api_addr, replaces })
            }
            Self::Remove { replica, force } => {
                Wire::Remove(wire::RemoveReplica { replica: replica.0, force })
            }
            Self::SetAddress { replica, peer_addr, api_addr } => {
                Wire::SetAddress(wire::SetAddress { replica: replica.0, peer_addr, api_addr })
            }
            Self::TransferLeader { to } => {
                let to = to.map_or(0, |id| id.0);
                Wire::TransferLeader(wire::TransferLeader { to })
            }
            Self::Drain { replica, undo } => {
                Wire::Drain(wire::DrainReplica { replica: replica.0, undo })
            }
        }
    }
}

/// What a change came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managed {
    /// The replica that it was about: the enrolled one, the new leader.
    pub replica: ReplicaId,
    /// What was done, or what it means, in a sentence.
    pub note: String,
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Nobody leads, or nobody who does was reached.
    NoLeader,
    /// No replica has that id.
    UnknownReplica,
    /// It was removed.
    Removed,
    /// It does not vote.
    NotAVoter,
    /// Without it nobody votes.
    LastVoter,
    /// It puts the quorum at risk; `force` makes it all the same.
    AtRisk,
    /// The replica that it needs does not answer or is behind.
    NotHealthy,
    /// Another change is on its way.
    Busy,
    /// It cannot be.
    Invalid,
    /// The leader cannot do it now.
    Unavailable,
    /// It was begun, and whether it is done is not known.
    Unknown,
    /// An address in it cannot be.
    Address,
    /// The replica that it needs is drained.
    Drained,
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ManageError {
    /// In a word.
    pub why: Why,
    /// In a sentence, with what to do.
    pub detail: String,
}

impl ManageError {
    pub(crate) fn new(why: Why, detail: impl Into<String>) -> Self {
        Self { why, detail: detail.into() }
    }
}

type WireWhy = wire::manage_refusal::Why;

impl From<Why> for WireWhy {
    fn from(why: Why) -> Self {
        match why {
            Why::NoLeader => Self::NotLeader,
            Why::UnknownReplica => Self::UnknownReplica,
            Why::Removed => Self::Removed,
            Why::NotAVoter => Self::NotAVoter,
            Why::LastVoter => Self::LastVoter,
            Why::AtRisk => Self::AtRisk,
            Why::NotHealthy => Self::NotHealthy,
            Why::Busy => Self::Busy,
            Why::Invalid => Self::Invalid,
            Why::Unavailable => Self::Unavailable,
            Why::Unknown => Self::Unknown,
            Why::Address => Self::Address,
            Why::Drained => Self::Drained,
        }
    }
}

impl From<WireWhy> for Why {
    fn from(why: WireWhy) -> Self {
        match why {
            WireWhy::NotLeader => Self::NoLeader,
            WireWhy::UnknownReplica => Self::UnknownReplica,
            WireWhy::Removed => Self::Removed,
            WireWhy::NotAVoter => Self::NotAVoter,
            WireWhy::LastVoter => Self::LastVoter,
            WireWhy::AtRisk => Self::AtRisk,
            WireWhy::NotHealthy => Self::NotHealthy,
            WireWhy::Busy => Self::Busy,
            WireWhy::Invalid => Self::Invalid,
            WireWhy::Unavailable => Self::Unavailable,
            WireWhy::Unknown => Self::Unknown,
            WireWhy::Address => Self::Address,
            WireWhy::Drained => Self::Drained,
        }
    }
}

pub(crate) type Result<T = Managed> = std::result::Result<T, ManageError>;

pub(crate) fn reply(result: Result) -> wire::ManageReply {
    use wire::manage_reply::Result as Reply;
    let result = match result {
        Ok(Managed { replica, note }) => Reply::Managed(wire::Managed { replica: replica.0, note }),
        Err(ManageError { why, detail }) => Reply::Refusal(wire::ManageRefusal {
            why: WireWhy::from(why).into(),
            detail,
            ..wire::ManageRefusal::default()
        }),
    };
    wire::ManageReply { result: Some(result) }
}
