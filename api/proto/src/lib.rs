//! The agent wire: generated messages, the gateway's client and server.
//!
//! The messages are documented in `proto/agent.proto`; numbers are never reused.

/// Version 1 of the agent protocol.
pub mod agent {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    tonic::include_proto!("palisade.agent.v1");

    /// Without what it holds.
    impl std::fmt::Debug for Secret {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let Self { asked, value: _, code, message } = self;
            let mut shown = f.debug_struct("Secret");
            shown.field("asked", asked).field("code", code).field("message", message);
            shown.finish_non_exhaustive()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::agent::{Down, Secret, down::Msg};

    #[test]
    fn a_message_with_a_secret_does_not_show_it() {
        let secret = Secret { value: b"canary".to_vec(), ..Secret::default() };
        let shown = format!("{:?}", Down { msg: Some(Msg::Secret(secret)) });
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "SEC-1: {shown}");
    }
}
