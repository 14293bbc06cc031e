//! Placement: which node each demand gets, as a pure function of what is known.
//!
//! The pipeline has named stages, each in its own file: [`candidates`] (may the node take it at
//! all), [`capacity`] (has it room and ports), [`strategy`] (which of those that fit), [`check`]
//! (did the plan keep its promises). Committing is the caller's.
//!
//! # Invariants
//! - `C1` No plan gives a node more than it offers, nor one port twice.
//! - `PLACE-1` A plan depends on what its input holds, not on the order in which it is given.

pub mod candidates;
pub mod capacity;
pub mod check;
pub mod cpumem;
mod misfits;
mod planner;
pub mod size;
pub mod strategy;
mod types;

pub use misfits::{MISFITS_MAX, summarised};
pub use planner::{Plan, Planner, plan};
pub use types::{ALLOCATIONS_MAX, Amount, Ask, Class, Machine, Placement};

#[cfg(test)]
mod tests;
