//! The agent from outside its modules: real processes, a real gateway over TLS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod converging;
mod driver;
mod joining;
mod secrets;
mod sessions;
mod support;
