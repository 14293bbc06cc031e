//! Palisade as a library: the one binary's verbs, its REST client, and how a cluster is begun.

pub mod builder;
pub mod cli;
pub mod client;
pub mod context_file;
pub mod dev;
pub mod edge;
mod history_port;
pub mod init;
mod join;
mod life;
pub mod limits_config;
pub mod log;
mod members;
pub mod output;
mod pki_files;
pub mod recovery;
pub mod replica_dir;
pub mod secret;
mod secret_keys;
pub mod serve;
pub mod webhooks_config;

pub use builder::Builder;
