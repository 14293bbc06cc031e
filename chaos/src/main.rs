//! The fault rig.
fn main() {}
