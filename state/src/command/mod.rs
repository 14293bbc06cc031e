//! What goes on the log and over the wire: entries, commands and their outcomes.
//!
//! These are protobuf messages (prost): append-only, numbers are never reused, and an entry names
//! the format it was written in. An entry of a newer format stops the replica; see
//! [`crate::machine::Machine::apply`].

mod outcome;

use prost::{Message, Oneof};

pub use outcome::{
    Conflict, Dropped, Fenced, IdempotencyMismatch, Outcome, Superseded, TooLarge, Verdict,
};

/// The newest entry format that this build reads and the one that it writes.
pub const FORMAT: u32 = 1;

/// The payload of one Raft entry.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// The format it was written in.
    #[prost(uint32, tag = "1")]
    pub format: u32,
    /// The term in which its proposer led. Apply drops what is the leader's own (time, ticks)
    /// when the entry was appended in another.
    #[prost(uint64, tag = "2")]
    pub proposer_term: u64,
    /// Monotonic milliseconds since the entry that the proposer applied or proposed before.
    #[prost(uint64, tag = "3")]
    pub delta_ms: u64,
    /// The proposer's wall clock, Unix milliseconds; for people.
    #[prost(uint64, tag = "4")]
    pub wall_ms: u64,
    /// What to apply, in order. A command other than a transaction stands alone in its entry, so
    /// that a fence (epoch, term, index) names one grant.
    #[prost(message, repeated, tag = "5")]
    pub commands: Vec<Command>,
}

/// One command.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// Which one; absent: a kind that this build does not know.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub kind: Option<Kind>,
}

/// The kinds of command.
#[derive(Clone, PartialEq, Oneof)]
#[expect(clippy::large_enum_variant, reason = "nearly all commands are transactions")]
pub enum Kind {
    /// Checks and writes, all or nothing.
    #[prost(message, tag = "1")]
    Txn(Txn),
    /// Lets time pass: expiries and hand-offs happen.
    #[prost(message, tag = "2")]
    Tick(Tick),
    /// A worker lives.
    #[prost(message, tag = "3")]
    WorkerBeat(WorkerBeat),
    /// A worker gives leases up.
    #[prost(message, tag = "4")]
    LeaseRelease(LeaseRelease),
    /// Forms the cluster: the first entry of its life.
    #[prost(message, tag = "5")]
    Form(Form),
    /// A replica says what it can read and what it has made durable.
    #[prost(message, tag = "6")]
    Report(ReplicaReport),
    /// Raises the format in which entries are written.
    #[prost(message, tag = "7")]
    RaiseFormat(RaiseFormat),
    /// Lets events and audit records leave memory.
    #[prost(message, tag = "8")]
    Trim(Trim),
    /// A replica was removed from the cluster.
    #[prost(message, tag = "9")]
    ForgetReplica(ForgetReplica),
}

impl From<Kind> for Command {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl From<Txn> for Command {
    fn from(txn: Txn) -> Self {
        Kind::Txn(txn).into()
    }
}

/// The cluster's identity, applied once.
#[derive(Clone, PartialEq, Message)]
pub struct Form {
    /// One life of the replica set.
    #[prost(string, tag = "1")]
    pub cluster: String,
    /// Survives recovery and restore.
    #[prost(string, tag = "2")]
    pub lineage: String,
    /// 0 at birth.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
}

/// A tick of the leader.
#[derive(Clone, PartialEq, Message)]
pub struct Tick {}

/// What a replica reports of itself. It counts only in the term in which it was proposed, so that a
/// report that was under way through an election cannot overtake a newer one.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReplicaReport {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub replica: u64,
    /// The newest format that its build reads.
    #[prost(uint32, tag = "2")]
    pub format_max: u32,
    /// Its build's version, for people.
    #[prost(string, tag = "3")]
    pub version: String,
    /// The last event that is durable in its history.
    #[prost(uint64, tag = "4")]
    pub events_durable: u64,
    /// The last audit record that is durable in its history.
    #[prost(uint64, tag = "5")]
    pub audit_durable: u64,
}

/// Raises the active format, once every member reads it. It never goes down.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RaiseFormat {
    /// The format.
    #[prost(uint32, tag = "1")]
    pub format: u32,
    /// Every member of the cluster, learners among them, as the proposing leader knows them.
    #[prost(uint64, repeated, tag = "2")]
    pub members: Vec<u64>,
}

