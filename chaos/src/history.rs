//! What was seen in a run. The checks read nothing else, so that a kept history can be judged again
//! by another version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::books::{BookSeen, Books};

/// Microseconds since the run began.
pub type Micros = u64;

/// What a client wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "camelCase")]
pub enum Action {
    /// Add a row of this name. Each application adds another.
    Add {
        /// The row's name, used by no other operation.
        name: String,
    },
    /// Set a register to a value higher than all before it. Each register has one writer.
    Set {
        /// Which register.
        register: String,
        /// The value.
        value: u64,
    },
    /// Read a register.
    Get {
        /// Which register.
        register: String,
    },
    /// Give a hot key, which everybody writes, a value that no other operation gives.
    Write {
        /// Which key.
        key: String,
        /// The value.
        value: u64,
    },
    /// The same, if the key is still at this version.
    Swap {
        /// Which key.
        key: String,
        /// The version.
        at: u64,
        /// The value.
        value: u64,
    },
    /// Read a hot key.
    Read {
        /// Which key.
        key: String,
    },
}

impl Action {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::Read { .. })
    }

    /// Its kind, in one word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Add { .. } => "add",
            Self::Set { .. } => "set",
            Self::Get { .. } => "get",
            Self::Write { .. } => "write",
            Self::Swap { .. } => "swap",
            Self::Read { .. } => "read",
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum Outcome {
    /// It was acknowledged.
    Ok {
        /// The revision that the answer named.
        revision: Option<u64>,
        /// What was read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<u64>,
        /// The revision of the record that was read or written: its version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    },
    /// It was refused and is known not to be done.
    Refused {
        /// The error's code.
        code: String,
    },
    /// Nobody said; it may be done, or yet be done.
    Unknown {
        /// What was said last.
        reason: String,
    },
}

/// One operation, over all its tries under one idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Which client. A client does one thing after the other.
    pub client: u32,
    /// What it wanted.
    pub action: Action,
    /// When it began.
    pub invoked: Micros,
    /// When it ended, or was given up.
    pub ended: Micros,
    /// How often it was sent.
    pub tries: u32,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Operation {
    /// The revision of an acknowledged one.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Ok { revision, .. } => revision,
            _ => None,
        }
    }

    /// Whether it was acknowledged.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self.outcome, Outcome::Ok { .. })
    }

    /// Whether nobody knows.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Unknown { .. })
    }
}

/// A register as it was at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Its value.
    pub value: u64,
    /// How often it was written, the first time included.
    pub version: Option<u64>,
}

/// What the cluster held at the end, read when all faults were over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// How many rows there are of each name.
    pub rows: BTreeMap<String, u64>,
    /// The registers.
    pub registers: BTreeMap<String, Register>,
}

/// Whom a replica took for the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderSeen {
    /// When.
    pub at: Micros,
    /// Who said so.
    pub replica: u64,
    /// In which term.
    pub term: u64,
    /// Who leads.
    pub leader: u64,
}

/// An instance's process, as it was looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSeen {
    /// When.
    pub at: Micros,
    /// The instance's name.
    pub instance: String,
    /// Who said so: `process table` or `api`.
    pub source: String,
    /// Its process; none: it is not there.
    pub process: Option<ProcessSeen>,
}

/// One process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSeen {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from boot to its start: a number that is used again belongs to another process.
    pub start_ticks: u64,
}

/// A process of the control plane or an agent that ended although nobody ended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// When it was noticed.
    pub at: Micros,
    /// Which one.
    pub process: String,
    /// How.
    pub status: String,
    /// The end of what it wrote.
    pub log: Vec<String>,
}

/// How the quiet phase ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// Which replicas said that they are ready.
    pub ready: BTreeMap<u64, bool>,
    /// The last applied index of each.
    pub applied: BTreeMap<u64, Option<u64>>,
    /// How many instances are wanted.
    pub wanted: u64,
    /// How many the cluster says are healthy.
    pub healthy: u64,
    /// Which replicas are to be the voters; empty: not asked.
    #[serde(default)]
    pub seated: Vec<u64>,
    /// Who votes, as each replica knows it.
    #[serde(default)]
    pub voters: BTreeMap<u64, Vec<u64>>,
    /// Whether the instances went when their workload was removed at last; none: not asked.
    #[serde(default)]
    pub removed: Option<bool>,
}

/// What became of a replica whose data was damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "became", rename_all = "camelCase")]
pub enum Became {
    /// It serves.
    Ready,
    /// It ended by itself.
    Refused {
        /// How.
        status: String,
    },
    /// It runs and does not serve.
    Stuck,
}

/// A file that was damaged while its replica was down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Damaged {
    /// When it was known what became of it.
    pub at: Micros,
    /// Whose file.
    pub replica: String,
    /// Which file, below the replica's directory.
    pub file: String,
    /// What was done to it.
    pub what: String,
    /// What became of the replica.
    #[serde(flatten)]
    pub became: Became,
    /// The end of what it said when it refused.
    pub said: Vec<String>,
    /// Whether it came back by a repair; none: there was no need.
    pub rejoined: Option<bool>,
}

/// What was seen in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// All operations of all clients.
    pub operations: Vec<Operation>,
    /// What was there at the end; none: it could not be read.
    pub ending: Option<Ending>,
    /// Leaders.
    pub leaders: Vec<LeaderSeen>,
    /// Instances.
    pub instances: Vec<InstanceSeen>,
    /// Processes that ended by themselves.
    pub exits: Vec<Exit>,
    /// Files that were damaged.
    #[serde(default)]
    pub damaged: Vec<Damaged>,
    /// What nodes held while clients worked.
    #[serde(default)]
    pub held: Vec<BookSeen>,
    /// What the cluster says of itself at the end; none: it was not read.
    #[serde(default)]
    pub books: Option<Books>,
    /// The quiet phase; none: it was not reached.
    pub quiet: Option<Quiet>,
}
