//! The capacity module.
