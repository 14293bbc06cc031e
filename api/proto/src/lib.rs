//! The agent wire: generated messages, the gateway's client and server.
//!
//! The messages are documented in `proto/agent.proto`; numbers are never reused.

/// Version 1 of the agent protocol.
pub mod agent {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    tonic::include_proto!("palisade.agent.v1");
}
