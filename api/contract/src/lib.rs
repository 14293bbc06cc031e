//! The module contract: what a module is, what it is given, and the words it shares with others.
//!
//! **Architecture invariant:** no transport and no consensus in here. A module reaches the rest of
//! the system only through the ports on its context.

pub mod approvals;
pub mod audit;
pub mod changes;
pub mod command;
pub mod context;
pub mod error;
pub mod events;
pub mod fields;
pub mod host;
pub mod id;
pub mod input;
pub mod life;
pub mod method;
pub mod module;
pub mod node;
pub mod node_spec;
pub mod past;
pub mod pki;
pub mod ports;
pub mod registry;
pub mod secrets;
pub mod tenants;
pub mod time;
pub mod waking;

pub use command::{Command, CommandKind, CommandRequest, CommandResult, CommandState};
pub use context::{Cancelled, Context, MethodContext, Principal, ReconcileContext};
pub use error::{Code, Error, Problem, Result};
pub use events::{CloudEvent, EventSink, RegisteredSink};
pub use id::{CommandId, InstanceId, NodeId, SessionId, WorkloadId};
pub use input::{Check, Nothing, Problems};
pub use life::Running;
pub use method::{Binding, Handler, Method, MethodKind, Resource, Verb, Watched};
pub use module::{
    Catalog, Finding, Migration, Module, Periodic, Reconciler, Run, Severity, ShardBy,
    StatusHandler, Sweep,
};
pub use past::When;
pub use registry::Registry;
pub use secrets::{SecretBytes, SecretRef};
