//! The API from outside: real TLS connections to a server over the kernel in memory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their support end at what they did not expect"
)]

mod gateway;
mod limits;
mod rest;
mod support;
mod watch;
