//! The API from outside: real TLS connections to a server over the kernel in memory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their support end at what they did not expect"
)]

mod codes;
mod commands;
mod deadline;
mod gateway;
mod held;
mod hostile;
mod limits;
mod lists;
mod rates;
mod rest;
mod secrets;
mod support;
mod watch;
