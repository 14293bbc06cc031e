//! Shard ownership and the reconciler loop, migrations, the node controllers, and placement.
//!
//! **Architecture invariant:** `placement` is pure; the rest touches the world through the ports of
//! its context alone.

pub mod migrate;
mod node_controllers;
pub mod placement;
mod resync;
mod run;
pub mod worker;

pub use node_controllers::NodeControllers;