/// Removes a bounded step of what is below these sequence numbers and outside the window that stays
/// in memory. The leader names what a majority has durable in its history.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Trim {
    /// Events below this one may go.
    #[prost(uint64, tag = "1")]
    pub events_below: u64,
    /// Audit records below this one may go.
    #[prost(uint64, tag = "2")]
    pub audit_below: u64,
}

/// Drops what a removed replica reported.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ForgetReplica {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub replica: u64,
}

/// Which of a replica's two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Role {
    /// Runs everything but placement.
    Controllers = 0,
    /// Runs placement.
    Scheduler = 1,
}

impl Role {
    /// The prefix of the role's lease names.
    #[must_use]
    pub fn lease_prefix(self) -> &'static str {
        match self {
            Self::Controllers => "",
            Self::Scheduler => "scheduler/",
        }
    }

    /// The name of the role's lease for a shard.
    #[must_use]
    pub fn shard_lease(self, shard: crate::shard::Shard) -> String {
        format!("{}shard:{}", self.lease_prefix(), shard.0)
    }
}

/// Creates or renews a worker's session.
#[derive(Clone, PartialEq, Message)]
pub struct WorkerBeat {
    /// The worker: its replica's id.
    #[prost(string, tag = "1")]
    pub worker: String,
    /// Random for each start of the worker; a new one ends the old session.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// The role it works in.
    #[prost(enumeration = "Role", tag = "3")]
    pub role: i32,
    /// Names of the `singleton:` leases it can hold.
    #[prost(string, repeated, tag = "4")]
    pub singletons: Vec<String>,
    /// It is going away: hand its leases over.
    #[prost(bool, tag = "5")]
    pub draining: bool,
    /// Whether it takes shard leases.
    #[prost(bool, tag = "6")]
    pub sharded: bool,
}

/// Gives leases up, so that their successors get them at once.
#[derive(Clone, PartialEq, Message)]
pub struct LeaseRelease {
    /// The owner.
    #[prost(string, tag = "1")]
    pub worker: String,
    /// Its incarnation.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// The leases, with the fences that it holds.
    #[prost(message, repeated, tag = "3")]
    pub leases: Vec<HeldLease>,
    /// The role.
    #[prost(enumeration = "Role", tag = "4")]
    pub role: i32,
    /// Ends the session too: the worker stops.
    #[prost(bool, tag = "5")]
    pub leave: bool,
}

/// A lease and the fence under which it is held.
#[derive(Clone, PartialEq, Message)]
pub struct HeldLease {
    /// The lease's name.
    #[prost(string, tag = "1")]
    pub lease: String,
    /// The fence.
    #[prost(message, optional, tag = "2")]
    pub fence: Option<FenceWire>,
}

/// A fence on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FenceWire {
    /// The cluster's epoch.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// The Raft term of the granting entry.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// The log index of the granting entry.
    #[prost(uint64, tag = "3")]
    pub index: u64,
}

/// A transaction. Built by [`crate::tx::Tx`], applied by the kernel; see `txn.rs` for the order of
/// its checks.
#[derive(Clone, PartialEq, Message)]
pub struct Txn {
    /// Makes it safe to propose twice.
    #[prost(message, optional, tag = "1")]
    pub idempotency: Option<Idempotency>,
    /// The lease under which it is written.
    #[prost(message, optional, tag = "2")]
    pub fence: Option<FenceCheck>,
    /// The revision of the view it was built on.
    #[prost(uint64, tag = "3")]
    pub view_rev: u64,
    /// Rows that must be as they were read.
    #[prost(message, repeated, tag = "4")]
    pub points: Vec<PointCheck>,
    /// Ranges in which nothing may have changed.
    #[prost(message, repeated, tag = "5")]
    pub ranges: Vec<RangeCheck>,
    /// Puts and deletes, index rows among them.
    #[prost(message, repeated, tag = "6")]
    pub writes: Vec<Write>,
    /// Work to be done.
    #[prost(message, repeated, tag = "7")]
    pub enqueues: Vec<Enqueue>,
    /// Work that is done.
    #[prost(message, repeated, tag = "8")]
    pub finishes: Vec<Finish>,
    /// Work that is to be tried again.
    #[prost(message, repeated, tag = "9")]
    pub requeues: Vec<Requeue>,
    /// Events to publish.
    #[prost(message, repeated, tag = "10")]
    pub events: Vec<EventDraft>,
    /// The audit record to chain.
    #[prost(message, optional, tag = "11")]
    pub audit: Option<AuditDraft>,
    /// What the caller is answered; kept with the idempotency record.
    #[prost(bytes = "vec", tag = "12")]
    pub response: Vec<u8>,
    /// The work row that it is written for, with the generation at which the run began: the row must
    /// still be there, at that generation or a later one.
    #[prost(message, optional, tag = "13")]
    pub work: Option<Finish>,
}

