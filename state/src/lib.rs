//! The kernel: one replicated state machine, pure and deterministic.
//!
//! Everything that Palisade remembers lives here, and the kernel knows nothing of nodes, workloads
//! or tenants. It has seven primitives (tables, transactions, leases, the work queue, the clock,
//! the outbox and the audit chain); modules build the rest.
//!
//! **Architecture invariant:** this crate does no I/O, reads no clock, draws no random number,
//! spawns nothing and iterates over nothing whose order is not part of state.

pub mod audit;
pub mod change;
pub mod check;
mod clock;
pub mod command;
pub mod commit;
pub mod cursor;
mod deletions;
mod fence;
mod idempotency;
pub mod key;
pub mod lease;
mod lenient;
pub mod limits;
pub mod machine;
pub mod memory;
pub mod outbox;
pub mod past;
pub mod planted;
pub mod port;
pub mod queue;
mod ranges;
mod rebirth;
mod recent;
mod record;
pub mod replicas;
pub mod roster;
pub mod shard;
pub mod snapshot;
mod state;
pub mod step;
pub mod table;
mod tx;
mod txn;
mod view;

pub use change::{ChangeSet, Watch, WatchEvent};
pub use clock::Clock;
pub use command::{Command, Outcome, Role, Txn, Verdict};
pub use fence::Fence;
pub use machine::{ApplyError, Machine, Published, Retired};
pub use port::{ReplicaId, Rt, Runtime, SharedStore, Store, StoreError};
pub use rebirth::rebirth;
pub use record::{Record, Stamp};
pub use replicas::ReplicaRow;
pub use state::{Formation, Name, Position, State};
pub use table::{Declared, Index, Table, Versioned};
pub use tx::{Tx, TxError};
pub use view::View;
