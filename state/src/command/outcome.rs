//! What apply answers.

use prost::{Message, Oneof};

use super::FenceWire;

/// What apply answered for one command.
#[derive(Clone, PartialEq, Message)]
pub struct Outcome {
    /// The revision at which it was applied, first applied, or refused.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// What happened.
    #[prost(oneof = "Verdict", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub verdict: Option<Verdict>,
}

impl Outcome {
    /// An outcome.
    #[must_use]
    pub fn new(revision: u64, verdict: Verdict) -> Self {
        Self { revision, verdict: Some(verdict) }
    }

    /// Whether the command's effects are in state, by this proposal or an earlier one.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        matches!(self.verdict, Some(Verdict::Applied(_) | Verdict::Replayed(_)))
    }
}

/// The kinds of outcome.
#[derive(Clone, PartialEq, Oneof)]
pub enum Verdict {
    /// Applied; the transaction's response.
    #[prost(bytes = "vec", tag = "2")]
    Applied(Vec<u8>),
    /// An earlier proposal under the same idempotency key was applied; its response.
    #[prost(bytes = "vec", tag = "3")]
    Replayed(Vec<u8>),
    /// The idempotency key was used for another request.
    #[prost(message, tag = "4")]
    IdempotencyMismatch(IdempotencyMismatch),
    /// The lease is not held as the transaction says.
    #[prost(message, tag = "5")]
    Fenced(Fenced),
    /// Something that was read has changed.
    #[prost(message, tag = "6")]
    Conflict(Conflict),
    /// The command breaks a rule of the kernel; a programming error of its builder.
    #[prost(string, tag = "7")]
    Invalid(String),
    /// The leader's own proposal from another term.
    #[prost(message, tag = "8")]
    Dropped(Dropped),
    /// Another run of the same work was committed first.
    #[prost(message, tag = "9")]
    Superseded(Superseded),
    /// The command is over a limit.
    #[prost(message, tag = "10")]
    TooLarge(TooLarge),
}

/// See [`Verdict::TooLarge`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TooLarge {
    /// What is too large, with its name.
    #[prost(string, tag = "1")]
    pub what: String,
    /// What is counted.
    #[prost(string, tag = "2")]
    pub unit: String,
    /// How large it is.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// What is allowed.
    #[prost(uint64, tag = "4")]
    pub limit: u64,
}

/// See [`Verdict::Superseded`].
#[derive(Clone, PartialEq, Message)]
pub struct Superseded {
    /// The reconciler's name.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// What it looked at.
    #[prost(string, tag = "2")]
    pub key: String,
}

/// See [`Verdict::IdempotencyMismatch`].
#[derive(Clone, PartialEq, Message)]
pub struct IdempotencyMismatch {}

/// See [`Verdict::Fenced`].
#[derive(Clone, PartialEq, Message)]
pub struct Fenced {
    /// The lease.
    #[prost(string, tag = "1")]
    pub lease: String,
    /// Its fence now; absent: nobody holds it.
    #[prost(message, optional, tag = "2")]
    pub current: Option<FenceWire>,
    /// Why, in a clause.
    #[prost(string, tag = "3")]
    pub why: String,
}

/// See [`Verdict::Conflict`].
#[derive(Clone, PartialEq, Message)]
pub struct Conflict {
    /// The table.
    #[prost(string, tag = "1")]
    pub table: String,
    /// The key that changed, or the start of the range in which something did.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
}

/// See [`Verdict::Dropped`].
#[derive(Clone, PartialEq, Message)]
pub struct Dropped {
    /// The term in which it was proposed.
    #[prost(uint64, tag = "1")]
    pub proposer_term: u64,
    /// The term in which it was appended.
    #[prost(uint64, tag = "2")]
    pub entry_term: u64,
}
