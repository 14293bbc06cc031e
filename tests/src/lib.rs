//! The binary from outside.
