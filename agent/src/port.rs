//! The runtime port that session and convergence go through: the one all rooms share.

pub use palisade_state::port::{Rt, Runtime, timeout};
