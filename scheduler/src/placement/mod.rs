//! Placement: which node an instance goes to.