/// The key under which a transaction is applied at most once.
#[derive(Clone, PartialEq, Message)]
pub struct Idempotency {
    /// Principal and method.
    #[prost(string, tag = "1")]
    pub scope: String,
    /// The caller's key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// SHA-256 of the request.
    #[prost(bytes = "vec", tag = "3")]
    pub request_hash: Vec<u8>,
}

/// The lease that must be held for the transaction to be applied.
#[derive(Clone, PartialEq, Message)]
pub struct FenceCheck {
    /// The lease's name.
    #[prost(string, tag = "1")]
    pub lease: String,
    /// Its owner.
    #[prost(string, tag = "2")]
    pub worker: String,
    /// The owner's incarnation.
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    /// The fence.
    #[prost(message, optional, tag = "4")]
    pub fence: Option<FenceWire>,
}

/// A row that was read.
#[derive(Clone, PartialEq, Message)]
pub struct PointCheck {
    /// Its table.
    #[prost(string, tag = "1")]
    pub table: String,
    /// Its key.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// The version that was read; 0: there was none.
    #[prost(uint64, tag = "3")]
    pub version: u64,
    /// The revision at which the row that was read had been made: a row that was deleted and made
    /// again has the same version but another birth.
    #[prost(uint64, tag = "4")]
    pub created_rev: u64,
}

/// A range that was scanned.
#[derive(Clone, PartialEq, Message)]
pub struct RangeCheck {
    /// Its table.
    #[prost(string, tag = "1")]
    pub table: String,
    /// First key.
    #[prost(bytes = "vec", tag = "2")]
    pub start: Vec<u8>,
    /// First key after it; absent: to the table's end.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub end: Option<Vec<u8>>,
}

/// A put or, without a value, a delete.
#[derive(Clone, PartialEq, Message)]
pub struct Write {
    /// The table.
    #[prost(string, tag = "1")]
    pub table: String,
    /// The key.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// The record.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub value: Option<Vec<u8>>,
}

/// A wake-up.
#[derive(Clone, PartialEq, Message)]
pub struct Enqueue {
    /// The reconciler's name.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// What it is to look at.
    #[prost(string, tag = "2")]
    pub key: String,
    /// Not before so long from now.
    #[prost(uint64, tag = "3")]
    pub delay_ms: u64,
}

/// The end of a run.
#[derive(Clone, PartialEq, Message)]
pub struct Finish {
    /// The reconciler's name.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// What it looked at.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The generation when it began.
    #[prost(uint64, tag = "3")]
    pub generation: u64,
}

/// The end of a run that is to be repeated.
#[derive(Clone, PartialEq, Message)]
pub struct Requeue {
    /// The reconciler's name.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// What it looked at.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The generation when it began.
    #[prost(uint64, tag = "3")]
    pub generation: u64,
    /// Not before so long from now.
    #[prost(uint64, tag = "4")]
    pub delay_ms: u64,
    /// What went wrong; empty when it only asked to run again.
    #[prost(string, tag = "5")]
    pub error: String,
}

/// An event before it has a place in the order.
#[derive(Clone, PartialEq, Message)]
pub struct EventDraft {
    /// For example `node.ready`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The tenant it concerns; empty: the cluster.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// For example `node/nd_…`.
    #[prost(string, tag = "3")]
    pub subject: String,
    /// JSON.
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
}

/// An audit record before it is chained.
#[derive(Clone, PartialEq, Message)]
pub struct AuditDraft {
    /// Who asked.
    #[prost(string, tag = "1")]
    pub actor: String,
    /// For what, `group.method`.
    #[prost(string, tag = "2")]
    pub method: String,
    /// On what.
    #[prost(string, tag = "3")]
    pub resource: String,
    /// Whose it is.
    #[prost(string, tag = "4")]
    pub tenant: String,
    /// `ok` or an error code.
    #[prost(string, tag = "5")]
    pub outcome: String,
    /// The request's id.
    #[prost(string, tag = "6")]
    pub request_id: String,
}
