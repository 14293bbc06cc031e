//! The envelope, REST, OpenAPI, and the agent gateway.
//!
//! **Architecture invariant:** this is the only room that knows REST. Modules reach it through the
//! contract, state through the `Store` port.
#![allow(
    clippy::disallowed_macros,
    reason = "both selects of this crate are biased; the lint is raised at the crate, whatever allows stand nearer"
)]

pub mod envelope;
pub mod gateway;
pub mod json;
mod limits;
mod lists;
pub mod local;
pub mod methods;
pub mod metrics;
mod module;
pub mod openapi;
pub mod pki;
pub mod problem;
mod propose;
mod rate;
mod refused;
mod rest;
mod serve;
mod stop;
mod trace;
mod watch;

pub use envelope::Envelope;
pub use gateway::GatewayOptions;
pub use limits::{Limits, Rate};
pub use local::{LocalApi, LocalOptions};
pub use module::ServerModule;
pub use rest::BASE;
pub use serve::{ApiOptions, ApiServer, ServeError};
