//! The inventory module.
