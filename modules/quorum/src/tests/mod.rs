//! The module on a kernel in memory, beside those that it asks and one that has something to destroy.

mod commands;
mod ends;
mod findings;
mod hands;
mod inputs;
mod own;
mod release;
mod walk;
mod world;
